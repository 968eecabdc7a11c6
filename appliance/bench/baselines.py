"""Runs that were kept under a name, to compare later ones with."""

import re
from pathlib import Path

import msgspec

from appliance.bench.report import Report
from appliance.errors import BadSetting

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Baselines:
    """A folder of reports. Creates it when the first is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, name: str) -> None:
        """Raises BadSetting for what cannot name one."""
        self._path(name)

    def save(self, name: str, report: Report) -> Path:
        """Keep a report, in place of one of that name. Raises BadSetting, OSError."""
        path = self._path(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(report))
        return path

    def load(self, name: str) -> Report:
        """Return what was kept. Raises BadSetting naming what there is."""
        try:
            return msgspec.json.decode(self._path(name).read_bytes(), type=Report)
        except FileNotFoundError:
            known = ", ".join(sorted(p.stem for p in self._folder.glob("*.json"))) or "none"
            raise BadSetting(f"there is no baseline '{name}'; kept are: {known}") from None
        except msgspec.DecodeError as error:
            raise BadSetting(f"the baseline '{name}' cannot be read ({error}); save it again") from error

    def _path(self, name: str) -> Path:
        if _NAME.fullmatch(name) is None:
            raise BadSetting(f"'{name}' cannot name a baseline; use letters, digits, dots, dashes")
        return self._folder / f"{name}.json"

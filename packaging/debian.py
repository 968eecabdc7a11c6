"""`make deb`: a Debian package that installs the unpacked tree, its model, menu entry and service files.

Run after `make package`, whose tree it takes. Needs dpkg-deb.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from package import CHECKOUT, PACKAGING, WORK, say

from appliance import __version__
from appliance.catalog import Catalog
from appliance.config import Settings
from appliance.download.pull import ensure_model
from appliance.download.store import ModelStore
from appliance.service.systemd import NAME, SystemdService
from kernels.cpu.build import this_machine

APP_ID = "org.inference_appliance.Appliance"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONTROL = """\
Package: inference-appliance
Version: {version}
Architecture: {architecture}
Maintainer: The Inference Appliance project <packages@inference-appliance.invalid>
Installed-Size: {kilobytes}
Depends: libc6 (>= {glibc})
Recommends: xdg-utils
Section: utils
Priority: optional
Description: a language model served to every app on this machine
 One program that loads a language model and serves it over the interfaces that apps already
 speak, with a chat page in the browser and a dashboard in the terminal. A small model is
 inside. Nothing leaves the machine.
"""
# Only where systemd runs: a container has none.
_SCRIPTS = {
    "postinst": """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if [ -n "$2" ]; then systemctl try-restart {name}.service || true; fi  # an upgrade
fi
""",
    "prerm": """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now {name}.socket {name}.service || true
fi
""",
    "postrm": """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
    rm -rf /var/lib/private/{name} /var/lib/{name} /var/cache/private/{name} /var/cache/{name}
fi
""",
}


def main() -> None:
    tree = WORK / "dist" / "appliance"
    if not (tree / "appliance").is_file():
        raise SystemExit("there is no unpacked tree; run `make package` first")
    root = WORK / "deb"
    shutil.rmtree(root, ignore_errors=True)
    model = ensure_model(Settings().model, Catalog.load(), ModelStore(CHECKOUT / "build" / "models"))
    _lay_out(root, tree, model.path)
    output = CHECKOUT / "dist" / f"{NAME}_{__version__}_{_architecture()}.deb"
    output.parent.mkdir(exist_ok=True)
    _build(root, output)
    say(f"{output}: {output.stat().st_size / 1e6:.0f} MB")


def _lay_out(root: Path, tree: Path, model: Path) -> None:
    home = root / "usr" / "lib" / NAME
    shutil.copytree(tree, home, symlinks=True)
    (home / "_internal" / "models").mkdir()
    shutil.copyfile(model, home / "_internal" / "models" / model.name)
    program = root / "usr" / "bin" / "appliance"
    program.parent.mkdir(parents=True)
    program.symlink_to(f"../lib/{NAME}/appliance")
    for source, folder in (
        (PACKAGING / "linux" / f"{APP_ID}.desktop", "usr/share/applications"),
        (PACKAGING / "linux" / f"{APP_ID}.metainfo.xml", "usr/share/metainfo"),
        (CHECKOUT / "LICENSE", f"usr/share/doc/{NAME}"),
    ):
        _copy(source, root / folder / source.name)
    _copy(PACKAGING / "linux" / "icon.svg", root / f"usr/share/icons/hicolor/scalable/apps/{APP_ID}.svg")
    _write_units(root)


def _write_units(root: Path) -> None:
    """The machine's service, installed and not started."""
    service = SystemdService(
        ["/usr/bin/appliance", "serve", "--no-dashboard"],
        address=f"{Settings().host}:{Settings().port}",
        is_system=True,
    )
    for path, text in service.files().items():
        target = root / "usr/lib/systemd/system" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")


def _build(root: Path, output: Path) -> None:
    kilobytes = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    control = root / "DEBIAN" / "control"
    control.parent.mkdir()
    text = _CONTROL.format(
        version=__version__, architecture=_architecture(), kilobytes=kilobytes, glibc=_glibc()
    )
    control.write_text(text, "utf-8")
    for script, lines in _SCRIPTS.items():
        target = control.with_name(script)
        target.write_text(lines.replace("{name}", NAME), "utf-8")
        target.chmod(0o755)
    command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z5", "--build", str(root), str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  (the command is ours)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _architecture() -> str:
    return ARCHITECTURES[this_machine().architecture]


def _glibc() -> str:
    """The build host's: its Python asks for it."""
    import platform

    return platform.libc_ver()[1] or "2.28"


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    main()

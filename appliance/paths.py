"""Where the appliance keeps things on this machine. Creates nothing until asked; knows no settings.

The folders follow the platform's conventions (XDG on Linux), so XDG_DATA_HOME and its relatives work.
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from urllib.parse import quote

from appliance.errors import StorageNotWritable

APP_NAME = "inference-appliance"
CATALOGUE_FILE = "models.toml"
# Debian's name for the home of a user who has none: it never exists, so it is never written by accident.
NO_HOME = Path("/nonexistent")


def data_dir() -> Path:
    """Models and history."""
    return _platform_folder("user_data_dir")


def cache_dir() -> Path:
    """What can be made again."""
    return _platform_folder("user_cache_dir")


def config_dir() -> Path:
    """The settings file."""
    return _platform_folder("user_config_dir")


def state_dir() -> Path:
    """What survives a restart but is worth nothing on another machine."""
    return _platform_folder("user_state_dir")


def prompts_file(model_id: str) -> Path:
    """Where a model's prompts are recorded, if the operator asks for that."""
    return state_dir() / "prompts" / f"{quote(model_id, safe='')}.jsonl"


def log_dir() -> Path:
    """Log files."""
    return _platform_folder("user_log_dir")


def models_dir(override: Path | None = None) -> Path:
    """The folder of downloaded models: the setting `models_dir` if given, else below the data folder."""
    return data_dir() / "models" if override is None else expand_home(override).absolute()


def hf_cache_dir() -> Path:
    """Where Hugging Face's library keeps what it has downloaded."""
    cache, home = os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HOME")
    if cache or home:
        return expand_home(Path(cache) if cache else Path(str(home)) / "hub")
    return expand_home(Path("~/.cache/huggingface/hub"))


def ollama_dirs() -> tuple[Path, ...]:
    """Where Ollama keeps its models: the user's, and those of its service on Linux."""
    chosen = os.environ.get("OLLAMA_MODELS")
    return (
        expand_home(Path(chosen) if chosen else Path("~/.ollama/models")),
        Path("/usr/share/ollama/.ollama/models"),
    )


def lm_studio_dirs() -> tuple[Path, ...]:
    """Where LM Studio keeps its models, in its versions."""
    return expand_home(Path("~/.lmstudio/models")), expand_home(Path("~/.cache/lm-studio/models"))


def expand_home(path: Path) -> Path:
    """`path` with a leading `~` replaced, or as it is for a user without a home."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def settings_file() -> Path:
    return config_dir() / "settings.toml"


def keys_file() -> Path:
    """The hashes of the API keys."""
    return config_dir() / "keys.json"


def is_frozen() -> bool:
    """Whether this is the packaged executable."""
    return bool(getattr(sys, "frozen", False))


def executable_file() -> Path | None:
    """The one file that a person started, model inside; None outside a packaged build."""
    named = os.environ.get("APPLIANCE_EXECUTABLE")  # set by its launcher
    return Path(named) if named and is_frozen() else None


def program() -> list[str]:
    """The command that starts this same program."""
    executable = executable_file()
    if executable is not None:
        return [str(executable)]
    return [sys.executable] if is_frozen() else [sys.executable, "-m", "appliance"]


def shipped_model() -> Path | None:
    """The model that came with a packaged build: in its one file, or beside its libraries; None elsewhere."""
    if not is_frozen():
        return None
    return executable_file() or next(iter(sorted((resource_root() / "models").glob("*.gguf"))), None)


def native_dir() -> Path:
    """Where the compiled CPU engine is: shipped in the executable, else made in the cache."""
    return resource_root() / "native" if is_frozen() else cache_dir() / "native"


def resource_root() -> Path:
    """The folder that holds what ships beside the code: the checkout, or the unpacked executable."""
    bundle = getattr(sys, "_MEIPASS", None)
    return Path(bundle) if bundle else Path(__file__).resolve().parent.parent


def catalogue_file() -> Path:
    """The shipped models.toml: beside the packages in a checkout, else where the wheel put its data.

    Raises FileNotFoundError when the installation is incomplete.
    """
    shared = Path("share") / APP_NAME / CATALOGUE_FILE
    # In order: a checkout or the executable; a wheel; `pip install --target`; a wheel without a record.
    beside, below = resource_root() / CATALOGUE_FILE, resource_root() / shared
    candidates = [beside, *_recorded_catalogue(), below, Path(sysconfig.get_path("data")) / shared]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{CATALOGUE_FILE} is not at {' or '.join(str(c) for c in candidates)}; reinstall"
    )


def ensure_writable(folder: Path) -> Path:
    """Create `folder` if needed and prove that a file can be written in it. Returns the folder.

    Raises StorageNotWritable naming the folder, the reason and the remedy.
    """
    if folder.is_relative_to(NO_HOME):
        reason = "this user has no home folder: HOME is not set and there is no account entry"
        raise storage_error(folder, reason)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # access(2) says yes to root on some network mounts where a write then fails: so write.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise storage_error(folder, error.strerror or str(error)) from error


def storage_error(folder: Path, reason: str) -> StorageNotWritable:
    """The error of a folder that cannot be written, with its remedy."""
    remedy = "set --models-dir or XDG_DATA_HOME to a folder that can be written"
    return StorageNotWritable(f"the folder {folder} cannot be written: {reason}; {remedy}")


def _platform_folder(name: str) -> Path:
    # Imported here: `--help` needs no folder, and every millisecond of it counts.
    from platformdirs import PlatformDirs

    try:
        text: str = getattr(PlatformDirs(APP_NAME, appauthor=False), name)
    except RuntimeError:  # no HOME and no account entry
        return NO_HOME / APP_NAME / name
    # Older versions leave the "~" in such a case, which would become a folder of that name.
    return NO_HOME / APP_NAME / name if text.startswith("~") else Path(text).absolute()


def _recorded_catalogue() -> list[Path]:
    """Where the installed distribution's own record says that its models.toml lies."""
    # Imported here: it brings half the mail library with it.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution(APP_NAME).files or []
    except PackageNotFoundError:
        return []
    return [Path(str(f.locate())).resolve() for f in files if f.name == CATALOGUE_FILE]

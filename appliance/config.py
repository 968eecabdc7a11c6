"""Settings, frozen: one resolve() from defaults < TOML file < environment < flags. Nobody else reads those.

Every setting is one field below; its flag, its key in the settings file and its environment variable
(`APPLIANCE_` and the upper-case name) follow from the field, so the three can never differ.
"""

import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

from appliance.errors import BadSetting

BACKENDS = ("auto", "eager", "cpu", "cuda")
PRECISIONS = ("auto", "f32", "bf16", "f16", "int8", "int8-mixed", "int4", "nf4", "llm.int8")
ACTIVATIONS = ("auto", "int12", "mixed", "int8")
KV_DTYPES = ("auto", "f32", "bf16", "f16", "int8")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?$", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
ENVIRONMENT_PREFIX = "APPLIANCE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAmount:
    """An amount of memory: so many bytes, or a share of what is free."""

    num_bytes: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> "MemoryAmount":
        """Read `2GiB`, `500MB`, `1048576` or `60%`. Raises ValueError."""
        stripped = text.strip()
        if stripped.endswith("%"):
            share = _number(stripped[:-1]) / 100
            if not 0 < share <= 1:
                raise ValueError(f"{text} is not between 0% and 100%")
            return cls(share=share)
        match = _SIZE.match(stripped)
        if not match:
            raise ValueError(f"{text!r} is neither a size such as 2GiB nor a share such as 60%")
        return cls(num_bytes=int(float(match[1]) * _UNITS[(match[2] or "").lower()]))


def setting(
    default: object,
    help_text: str,
    *,
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    pattern: str | None = None,
) -> typing.Any:  # a dataclass field: its type is the annotation beside it
    """Declare a setting: its default, one line of help, and the bounds of its value.

    A text that `pattern` does not match whole is refused with the help.
    """
    meta = {"help": help_text, "metavar": metavar, "choices": choices, "min": minimum, "max": maximum}
    meta["pattern"] = pattern
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a user can set. None means: decided from the model and the machine."""

    model: str = setting("smollm2-135m-instruct", "catalogue name or model file", metavar="MODEL")
    host: str = setting("127.0.0.1", "address to listen on; any but loopback needs an API key")
    port: int = setting(11500, "port to listen on; 0 takes a free one", minimum=0, maximum=65535)
    backend: str = setting("auto", "how forward passes run", choices=BACKENDS)
    device: str = setting(
        "auto", "auto, cpu, cuda or cuda:N", metavar="DEVICE", pattern=r"auto|cpu|cuda(:\d+)?"
    )
    precision: str = setting("auto", "precision of the weights", choices=PRECISIONS)
    activations: str = setting(
        "auto",
        "activations on a CPU: int12 (auto with AMX, prompts bf16), mixed (auto elsewhere), int8 (fastest)",
        choices=ACTIVATIONS,
    )
    kv_dtype: str = setting("auto", "precision of the KV cache", choices=KV_DTYPES)
    kv_memory: MemoryAmount | None = setting(
        None, "KV pool: a size or a share of free memory", metavar="2GiB|60%"
    )
    swap_memory: MemoryAmount | None = setting(
        None, "main memory where preempted requests wait on a GPU: a size, or a share of free", metavar="SIZE"
    )
    context: int | None = setting(None, "longest sequence in tokens; the model's own by default", minimum=16)
    max_sequences: int = setting(32, "most sequences generated at once", minimum=1, maximum=4096)
    step_tokens: int = setting(512, "most tokens computed in one step", minimum=16, maximum=65536)
    threads: int | None = setting(None, "CPU threads; every core by default", minimum=1, maximum=1024)
    queue: int = setting(256, "most requests waiting in a service class; more are answered 429", minimum=0)
    deadline: float = setting(600.0, "longest wait in the queue, in seconds", minimum=0.1, metavar="SECONDS")
    short_tokens: int = setting(
        512, "requests of fewer expected tokens have a lane of their own; 0: one lane for all", minimum=0
    )
    stream_slowdown: float = setting(
        1.88, "times that prompts may stretch the mean gap of running answers; 0: no limit", minimum=0
    )
    headroom: float = setting(
        0.25, "share of the KV pool that starting requests leave to running ones", minimum=0, maximum=0.9
    )
    patience: float = setting(
        30.0, "wait in seconds after which no class or lane stands back", minimum=0, metavar="SECONDS"
    )
    no_classes: bool = setting(False, "treat every service_tier alike")
    no_admission_windows: bool = setting(False, "let every class start requests at any time")
    keep_alive: str = setting(
        "forever", "how long an unused model stays loaded, such as 5m", metavar="DURATION"
    )
    max_models: int = setting(3, "most models loaded at once", minimum=1, maximum=64)
    pin: str | None = setting(None, "further models to load at the start and keep", metavar="MODEL,...")
    ollama_port: int | None = setting(
        None, "also listen where Ollama's clients look, such as 11434", minimum=0, maximum=65535
    )
    allowed_hosts: str | None = setting(None, "names that reach it without a key", metavar="NAME,...")
    allowed_origins: str | None = setting(None, "web pages that may use it, or *", metavar="ORIGIN,...")
    api_key: str | None = setting(None, "key that clients must send", metavar="KEY")
    require_key: bool = setting(False, "ask for an API key on loopback too")
    tls_cert: Path | None = setting(None, "serve HTTPS with this certificate (PEM)", metavar="FILE")
    tls_key: Path | None = setting(None, "its private key (PEM)", metavar="FILE")
    no_dashboard: bool = setting(False, "serve without the dashboard")
    json_logs: bool = setting(False, "log one JSON object a line")
    record_prompts: bool = setting(False, "keep prompts on this machine, for `appliance calibrate`")
    otlp_endpoint: str | None = setting(
        None, "OpenTelemetry collector to send traces to, such as http://localhost:4318", metavar="URL"
    )
    otlp_headers: str | None = setting(None, "headers to send with them", metavar="NAME=VALUE,...")
    trace_share: float = setting(
        1.0, "share of the requests to trace, where the caller has not decided", minimum=0, maximum=1
    )
    models_dir: Path | None = setting(None, "folder of downloaded models", metavar="DIR")


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def resolve(
    flags: Mapping[str, str | bool],
    *,
    environment: Mapping[str, str] | None = None,
    settings_file: Path | None = None,
    must_exist: bool = False,
) -> Settings:
    """Merge defaults, the settings file, the environment and the flags; later ones win.

    `flags` holds the raw text of those that were given. Raises BadSetting naming the source, the value
    and what is allowed.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    if settings_file is not None:
        values |= _from_file(settings_file, must_exist=must_exist)
    values |= _from_environment(environment)
    for name, raw in flags.items():
        values[name] = _parse(name, raw, source=flag_name(name))
    return Settings(**values)  # type: ignore[arg-type]  # _parse made each value the field's own type


def _from_file(path: Path, *, must_exist: bool) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise BadSetting(f"the settings file {path} does not exist") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(f"the settings file {path} cannot be read: {error}") from error
    known = {f.name.replace("_", "-") for f in fields(Settings)}
    values: dict[str, object] = {}
    for key, raw in table.items():
        if key == "models":  # tables of single models: model_overrides.py
            continue
        if key.replace("_", "-") not in known:
            raise BadSetting(
                f"'{key}' in {path} is not a setting; the settings are {', '.join(sorted(known))}"
            )
        name = key.replace("-", "_")
        values[name] = _parse(name, raw, source=f"'{key}' in {path}")
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values = {}
    for f in fields(Settings):
        variable = ENVIRONMENT_PREFIX + f.name.upper()
        if variable in environment:
            values[f.name] = _parse(f.name, environment[variable], source=variable)
    return values


def _parse(name: str, raw: object, *, source: str) -> object:
    """Turn raw text (or a TOML value) into the field's type and check its bounds."""
    declared = next(f for f in fields(Settings) if f.name == name)
    assert declared.default is not MISSING
    kind = _base_type(typing.get_type_hints(Settings)[name])
    try:
        value = _convert(raw, kind)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: ~ without a home
        raise BadSetting(f"{source} is {raw!r}: {error}", param=name) from error
    choices, low, high = (declared.metadata[k] for k in ("choices", "min", "max"))
    if choices and value not in choices:
        raise BadSetting(f"{source} is {raw!r}; choose one of {', '.join(choices)}", param=name)
    pattern = declared.metadata["pattern"]
    if pattern and not re.fullmatch(pattern, str(value)):
        raise BadSetting(f"{source} is {raw!r}; choose {declared.metadata['help']}", param=name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if low is not None and value < low:
            raise BadSetting(f"{source} is {raw!r}; the least is {low}", param=name)
        if high is not None and value > high:
            raise BadSetting(f"{source} is {raw!r}; the most is {high}", param=name)
    return value


def _base_type(hint: object) -> object:
    if isinstance(hint, types.UnionType):
        return next(t for t in hint.__args__ if t is not types.NoneType)
    return hint


def _convert(raw: object, kind: object) -> object:
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        word = str(raw).strip().lower()
        if word not in words:
            raise ValueError("write true or false")
        return words[word]
    if isinstance(raw, bool):
        raise ValueError("true and false have no meaning here")
    if not isinstance(raw, str | int | float):
        raise ValueError("a single text or number is needed")
    if kind is int:
        return _whole_number(str(raw))
    if kind is float:
        return _number(str(raw))
    if kind is MemoryAmount:
        return MemoryAmount.parse(str(raw))
    text = str(raw)
    if not text:
        raise ValueError("an empty value has no meaning here")
    return Path(text).expanduser() if kind is Path else text


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number is needed") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a number is needed") from None
    if not math.isfinite(value):
        raise ValueError("a finite number is needed")
    return value

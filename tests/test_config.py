"""Settings: who wins, that all three ways reach every field, and what a bad value is told."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.__main__ import build_parser
from appliance.commands.settings_args import settings_from
from appliance.config import MemoryAmount, Settings, flag_name, resolve
from appliance.errors import BadSetting

# For every setting: raw text of two values that are not the default, and what they become.
EXAMPLES: dict[str, tuple[tuple[str, object], tuple[str, object]]] = {
    "model": (("tiny", "tiny"), ("a b/ü.gguf", "a b/ü.gguf")),
    "host": (("0.0.0.0", "0.0.0.0"), ("::1", "::1")),
    "port": (("0", 0), ("65535", 65535)),
    "backend": (("eager", "eager"), ("cuda", "cuda")),
    "device": (("cpu", "cpu"), ("cuda:1", "cuda:1")),
    "precision": (("bf16", "bf16"), ("llm.int8", "llm.int8")),
    "activations": (("int8", "int8"), ("mixed", "mixed")),
    "kv_dtype": (("int8", "int8"), ("f16", "f16")),
    "kv_memory": (("2GiB", MemoryAmount(num_bytes=2**31)), ("60%", MemoryAmount(share=0.6))),
    "swap_memory": (("2GiB", MemoryAmount(num_bytes=2**31)), ("0", MemoryAmount(num_bytes=0))),
    "context": (("16", 16), ("131072", 131072)),
    "max_sequences": (("1", 1), ("4096", 4096)),
    "step_tokens": (("16", 16), ("8192", 8192)),
    "threads": (("1", 1), ("64", 64)),
    "queue": (("0", 0), ("9", 9)),
    "deadline": (("0.1", 0.1), ("1e3", 1000.0)),
    "short_tokens": (("0", 0), ("2000", 2000)),
    "stream_slowdown": (("0", 0.0), ("1.5", 1.5)),
    "headroom": (("0", 0.0), ("0.3", 0.3)),
    "patience": (("0", 0.0), ("5", 5.0)),
    "no_classes": (("true", True), ("on", True)),
    "no_admission_windows": (("true", True), ("1", True)),
    "keep_alive": (("5m", "5m"), ("0", "0")),
    "max_models": (("1", 1), ("64", 64)),
    "pin": (("a", "a"), ("a,b", "a,b")),
    "ollama_port": (("11434", 11434), ("0", 0)),
    "allowed_hosts": (("box.lan", "box.lan"), ("a,b", "a,b")),
    "allowed_origins": (("*", "*"), ("http://a:1", "http://a:1")),
    "api_key": (("s3cret", "s3cret"), ("ü", "ü")),
    "require_key": (("true", True), ("on", True)),
    "tls_cert": (("/etc/c.pem", Path("/etc/c.pem")), ("a b", Path("a b"))),
    "tls_key": (("/etc/k.pem", Path("/etc/k.pem")), ("a b", Path("a b"))),
    "no_dashboard": (("true", True), ("on", True)),
    "json_logs": (("1", True), ("YES", True)),
    "record_prompts": (("1", True), ("true", True)),
    "otlp_endpoint": (("http://a:4318", "http://a:4318"), ("https://b/v1/traces", "https://b/v1/traces")),
    "otlp_headers": (("a=b", "a=b"), ("a=b,c=d", "a=b,c=d")),
    "trace_share": (("0", 0.0), ("0.1", 0.1)),
    "models_dir": (("/srv/models", Path("/srv/models")), ("a b", Path("a b"))),
}
NAMES = [field.name for field in fields(Settings)]
SWITCHES = {
    "record_prompts",
    "require_key",
    "no_dashboard",
    "json_logs",
    "no_classes",
    "no_admission_windows",
}
by_name = pytest.mark.parametrize("name", NAMES)


def variable(name: str) -> str:
    return f"APPLIANCE_{name.upper()}"


def toml(raw: str) -> str:
    return f'"{raw}"'


def write(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return file


def from_command_line(*arguments: str) -> Settings:
    return settings_from(build_parser().parse_args(["serve", *arguments]))


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in NAMES:
        monkeypatch.delenv(variable(name), raising=False)


def test_every_setting_has_an_example_here() -> None:
    assert list(EXAMPLES) == NAMES


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    expected = Settings()
    assert resolve({}, environment={}) == expected
    assert resolve({}, environment={"PATH": "/bin", "APPLIANCES_PORT": "1"}) == expected
    assert resolve({}, environment={}, settings_file=tmp_path / "absent.toml") == expected
    assert from_command_line() == expected
    assert (expected.port, expected.host, expected.max_sequences) == (11500, "127.0.0.1", 32)


@by_name
@pytest.mark.parametrize("which", [0, 1])
def test_file_environment_and_flag_each_reach_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, which: int
) -> None:
    raw, expected = EXAMPLES[name][which]
    file = write(tmp_path, f"{name.replace('_', '-')} = {toml(raw)}")
    assert getattr(resolve({}, environment={}, settings_file=file), name) == expected
    assert getattr(resolve({}, environment={variable(name): raw}), name) == expected
    if name == "model":
        assert from_command_line(raw).model == expected
    elif name in SWITCHES:
        assert getattr(from_command_line(flag_name(name)), name) is True
    else:
        assert getattr(from_command_line(flag_name(name), raw), name) == expected
    monkeypatch.setenv(variable(name), raw)
    assert getattr(from_command_line(), name) == expected
    changed = resolve({}, environment={variable(name): raw})
    assert [n for n in NAMES if getattr(changed, n) != getattr(Settings(), n)] == [name]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SWITCHES])
def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path, name: str) -> None:
    (low, low_value), (high, high_value) = EXAMPLES[name]
    file = write(tmp_path, f"{name} = {toml(low)}")
    assert getattr(resolve({}, environment={}, settings_file=file), name) == low_value
    over = resolve({}, environment={variable(name): high}, settings_file=file)
    assert getattr(over, name) == high_value
    both = resolve({name: low}, environment={variable(name): high}, settings_file=file)
    assert getattr(both, name) == low_value


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_switch_of_the_file_can_be_turned_off_by_the_environment_and_on_by_a_flag(
    tmp_path: Path, name: str
) -> None:
    file = write(tmp_path, f"{name} = true")
    for word in ("0", "false", "No", "OFF"):
        off = resolve({}, environment={variable(name): word}, settings_file=file)
        assert getattr(off, name) is False
    on = resolve({name: True}, environment={variable(name): "0"})
    assert getattr(on, name) is True


def test_numbers_of_the_file_need_no_quotes(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 8080\ndeadline = 5\nkv-memory = 1048576\nmax_sequences = 7\nmodel = "x"')
    found = resolve({}, environment={}, settings_file=file)
    assert (found.port, found.deadline, found.max_sequences) == (8080, 5.0, 7)
    assert isinstance(found.deadline, float)
    assert found.kv_memory == MemoryAmount(num_bytes=2**20)


# For every setting: values that cannot be honoured, and words that say what is allowed.
BAD: list[tuple[str, str, str]] = [
    ("model", "", "an empty value has no meaning"),
    ("host", "", "an empty value has no meaning"),
    ("port", "-1", "the least is 0"),
    ("port", "65536", "the most is 65535"),
    ("port", "http", "a whole number is needed"),
    ("port", "80.5", "a whole number is needed"),
    ("port", "", "a whole number is needed"),
    ("ollama_port", "65536", "the most is 65535"),
    ("ollama_port", "yes", "a whole number is needed"),
    ("allowed_hosts", "", "an empty value has no meaning"),
    ("allowed_origins", "", "an empty value has no meaning"),
    ("backend", "gpu", "choose one of auto, eager, cpu, cuda"),
    ("device", "", "an empty value has no meaning"),
    ("device", "gpu", "choose auto, cpu, cuda or cuda:N"),
    ("device", "cuda:x", "choose auto, cpu, cuda or cuda:N"),
    ("precision", "int5", "choose one of auto, f32, bf16, f16, int8, int8-mixed, int4, nf4, llm.int8"),
    ("activations", "int4", "choose one of auto, int12, mixed, int8"),
    ("kv_dtype", "int4", "choose one of auto, f32, bf16, f16, int8"),
    ("swap_memory", "-1GiB", "neither a size"),
    ("kv_memory", "0%", "not between 0% and 100%"),
    ("kv_memory", "101%", "not between 0% and 100%"),
    ("kv_memory", "nan%", "a finite number is needed"),
    ("kv_memory", "many%", "a number is needed"),
    ("kv_memory", "2 gigs", "neither a size such as 2GiB nor a share such as 60%"),
    ("kv_memory", "-1GiB", "neither a size"),
    ("context", "15", "the least is 16"),
    ("context", "8k", "a whole number is needed"),
    ("keep_alive", "", "empty"),
    ("max_models", "0", "the least is 1"),
    ("pin", "", "empty"),
    ("require_key", "maybe", "true or false"),
    ("tls_cert", "", "empty"),
    ("tls_key", "", "empty"),
    ("max_sequences", "0", "the least is 1"),
    ("max_sequences", "4097", "the most is 4096"),
    ("step_tokens", "15", "the least is 16"),
    ("step_tokens", "65537", "the most is 65536"),
    ("threads", "0", "the least is 1"),
    ("threads", "1025", "the most is 1024"),
    ("queue", "-1", "the least is 0"),
    ("deadline", "0", "the least is 0.1"),
    ("deadline", "soon", "a number is needed"),
    ("deadline", "nan", "a finite number is needed"),
    ("deadline", "inf", "a finite number is needed"),
    ("short_tokens", "-1", "the least is 0"),
    ("stream_slowdown", "-0.1", "the least is 0"),
    ("headroom", "0.95", "the most is 0.9"),
    ("patience", "-1", "the least is 0"),
    ("no_classes", "perhaps", "write true or false"),
    ("no_admission_windows", "2", "write true or false"),
    ("api_key", "", "an empty value has no meaning"),
    ("no_dashboard", "maybe", "write true or false"),
    ("json_logs", "2", "write true or false"),
    ("record_prompts", "maybe", "write true or false"),
    ("otlp_endpoint", "", "an empty value has no meaning"),
    ("otlp_headers", "", "an empty value has no meaning"),
    ("trace_share", "1.5", "the most is 1"),
    ("models_dir", "", "an empty value has no meaning"),
]


def test_every_setting_has_a_bad_value_here() -> None:
    assert {name for name, _, _ in BAD} == set(NAMES)


@pytest.mark.parametrize(("name", "raw", "allowed"), BAD)
def test_a_bad_value_names_its_source_itself_and_what_is_allowed(
    tmp_path: Path, name: str, raw: str, allowed: str
) -> None:
    key = name.replace("_", "-")
    file = write(tmp_path, f"{key} = {toml(raw)}")
    sources = {
        f"'{key}' in {file}": lambda: resolve({}, environment={}, settings_file=file),
        variable(name): lambda: resolve({}, environment={variable(name): raw}),
        flag_name(name): lambda: resolve({name: raw}, environment={}),
    }
    for source, attempt in sources.items():
        with pytest.raises(BadSetting) as caught:
            attempt()
        assert caught.value.message.startswith(f"{source} is {raw!r}")
        assert allowed in caught.value.message
        assert caught.value.param == name
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("port = true", "true and false have no meaning here"),
        ("port = 80.0", "a whole number is needed"),
        ("model = true", "true and false have no meaning here"),
        ('model = ["a", "b"]', "a single text or number is needed"),
        ("[host]\nname = 1", "a single text or number is needed"),
        ("port = 2024-01-01", "a single text or number is needed"),
        ("deadline = nan", "a finite number is needed"),
        ("prot = 80", "'prot' in .* is not a setting; the settings are .*port"),
        ("port = ", "cannot be read"),
    ],
)
def test_a_bad_line_of_the_file_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(BadSetting, match=problem) as caught:
        resolve({}, environment={}, settings_file=write(tmp_path, line))
    assert "settings.toml" in caught.value.message


def test_a_named_file_must_exist_and_be_readable(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    with pytest.raises(BadSetting, match=r"absent\.toml does not exist"):
        resolve({}, environment={}, settings_file=absent, must_exist=True)
    with pytest.raises(BadSetting, match="does not exist"):
        from_command_line("--settings", str(absent))
    with pytest.raises(BadSetting, match="cannot be read"):
        resolve({}, environment={}, settings_file=tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'model = "\xfc"')
    with pytest.raises(BadSetting, match="cannot be read"):
        resolve({}, environment={}, settings_file=tmp_path / "latin.toml")


def test_a_named_file_replaces_the_usual_one(tmp_path: Path) -> None:
    usual = tmp_path / "config" / "inference-appliance" / "settings.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text("port = 1111\nqueue = 3")
    assert (from_command_line().port, from_command_line().queue) == (1111, 3)
    named = from_command_line("--settings", str(write(tmp_path, "port = 2222")))
    assert (named.port, named.queue) == (2222, Settings().queue)


def test_a_home_in_a_path_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve({"models_dir": "~/models"}, environment={}).models_dir == tmp_path / "models"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0), ("1048576", 2**20), ("512B", 512), ("2GiB", 2**31), ("2 gib", 2**31), ("3KiB", 3072),
        (" 1.5MiB ", 3 * 2**19), ("1TiB", 2**40), ("1KB", 1000), ("500MB", 5 * 10**8), ("2gb", 2 * 10**9),
        ("1TB", 10**12),
    ],
)  # fmt: skip
def test_sizes_are_binary_or_decimal_as_written(text: str, num_bytes: int) -> None:
    assert MemoryAmount.parse(text) == MemoryAmount(num_bytes=num_bytes)


@pytest.mark.parametrize(("text", "share"), [("60%", 0.6), ("100%", 1.0), (" 0.5% ", 0.005)])
def test_shares_are_of_what_is_free(text: str, share: float) -> None:
    found = MemoryAmount.parse(text)
    assert found.num_bytes is None
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize(
    "text", ["", "%", "GiB", "2G", "1,5GiB", "1e3", "-5%", "100.1%", "inf%", "2GiB60%", "0x10"]
)
def test_what_is_neither_size_nor_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        MemoryAmount.parse(text)


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    try:
        amount = MemoryAmount.parse(text)
    except ValueError:
        return
    assert (amount.num_bytes is None) != (amount.share is None)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


def test_flags_not_given_are_not_passed_on() -> None:
    args = argparse.Namespace(port="80", model=None, settings=None)
    assert settings_from(args) == resolve({"port": "80"}, environment={})

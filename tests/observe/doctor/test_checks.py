"""The checks that look at the machine itself: each passes, and each can fail with a remedy."""

import hashlib
import socket
from pathlib import Path

import pytest

from appliance.catalog import Catalog, FileSource, ModelEntry, ModelFile
from appliance.download.store import ModelStore
from appliance.errors import BadSetting, PortTaken
from appliance.observe.doctor import memory, native_engine, port, processor, settings, storage, weights
from appliance.observe.doctor.finding import Status
from kernels.cpu.build import BuildError, Compiler
from tests.formats.gguf_builder import write_tiny_llama

PASS, WARN, FAIL = Status.PASS, Status.WARN, Status.FAIL


@pytest.mark.parametrize(
    ("flags", "word", "status"),
    [
        ("flags : avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni", "AVX-512 with VNNI", PASS),
        ("flags : avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile", "AMX", PASS),
        ("flags : avx2 fma f16c avx_vnni", "AVX2 with VNNI", PASS),
        ("flags : sse4_2 avx2 fma f16c", "AVX2:", PASS),
        ("Features : fp asimd asimddp", "NEON", PASS),
        ("flags : sse2 sse4_2 avx", "portable", WARN),
        ("nothing", "does not list", PASS),
    ],
)
def test_the_fastest_form_of_the_engine_is_named(
    tmp_path: Path, flags: str, word: str, status: Status
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\n{flags}\n")
    found = processor.check_instruction_sets(cpuinfo)
    assert (found.status, word in found.summary) == (status, True)


def test_a_quota_of_the_control_group_is_told_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    old = tmp_path / "old"
    (old / "cpu").mkdir(parents=True)
    (old / "cpu/cpu.cfs_quota_us").write_text("100000")
    (old / "cpu/cpu.cfs_period_us").write_text("100000")
    assert processor.check_cpu_share(tmp_path).summary.startswith("1 of ")
    assert processor.check_cpu_share(old).summary.startswith("1 of ")


def control_group(folder: Path, names: tuple[str, str], limit: int) -> Path:
    folder.mkdir(parents=True)
    (folder / names[0]).write_text(str(limit))
    (folder / names[1]).write_text("0")
    return folder


@pytest.mark.parametrize(
    ("below", "names"),
    [
        ("", ("memory.max", "memory.current")),
        ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
)
def test_a_memory_limit_of_the_control_group_is_told_in_both_versions(
    tmp_path: Path, below: str, names: tuple[str, str]
) -> None:
    root = tmp_path / "cgroup"
    control_group(root / below, names, 2**30)
    found = memory.check_memory(2**28, cgroup_root=root)
    assert found.status == PASS
    assert "control group's limit of 1.0 GiB" in found.summary
    found = memory.check_memory(2**31, cgroup_root=root)
    assert found.status == FAIL
    assert "need about 2.5 GiB" in found.summary
    assert "container's memory limit" in found.remedy


def test_a_disk_without_room_for_the_download_fails(tmp_path: Path) -> None:
    assert storage.check_disk(tmp_path / "not" / "yet", 0).status in (PASS, WARN)
    found = storage.check_disk(tmp_path / "not" / "yet", 2**60)
    assert found.status == FAIL
    assert "--models-dir" in found.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_cannot_be_written_and_nothing_is_made(tmp_path: Path) -> None:
    (good,) = storage.check_folders({"cache": tmp_path / "a" / "b"})
    assert (good.status, list(tmp_path.iterdir())) == (PASS, [])
    proc = Path("/proc/1")
    if proc.is_dir():  # a file system that takes no file from anybody
        (bad,) = storage.check_folders({"cache": proc / "models"})
        assert (bad.status, "XDG_CACHE_HOME" in bad.remedy) == (FAIL, True)


def take(host: str, number: int) -> socket.socket:
    return socket.socket()


def refuse(error: Exception) -> port.Bind:
    def bind(host: str, number: int) -> socket.socket:
        raise error

    return bind


def test_a_port_is_free_or_an_appliance_has_it_or_another_program() -> None:
    assert port.check_port("127.0.0.1", 0, take).status == PASS
    ours = PortTaken("it is taken; watch it", appliance_url="http://127.0.0.1:1")
    assert port.check_port("127.0.0.1", 1, refuse(ours)).status == PASS
    other = port.check_port("127.0.0.1", 1, refuse(PortTaken("1 is taken by nginx; choose another --port")))
    assert (other.status, other.summary, other.remedy) == (
        FAIL,
        "1 is taken by nginx",
        "choose another --port",
    )
    assert port.check_port("127.0.0.1", 1, refuse(BadSetting("may not"))).remedy


@pytest.mark.parametrize(
    ("host", "has_key", "status"),
    [("127.0.0.1", False, PASS), ("::1", False, PASS), ("0.0.0.0", True, PASS), ("0.0.0.0", False, FAIL)],
)
def test_an_open_address_needs_a_key(host: str, has_key: bool, status: Status) -> None:
    assert port.check_exposure(host, has_key=has_key).status == status


def no_compiler() -> Compiler:
    raise BuildError("no C++ compiler: install g++ or clang++")


def test_a_missing_compiler_is_a_warning_where_one_is_needed(tmp_path: Path) -> None:
    found = native_engine.check_compiler(is_frozen=False, find=no_compiler)
    assert (found.status, found.remedy) == (WARN, "install g++ or clang++")
    assert native_engine.check_compiler(is_frozen=True, find=no_compiler).status == PASS
    assert native_engine.check_native_library(tmp_path, can_build=True).status == PASS
    (tmp_path / "libappliance_cpu.so").write_bytes(b"no library")
    assert native_engine.check_native_library(tmp_path, can_build=False).status == WARN


def test_a_bad_setting_an_open_key_and_a_misspelt_variable_are_found(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    assert settings.check_settings(file, None).status == PASS
    assert settings.check_settings(file, BadSetting("--port is 'x'")).summary == "--port is 'x'"
    file.write_text('api-key = "s3cret"')
    file.chmod(0o644)
    assert settings.check_settings(file, None).remedy == f"chmod 600 {file}"
    file.chmod(0o600)
    assert settings.check_settings(file, None).status == PASS
    found = settings.check_environment({"APPLIANCE_PROT": "1", "APPLIANCE_HOST": "x"}, ["port", "host"])
    assert (found.status, found.remedy) == (WARN, "write APPLIANCE_PORT")
    assert settings.check_environment({"PATH": ""}, ["port"]).status == PASS


def test_a_file_of_the_users_is_whole_or_named_as_broken(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    store = ModelStore(tmp_path / "store")

    def find(name: str) -> ModelFile:
        return ModelFile(model_id="m", path=path)

    assert weights.check_model("m", find, store).status == PASS
    assert weights.num_model_bytes("m", find, store) == (path.stat().st_size, 0)
    path.write_bytes(path.read_bytes()[:-100])
    found = weights.check_model("m", find, store)
    assert (found.status, bool(found.remedy)) == (FAIL, True)
    path.unlink()
    assert weights.check_model("m", find, store).status == FAIL
    assert weights.num_model_bytes("m", find, store) == (0, 0)


def test_a_model_of_the_catalogue_is_absent_or_short_and_nothing_is_fetched(tmp_path: Path) -> None:
    catalog = Catalog.load()
    entry = catalog.entries[0]
    store = ModelStore(tmp_path / "store")
    assert weights.check_model(entry.model_id, catalog.find, store).status == WARN
    assert weights.num_model_bytes(entry.model_id, catalog.find, store) == (entry.size_bytes,) * 2
    store.folder(entry).mkdir(parents=True)
    store.path(entry).write_bytes(b"short")
    found = weights.check_model(entry.model_id, catalog.find, store)
    assert (found.status, "pull --again" in found.remedy) == (FAIL, True)
    assert [p.name for p in store.folder(entry).iterdir()] == [entry.file]


def test_one_flipped_byte_of_an_installed_model_is_found(tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    entry = ModelEntry(
        model_id="tiny",
        name="Tiny",
        description="",
        architecture="llama",
        num_parameters=1,
        context_length=1,
        licence="",
        file="tiny.gguf",
        size_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        sources=(FileSource(path="tiny.gguf"),),
    )
    catalog, store = Catalog((entry,), folder=tmp_path), ModelStore(tmp_path / "store")
    store.folder(entry).mkdir(parents=True)
    store.path(entry).write_bytes(whole)
    assert "every byte" in weights.check_model("tiny", catalog.find, store).summary
    store.path(entry).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = weights.check_model("tiny", catalog.find, store)
    assert (found.status, "pull --again tiny" in found.remedy) == (FAIL, True)

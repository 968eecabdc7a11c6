"""`make package`: the one executable file, made from this checkout for the system it runs on.

    python packaging/package.py [--flavour cpu|cuda] [--output dist]

Needs the extra `package` installed and, on Linux, `strip` for the last 100 MB of debug symbols.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

PACKAGING = Path(__file__).resolve().parent
CHECKOUT = PACKAGING.parent
sys.path[:0] = [str(CHECKOUT), str(PACKAGING)]

from executable import write_executable  # noqa: E402
from launcher_build import TRIPLES, build_launcher, fetch_zstd  # noqa: E402
from materials import write_materials  # noqa: E402

from appliance import __version__  # noqa: E402
from appliance.catalog import Catalog  # noqa: E402
from appliance.config import Settings  # noqa: E402
from appliance.download.pull import ensure_model  # noqa: E402
from appliance.download.store import ModelStore  # noqa: E402
from appliance.runtime.cpu_loading import SHIPPED_NAME  # noqa: E402
from kernels.cpu.build import Compiler, build, this_machine  # noqa: E402
from kernels.cpu.limits import LIMITS_NAME, build_limits  # noqa: E402

WORK = CHECKOUT / "build" / "package"
# One time for everything that records one: 2020-01-01.
SOURCE_DATE_EPOCH = "1577836800"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flavour", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, default=CHECKOUT / "dist")
    args = parser.parse_args()
    started_s = time.monotonic()
    tree = build_tree(args.flavour)
    say("compiling the launcher")
    zstd = fetch_zstd(WORK / "zstd")
    triple = TRIPLES[(sys.platform, platform.machine().lower())]
    launcher = build_launcher(WORK / "launcher", zstd=zstd, triple=triple)
    say("fetching the model")
    model = ensure_model(Settings().model, Catalog.load(), ModelStore(CHECKOUT / "build" / "models"))
    args.output.mkdir(parents=True, exist_ok=True)
    output = args.output / executable_name(args.flavour)
    say("compressing")
    trailer = write_executable(
        output, launcher=launcher, tree=tree, model=model.path, model_id=model.model_id, version=__version__
    )
    megabytes = output.stat().st_size / 1e6
    say(
        f"{output}: {megabytes:.0f} MB, of it the model {trailer.model_bytes / 1e6:.0f}; unpacks to "
        f"{trailer.unpacked_bytes / 1e6:.0f} MB; {time.monotonic() - started_s:.0f} s"
    )


def executable_name(flavour: str) -> str:
    machine = this_machine()
    kind = "" if flavour == "cpu" else f"-{flavour}"
    suffix = ".exe" if machine.system == "windows" else ""
    return f"inference-appliance{kind}-{machine.system}-{machine.architecture}{suffix}"


def build_tree(flavour: str) -> Path:
    """The unpacked appliance, as small as it gets. Raises CalledProcessError or BuildError."""
    say("compiling the CPU engine")
    native = WORK / "native" / (SHIPPED_NAME + this_machine().suffix)
    zig = Compiler((sys.executable, "-m", "ziglang", "c++"), is_zig=True)
    compiled = build(WORK / "native" / "builds", compiler=zig)
    shutil.copyfile(compiled, native)
    limits = native.with_stem(LIMITS_NAME)
    build_limits(limits, compiler=zig)
    say("collecting")
    modules = WORK / "modules.json"
    environment = os.environ | {
        "APPLIANCE_NATIVE": str(native),
        "APPLIANCE_LIMITS": str(limits),
        "APPLIANCE_FLAVOUR": flavour,
        "APPLIANCE_MODULES": str(modules),
        "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
        "PYTHONHASHSEED": "0",
    }
    paths = ("--distpath", WORK / "dist", "--workpath", WORK / "work")
    run(
        "-m",
        "PyInstaller",
        "--noconfirm",
        "--log-level",
        "ERROR",
        *paths,
        PACKAGING / "appliance.spec",
        env=environment,
    )
    tree = WORK / "dist" / "appliance"
    strip_libraries(tree / "_internal" / "torch" / "lib")
    write_materials(tree, modules, zstd=fetch_zstd(WORK / "zstd"))
    return tree


def strip_libraries(folder: Path) -> None:
    """Drop symbols nobody reads. Torch's libraries only: numpy's break when stripped."""
    tool = shutil.which("strip")
    if sys.platform != "linux" or tool is None:
        say("no strip: the file will be about a tenth larger")
        return
    for library in folder.glob("*.so*"):
        if not library.is_symlink():
            subprocess.run([tool, "--strip-unneeded", str(library)], check=True)  # noqa: S603


def run(*arguments: object, env: dict[str, str]) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, cwd=CHECKOUT, env=env)  # noqa: S603


def say(text: str) -> None:
    sys.stderr.write(f"package: {text}\n")


if __name__ == "__main__":
    main()

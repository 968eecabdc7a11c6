"""Compiles what ships for every GPU architecture, without a GPU, and reads what each kernel takes of one.

`python -m kernels.gpu_compile` rewrites the table of registers and shared memory that the tests compare with.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu_launch import KernelCall
from kernels.gpu_shipped import shipped_calls
from kernels.launch import ARCHITECTURES, Launch, find_launch
from kernels.launch_table import LAUNCH_TABLE

RESOURCES = Path(__file__).with_name("gpu_resources.json")
# Shared memory that one program can have, in bytes (CUDA C++ programming guide, compute capabilities).
SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
REGISTERS_PER_PROCESSOR = 65_536
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one compiled kernel takes: registers per thread, bytes of stack (spills) and of shared memory."""

    registers: int
    stack_bytes: int
    shared_bytes: int

    def problems(self, architecture: int, num_warps: int) -> list[str]:
        """Say why this kernel would be slow or not start there; nothing where all is well."""
        found = []
        if self.stack_bytes:
            found.append(f"{self.stack_bytes} bytes spilled to the stack")
        if self.shared_bytes > SHARED_BYTES[architecture]:
            found.append(
                f"{self.shared_bytes} bytes of shared memory; there are {SHARED_BYTES[architecture]}"
            )
        if self.registers * num_warps * 32 > REGISTERS_PER_PROCESSOR:
            found.append(f"{self.registers} registers in each of {num_warps * 32} threads do not fit")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One kernel as Triton specializes it: types of its arguments, constants, divisibility, numbers."""

    name: str
    call: KernelCall
    numbers: Launch
    architecture: int

    @classmethod
    def of(cls, call: KernelCall, architecture: int) -> "Form":
        numbers = find_launch(LAUNCH_TABLE, call.key, architecture)
        signature = _signature(call.arguments)
        types = " ".join(kind for kind in signature.values() if kind.startswith("*"))
        traits = dict(call.constants(numbers))
        traits |= {name: call.arguments[name] for name, kind in signature.items() if kind == "constexpr"}
        odd = [
            name
            for name, kind in signature.items()
            if kind[0] == "i" and not _is_divisible(call.arguments[name])
        ]
        name = " ".join(
            (
                call.key,
                types,
                *(f"{name}={value}" for name, value in traits.items()),
                *(f"odd:{name}" for name in odd),
            )
        )
        return cls(name=name, call=call, numbers=numbers, architecture=architecture)

    def compile(self) -> Resources:
        arguments, constants = self.call.arguments, self.call.constants(self.numbers)
        signature = _signature(arguments) | dict.fromkeys(constants, "constexpr")
        fixed = {name: arguments[name] for name, kind in _signature(arguments).items() if kind == "constexpr"}
        names = self.call.kernel.arg_names
        source = ASTSource(
            fn=self.call.kernel,
            signature={name: signature[name] for name in names},
            constexprs={(names.index(name),): value for name, value in (fixed | constants).items()},
            attrs={
                (names.index(name),): [["tt.divisibility", 16]]
                for name, value in arguments.items()
                if signature[name] != "constexpr" and _is_divisible(value)
            },
        )
        options = {"num_warps": self.numbers.num_warps, "num_stages": self.numbers.num_stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", self.architecture, 32), options=options)
        registers, stack_bytes = _usage(compiled.asm["cubin"])
        return Resources(registers=registers, stack_bytes=stack_bytes, shared_bytes=compiled.metadata.shared)


def forms(architecture: int, kernels: Iterable[str] = ()) -> list[Form]:
    """Return the distinct forms that ship for one architecture, of all kernels or those named."""
    wanted = set(kernels)
    found = (Form.of(call, architecture) for call in shipped_calls())
    return list({form.name: form for form in found if not wanted or form.call.name in wanted}.values())


def _signature(arguments: dict[str, object]) -> dict[str, str]:
    return {name: _type(value) for name, value in arguments.items()}


def _type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if value is None or value == 1:
        return "constexpr"
    assert isinstance(value, int), value
    return "i32" if abs(value) < 2**31 else "i64"


def _is_divisible(value: object) -> bool:
    """Tensors start at multiples of 16 bytes; of numbers Triton tells apart those that 16 divides."""
    return isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Return registers and stack bytes as the vendor's own tool reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = (triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]), int(found[2])


def read_resources() -> dict[str, dict[str, list[int]]]:
    """Return the table in the repository: architecture, then form, then [registers, shared bytes]."""
    if not RESOURCES.exists():
        return {}
    table: dict[str, dict[str, list[int]]] = json.loads(RESOURCES.read_text("utf-8"))
    return table


def main(arguments: list[str]) -> None:
    """Compile for the architectures named, or all, and rewrite their part of the table.

    Raises SystemExit where a kernel spills or does not fit.
    """
    bad = []
    for architecture in map(int, arguments or map(str, ARCHITECTURES)):
        taken = {}
        for form in forms(architecture):
            resources = form.compile()
            taken[form.name] = [resources.registers, resources.shared_bytes]
            problems = resources.problems(architecture, form.numbers.num_warps)
            bad += [f"sm_{architecture} {form.name}: {problem}" for problem in problems]
        table = read_resources() | {str(architecture): taken, "triton": {triton.__version__: []}}
        RESOURCES.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", "utf-8")
    if bad:
        raise SystemExit("\n".join(bad))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Finds launch numbers on this machine's GPU and rewrites kernels/launch_table.py: `python -m kernels.tune`.

Records the launches that ship, on real tensors, and times each with every candidate. Needs a GPU.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Protocol, TypeVar

from kernels.launch import Launch, LaunchTable, find_launch
from kernels.launch_table import LAUNCH_TABLE

TABLE_FILE = Path(__file__).with_name("launch_table.py")
_HEADER = '''"""Launch numbers by kernel and variant. `python -m kernels.tune` rewrites them on a GPU."""

from kernels.launch import Launch, LaunchTable

# ruff: noqa: E501
# fmt: off
LAUNCH_TABLE: LaunchTable = {
'''
_FOOTER = "}\n# fmt: on\n"


class Tunable(Protocol):
    """A launch that can be started with any numbers."""

    @property
    def key(self) -> str: ...

    def start(self, numbers: Launch) -> None: ...


Call = TypeVar("Call", bound=Tunable)
# Seconds that one start takes, or None where the numbers do not fit this GPU.
Measure = Callable[[Call, Launch], float | None]


def candidates(numbers: Launch) -> Iterator[Launch]:
    """Yield numbers near these: warps, stages and tile sizes halved and doubled. Tiles not used stay 0."""
    halves = (0.5, 1, 2)
    for warps, stages, n, k in product(halves, (-1, 0, 1, 2), halves, halves if numbers.block_k else (1,)):
        near = replace(
            numbers,
            num_warps=int(numbers.num_warps * warps),
            num_stages=numbers.num_stages + stages,
            block_n=int(numbers.block_n * n),
            block_k=int(numbers.block_k * k),
        )
        has_tiles = near.block_n >= 16 or not numbers.block_n
        if 1 <= near.num_warps <= 16 and near.num_stages >= 1 and has_tiles:
            yield near


def tune(table: LaunchTable, architecture: int, calls: list[Call], measure: Measure[Call]) -> LaunchTable:
    """Return the table with this architecture's best numbers for the key of each call.

    Several calls of one key share their numbers: the ones with the least total time that fit all of them.
    """
    tuned = dict(table)
    for key in sorted({call.key for call in calls}):
        same = [call for call in calls if call.key == key]
        usual = find_launch(table, key, architecture)
        timed = [(_total(same, numbers, measure), numbers) for numbers in dict.fromkeys(candidates(usual))]
        fitting = [(seconds, numbers) for seconds, numbers in timed if seconds is not None]
        if fitting:
            best = min(fitting, key=lambda item: item[0])[1]
            others = tuple(item for item in table[key] if item[0] != architecture)
            tuned[key] = tuple(sorted((*others, (architecture, best)), key=lambda item: item[0]))
    return tuned


def table_source(table: LaunchTable) -> str:
    """Return launch_table.py for this table."""
    lines = []
    for key in sorted(table):
        items = "".join(f"({architecture}, {numbers!r}), " for architecture, numbers in table[key])
        lines.append(f'    "{key}": ({items.strip()}),\n')
    return _HEADER + "".join(lines) + _FOOTER


def _total(calls: list[Call], numbers: Launch, measure: Measure[Call]) -> float | None:
    seconds = [measure(call, numbers) for call in calls]
    return None if None in seconds else sum(s for s in seconds if s is not None)


def main() -> None:
    """Tune for the GPU at hand. Raises SystemExit where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("tuning needs a GPU, and torch sees none; nothing was changed")
    from kernels.gpu_timing import measure, real_calls
    from kernels.launch import architecture_of

    architecture = architecture_of(torch.device("cuda", torch.cuda.current_device()))
    tuned = tune(LAUNCH_TABLE, architecture, list(real_calls()), measure)
    TABLE_FILE.write_text(table_source(tuned), "utf-8")
    sys.stdout.write(f"{TABLE_FILE.name}: numbers for architecture {architecture}\n")


if __name__ == "__main__":
    main()

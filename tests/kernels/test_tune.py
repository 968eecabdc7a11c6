"""Choosing launch numbers: with times made up, and the file it writes read back."""

from dataclasses import dataclass

from kernels.launch import Launch, LaunchTable, find_launch
from kernels.launch_table import LAUNCH_TABLE
from kernels.tune import Tunable, candidates, table_source, tune

USUAL = Launch(num_warps=4, num_stages=2, block_n=64)


@dataclass(frozen=True)
class Call:
    key: str

    def start(self, numbers: Launch) -> None:
        raise AssertionError(f"nothing is started without a GPU: {numbers}")


def few_warps_are_fast(call: Tunable, numbers: Launch) -> float | None:
    return None if numbers.num_stages > 3 else numbers.num_warps + numbers.num_stages / 10


def test_the_fastest_numbers_that_fit_are_kept_for_this_architecture_only() -> None:
    table: LaunchTable = {"a/any": ((80, USUAL),), "b/any": ((80, USUAL),)}
    tuned = tune(table, 90, [Call("a/any")], few_warps_are_fast)
    assert tuned["b/any"] == table["b/any"]
    assert find_launch(tuned, "a/any", 89) == USUAL
    best = find_launch(tuned, "a/any", 90)
    assert (best.num_warps, best.num_stages) == (2, 1)
    again = tune(tuned, 90, [Call("a/any")], lambda _, numbers: -float(numbers.num_warps))
    assert [architecture for architecture, _ in again["a/any"]] == [80, 90]


def test_numbers_that_fit_nowhere_change_nothing() -> None:
    table: LaunchTable = {"a/any": ((80, USUAL),)}
    assert tune(table, 90, [Call("a/any")], lambda *_: None) == table


def test_numbers_that_do_not_fit_one_form_are_not_taken_for_the_others() -> None:
    def only_usual_fits_both(call: Tunable, numbers: Launch) -> float | None:
        return None if call == Call("a/any") and numbers != USUAL else 1.0 / numbers.num_warps

    table: LaunchTable = {"a/any": ((80, USUAL),)}
    tuned = tune(table, 90, [Call("a/any"), Call("a/any")], only_usual_fits_both)
    assert find_launch(tuned, "a/any", 90) == USUAL


def test_candidates_stay_within_what_a_gpu_can_start() -> None:
    found = list(candidates(USUAL))
    assert USUAL in found
    assert all(1 <= c.num_warps <= 16 and c.num_stages >= 1 and c.block_n >= 16 for c in found)
    assert {c.block_k for c in found} == {0}


def test_the_written_table_reads_back_as_it_was() -> None:
    names: dict[str, object] = {}
    exec(table_source(LAUNCH_TABLE), names)
    assert names["LAUNCH_TABLE"] == LAUNCH_TABLE

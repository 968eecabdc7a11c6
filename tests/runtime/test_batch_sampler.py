"""All rows chosen at once are what each would be alone, by the row sampler's rules."""

import numpy as np
import pytest
import torch

from appliance.engine.sequence import SamplingParams
from appliance.runtime.batch_sampler import NOT_FINITE_ID, choose_rows
from appliance.runtime.row_rules import RowRules
from appliance.runtime.sampler import choose

VOCAB = 1000


def rules(params: SamplingParams, number: float) -> RowRules:
    return RowRules(
        is_greedy=params.is_greedy,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        number=number,
    )


def test_rows_with_all_kinds_of_rules_are_chosen_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.3, 1.0, 1.7])),
            top_k=int(rng.choice([0, 1, 7, 50, 5000])),
            top_p=float(rng.choice([1.0, 0.9, 0.2])),
            min_p=float(rng.choice([0.0, 0.05])),
        )
        for _ in range(300)
    ]
    numbers = rng.random(300)
    logits_RV = torch.from_numpy(rng.standard_normal((300, VOCAB)).astype(np.float32)) * 3
    together = choose_rows(
        logits_RV.clone(), [rules(p, n) for p, n in zip(params, numbers, strict=True)]
    ).tolist()
    alone = [choose(row.clone(), p, n) for row, p, n in zip(logits_RV, params, numbers, strict=True)]
    assert together == alone
    assert len(set(together)) > 100


def test_a_greedy_row_among_drawn_ones_gets_its_likeliest_token() -> None:
    logits_RV = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    drawn = RowRules(is_greedy=False, temperature=5.0, number=0.5)
    chosen = choose_rows(logits_RV, [drawn, RowRules(is_greedy=True), drawn])
    assert chosen[1] == logits_RV[1].argmax()


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_a_draw_at_either_end_is_a_token_that_was_left(number: float) -> None:
    logits_RV = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2))
    row = RowRules(is_greedy=False, top_p=0.3, min_p=0.1, number=number)
    kept = logits_RV.softmax(-1) >= logits_RV.softmax(-1).amax(-1, keepdim=True) * 0.1
    chosen = choose_rows(logits_RV.clone(), [row, row])
    assert kept.gather(1, chosen[:, None]).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_row_that_is_not_finite_is_named_and_its_neighbour_unharmed(bad: float, is_greedy: bool) -> None:
    logits_RV = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3))
    logits_RV[0, 5] = bad
    greedy = RowRules(is_greedy=True)
    chosen = choose_rows(logits_RV, [RowRules(is_greedy=is_greedy, number=0.5), greedy])
    assert chosen.tolist() == [NOT_FINITE_ID, logits_RV[1].argmax().item()]

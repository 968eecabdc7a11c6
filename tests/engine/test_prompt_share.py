"""How prompts share a step: short before long, and a quarter to the first."""

from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.prompt_share import has_room, share_out
from appliance.engine.sequence import Lane, SamplingParams, Sequence, SequenceId, ServiceClass


def prompt(
    number: int, tokens: int, lane: Lane = Lane.SHORT, service_class: ServiceClass = ServiceClass.SILVER
) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(number),
        token_ids=[1] * tokens,
        num_prompt_tokens=tokens,
        params=SamplingParams(),
        max_output_tokens=1,
        arrival_s=0.0,
        lane=lane,
        service_class=service_class,
    )


def shares(prompts: list[Sequence], budget: int) -> list[tuple[int, int]]:
    return [(s.sequence_id, tokens) for s, tokens in share_out(prompts, budget)]


def test_one_prompt_gets_everything() -> None:
    assert shares([prompt(1, 100)], 32) == [(1, 32)]
    assert shares([prompt(1, 20)], 32) == [(1, 20)]
    assert shares([prompt(1, 20)], 0) == []


def test_a_short_prompt_overtakes_a_long_one_which_keeps_a_quarter() -> None:
    assert shares([prompt(1, 4000, Lane.LONG), prompt(2, 200)], 100) == [(1, 25), (2, 75)]
    assert shares([prompt(1, 4000, Lane.LONG), prompt(2, 20)], 100) == [(1, 80), (2, 20)]


def test_equals_go_by_admission() -> None:
    assert shares([prompt(1, 30), prompt(2, 30), prompt(3, 30)], 50) == [(1, 30), (2, 20)]


def test_there_is_room_for_those_who_would_get_tokens() -> None:
    running = [prompt(1, 4000, Lane.LONG)]
    assert has_room(prompt(2, 50), running, 64)
    assert not has_room(prompt(2, 4000, Lane.LONG), running, 64)
    assert not has_room(prompt(3, 50), [*running, prompt(2, 48)], 64)
    assert has_room(prompt(2, 4000, Lane.LONG), [prompt(1, 64)], 64)  # the only long one
    assert not has_room(prompt(2, 50), [], 0)


PROMPTS = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from(list(Lane)), st.sampled_from(list(ServiceClass))),
    max_size=6,
)


@given(PROMPTS, st.integers(0, 80))
def test_the_budget_is_used_up_and_the_first_always_gets_its_quarter(
    described: list[tuple[int, Lane, ServiceClass]], budget: int
) -> None:
    prompts = [prompt(i, *each) for i, each in enumerate(described)]
    given_out = dict(shares(prompts, budget))
    assert sum(given_out.values()) == min(budget, sum(p.num_tokens for p in prompts))
    assert all(0 < tokens <= prompts[i].num_tokens for i, tokens in given_out.items())
    if prompts and budget:
        assert given_out[0] >= min(prompts[0].num_tokens, budget / 4)


@given(PROMPTS, st.integers(0, 80))
def test_room_is_told_truly(described: list[tuple[int, Lane, ServiceClass]], budget: int) -> None:
    if not described:
        return
    *running, new = [prompt(i, *each) for i, each in enumerate(described)]
    gets_some = new.sequence_id in dict(shares([*running, new], budget))
    is_only_one = all(_is_ahead(other, new) for other in running)
    assert has_room(new, running, budget) == (gets_some or (is_only_one and budget > 0))


def _is_ahead(one: Sequence, other: Sequence) -> bool:
    order = list(ServiceClass)
    one_rank = (one.lane is Lane.LONG, order.index(one.service_class))
    return one_rank < (other.lane is Lane.LONG, order.index(other.service_class))

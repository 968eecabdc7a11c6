"""A prompt that is read at every position: each once, in order, in any pieces, however often computed."""

from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import TokenEvent
from engine.builders import make_bench, make_engine, read_all

SCORED = SamplingParams(max_tokens=3, num_prompt_logprobs=2)
MEAN = SamplingParams(max_tokens=1, wants_hidden_state=True, wants_mean_state=True)


def logprobs(events: list[TokenEvent]) -> list[float]:
    return [entry.logprob for event in events for entry in event.prompt_logprobs]


def test_positions_are_read_once_also_where_a_prompt_is_preempted_and_computed_again() -> None:
    bench = make_bench(num_blocks=18, step_tokens=4)
    engine = make_engine(bench)
    old = engine.submit([1] * 10, SamplingParams(max_tokens=30))
    young = engine.submit(list(range(50)), SCORED)
    while engine.step():
        pass
    assert bench.scheduler.num_preemptions > 0
    assert len(read_all(old)[0][0].token_ids) == 30
    assert logprobs(read_all(young)[0]) == [-float(n) for n in range(1, 50)]


def test_a_prompt_that_was_computed_before_is_read_all_the_same() -> None:
    bench = make_bench(step_tokens=100)
    engine = make_engine(bench)
    for params in (SCORED, SCORED, MEAN):
        stream = engine.submit(list(range(90)), params)
        while engine.step():
            pass
        events, finish = read_all(stream)
        assert finish.num_prefix_hit_tokens == 0
        if params is SCORED:
            assert logprobs(events) == [-float(n) for n in range(1, 90)]
    assert max(s.num_new_tokens for batch in bench.runner.batches for s in batch.sequences) == 64
    assert events[0].hidden_state is not None
    assert abs(events[0].hidden_state[0] - 1) < 0.02  # 89 ones and one less than that


def test_every_choice_reads_its_prompt() -> None:
    engine = make_engine(make_bench())
    streams = engine.submit_choices([5, 6, 7], [SCORED, SCORED])
    while engine.step():
        pass
    assert [logprobs(read_all(stream)[0]) for stream in streams] == [[-1.0, -2.0]] * 2

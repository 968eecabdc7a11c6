"""Random traffic on small pools: outputs are those of solo runs, everything ends, no block is lost."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.engine.batch import FailureKind, SequenceOutput, StepFailure, StepResult
from appliance.engine.sequence import FinishReason, SamplingParams, Sequence
from appliance.errors import InvalidRequest
from engine.builders import Bench, make_bench, output

FAILURE = StepFailure(kind=FailureKind.NOT_FINITE, message="a logit is not finite")
# Two token values and few prefixes, so that prompts share blocks and diverge at every depth.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=18)


class Traffic(RuleBasedStateMachine):
    bench: Bench
    is_leading = False

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []

    @initialize(
        num_blocks=st.integers(1, 14),
        block_size=st.integers(1, 5),
        max_sequences=st.integers(1, 5),
        step_tokens=st.integers(1, 11),
        context_length=st.integers(2, 40),
        enable_prefix_cache=st.booleans(),
        num_places=st.integers(0, 6),
        num_layers=st.sampled_from([0, 2, 5]),
        slice_share=st.sampled_from([0.01, 0.3, 0.5, 2.0]),
    )
    def build(self, num_layers: int, slice_share: float, **shape: int) -> None:
        self.num_layers = 0 if self.is_leading else num_layers  # no device does both
        self.bench = make_bench(
            vocab_size=5,
            is_leading=self.is_leading,
            num_layers=self.num_layers,
            slice_share=slice_share,
            **shape,
        )

    @rule(
        prompt=PROMPTS,
        max_tokens=st.none() | st.integers(1, 12),
        min_tokens=st.integers(0, 3),
        stop=st.sets(st.integers(0, 4), max_size=2),
        salt=st.sampled_from(["", "", "b"]),
        num_choices=st.sampled_from([1, 1, 2, 4]),
    )
    def submit(
        self,
        prompt: list[int],
        max_tokens: int | None,
        min_tokens: int,
        stop: set[int],
        salt: str,
        num_choices: int,
    ) -> None:
        leader: Sequence | None = None
        try:
            for choice in range(num_choices):
                params = SamplingParams(
                    # Every choice of another length, so that they leave the shared blocks at different times.
                    max_tokens=None if max_tokens is None else max_tokens + choice,
                    min_tokens=min_tokens,
                    stop_token_ids=frozenset(stop),
                )
                fork = self.bench.submit(prompt, params, salt=salt, fork_of=leader)
                leader = leader or fork
                self.sequences.append(fork)
        except InvalidRequest:
            capacity = self.bench.scheduler.pool.capacity_tokens
            assert len(prompt) >= min(capacity, self.bench.scheduler.context_length)

    @precondition(lambda self: self.bench.scheduler.num_live)
    @rule(choice=st.integers(0, 99))
    def abort(self, choice: int) -> None:
        live = list(self.bench.scheduler.live_sequences())
        self.bench.scheduler.abort(live[choice % len(live)].sequence_id)

    @rule(choice=st.integers(0, 99))
    def fork_one_under_way(self, choice: int) -> None:
        """A choice that joins late: its leader waits, runs, or is gone."""
        if not self.sequences:
            return
        leader = self.sequences[choice % len(self.sequences)]
        if leader.fork_of is None:
            prompt = leader.token_ids[: leader.num_prompt_tokens]
            fork = self.bench.submit(prompt, leader.params, salt=leader.cache_salt, fork_of=leader)
            self.sequences.append(fork)

    @precondition(lambda self: self.sequences)
    @rule()
    def evict(self) -> None:
        """Somebody else takes every block that is left, and gives it back."""
        pool = self.bench.scheduler.pool
        blocks = pool.allocate(pool.num_available)
        assert blocks is not None
        assert pool.num_cached == 0
        pool.free(blocks)

    @precondition(lambda self: self.bench.scheduler.num_running > 1)
    @rule(choice=st.integers(0, 99))
    def preempt(self, choice: int) -> None:
        running = list(self.bench.scheduler.live_sequences())[: self.bench.scheduler.num_running]
        self.bench.scheduler._preempt(running[choice % len(running)])

    @precondition(lambda self: self.bench.scheduler.num_live)
    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            oldest = next(self.bench.scheduler.live_sequences(), None)
            if oldest is None:
                return
            before = oldest.num_computed_tokens
            # Its chunk may have to wait for the one under way, and then takes a step for each layer.
            for _ in range(max(1, 2 * self.num_layers)):
                batch, _ = self.bench.step()
                if oldest.is_finished or oldest.num_computed_tokens > before:
                    break
            assert oldest.is_finished or oldest.num_computed_tokens > before
            served = {s.sequence_id for s in batch.every_sequence}
            for sequence in list(self.bench.scheduler.live_sequences())[: self.bench.scheduler.num_running]:
                waits = self.num_layers and sequence.num_uncomputed_tokens > 1
                assert waits or sequence.sequence_id in served, "a running sequence got no token"

    @precondition(lambda self: self.bench.scheduler.num_live)
    @rule(choice=st.integers(0, 99), fails=st.booleans())
    def step_that_ends_one(self, choice: int, fails: bool) -> None:
        """Abort or fail one sequence while its step is in flight."""
        scheduler, runner = self.bench.scheduler, self.bench.runner
        batch = scheduler.schedule()
        chosen = batch.every_sequence[choice % len(batch.every_sequence)].sequence_id
        runner.fail = lambda s: FAILURE if fails and s.sequence_id == chosen else None
        pending = runner.launch(batch)
        if not fails:
            assert scheduler.abort(chosen) is None
        scheduler.update(batch, runner.collect(pending))
        runner.fail = lambda _: None
        assert next(s for s in self.sequences if s.sequence_id == chosen).is_finished

    @precondition(lambda self: self.bench.scheduler.num_live)
    @rule()
    def step_that_fails_as_a_whole(self) -> None:
        """Nothing of it was done, not even its copies to and from host memory."""
        scheduler = self.bench.scheduler
        batch = scheduler.schedule()
        failure = StepFailure(kind=FailureKind.RUNNER, message="the device failed")
        outputs = (SequenceOutput(sequence_id=s.sequence_id, failure=failure) for s in batch.every_sequence)
        scheduler.update(batch, StepResult(outputs=tuple(outputs)))

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        if self.sequences:
            self.bench.scheduler.check_invariants()

    @invariant()
    def outputs_are_those_of_solo_runs(self) -> None:
        for sequence in self.sequences:
            expected = self.bench.solo(sequence)
            assert output(sequence) == expected[: sequence.num_output_tokens]
            if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert output(sequence) == expected

    def teardown(self) -> None:
        if self.sequences:
            self.bench.run()
            self.outputs_are_those_of_solo_runs()
            assert all(sequence.is_finished for sequence in self.sequences)
            assert self.bench.scheduler.pool.num_used == 0
            assert self.bench.scheduler.swap.num_used_places == 0


Traffic.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # the machine may be busy with other tests
)
TestTraffic = Traffic.TestCase

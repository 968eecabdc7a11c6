"""Who starts next: shares of classes and lanes, the bound on waiting, admission windows."""

from collections import Counter

import pytest

from appliance.engine.admission_window import AdmissionWindows
from appliance.engine.policy import Candidate, FairOrder
from appliance.engine.sequence import Lane, SamplingParams, Sequence, SequenceId, ServiceClass
from appliance.engine.waiting_queue import WaitingQueue

GOLD, SILVER, BRONZE = ServiceClass


class Queue:
    """A waiting queue under an order, without a scheduler."""

    def __init__(self, order: FairOrder) -> None:
        self.order = order
        self.waiting = WaitingQueue()
        self.num_added = 0
        self.num_places = 100

    def add(
        self,
        service_class: ServiceClass = SILVER,
        lane: Lane = Lane.SHORT,
        *,
        work: int = 10,
        at: float = 0.0,
    ) -> Sequence:
        self.num_added += 1
        sequence = Sequence(
            sequence_id=SequenceId(self.num_added),
            token_ids=[1],
            num_prompt_tokens=1,
            params=SamplingParams(),
            max_output_tokens=work,
            arrival_s=at,
            service_class=service_class,
            lane=lane,
            expected_output_tokens=work - 1,
        )
        self.waiting.add(sequence)
        return sequence

    def candidates(self, now_s: float = 0.0, *, num_running: int = 1) -> list[Sequence]:
        return [
            candidate.sequence
            for candidate in self.order.candidates(
                self.waiting, now_s, num_running=num_running, num_places=self.num_places
            )
        ]

    def start(self, now_s: float = 0.0) -> Sequence:
        sequence = self.candidates(now_s)[0]
        self.order.started(sequence, self.waiting, now_s)
        self.waiting.discard(sequence)
        return sequence


def test_classes_start_five_to_three_to_one_by_work() -> None:
    queue = Queue(FairOrder())
    for _ in range(3000):
        queue.add(GOLD, work=10)
        queue.add(SILVER, work=10)
        queue.add(BRONZE, work=10)
    started = Counter(queue.start().service_class for _ in range(270))
    assert started == {GOLD: 150, SILVER: 90, BRONZE: 30}


def test_lanes_of_a_class_start_three_to_one_by_work() -> None:
    queue = Queue(FairOrder())
    for _ in range(700):
        queue.add(lane=Lane.SHORT, work=10)
        queue.add(lane=Lane.LONG, work=70)
    work: Counter[Lane] = Counter()
    for _ in range(440):
        sequence = queue.start()
        work[sequence.lane] += sequence.expected_work
    assert work[Lane.SHORT] / work[Lane.LONG] == pytest.approx(3.0, rel=0.03)


def test_a_class_that_stays_below_its_share_goes_first_but_cannot_save_up_much() -> None:
    queue = Queue(FairOrder())
    for _ in range(200):
        queue.add(SILVER, work=900)
    for _ in range(100):
        queue.start()
    for _ in range(100):
        queue.add(BRONZE, work=900)
    started = [queue.start().service_class for _ in range(60)]
    assert set(started[:2]) == {BRONZE}  # 2000 tokens were saved up
    assert started[10:].count(BRONZE) in range(10, 16)  # from then on a quarter


def test_the_last_places_are_kept_for_the_best_class_seen_lately() -> None:
    queue = Queue(FairOrder())
    queue.num_places = 4
    queue.add(GOLD)
    assert queue.start(0.0).service_class is GOLD
    silver, gold = queue.add(SILVER), queue.add(GOLD)
    assert queue.candidates(1.0, num_running=28) == [gold]
    assert set(map(id, queue.candidates(100.0, num_running=28))) >= {id(gold)}
    queue.waiting.discard(gold)
    assert queue.candidates(1.0, num_running=28) == []
    assert queue.candidates(1.0, num_running=27) == [silver]
    assert queue.candidates(1.0, num_running=0) == [silver]


def test_within_a_group_the_first_come_is_the_first_served() -> None:
    queue = Queue(FairOrder())
    sequences = [queue.add(work=5 + i % 3) for i in range(9)]
    assert [queue.start() for _ in sequences] == sequences


def test_one_in_front_goes_before_all_and_blocks_are_kept_for_it() -> None:
    queue = Queue(FairOrder())
    queue.add(GOLD)
    preempted = queue.add(BRONZE)
    queue.waiting.add_first(preempted)
    first = next(iter(queue.order.candidates(queue.waiting, 0.0, num_running=1, num_places=9)))
    assert first == Candidate(preempted, is_urgent=True)


def test_whoever_does_not_fit_may_be_overtaken_by_another_group() -> None:
    queue = Queue(FairOrder())
    long, short = queue.add(lane=Lane.LONG), queue.add(lane=Lane.SHORT)
    queue.add(lane=Lane.LONG)
    assert set(map(id, queue.candidates())) == {id(long), id(short)}


def test_patience_bounds_the_wait_at_four_starts_for_each_that_came_before() -> None:
    queue = Queue(FairOrder(patience_s=10.0))
    for _ in range(3):
        queue.add(BRONZE, Lane.LONG, work=100_000)
    last = queue.add(BRONZE, Lane.LONG, work=100_000)
    num_starts = 0
    while last in list(queue.waiting):
        queue.add(GOLD, work=1, at=11.0)  # more gold than can ever be served
        queue.start(now_s=11.0)
        num_starts += 1
        assert num_starts <= 4 * 4 + 1
    assert num_starts > 4  # gold was not shut out


def test_without_patience_run_out_gold_goes_first() -> None:
    queue = Queue(FairOrder(patience_s=10.0))
    queue.add(BRONZE, work=100_000)
    queue.start()
    queue.add(BRONZE, at=1.0)
    gold = queue.add(GOLD, at=5.0)
    assert queue.candidates(now_s=9.0)[0] is gold


def test_windows_part_the_admissions_of_classes_that_compete() -> None:
    queue = Queue(FairOrder(windows=AdmissionWindows()))
    for _ in range(3):
        queue.add(BRONZE, at=1.0)
        queue.add(SILVER, at=1.0)
    queue.start(1.0)
    queue.start(1.0)
    assert {s.service_class for s in queue.candidates(1.0)} == {SILVER, BRONZE}  # the round is still on
    assert queue.candidates(1.05) == []
    assert [s.service_class for s in queue.candidates(1.15)] == [SILVER]
    assert {s.service_class for s in queue.candidates(1.25)} == {SILVER, BRONZE}


def test_windows_hold_nobody_back_where_nothing_runs_or_one_class_waits() -> None:
    queue = Queue(FairOrder(windows=AdmissionWindows()))
    first, second = queue.add(BRONZE, at=1.0), queue.add(BRONZE, at=1.0)
    assert queue.start(1.0) is first
    assert queue.candidates(1.001) == [second]
    queue.add(SILVER, at=1.0)
    queue.start(1.001)
    assert queue.candidates(1.002, num_running=0) != []


def test_a_window_shrinks_while_its_target_is_missed_and_rests_after() -> None:
    windows = AdmissionWindows()
    base_s = windows.width_s(GOLD)
    windows.admitted(GOLD, 50.0, now_s=100.0)
    for step in range(10):
        windows.adapt(GOLD, 100.0 + step, backlog=0.0)
    assert windows.width_s(GOLD) == pytest.approx(base_s / 8)
    for step in range(100):
        windows.adapt(GOLD, 200.0 + step, backlog=0.0)
    assert windows.width_s(GOLD) == pytest.approx(base_s)


def test_a_window_widens_past_seventy_percent_of_its_backlog() -> None:
    windows = AdmissionWindows()
    base_s = windows.width_s(BRONZE)
    windows.adapt(BRONZE, 1.0, backlog=0.7)
    assert windows.width_s(BRONZE) == pytest.approx(base_s)
    for step in range(10):
        windows.adapt(BRONZE, 2.0 + step, backlog=0.71)
    assert windows.width_s(BRONZE) == pytest.approx(4 * base_s)
    windows.adapt(BRONZE, 12.1, backlog=0.0)
    assert base_s < windows.width_s(BRONZE) < 4 * base_s


def test_a_place_in_the_queue_counts_those_of_the_class() -> None:
    queue = Queue(FairOrder())
    queue.add(GOLD)
    queue.add(SILVER)
    second = queue.add(SILVER, Lane.LONG)
    queue.add(SILVER)
    place = queue.waiting.place(second.sequence_id)
    assert place is not None
    assert (place.position, place.total) == (2, 3)
    queue.waiting.discard(second)
    assert queue.waiting.place(second.sequence_id) is None

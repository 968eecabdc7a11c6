"""How many sequences of each service class started, and how many of them in time. Knows no queue."""

from collections import Counter

from appliance.engine.admission_window import TARGETS_S
from appliance.engine.sequence import Sequence, ServiceClass


class StartCounts:
    """Counts from the start on; a target is what the class is promised of the wait for its first step."""

    def __init__(self) -> None:
        self.num_started: Counter[ServiceClass] = Counter()
        self.num_in_time: Counter[ServiceClass] = Counter()

    def count(self, sequence: Sequence, now_s: float) -> None:
        """Note that a sequence runs its first step now."""
        service_class = sequence.service_class
        self.num_started[service_class] += 1
        self.num_in_time[service_class] += now_s - sequence.arrival_s <= TARGETS_S[service_class]

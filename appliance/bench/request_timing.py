"""When one request's tokens came. Knows timestamps on one clock; knows no sockets."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """One request: when its last byte went out, when each chunk of text came, when it ended.

    `num_output_tokens` is the server's own count where it gives one, else the number of chunks. A request
    that failed has an `error` and counts in no percentile.
    """

    sent_s: float
    chunk_times_s: tuple[float, ...]
    ended_s: float
    num_prompt_tokens: int | None
    num_output_tokens: int
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Request out to first text in, the queue included."""
        return self.chunk_times_s[0] - self.sent_s if self.chunk_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first chunk; None for fewer than two tokens or chunks."""
        if len(self.chunk_times_s) < 2 or self.num_output_tokens < 2:
            return None
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (self.num_output_tokens - 1)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Each gap between chunks."""
        return tuple(later - earlier for earlier, later in pairwise(self.chunk_times_s))

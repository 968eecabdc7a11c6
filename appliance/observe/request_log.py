"""One log line per finished request. Never holds a word of a prompt or an answer."""

import logging
from typing import Protocol

_log = logging.getLogger("appliance.requests")


class TokenCounts(Protocol):
    """What a request cost."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_output_tokens(self) -> int: ...


def log_finished(
    request_id: str,
    model_id: str,
    *,
    usage: TokenCounts,
    ttft_s: float | None,
    tpot_s: float | None,
    reason: str,
) -> None:
    """Log identity, sizes, times and why it ended; as text, and as fields for JSON logs."""
    tokens_per_s = 1 / tpot_s if tpot_s else None
    _log.info(
        "%s %s prompt=%d output=%d ttft=%s speed=%s %s",
        request_id,
        model_id,
        usage.num_prompt_tokens,
        usage.num_output_tokens,
        "-" if ttft_s is None else f"{1000 * ttft_s:.0f}ms",
        "-" if tokens_per_s is None else f"{tokens_per_s:.1f}tok/s",
        reason,
        extra={
            "request_id": request_id,
            "model": model_id,
            "prompt_tokens": usage.num_prompt_tokens,
            "output_tokens": usage.num_output_tokens,
            "ttft_s": ttft_s,
            "tokens_per_s": tokens_per_s,
            "finish_reason": reason,
        },
    )

"""One log line per finished request. Never holds a word of a prompt or an answer."""

import logging

from appliance.observe.request_record import RequestRecord

_log = logging.getLogger("appliance.requests")


def log_finished(record: RequestRecord) -> None:
    """Log identity, sizes, times and why it ended; as text, and as fields for JSON logs."""
    tokens_per_s = 1 / record.tpot_s if record.tpot_s else None
    _log.info(
        "%s %s prompt=%d output=%d ttft=%s speed=%s %s",
        record.request_id,
        record.model,
        record.prompt_tokens,
        record.output_tokens,
        "-" if record.ttft_s is None else f"{1000 * record.ttft_s:.0f}ms",
        "-" if tokens_per_s is None else f"{tokens_per_s:.1f}tok/s",
        record.reason,
        extra={
            "request_id": record.request_id,
            "model": record.model,
            "prompt_tokens": record.prompt_tokens,
            "output_tokens": record.output_tokens,
            "ttft_s": record.ttft_s,
            "tokens_per_s": tokens_per_s,
            "finish_reason": record.reason,
        },
    )

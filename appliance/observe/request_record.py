"""What one finished request took, stage by stage. Holds no word of it; knows no protocol."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Seconds; None for a stage that was not reached. The stages follow one another, but two.

    receive: the body comes in. prepare: parsing, template, tokens, grammar. queue: until the first step.
    prefill: until the first token reached the event loop. decode: from the first token to the last.
    Within prefill and decode, detokenize is spent on making text of tokens and send on waiting for the
    client's socket. Of several choices the first is timed.
    """

    request_id: str
    model: str
    service_class: str
    reason: str
    ended_unix_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hit_tokens: int
    receive_s: float
    prepare_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    longest_gap_s: float | None
    detokenize_s: float
    send_s: float
    ttft_s: float | None
    tpot_s: float | None
    total_s: float

    @property
    def length_bucket(self) -> str:
        """The prompt's length, by powers of four."""
        bound = 64
        while bound < self.prompt_tokens:
            bound *= 4
        return f"<={bound}"

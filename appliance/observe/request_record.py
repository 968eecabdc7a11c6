"""What one finished request took, stage by stage. Holds no word of it; knows no protocol."""

from dataclasses import dataclass

# In their order; those of WITHIN are spent in pieces while others last.
STAGES = (
    "receive",
    "parse",
    "load",
    "template",
    "tokenize",
    "grammar",
    "queue",
    "prefill",
    "decode",
    "detokenize",
    "send",
)
WITHIN = frozenset({"detokenize", "send"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Seconds; None for a stage that was not reached. The stages follow one another, but two.

    receive: the body comes in. parse: reading and checking it. load: until its model was loaded. template,
    tokenize, grammar: making the prompt, and what the answer must keep to. queue: until the first step.
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
    parse_s: float
    load_s: float
    template_s: float
    tokenize_s: float
    grammar_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    longest_gap_s: float | None
    detokenize_s: float
    send_s: float
    ttft_s: float | None
    tpot_s: float | None
    total_s: float

    def stage_s(self, name: str) -> float | None:
        """The seconds of one of STAGES."""
        value: float | None = getattr(self, f"{name}_s")
        return value

    @property
    def length_bucket(self) -> str:
        """The prompt's length, by powers of four."""
        bound = 64
        while bound < self.prompt_tokens:
            bound *= 4
        return f"<={bound}"

"""Sorts a new sequence by what it is expected to take: its class, its lane. Knows lengths; knows no queue."""

from appliance.engine.sequence import FinishReason, Lane, Sequence, ServiceClass

SHORT_WORK_TOKENS = 512
_FIRST_GUESS_TOKENS = 256
_LEARNING = 0.05  # weight of the newest answer in the mean: about the last 20 count


class Triage:
    """Expects of an answer without a limit what answers lately had.

    `short_work_tokens` 0 puts every sequence into one lane; without `uses_classes` all are silver.
    """

    def __init__(self, *, short_work_tokens: int = SHORT_WORK_TOKENS, uses_classes: bool = True) -> None:
        self._short_work_tokens = short_work_tokens
        self._uses_classes = uses_classes
        self._mean_output_tokens = float(_FIRST_GUESS_TOKENS)

    def sort(self, sequence: Sequence) -> None:
        """Set what is expected of a sequence, and where it belongs."""
        limit = sequence.params.max_tokens
        guess = round(self._mean_output_tokens) if limit is None else limit
        sequence.expected_output_tokens = min(sequence.max_output_tokens, guess)
        is_long = 0 < self._short_work_tokens < sequence.expected_work
        sequence.lane = Lane.LONG if is_long else Lane.SHORT
        if not self._uses_classes:
            sequence.service_class = ServiceClass.SILVER

    def ended(self, sequence: Sequence) -> None:
        """Learn from an answer that came to its own end."""
        if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._mean_output_tokens += _LEARNING * (sequence.num_output_tokens - self._mean_output_tokens)

"""Writes log-probabilities in OpenAI's two shapes. Knows tokens and their bytes."""

from collections.abc import Sequence

from appliance.engine.batch import TokenLogprobs
from appliance.server.openai_schemas import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from appliance.server.text_events import TokenDetail
from appliance.text.detokenizer import Detokenizer
from appliance.text.tokenizer import Tokenizer

# JSON has no infinity; clients know this number for "never".
_LEAST_LOGPROB = -9999.0


class LogprobWriter:
    """Looks up the texts of tokens. `num_top` likeliest ones are shown beside each chosen token."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top

    def chat(self, details: tuple[TokenDetail, ...]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._chat_token(detail) for detail in details])

    def completion(self, details: tuple[TokenDetail, ...], *, prompt_chars: int) -> CompletionLogprobs:
        """`text_offset` counts characters from the start of the prompt."""
        return CompletionLogprobs(
            tokens=[self._text(detail.token_id) for detail in details],
            token_logprobs=[_finite(detail.logprobs.logprob) for detail in details],
            top_logprobs=[self._top_by_text(detail.logprobs) for detail in details]
            if self._num_top
            else None,
            text_offset=[prompt_chars + detail.offset for detail in details],
        )

    def prompt(self, token_ids: Sequence[int], found: tuple[TokenLogprobs, ...]) -> CompletionLogprobs:
        """The first token has no log-probability, since nothing stands before it."""
        decoder, offset, offsets = Detokenizer(self._tokenizer), 0, list[int]()
        for token_id in token_ids:
            offsets.append(offset)
            offset += len(decoder.push(token_id))
        return CompletionLogprobs(
            tokens=[self._text(token_id) for token_id in token_ids],
            token_logprobs=[None, *(_finite(each.logprob) for each in found)],
            top_logprobs=[None, *map(self._top_by_text, found)] if self._num_top else None,
            text_offset=offsets,
        )

    def _chat_token(self, detail: TokenDetail) -> TokenLogprob:
        return TokenLogprob(
            token=self._text(detail.token_id),
            logprob=_finite(detail.logprobs.logprob),
            bytes=list(self._tokenizer.token_bytes(detail.token_id)),
            top_logprobs=[
                TopLogprob(
                    token=self._text(token_id),
                    logprob=_finite(logprob),
                    bytes=list(self._tokenizer.token_bytes(token_id)),
                )
                for token_id, logprob in detail.logprobs.top[: self._num_top]
            ],
        )

    def _top_by_text(self, logprobs: TokenLogprobs) -> dict[str, float]:
        """Two tokens with the same text share a key: the likelier one keeps it."""
        likeliest: dict[str, float] = {}
        for token_id, logprob in logprobs.top[: self._num_top]:
            likeliest.setdefault(self._text(token_id), _finite(logprob))
        return likeliest

    def _text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id])


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)

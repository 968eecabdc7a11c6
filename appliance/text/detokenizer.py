"""Turns a stream of token ids into a stream of text, whole characters only. Knows no stop strings."""

import codecs
from collections.abc import Iterable

from appliance.text.tokenizer import Tokenizer


class Detokenizer:
    """Holds the bytes of an unfinished character between two tokens.

    The texts of all `push` calls and the final `flush`, joined, equal the decoding of all tokens at once; but
    for control tokens, of which the `visible` ones show the text that spells them.
    """

    def __init__(self, tokenizer: Tokenizer, *, visible: Iterable[str] = ()) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        control_ids = tokenizer.control_ids
        self._visible = {control_ids[text]: text.encode() for text in visible if text in control_ids}

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes; bytes that can begin none become U+FFFD."""
        if token_id in self._visible:
            return self._decoder.decode(self._visible[token_id])
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD if the stream ends within a character, else ""."""
        return self._decoder.decode(b"", final=True)

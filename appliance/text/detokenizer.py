"""Turns a stream of token ids into a stream of text, whole characters only. Knows no stop strings."""

import codecs

from appliance.text.tokenizer import Tokenizer


class Detokenizer:
    """Holds the bytes of an unfinished character between two tokens.

    The texts of all `push` calls and the final `flush`, joined, equal the decoding of all tokens at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes; bytes that can begin none become U+FFFD."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD if the stream ends within a character, else ""."""
        return self._decoder.decode(b"", final=True)

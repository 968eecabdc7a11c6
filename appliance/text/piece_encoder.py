"""The seam between a tokenizer and its algorithm."""

from typing import Protocol


class PieceEncoder(Protocol):
    """One kind of tokenization over one vocabulary. Safe to use from several threads."""

    def encode(self, text: str, *, is_first: bool) -> list[int]:
        """Return the ids of a text, control tokens never among them; `is_first`: nothing precedes it.

        Raises InvalidRequest.
        """
        ...

    def bytes_of(self, piece: str) -> bytes:
        """Return what an ordinary token of this text stands for."""
        ...

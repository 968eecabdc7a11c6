"""What may come next in one sequence: the seam to grammars. Knows neither grammars nor tensors."""

from collections.abc import Sequence
from typing import Protocol


class ConstraintError(Exception):  # an event of one sequence, told as its failure
    """A constraint cannot say what comes next: its grammar took more work than allowed."""


class Constraint(Protocol):
    """Follows one sequence's output. The engine's thread advances it; a mask may be filled on another.

    Never both at once: the runner fills a mask within the step between two advances.
    """

    @property
    def is_done(self) -> bool:
        """Whether the output is complete and nothing may follow."""

    @property
    def num_mask_words(self) -> int:
        """Size of a mask in words of 32 tokens, the first in the lowest bit."""

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take the next output tokens. Raises ConstraintError."""

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must come next, as far as they are certain; not yet taken."""

    def fill_mask(self, address: int) -> None:
        """Write the mask of allowed tokens to `address`. Raises ConstraintError."""

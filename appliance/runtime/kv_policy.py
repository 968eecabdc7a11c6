"""Whether a KV pool keeps its backend's usual elements or INT8, where the user left it open.

INT8 holds nearly twice the tokens of 16 bits at a small cost in exactness, so it is taken only where the
pool would otherwise be too small for what is to run at once. Knows no backend.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from appliance.errors import NotEnoughMemory
from appliance.runtime.kv_plan import KVPlan
from kernels.kv_layout import KVLayout, KVType

# A chat's usual length, by far below what a context allows; and the longest that is expected unasked.
_USUAL_TOKENS = 1024
_LONGEST_UNASKED_TOKENS = 8192
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVChoice:
    """A pool to allocate; `dtype_name` in the words of the settings."""

    dtype_name: str
    layout: KVLayout
    plan: KVPlan


def wanted_tokens(context_length: int, max_sequences: int, *, is_context_asked: bool) -> int:
    """Tokens that a pool should hold: one sequence of full length and the others of usual length."""
    longest = context_length if is_context_asked else min(context_length, _LONGEST_UNASKED_TOKENS)
    return longest + (max_sequences - 1) * min(context_length, _USUAL_TOKENS)


def choose_kv(
    usual: KVLayout,
    usual_name: str,
    plan: Callable[[KVLayout], KVPlan],
    *,
    small: KVLayout | None = None,
    num_wanted_tokens: int,
    is_open: bool,
) -> KVChoice:
    """Plan the usual layout, or `small`, in INT8, where that is too small and the choice is open.

    By default `small` is the usual one with other elements.

    Raises NotEnoughMemory when neither holds even a short conversation.
    """
    small = small or replace(usual, dtype=KVType.INT8)
    if not is_open or usual.is_int8:
        return KVChoice(dtype_name=usual_name, layout=usual, plan=plan(usual))
    try:
        choice = KVChoice(dtype_name=usual_name, layout=usual, plan=plan(usual))
    except NotEnoughMemory:
        return KVChoice(dtype_name="int8", layout=small, plan=plan(small))
    num_tokens = choice.plan.num_blocks * usual.block_size
    if num_tokens >= num_wanted_tokens:
        return choice
    logger.info(
        "KV cache in int8: %s would hold %d tokens of the %d wanted at once; --kv-dtype %s keeps it",
        *(usual_name, num_tokens, num_wanted_tokens, usual_name),
    )
    return KVChoice(dtype_name="int8", layout=small, plan=plan(small))

"""What a start would do with memory: the weights, the pool beside them, or the refusal. Loads nothing."""

from dataclasses import dataclass

from appliance.catalog import ModelFile
from appliance.config import Settings
from appliance.formats.model_file import open_model_file
from appliance.loader import load_wishes, wanted_map
from appliance.pool_choice import choose_pool, context_length
from appliance.runtime.device import select_device
from appliance.runtime.expected_load import expected_load
from appliance.runtime.human_size import human_size
from appliance.runtime.threads import usable_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`warning` says what would help where no sequence could reach its full length."""

    summary: str
    warning: str = ""


def forecast(settings: Settings, found: ModelFile) -> Forecast | None:
    """Return what a start would do now; None where the plain backend would serve.

    Raises what a start raises before it reads a weight, in the same words.
    """
    wishes = load_wishes(
        settings,
        select_device(settings.device),
        settings.threads or usable_threads(),
        precision_map=wanted_map(settings, found),
    )
    with open_model_file(found.path) as file:
        expected = expected_load(file, wishes)
    if expected is None:
        return None
    longest = context_length(settings.context, expected.config)
    pool = choose_pool(settings, expected.terms, longest, free_bytes=expected.free_bytes)
    num_tokens = pool.plan.num_blocks * pool.layout.block_size
    return Forecast(
        summary=(
            f"{expected.precision} weights of {human_size(expected.terms.weights_bytes)} and a KV pool of "
            f"{human_size(pool.plan.pool_bytes)} in {pool.dtype_name}, {num_tokens} tokens, fit"
        ),
        warning=pool.plan.warning,
    )

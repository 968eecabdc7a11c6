"""The KV pool that the settings ask for, beside given weights. Loads and allocates nothing."""

from dataclasses import replace

from appliance.config import Settings
from appliance.errors import BadSetting
from appliance.model.config import ModelConfig
from appliance.runtime.kv_demand import KVDemand
from appliance.runtime.kv_plan import plan_kv
from appliance.runtime.kv_policy import KVChoice, choose_kv, wanted_tokens
from appliance.runtime.kv_remedies import NarrowerWeights
from appliance.runtime.loading import PoolTerms


def context_length(wanted: int | None, config: ModelConfig) -> int:
    """Return the tokens that a sequence may have. Raises BadSetting past what the model was made for."""
    limit = config.context_length
    if wanted is not None and wanted > limit:
        raise BadSetting(
            f"--context is {wanted} and this model was made for at most {limit}", param="context"
        )
    return wanted or limit


def choose_pool(
    settings: Settings, terms: PoolTerms, context_length: int, *, free_bytes: int, num_sharing: int = 1
) -> KVChoice:
    """Return the pool; `free_bytes` are beside the weights, for `num_sharing` models' pools.

    Raises NotEnoughMemory.
    """
    wish = settings.kv_memory
    demand = KVDemand(
        layout=terms.layout,
        device_type=terms.device_type,
        num_layers=terms.num_layers,
        context_length=context_length,
        max_sequences=settings.max_sequences,
        free_bytes=max(free_bytes - terms.workspace_bytes, 0) // num_sharing,
        reserve_bytes=terms.reserve_bytes,
        wanted_bytes=wish.num_bytes if wish else None,
        wanted_share=wish.share if wish else None,
    )
    narrower = tuple(
        NarrowerWeights(other.precision, terms.weights_bytes - other.num_bytes) for other in terms.narrower
    )
    num_wanted_tokens = wanted_tokens(
        context_length, settings.max_sequences, is_context_asked=settings.context is not None
    )
    return choose_kv(
        terms.layout,
        terms.kv_dtype,
        lambda layout: plan_kv(replace(demand, layout=layout), narrower),
        small=terms.int8_layout,
        num_wanted_tokens=num_wanted_tokens,
        is_open=settings.kv_dtype == "auto",
    )

"""Matrices that the bitsandbytes library quantizes and multiplies: NF4 and LLM.int8(). Knows no file.

The library is named here alone and imported once it is asked for: that takes seconds. NF4 is Dettmers et al.
2023 (QLoRA), LLM.int8() Dettmers et al. 2022.
"""

import importlib
import logging
from collections.abc import Iterable
from types import ModuleType

import torch

from appliance.errors import BadSetting
from appliance.runtime.weight_packing import Packing
from kernels.ops import AnyWeight, ForeignWeight

# Columns of the activations with a value above this are multiplied in 16 bits; the paper's choice.
_OUTLIER = 6.0

# Measured: processor time of a token against --precision int8 on the native engine, with AVX-512 and with
# AVX2, and perplexity of `appliance eval` against bf16, where int8 on the native engine is 0.4% above.
COST_ON_A_CPU = {
    "nf4": "6 to 80 times the processor time of --precision int8, with a perplexity 23% above bf16's",
    "llm.int8": "5 to 60 times the processor time of --precision int8, with a perplexity 1.8% above bf16's",
}


def bitsandbytes_packing(
    precision: str, activation_dtype: torch.dtype, *, library_name: str = "bitsandbytes"
) -> Packing:
    """Return what makes `precision`, nf4 or llm.int8, of a matrix; it is held whole meanwhile.

    Raises BadSetting where the library is not there.
    """
    library = _library(library_name, precision)
    is_nf4 = precision == "nf4"
    make, held = (_nf4, activation_dtype) if is_nf4 else (_llm_int8, torch.float16)

    def pack(chunks: Iterable[torch.Tensor], bias: torch.Tensor | None) -> AnyWeight:
        rows_OI = torch.cat([chunk.to(held) for chunk in chunks])
        return make(library, rows_OI, None if bias is None else bias.to(held), activation_dtype)

    return pack


def _library(name: str, precision: str) -> ModuleType:
    logger = logging.getLogger(name)
    level = logger.level
    # It looks for a package of other kernels by the name of ours, and advises to install that over it.
    logger.setLevel(logging.ERROR)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadSetting(
            f"--precision {precision} needs the bitsandbytes library, which cannot be imported ({error}); "
            "install it with 'pip install bitsandbytes', or choose --precision int8 or int4",
            param="precision",
        ) from error
    finally:
        logger.setLevel(level)


def _nf4(
    library: ModuleType, rows_OI: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> ForeignWeight:
    packed, state = library.functional.quantize_4bit(rows_OI, quant_type="nf4")

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        product_TO: torch.Tensor = library.matmul_4bit(x_TI.to(dtype), packed, state, bias=bias)
        return product_TO

    return ForeignWeight(multiply=multiply, num_bytes=packed.nbytes + state.absmax.nbytes + _bytes_of(bias))


def _llm_int8(
    library: ModuleType, rows_OI: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> ForeignWeight:
    quantized_OI, scales_O, _ = library.functional.int8_vectorwise_quant(rows_OI)
    state = library.MatmulLtState()
    state.CB, state.SCB = quantized_OI, scales_O
    state.threshold, state.has_fp16_weights, state.is_training = _OUTLIER, False, False

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        # The library takes float16 alone here, and says so at every product of another type.
        product_TO: torch.Tensor = library.matmul(x_TI.half(), quantized_OI, state=state, bias=bias)
        return product_TO.to(dtype)

    return ForeignWeight(multiply=multiply, num_bytes=quantized_OI.nbytes + scales_O.nbytes + _bytes_of(bias))


def _bytes_of(bias: torch.Tensor | None) -> int:
    return 0 if bias is None else bias.nbytes

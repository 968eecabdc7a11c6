// Fills one level's table. A level file defines its vectors and ACPU_LEVEL (its name), then includes this.
#pragma once

#include "attention.h"
#include "choice.h"
#include "products.h"

namespace {

#ifdef ACPU_TILES
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif

static const acpu::Level kLevel = {
    ACPU_LEVEL_NAME, quantize_rows, norm_row, norm_add_row, gemm,  write_kv, attend,    merge_rows,
    top_k,           gate_row,      peak,     keep_allowed, weigh, at_least, kHasTiles,
};

} // namespace

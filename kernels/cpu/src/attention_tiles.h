// Attention over 16-bit pages by the tile unit, up to 16 queries at a time. Every query goes this way,
// however few there are, because the unit rounds its sums in its own way.
#pragma once

#include "softmax_tiles.h"
#include "tiles.h"

namespace {

constexpr int kTileSlots = 32; // whose values one tile holds

// Tiles 0 to 3 are sums of 16 columns each; a left and a right factor are 6 and 7, or where they are half as
// long, 4 and 5.
template <int N>
ACPU_INLINE void zero_sums() {
  tile_zero<0>();
  if constexpr (N > 1) tile_zero<1>();
  if constexpr (N > 2) tile_zero<2>();
  if constexpr (N > 3) tile_zero<3>();
}
template <int N>
ACPU_INLINE void store_sums(float* p, int64_t stride) {
  tile_store<0>(p, stride);
  if constexpr (N > 1) tile_store<1>(p + 16, stride);
  if constexpr (N > 2) tile_store<2>(p + 32, stride);
  if constexpr (N > 3) tile_store<3>(p + 48, stride);
}
// A quarter or so of what is read next: as many lines as tile B has, of rows of N lines that lie `stride`
// apart.
template <int N, int B, int PART>
ACPU_INLINE void ask_ahead(const uint8_t* ahead, int64_t stride) {
  constexpr int kLines = B > 5 ? 16 : 8;
  if (!ahead) return;
  ACPU_UNROLL
  for (int i = PART * kLines; i < (PART + 1) * kLines; ++i)
    prefetch_near(ahead + i / N * stride + i % N * 64);
}
// Adds tile A times the factors that lie side by side from `p` on.
template <int N, int A, int B>
ACPU_INLINE void add_products(const uint8_t* p, int64_t stride, const uint8_t* ahead) {
  tile_load<B>(p, stride), tile_dot<0, A, B>(), ask_ahead<N, B, 0>(ahead, stride);
  if constexpr (N > 1) tile_load<B>(p + 64, stride), tile_dot<1, A, B>(), ask_ahead<N, B, 1>(ahead, stride);
  if constexpr (N > 2) tile_load<B>(p + 128, stride), tile_dot<2, A, B>(), ask_ahead<N, B, 2>(ahead, stride);
  if constexpr (N > 3) tile_load<B>(p + 192, stride), tile_dot<3, A, B>(), ask_ahead<N, B, 3>(ahead, stride);
}

template <int N>
static void tiled_scores(const KVView& kv, const uint8_t* keys, const uint8_t* ahead, const RowGroup& rows,
                         int column) {
  const int64_t step = (int64_t)kv.block_size * 4;
  zero_sums<N>();
  int d = 0;
  for (; d + 32 <= kv.head_size; d += 32) {
    tile_load<6>(rows.q + d, kv.head_size * 2);
    add_products<N, 6, 7>(keys + d / 2 * step, step, ahead ? ahead + d / 2 * step : nullptr);
  }
  if (d < kv.head_size) {
    tile_load<4>(rows.q + d, kv.head_size * 2);
    add_products<N, 4, 5>(keys + d / 2 * step, step, ahead ? ahead + d / 2 * step : nullptr);
  }
  store_sums<N>(rows.scores + column, kSplit * 4);
}

static void tiled_score_split(const KVView& kv, int head, const Columns& columns, const RowGroup& rows) {
  const int step = least(kTileVectors * W, kv.block_size);
  for (int slot = columns.first / step * step; slot < columns.end; slot += step) {
    const uint8_t* keys = keys_of(kv, columns.blocks, head, slot);
    const uint8_t* ahead = after_keys(kv, head, columns, slot, step);
    const int column = slot - columns.split_start;
    if (step == 16)
      tiled_scores<1>(kv, keys, ahead, rows, column);
    else if (step == 32)
      tiled_scores<2>(kv, keys, ahead, rows, column);
    else
      tiled_scores<4>(kv, keys, ahead, rows, column);
  }
}

// The values of 16 dimensions of the slots that a split sees of `count`, zeros for the others: what lies
// there may be anything.
static void copy_seen(const uint8_t* values, int64_t step, int slot, int count, const Columns& columns,
                      int32_t* seen) {
  for (int i = 0; i < count / 2; ++i) {
    const int low = slot + 2 * i, high = low + 1;
    uint32_t kept = 0;
    if (low >= columns.first && low < columns.end) kept |= 0xffffu;
    if (high >= columns.first && high < columns.end) kept |= 0xffff0000u;
    const vi pair = _mm512_and_si512(iload(values + i * step), iset((int32_t)kept));
    _mm512_storeu_si512(seen + i * 16, pair);
  }
}

template <int N, int A, int B>
static void add_tiled_values(const KVView& kv, const uint8_t* values, int slot, int count,
                             const uint8_t* ahead, const Columns& columns, const Factor* weights) {
  const int64_t step = (int64_t)kv.head_size * 4;
  tile_load<A>(weights, kSplit * 2);
  if (slot >= columns.first && slot + count <= columns.end) return add_products<N, A, B>(values, step, ahead);
  alignas(64) int32_t seen[kTileSlots / 2 * 16 * N];
  for (int v = 0; v < N; ++v) {
    int32_t* part = seen + v * (kTileSlots / 2 * 16);
    copy_seen(values + v * 64, step, slot, count, columns, part);
  }
  constexpr int kPart = kTileSlots / 2 * 16;
  tile_load<B>(seen, 64), tile_dot<0, A, B>(), ask_ahead<N, B, 0>(ahead, step);
  if constexpr (N > 1) tile_load<B>(seen + kPart, 64), tile_dot<1, A, B>(), ask_ahead<N, B, 1>(ahead, step);
  if constexpr (N > 2)
    tile_load<B>(seen + 2 * kPart, 64), tile_dot<2, A, B>(), ask_ahead<N, B, 2>(ahead, step);
  if constexpr (N > 3)
    tile_load<B>(seen + 3 * kPart, 64), tile_dot<3, A, B>(), ask_ahead<N, B, 3>(ahead, step);
}

template <int N>
static void tiled_values(const KVView& kv, int head, const Columns& columns, const RowGroup& rows, int d) {
  zero_sums<N>();
  const int count = least(kTileSlots, kv.block_size);
  const int start = columns.first / count * count;
  for (int slot = start; slot < columns.end; slot += count) {
    const uint8_t* values = values_of(kv, columns.blocks, head, slot) + d * 4;
    const uint8_t* ahead = after_values(kv, head, columns, start, slot, count, d, N * W);
    const Factor* weights = rows.weights + slot - columns.split_start;
    if (count == kTileSlots)
      add_tiled_values<N, 6, 7>(kv, values, slot, count, ahead, columns, weights);
    else
      add_tiled_values<N, 4, 5>(kv, values, slot, count, ahead, columns, weights);
  }
  store_sums<N>(rows.out + d, kv.head_size * 4);
}

static void attend_tiled(const KVView& kv, const HeadShape& shape, int head, const Columns& columns,
                         const RowGroup& rows, int num_rows) {
  tiled_score_split(kv, head, columns, rows);
  softmax_rows(kv, shape, head, columns, rows, num_rows);
  int d = 0;
  for (; d + 64 <= kv.head_size; d += 64) tiled_values<4>(kv, head, columns, rows, d);
  for (; d < kv.head_size; d += 16) tiled_values<1>(kv, head, columns, rows, d);
}

// As in attention.h.
class SplitAttention {
 public:
  static constexpr int kMostQueries = 16;
  void run(const KVView& kv, const HeadShape& shape, int head, const Columns& columns, const RowGroup& rows,
           int num_rows) {
    if (kv.is_int8) return group_of<true>(num_rows)(kv, shape, head, columns, rows);
    set_shape(num_rows);
    attend_tiled(kv, shape, head, columns, rows, num_rows);
  }

 private:
  void set_shape(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.rows[tile] = (uint8_t)rows;
    shapes.rows[5] = 8, shapes.rows[7] = 16, shapes.row_bytes[4] = 32;
    tiles_.set(shapes);
  }

  Tiles tiles_;
  int rows_ = 0;
};

} // namespace

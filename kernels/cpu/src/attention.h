// Grouped-query attention over pages with an online softmax. Keys and values are walked in splits of 128
// slots; each split is summed on its own and the splits are merged in order, so a query's result depends
// neither on the tile it is in nor on the threads that worked on it.
#pragma once

#include "attention_vectors.h"

#ifdef ACPU_TILES
#include "attention_tiles.h"
#endif

namespace {

using acpu::AttentionTile;
using acpu::kMaxHeadSize;

#ifndef ACPU_TILES
static void merge_rows(SplitState* into, float* into_out, const SplitState* from, const float* from_out,
                       int size, int num_rows) {
  for (int r = 0; r < num_rows; ++r)
    merge_splits(into + r, into_out + (int64_t)r * size, from + r, from_out + (int64_t)r * size, size);
}

// One split for up to kMostQueries rows; where pages are INT8, for up to kTileRows.
class SplitAttention {
 public:
  static constexpr int kMostQueries = kTileRows;
  void run(const KVView& kv, const HeadShape& shape, int head, const Columns& columns, const RowGroup& rows,
           int num_rows) {
    (kv.is_int8 ? group_of<true>(num_rows) : group_of<false>(num_rows))(kv, shape, head, columns, rows);
  }
};
#endif

// Queries of a tile as the pages want them: bfloat16, or int16 with a scale per row; scaled beforehand.
static void prepare_queries(const KVView& kv, const HeadShape& shape, const AttentionTile& tile, Factor* q,
                            float* q_scales) {
  const int size = kv.head_size;
  float head[kMaxHeadSize];
  for (int row = 0; row < tile.num_tokens * shape.num_groups; ++row, q += size) {
    const int token = row / shape.num_groups, group = row % shape.num_groups;
    prepare_head(tile.q + token * tile.q_stride + (int64_t)group * size, shape.q_norm, shape,
                 tile.cos + token * tile.rope_stride, tile.sin + token * tile.rope_stride, size, head);
    vf peak = zero();
    for (int i = 0; i < size; i += W) {
      const vf x = mul(load(head + i), set(shape.scale));
      store(head + i, x);
      peak = vmax(peak, vabs(x));
    }
    if (!kv.is_int8) {
      for (int i = 0; i < size; i += W) store_factors(q + i, load(head + i));
      continue;
    }
    const float top = max_of(peak);
    const float inverse = top < acpu::kTiny ? 0.0f : 32767.0f / top;
    q_scales[row] = top < acpu::kTiny ? 0.0f : top / 32767.0f;
    for (int i = 0; i < size; i += W) store_i16((int16_t*)q + i, to_i(mul(load(head + i), set(inverse))));
  }
}

// One split for all rows of a tile, a register tile at a time.
struct SplitWork {
  const KVView& kv;
  const HeadShape& shape;
  const AttentionTile& tile;
  const Factor* q;
  const float* q_scales;
  const int32_t* limits;
  const int32_t* lows;
  bool partials;
};

static void attend_rows(SplitAttention& attention, const SplitWork& work, int split, int row, int rows,
                        SplitState* states, float* out) {
  alignas(64) float scores[SplitAttention::kMostQueries * kSplit];
  alignas(64) Factor weights[SplitAttention::kMostQueries * kSplit];
  float weight_scales[SplitAttention::kMostQueries];
  const int size = work.kv.head_size, start = split * kSplit;
  const int first = most(start, work.lows[row]);
  const int end = least(start + kSplit, work.limits[row + rows - 1]);
  if (first >= end) {
    for (int r = 0; r < rows; ++r) states[r] = {-__builtin_inff(), 0.0f};
    return;
  }
  // In decode memory is the limit.
  const bool prefetches = work.partials && row == 0;
  NextSlots next = {};
  if (prefetches && split + 1 < work.tile.end_split)
    next = {work.tile.blocks, work.tile.kv_head, start + kSplit, work.limits[rows - 1]};
  else if (prefetches)
    next = work.tile.next;
  const Columns columns = {work.tile.blocks, first, end, start, prefetches, next};
  const RowGroup group = {work.q + (int64_t)row * size,
                          work.q_scales + row,
                          work.limits + row,
                          work.lows + row,
                          scores,
                          weights,
                          weight_scales,
                          out,
                          states};
  attention.run(work.kv, work.shape, work.tile.kv_head, columns, group, rows);
}

static void attend(const KVView& kv, const HeadShape& shape, const AttentionTile& tile, bool partials,
                   SplitState* states, float* outputs) {
  alignas(64) Factor q[acpu::kMaxTileRows * kMaxHeadSize];
  alignas(64) float split_out[SplitAttention::kMostQueries * kMaxHeadSize];
  SplitState split_states[SplitAttention::kMostQueries];
  float q_scales[acpu::kMaxTileRows];
  int32_t limits[acpu::kMaxTileRows], lows[acpu::kMaxTileRows];
  const int rows = tile.num_tokens * shape.num_groups, size = kv.head_size;
  prepare_queries(kv, shape, tile, q, q_scales);
  for (int row = 0; row < rows; ++row) {
    limits[row] = tile.first_limit + row / shape.num_groups;
    lows[row] = shape.window > 0 ? most(0, limits[row] - shape.window) : 0;
    if (!partials) states[row] = {-__builtin_inff(), 0.0f};
  }
  const SplitWork work = {kv, shape, tile, q, q_scales, limits, lows, partials};
  const int at_once = kv.is_int8 ? kTileRows : SplitAttention::kMostQueries;
  SplitAttention attention;
  for (int split = tile.first_split; split < tile.end_split; ++split) {
    for (int row = 0; row < rows; row += at_once) {
      const int count = least(at_once, rows - row);
      if (partials) {
        attend_rows(attention, work, split, row, count, states + row, outputs + (int64_t)row * size);
        continue;
      }
      attend_rows(attention, work, split, row, count, split_states, split_out);
      merge_rows(states + row, outputs + (int64_t)row * size, split_states, split_out, size, count);
    }
    if (partials) states += rows, outputs += (int64_t)rows * size;
  }
}

} // namespace

// A register tile of queries against one split: scores, softmax, values. What a level without other means has.
#pragma once

namespace {

using acpu::kSplit;
using acpu::NextSlots;

// The rows of one register tile: `rows` queries against one split.
struct RowGroup {
  const Factor* q;       // [rows, head_size]; INT8 pages: int16 with q_scales
  const float* q_scales; // INT8 pages only
  const int32_t* limits; // slots below are seen
  const int32_t* lows;   // slots from here are seen
  float* scores;         // [rows, kSplit]
  Factor* weights;       // [rows, kSplit]; INT8 pages: int16 with weight_scales
  float* weight_scales;  // INT8 pages only
  float* out;            // [rows, head_size]
  SplitState* states;
};

struct Columns {
  const int32_t* blocks; // of the split's sequence
  int first;             // slots that any row sees
  int end;
  int split_start;
  bool prefetches; // each page asks for another that is wanted later, line by line as its own are used
  NextSlots next;  // whose keys come after this split's last values
};

static inline int64_t page_start(const KVView& kv, int32_t block, int head) {
  return ((int64_t)block * kv.block_stride * kv.num_kv_heads + head) * kv.block_size;
}

// A slot's keys or values; in a page's own order, so that what follows them there is its next slots' or its next
// dimensions'.
static inline const uint8_t* keys_of(const KVView& kv, const int32_t* blocks, int head, int slot) {
  const int64_t element = kv.is_int8 ? 1 : 2;
  return kv.keys + (page_start(kv, blocks[slot / kv.block_size], head) * kv.head_size +
                    slot % kv.block_size * 2) * element;
}
static inline const uint8_t* values_of(const KVView& kv, const int32_t* blocks, int head, int slot) {
  const int64_t element = kv.is_int8 ? 1 : 2;
  return kv.values + (page_start(kv, blocks[slot / kv.block_size], head) +
                      slot % kv.block_size) * kv.head_size * element;
}

// Whether a page is walked at once, in keys as in values: asked for is then the page that is wanted kPagesAhead
// later, across splits and heads. One page ahead, memory was still waited for.
static inline bool is_paged(const KVView& kv, int slots, int size) {
  return slots == kv.block_size && size == kv.head_size;
}

static const uint8_t* page_ahead(const KVView& kv, int head, const Columns& columns, int slot,
                                 bool are_values) {
  const int size = kv.block_size, first = columns.first / size, pages = (columns.end + size - 1) / size - first;
  int page = slot / size - first + kPagesAhead + (are_values ? pages : 0);
  if (page < pages) return keys_of(kv, columns.blocks, head, (first + page) * size);
  page -= pages;
  if (page < pages) return values_of(kv, columns.blocks, head, (first + page) * size);
  const NextSlots& next = columns.next;
  const int after = (next.first / size + page - pages) * size;
  return next.blocks && after < next.end ? keys_of(kv, next.blocks, next.head, after) : nullptr;
}

// What to ask for beside the keys of `step` slots from `slot` on; null: nothing.
static inline const uint8_t* after_keys(const KVView& kv, int head, const Columns& columns, int slot,
                                        int step) {
  if (!columns.prefetches) return nullptr;
  if (is_paged(kv, step, kTileVectors * W)) return page_ahead(kv, head, columns, slot, false);
  if (slot + step < columns.end) return keys_of(kv, columns.blocks, head, slot + step);
  return values_of(kv, columns.blocks, head, columns.first & ~1);
}

// What to ask for beside dimensions `d` to `d + size` of the values of `step` slots from `slot` on, whose first
// were the split's from `first` on; null: nothing.
static inline const uint8_t* after_values(const KVView& kv, int head, const Columns& columns, int first,
                                          int slot, int step, int d, int size) {
  if (!columns.prefetches) return nullptr;
  if (is_paged(kv, step, size)) return page_ahead(kv, head, columns, slot, true);
  const int element = kv.is_int8 ? 1 : 2;
  if (slot + step < columns.end) return values_of(kv, columns.blocks, head, slot + step) + d * 2 * element;
  if (d + size < kv.head_size) return values_of(kv, columns.blocks, head, first) + (d + size) * 2 * element;
  const NextSlots& next = columns.next;
  return next.blocks ? keys_of(kv, next.blocks, next.head, next.first / kv.block_size * kv.block_size)
                     : nullptr;
}

static inline vi two_i16(const int16_t* p) {
  int32_t two;
  __builtin_memcpy(&two, p, 4);
  return iset(two);
}

template <int R, int NV, bool INT8>
static void score_columns(const KVView& kv, const uint8_t* keys, const uint8_t* ahead, const RowGroup& rows,
                          int column) {
  const int pairs = kv.head_size / 2;
  const int64_t step = (int64_t)kv.block_size * (INT8 ? 2 : 4);
  vf f[R][NV];
  vi n[R][NV];
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) f[r][v] = zero(), n[r][v] = izero();
  for (int d = 0; d < pairs; ++d, keys += step) {
    if (ahead) {
      ACPU_UNROLL
      for (int i = 0; i < NV * W * (INT8 ? 2 : 4); i += 64) prefetch_near(ahead + d * step + i);
    }
    vi k[NV];
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) {
      if constexpr (INT8)
        k[v] = widen_i8((const int8_t*)keys + v * W * 2);
      else
        k[v] = iload(keys + v * W * 4);
    }
    ACPU_UNROLL
    for (int r = 0; r < R; ++r) {
      const Factor* own = rows.q + (int64_t)r * kv.head_size;
      if constexpr (INT8) {
        const vi q = two_i16((const int16_t*)own + 2 * d);
        ACPU_UNROLL
        for (int v = 0; v < NV; ++v) n[r][v] = dot2_i16(n[r][v], k[v], q);
      } else {
        const FactorPair q = pair_at(own + 2 * d);
        ACPU_UNROLL
        for (int v = 0; v < NV; ++v) f[r][v] = dot2_factors(f[r][v], k[v], q);
      }
    }
  }
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v)
    store(rows.scores + r * kSplit + column + v * W,
          INT8 ? mul(to_f(n[r][v]), set(rows.q_scales[r])) : f[r][v]);
}

template <int R, bool INT8>
static void score_split(const KVView& kv, int head, const Columns& columns, const RowGroup& rows) {
  const int step = least(kTileVectors * W, kv.block_size);
  constexpr int kHalf = kTileVectors / 2;
  for (int slot = columns.first / step * step; slot < columns.end; slot += step) {
    const uint8_t* keys = keys_of(kv, columns.blocks, head, slot);
    const uint8_t* ahead = after_keys(kv, head, columns, slot, step);
    const int column = slot - columns.split_start;
    if (step == kTileVectors * W)
      score_columns<R, kTileVectors, INT8>(kv, keys, ahead, rows, column);
    else if (step == kHalf * W)
      score_columns<R, kHalf, INT8>(kv, keys, ahead, rows, column);
    else
      for (int i = 0; i < step; i += W)
        score_columns<R, 1, INT8>(kv, keys + i * (INT8 ? 2 : 4), nullptr, rows, column + i);
  }
}

// One vector of a row's scores as the softmax sees them: scaled, capped, and minus infinity where masked.
template <bool INT8>
static inline vf masked_score(const KVView& kv, const HeadShape& shape, int head, const Columns& columns,
                              const RowGroup& rows, int r, int slot) {
  vf s = load(rows.scores + r * kSplit + slot - columns.split_start);
  if constexpr (INT8) {
    const int64_t page = page_start(kv, columns.blocks[slot / kv.block_size], head);
    s = mul(s, load(kv.key_scales + page + slot % kv.block_size));
  }
  if (shape.softcap > 0.0f) s = softcapped(s, shape.softcap);
  if (slot >= rows.lows[r] && slot + W <= rows.limits[r]) return s;
  return keep_range(s, -__builtin_inff(), slot, rows.lows[r], rows.limits[r]);
}

// Softmax weights as int16 of their largest, each already times its value's scale.
static void quantize_weights(const KVView& kv, int head, const Columns& columns, const RowGroup& rows, int r,
                             int first, int end) {
  float* p = rows.scores + r * kSplit - columns.split_start;
  vf peak = zero();
  for (int slot = first; slot < end; slot += W) {
    const int64_t page = page_start(kv, columns.blocks[slot / kv.block_size], head);
    const vf scaled = mul(load(p + slot), load(kv.value_scales + page + slot % kv.block_size));
    const vf kept = keep_range(scaled, 0.0f, slot, rows.lows[r], rows.limits[r]);
    store(p + slot, kept);
    peak = vmax(peak, kept);
  }
  const float top = max_of(peak);
  const float inverse = top < acpu::kTiny ? 0.0f : 32767.0f / top;
  rows.weight_scales[r] = top < acpu::kTiny ? 0.0f : top / 32767.0f;
  int16_t* w = (int16_t*)(rows.weights + r * kSplit) - columns.split_start;
  for (int slot = first; slot < end; slot += W) store_i16(w + slot, to_i(mul(load(p + slot), set(inverse))));
}

template <bool INT8>
static void softmax_row(const KVView& kv, const HeadShape& shape, int head, const Columns& columns,
                        const RowGroup& rows, int r) {
  const int first = columns.first / 16 * 16, end = (columns.end + 15) / 16 * 16;
  float* p = rows.scores + r * kSplit - columns.split_start;
  Factor* w = rows.weights + r * kSplit - columns.split_start;
  vf peak = set(-__builtin_inff());
  for (int slot = first; slot < end; slot += W) {
    const vf s = masked_score<INT8>(kv, shape, head, columns, rows, r, slot);
    store(p + slot, s);
    peak = vmax(peak, s);
  }
  const float top = max_of(peak);
  rows.states[r] = {top, 0.0f};
  if (top == -__builtin_inff()) {
    for (int slot = first; slot < end; ++slot) w[slot] = 0;
    if constexpr (INT8) {
      __builtin_memset(rows.weights + r * kSplit, 0, kSplit * sizeof(int16_t));
      rows.weight_scales[r] = 0.0f;
    }
    return;
  }
  vf total = zero();
  for (int slot = first; slot < end; slot += W) {
    const vf e = weight_below(load(p + slot), top);
    total = add(total, e);
    if constexpr (INT8)
      store(p + slot, e);
    else
      store_factors(w + slot, e);
  }
  // The lanes' partial sums depend on nothing but the row: what lies outside its range adds exact zeros.
  rows.states[r].sum = sum(total);
  if constexpr (INT8) quantize_weights(kv, head, columns, rows, r, first, end);
}

// Adds the values of `pairs` slot pairs of one page, times the weights from `first` on, to a tile of R rows by
// NV vectors.
template <int R, int NV, bool INT8>
ACPU_CLANG_INLINE void add_values(const uint8_t* values, int64_t step, const Factor* weights, int first,
                                  int pairs, const uint8_t* ahead, vf (&f)[R][NV], vi (&n)[R][NV]) {
  for (int i = 0; i < pairs; ++i, values += step) {
    if (ahead) {
      ACPU_UNROLL
      for (int b = 0; b < NV * W * (INT8 ? 2 : 4); b += 64) prefetch_near(ahead + i * step + b);
    }
    vi v[NV];
    ACPU_UNROLL
    for (int j = 0; j < NV; ++j) {
      if constexpr (INT8)
        v[j] = widen_i8((const int8_t*)values + j * W * 2);
      else
        v[j] = iload(values + j * W * 4);
    }
    ACPU_UNROLL
    for (int r = 0; r < R; ++r) {
      const Factor* own = weights + r * kSplit;
      if constexpr (INT8) {
        const vi w = two_i16((const int16_t*)own + first + 2 * i);
        ACPU_UNROLL
        for (int j = 0; j < NV; ++j) n[r][j] = dot2_i16(n[r][j], v[j], w);
      } else {
        const FactorPair w = pair_at(own + first + 2 * i);
        ACPU_UNROLL
        for (int j = 0; j < NV; ++j) f[r][j] = dot2_factors(f[r][j], v[j], w);
      }
    }
  }
}

// The last pair where its second slot is not written yet: whatever lies there must not reach the sum.
template <int R, int NV>
ACPU_CLANG_INLINE void add_half_pair(const uint8_t* values, const Factor* weights, int first, vf (&f)[R][NV]) {
  int32_t kept[NV * W];
  __builtin_memcpy(kept, values, sizeof kept);
  for (int i = 0; i < NV * W; ++i) kept[i] &= 0xffff;
  vi n[R][NV];
  add_values<R, NV, false>((const uint8_t*)kept, 0, weights, first, 1, nullptr, f, n);
}

template <int R, int NV, bool INT8>
static void value_columns(const KVView& kv, int head, const Columns& columns, const RowGroup& rows, int d) {
  vf f[R][NV];
  vi n[R][NV];
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) f[r][v] = zero(), n[r][v] = izero();
  const int element = INT8 ? 1 : 2, start = columns.first & ~1;
  const int64_t step = (int64_t)kv.head_size * 2 * element;
  for (int slot = start; slot < columns.end;) {
    const int page = slot / kv.block_size * kv.block_size, stop = least(page + kv.block_size, columns.end);
    const int pairs = INT8 ? (stop - slot + 1) / 2 : (stop - slot) / 2;
    const uint8_t* values = values_of(kv, columns.blocks, head, slot) + (int64_t)d * 2 * element;
    const int first = slot - columns.split_start;
    const uint8_t* ahead = after_values(kv, head, columns, start, page, kv.block_size, d, NV * W);
    add_values<R, NV, INT8>(values, step, rows.weights, first, pairs, ahead, f, n);
    if constexpr (!INT8)
      if ((stop - slot) % 2) add_half_pair<R, NV>(values + pairs * step, rows.weights, first + 2 * pairs, f);
    slot = stop;
  }
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v)
    store(rows.out + (int64_t)r * kv.head_size + d + v * W,
          INT8 ? mul(to_f(n[r][v]), set(rows.weight_scales[r])) : f[r][v]);
}

template <int R, bool INT8>
static void attend_group(const KVView& kv, const HeadShape& shape, int head, const Columns& columns,
                         const RowGroup& rows) {
  score_split<R, INT8>(kv, head, columns, rows);
  for (int r = 0; r < R; ++r) softmax_row<INT8>(kv, shape, head, columns, rows, r);
  int d = 0;
  for (; d + kTileVectors * W <= kv.head_size; d += kTileVectors * W)
    value_columns<R, kTileVectors, INT8>(kv, head, columns, rows, d);
  for (; d < kv.head_size; d += W) value_columns<R, 1, INT8>(kv, head, columns, rows, d);
}

typedef void (*AttendGroup)(const KVView&, const HeadShape&, int, const Columns&, const RowGroup&);

template <bool INT8>
static AttendGroup group_of(int rows) {
  if constexpr (kTileRows >= 6) {
    if (rows == 6) return attend_group<6, INT8>;
    if (rows == 5) return attend_group<5, INT8>;
  }
  if constexpr (kTileRows >= 4)
    if (rows == 4) return attend_group<4, INT8>;
  if constexpr (kTileRows >= 3)
    if (rows == 3) return attend_group<3, INT8>;
  return rows == 2 ? attend_group<2, INT8> : attend_group<1, INT8>;
}

} // namespace

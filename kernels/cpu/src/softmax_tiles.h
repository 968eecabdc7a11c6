// The softmax between the tile unit's two products, of up to 16 rows of scores against one split, and the
// merging of splits. What runs on one port only while that unit is at work (sums and products of floats) is
// kept to the least: powers of two, rounding and packing are done in whole numbers.
#pragma once

#include "attention_vectors.h"

namespace {

constexpr int kSoftmaxRows = 16;

// Lane r becomes the largest, or the sum, of all lanes of vector r; in one order, whatever else there is.
template <class Two>
ACPU_INLINE vf across_lanes(const vf (&v)[kSoftmaxRows], Two two) {
  vf pairs[8], fours[4];
  ACPU_UNROLL
  for (int i = 0; i < 8; ++i)
    pairs[i] = two(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  ACPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = two(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halved = [&](vf a, vf b) {
    return two(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halved(halved(fours[0], fours[1]), halved(fours[2], fours[3]));
}

// 2^t for t at most about 0: relative error under 8e-5, a twentieth of what bfloat16 makes of it. Below
// 2^-125 it is that; who must get none has to be masked.
static inline vf power_below(vf t) {
  const vf magic = set(12582912.0f); // 1.5 * 2^23: the sum's last bits are the whole number nearest to t
  t = vmax(t, set(-125.0f));
  const vf whole = add(t, magic);
  const vf r = sub(t, sub(whole, magic));
  vf p = set(5.517167e-2f);
  p = fma(p, r, set(2.4261112e-1f));
  p = fma(p, r, set(6.9326099e-1f));
  p = fma(p, r, set(9.9992807e-1f));
  return (vf)iadd((vi)p, _mm512_slli_epi32((vi)whole, 23));
}

// 32 weights as bfloat16, rounded to the nearest.
static inline void store_weights(Factor* p, vf first, vf second) {
  const vi half = iset(0x8000);
  const vi lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const vi upper_words = iadd(_mm512_mullo_epi32(lanes, iset(4 << 16 | 4)), iset(3 << 16 | 1));
  _mm512_storeu_si512(p,
                      _mm512_permutex2var_epi16(iadd((vi)first, half), upper_words, iadd((vi)second, half)));
}

// One row's part of a softmax over a split. Rows that see all of it and have no cap go the short way, to the
// same numbers.
class RowSoftmax {
 public:
  RowSoftmax(const KVView& kv, const HeadShape& shape, int head, const Columns& columns, const RowGroup& rows,
             int row)
      : kv_(kv),
        shape_(shape),
        head_(head),
        columns_(columns),
        rows_(rows),
        row_(row),
        scores_(rows.scores + row * kSplit),
        weights_(rows.weights + row * kSplit) {
    const int low = most(rows.lows[row], columns.first), limit = least(rows.limits[row], columns.end);
    first_ = (most(low, columns.split_start) - columns.split_start) / W * W;
    end_ = (limit - columns.split_start + W - 1) / W * W;
    is_whole_ = shape.softcap == 0.0f && low <= columns.split_start && limit >= columns.split_start + kSplit;
  }

  vf peak() const {
    vf best = set(-__builtin_inff());
    if (is_whole_) {
      ACPU_UNROLL
      for (int i = 0; i < kSplit; i += W) best = vmax(best, load(scores_ + i));
      return best;
    }
    for (int i = first_; i < end_; i += W) {
      const vf s = masked_score<false>(kv_, shape_, head_, columns_, rows_, row_, columns_.split_start + i);
      store(scores_ + i, s);
      best = vmax(best, s);
    }
    return best;
  }

  // Writes the weights below `top`, whole tiles of values that any row sees; returns their sums by lane.
  vf weigh(float top) const {
    const vf below = set(top == -__builtin_inff() ? 0.0f : -top * kLog2E);
    vf total = zero();
    if (is_whole_) {
      ACPU_UNROLL
      for (int i = 0; i < kSplit; i += 2 * W) {
        const vf a = power_below(fma(load(scores_ + i), set(kLog2E), below));
        const vf b = power_below(fma(load(scores_ + i + W), set(kLog2E), below));
        total = add(add(total, a), b);
        store_weights(weights_ + i, a, b);
      }
      return total;
    }
    const int begin = (columns_.first - columns_.split_start) / (2 * W) * (2 * W);
    for (int i = begin; i < columns_.end - columns_.split_start; i += 2 * W) {
      const vf a = masked_weight(i, below), b = masked_weight(i + W, below);
      total = add(add(total, a), b);
      store_weights(weights_ + i, a, b);
    }
    return total;
  }

 private:
  static constexpr float kLog2E = 1.44269504f;

  vf masked_weight(int i, vf below) const {
    if (i < first_ || i >= end_) return zero();
    const vf weight = power_below(fma(load(scores_ + i), set(kLog2E), below));
    const int slot = columns_.split_start + i, low = rows_.lows[row_], limit = rows_.limits[row_];
    return slot >= low && slot + W <= limit ? weight : keep_range(weight, 0.0f, slot, low, limit);
  }

  const KVView& kv_;
  const HeadShape& shape_;
  const int head_;
  const Columns& columns_;
  const RowGroup& rows_;
  const int row_;
  float* scores_;
  Factor* weights_;
  int first_, end_; // what it sees, in whole vectors
  bool is_whole_;
};

static void softmax_rows(const KVView& kv, const HeadShape& shape, int head, const Columns& columns,
                         const RowGroup& rows, int num_rows) {
  vf peaks[kSoftmaxRows], totals[kSoftmaxRows];
  alignas(64) float top[kSoftmaxRows], total[kSoftmaxRows];
  for (int r = 0; r < kSoftmaxRows; ++r)
    peaks[r] = r < num_rows ? RowSoftmax(kv, shape, head, columns, rows, r).peak() : zero();
  store(top, across_lanes(peaks, [](vf a, vf b) { return vmax(a, b); }));
  for (int r = 0; r < kSoftmaxRows; ++r)
    totals[r] = r < num_rows ? RowSoftmax(kv, shape, head, columns, rows, r).weigh(top[r]) : zero();
  store(total, across_lanes(totals, [](vf a, vf b) { return add(a, b); }));
  for (int r = 0; r < num_rows; ++r) rows.states[r] = {top[r], total[r]};
}

// As merge_splits, row by row, with the exponentials of up to 16 rows side by side.
static void merge_some_rows(SplitState* into, float* into_out, const SplitState* from, const float* from_out,
                            int size, int num_rows) {
  alignas(64) float old_top[kSoftmaxRows] = {}, new_top[kSoftmaxRows] = {}, a[kSoftmaxRows], b[kSoftmaxRows];
  for (int r = 0; r < num_rows; ++r) old_top[r] = into[r].max, new_top[r] = from[r].max;
  const vf olds = load(old_top), news = load(new_top), tops = vmax(olds, news);
  store(a, vexp(sub(olds, tops)));
  store(b, vexp(sub(news, tops)));
  for (int r = 0; r < num_rows; ++r, into_out += size, from_out += size) {
    if (from[r].max == -__builtin_inff()) continue;
    if (into[r].max == -__builtin_inff()) {
      into[r] = from[r];
      for (int i = 0; i < size; i += W) store(into_out + i, load(from_out + i));
      continue;
    }
    into[r] = {into[r].max > from[r].max ? into[r].max : from[r].max,
               into[r].sum * a[r] + from[r].sum * b[r]};
    for (int i = 0; i < size; i += W)
      store(into_out + i, fma(load(into_out + i), set(a[r]), mul(load(from_out + i), set(b[r]))));
  }
}

static void merge_rows(SplitState* into, float* into_out, const SplitState* from, const float* from_out,
                       int size, int num_rows) {
  for (int r = 0; r < num_rows; r += kSoftmaxRows)
    merge_some_rows(into + r, into_out + (int64_t)r * size, from + r, from_out + (int64_t)r * size, size,
                    least(kSoftmaxRows, num_rows - r));
}

} // namespace

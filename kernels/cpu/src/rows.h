// Work on single rows: norms, activation quantization, rotary embedding, writing keys and values into pages.
#pragma once

namespace {

using acpu::ActView;
using acpu::HeadShape;
using acpu::KVView;
using acpu::SplitState;

static inline float root(float x) {
  return __builtin_sqrtf(x);
}

static float inverse_rms(const float* x, int size, float eps) {
  vf total = zero();
  int i = 0;
  for (; i + W <= size; i += W) total = fma(load(x + i), load(x + i), total);
  float s = sum(total);
  for (; i < size; ++i) s += x[i] * x[i];
  return 1.0f / root(s / (float)size + eps);
}

static void norm_row(const float* x, const float* weight, float* out, int size, float eps) {
  const float scale = inverse_rms(x, size, eps);
  int i = 0;
  for (; i + W <= size; i += W) store(out + i, mul(mul(load(x + i), set(scale)), load(weight + i)));
  for (; i < size; ++i) out[i] = x[i] * scale * weight[i];
}

static void norm_add_row(const float* x, const float* weight, float* into, int size, float eps,
                         float factor) {
  const float scale = inverse_rms(x, size, eps);
  int i = 0;
  for (; i + W <= size; i += W) {
    const vf normed = mul(mul(load(x + i), set(scale)), load(weight + i));
    store(into + i, add(load(into + i), mul(normed, set(factor))));
  }
  for (; i < size; ++i) into[i] += x[i] * scale * weight[i] * factor;
}

// The high bytes of whole numbers, the nearest.
static inline vf high_of(vf n) {
  return round(mul(n, set(1.0f / acpu::kLowSteps)));
}

// Whole numbers as their high bytes and what is left.
static inline void store_bytes(vf n, vf high, int8_t* q, int8_t* low) {
  store_i8(q, to_i(high));
  store_i8(low, to_i(fma(high, set(-(float)acpu::kLowSteps), n)));
}

constexpr int kParts = acpu::kGroup / W; // of a group, a vector each

static inline float largest_of(const vf (&x)[kParts]) {
  vf peak = zero();
  ACPU_UNROLL
  for (int i = 0; i < kParts; ++i) peak = vmax(peak, vabs(x[i]));
  return max_of(peak);
}

static inline void store_sums(const ActView& act, int64_t at, float scale, vi total) {
  const int32_t s = isum(total);
  act.scales[at] = scale;
  act.sums[at] = s;
  act.weighted_sums[at] = scale * (float)s;
}

// One group of 32 to one or two bytes by its absolute maximum.
static inline void quantize_evenly(const vf (&x)[kParts], bool has_low, const ActView& act, int64_t at,
                                   int8_t* q) {
  const float top = largest_of(x), largest = (float)(has_low ? acpu::kMostWhole : acpu::kMostByte);
  const float inverse = top < acpu::kTiny ? 0.0f : largest / top;
  vi total = izero();
  ACPU_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const vf n = round(mul(x[i], set(inverse)));
    if (has_low)
      store_bytes(n, high_of(n), q + i * W, q + acpu::kGroup + i * W);
    else
      store_i8(q + i * W, to_i(n));
    total = iadd(total, to_i(n));
  }
  store_sums(act, at, top < acpu::kTiny ? 0.0f : top / largest, total);
}

#ifndef ACPU_PEAKS
static inline acpu::Peaks peaks_of(const vf (&x)[kParts]) {
  float values[acpu::kGroup];
  for (int i = 0; i < kParts; ++i) store(values + i * W, vabs(x[i]));
  acpu::Peaks peaks = {0.0f, 0.0f, 0};
  for (int quad = 0; quad < acpu::kGroup / acpu::kQuad; ++quad) {
    float largest = 0.0f;
    for (int i = 0; i < acpu::kQuad; ++i) {
      const float value = values[quad * acpu::kQuad + i];
      largest = value > largest ? value : largest;
    }
    if (largest > peaks.first)
      peaks = {largest, peaks.first, quad};
    else if (largest > peaks.second)
      peaks.second = largest;
  }
  return peaks;
}
#endif

// One group of 32 to a byte each by the largest value outside of the quad with the largest one, which gets
// high bytes: what stands out does not make the others coarse.
static inline void quantize_mixed(const vf (&x)[kParts], const ActView& act, int64_t at, int8_t* q) {
  const acpu::Peaks peaks = peaks_of(x);
  const float by_second = peaks.second * (1.0f / acpu::kMostByte);
  const float by_first = peaks.first * (1.0f / acpu::kMostWhole);
  const float scale = by_second > by_first ? by_second : by_first;
  const float inverse = peaks.first < acpu::kTiny ? 0.0f : 1.0f / scale;
  const uint32_t lanes = 15u << peaks.quad * acpu::kQuad;
  int8_t bytes[acpu::kGroup];
  vi total = izero();
  ACPU_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const vf n = round(mul(x[i], set(inverse)));
    store_bytes(n, keep_bits(high_of(n), 0.0f, lanes >> i * W), bytes + i * W, q + i * W);
    total = iadd(total, to_i(n));
  }
  acpu::HighQuad high = {};
  __builtin_memcpy(high.bytes, bytes + peaks.quad * acpu::kQuad, sizeof high.bytes);
  high.quad = (uint8_t)peaks.quad;
  __builtin_memcpy(q + acpu::kGroup, &high, sizeof high);
  store_sums(act, at, peaks.first < acpu::kTiny ? 0.0f : scale, total);
}

// A group of (nearly) zeros has scale 0.
static inline void quantize_group(const float* x, const ActView& act, int64_t row, int group) {
  const int64_t at = row * act.num_groups + group;
  int8_t* q = act.q + at * acpu::bytes_of_group(act.forms);
  vf parts[kParts];
  ACPU_UNROLL
  for (int i = 0; i < kParts; ++i) parts[i] = load(x + i * W);
  if (act.forms & acpu::kFormMixed)
    quantize_mixed(parts, act, at, q);
  else
    quantize_evenly(parts, act.forms & acpu::kFormInt12, act, at, q);
}

static inline void store_group(const float* x, const ActView& act, int64_t row, int group) {
  const int64_t at = (row * act.num_groups + group) * acpu::kGroup;
  if (act.forms & acpu::kFormInt8) quantize_group(x, act, row, group);
  if (act.forms & acpu::kFormBF16)
    for (int i = 0; i < acpu::kGroup; i += W) store_bf16(act.bf16 + at + i, load(x + i));
  if (act.forms & acpu::kFormF32)
    for (int i = 0; i < acpu::kGroup; i += W) store(act.f32 + at + i, load(x + i));
}

static void quantize_rows(const float* x, int64_t stride, int num_inputs, const ActView& act, int row0,
                          int row1) {
  for (int row = row0; row < row1; ++row) {
    const float* from = x + row * stride;
    const int whole = num_inputs / acpu::kGroup;
    for (int g = 0; g < whole; ++g) store_group(from + g * acpu::kGroup, act, row, g);
    if (whole < act.num_groups) {
      float last[acpu::kGroup] = {};
      for (int i = whole * acpu::kGroup; i < num_inputs; ++i) last[i - whole * acpu::kGroup] = from[i];
      store_group(last, act, row, whole);
    }
  }
}

static void gate_row(const float* gate, const float* up, float* out, int size, int activation) {
  int i = 0;
  for (; i + W <= size; i += W) store(out + i, mul(activated(load(gate + i), activation), load(up + i)));
  if (i == size) return;
  float g[W] = {}, u[W] = {}, o[W];
  for (int j = i; j < size; ++j) g[j - i] = gate[j], u[j - i] = up[j];
  store(o, mul(activated(load(g), activation), load(u)));
  for (int j = i; j < size; ++j) out[j] = o[j - i];
}

// Norm (where there is one) and rotation of one head; first half turns with the second.
static void prepare_head(const float* x, const float* norm, const HeadShape& shape, const float* cos,
                         const float* sin, int head_size, float* out) {
  if (norm) {
    norm_row(x, norm, out, head_size, shape.eps);
    x = out;
  } else if (shape.rotary_size < head_size) {
    for (int i = shape.rotary_size; i < head_size; ++i) out[i] = x[i];
  }
  const int half = shape.rotary_size / 2;
  int i = 0;
  for (; i + W <= half; i += W) {
    const vf a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, sub(mul(a, c), mul(b, s)));
    store(out + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cos[i] - b * sin[i];
    out[half + i] = b * cos[i] + a * sin[i];
  }
}

static float quantize_head(const float* x, int head_size, int8_t* q) {
  vf peak = zero();
  for (int i = 0; i < head_size; i += W) peak = vmax(peak, vabs(load(x + i)));
  const float top = max_of(peak);
  const float inverse = top < acpu::kTiny ? 0.0f : 127.0f / top;
  for (int i = 0; i < head_size; i += W) store_i8(q + i, to_i(mul(load(x + i), set(inverse))));
  return top < acpu::kTiny ? 0.0f : top / 127.0f;
}

template <class T>
static void scatter_key(T* page, const T* x, int head_size, int block_size, int offset) {
  for (int d = 0; d < head_size; d += 2) {
    T* at = page + (int64_t)(d / 2) * block_size * 2 + offset * 2;
    at[0] = x[d];
    at[1] = x[d + 1];
  }
}

template <class T>
static void scatter_value(T* page, const T* x, int head_size, int offset) {
  T* at = page + (int64_t)(offset / 2) * head_size * 2 + offset % 2;
  for (int d = 0; d < head_size; ++d) at[2 * d] = x[d];
}

static void write_kv(const KVView& kv, const HeadShape& shape, const float* k, const float* v,
                     const float* cos, const float* sin, int64_t slot, int head) {
  const int size = kv.head_size, offset = (int)(slot % kv.block_size);
  const int64_t page = slot / kv.block_size * kv.block_stride * kv.num_kv_heads + head;
  const int64_t start = page * kv.block_size * size;
  float key[acpu::kMaxHeadSize];
  prepare_head(k, shape.k_norm, shape, cos, sin, size, key);
  if (kv.is_int8) {
    int8_t q[acpu::kMaxHeadSize];
    kv.key_scales[page * kv.block_size + offset] = quantize_head(key, size, q);
    scatter_key((int8_t*)kv.keys + start, q, size, kv.block_size, offset);
    kv.value_scales[page * kv.block_size + offset] = quantize_head(v, size, q);
    scatter_value((int8_t*)kv.values + start, q, size, offset);
    return;
  }
  uint16_t b[acpu::kMaxHeadSize];
  for (int i = 0; i < size; i += W) store_bf16(b + i, load(key + i));
  scatter_key((uint16_t*)kv.keys + start, b, size, kv.block_size, offset);
  for (int i = 0; i < size; i += W) store_bf16(b + i, load(v + i));
  scatter_value((uint16_t*)kv.values + start, b, size, offset);
}

// Adds one more split to a running softmax. A split that saw nothing changes no bit.
static void merge_splits(SplitState* into, float* into_out, const SplitState* from, const float* from_out,
                         int size) {
  if (from->max == -__builtin_inff()) return;
  if (into->max == -__builtin_inff()) {
    *into = *from;
    for (int i = 0; i < size; i += W) store(into_out + i, load(from_out + i));
    return;
  }
  const float top = into->max > from->max ? into->max : from->max;
  const float a = exp_of(into->max - top), b = exp_of(from->max - top);
  into->sum = into->sum * a + from->sum * b;
  into->max = top;
  for (int i = 0; i < size; i += W)
    store(into_out + i, fma(load(into_out + i), set(a), mul(load(from_out + i), set(b))));
}

// The k largest, largest first, equal ones by lowest id. NaN is never chosen; places left over get id -1.
static void top_k(const float* x, int size, int k, int32_t* ids, float* values) {
  int count = 0;
  const auto insert = [&](int id) {
    const float value = x[id];
    if (value != value || (count == k && !(value > values[k - 1]))) return;
    int at = count < k ? count++ : k - 1;
    for (; at > 0 && values[at - 1] < value; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value;
    ids[at] = id;
  };
  int i = 0;
  for (; i + W <= size; i += W) {
    if (count == k && !greater_bits(load(x + i), set(values[k - 1]))) continue;
    for (int j = 0; j < W; ++j) insert(i + j);
  }
  for (; i < size; ++i) insert(i);
  for (; count < k; ++count) values[count] = -__builtin_inff(), ids[count] = -1;
}

} // namespace

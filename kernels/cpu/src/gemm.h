// Matrix products over packed panels: tiles of a few rows by one panel, accumulated in registers. Each output
// is summed group by group in one order, whatever the tile, so a row's result does not depend on its
// neighbours.
#pragma once

namespace {

using acpu::kGroup;
using acpu::kPanel;
using acpu::kUnit;
using acpu::LinearView;

// How far ahead of its products a lone tile asks for the weights that follow, line by line as it goes or a
// record at once: the hardware's own requests do not reach far enough to fill the bus beside the arithmetic.
#ifdef ACPU_ASKS_BY_RECORD
constexpr int kStreamBytes = 10240;
constexpr bool kAsksByLine = false;
#else
constexpr int kStreamBytes = 2560;
constexpr bool kAsksByLine = true;
#endif

template <bool ASKS>
ACPU_INLINE void ask_ahead(const uint8_t* w, int at) {
  if (ASKS && at % 64 == 0) prefetch_near(w + at + kStreamBytes);
}

// The compiler forgets what it has loaded from `w`: kept for the low bytes' products it pushes sums out of
// the registers, and another load costs nothing.
ACPU_INLINE void load_again(const uint8_t*& w) {
  __asm__ volatile("" : "+r"(w) : : "memory");
}

template <int R, int NV, bool ASKS>
ACPU_INLINE void dot_group8(const uint8_t* w, const int8_t* const* x, int at, vi (&acc)[R][NV]) {
  ACPU_UNROLL_STEPS
  for (int k = 0; k < kGroup; k += 4, w += kPanel * 4) {
    vi step[NV];
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) {
      step[v] = iload(w + v * W * 4);
      ask_ahead<ASKS>(w, v * W * 4);
    }
    ACPU_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t four;
      __builtin_memcpy(&four, x[r] + at + k, 4);
      const vi b = iset(four);
      ACPU_UNROLL
      for (int v = 0; v < NV; ++v) acc[r][v] = dot4(acc[r][v], step[v], b);
    }
    if (R > 1) load_again(w);
  }
}

template <int R, int NV>
ACPU_INLINE void dot_nibbles(const vi (&w)[NV], const int8_t* const* x, int at, vi (&acc)[R][NV]) {
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) {
    int32_t four;
    __builtin_memcpy(&four, x[r] + at, 4);
    const vi b = iset(four);
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) acc[r][v] = dot4_nibble(acc[r][v], w[v], b);
  }
}

// A byte holds input j in its low and input j + 16 in its high nibble, as in the file's own blocks.
template <int R, int NV, bool ASKS>
ACPU_INLINE void dot_group4(const uint8_t* w, const int8_t* const* x, int at, vi (&acc)[R][NV]) {
  ACPU_UNROLL_STEPS
  for (int k = 0; k < kGroup / 2; k += 4, w += kPanel * 4) {
    vi nibbles[NV];
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) {
      nibbles[v] = low_nibbles(iload(w + v * W * 4));
      ask_ahead<ASKS>(w, v * W * 4);
    }
    dot_nibbles(nibbles, x, at + k, acc);
    if (R > 1) load_again(w);
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) nibbles[v] = high_nibbles(iload(w + v * W * 4));
    dot_nibbles(nibbles, x, at + k + 16, acc);
    if (R > 1) load_again(w);
  }
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) acc[r][v] = whole_nibble_sum(acc[r][v]);
}

static inline const uint8_t* panel_of(const LinearView& weight, int channel) {
  return weight.data + (size_t)(channel / kPanel) * weight.panel_bytes;
}

constexpr bool is_4bit(int kind) {
  return kind == acpu::kGroup4 || kind == acpu::kGroup4Min || kind == acpu::kAffine4;
}
constexpr bool has_minima(int kind) {
  return kind == acpu::kGroup4Min || kind == acpu::kAffine4 || kind == acpu::kAffine8;
}
constexpr bool has_f32_scales(int kind) {
  return kind == acpu::kAffine4 || kind == acpu::kAffine8;
}

// What to add per unit of the activations' sum: the level's dot has taken `have` off each weight, the format
// wants `want` taken off.
constexpr int offset_of(int kind) {
  const int have = is_4bit(kind) ? 0 : kBias8;
  const int want = has_minima(kind) ? 0 : kind == acpu::kGroup4 ? 8 : 128;
  return have - want;
}

// The next panel, asked for in equal parts by the row tiles that work on this one, `bytes` at each group; or
// by a lone tile what follows in its own stream, from group `turn` on `jump` bytes further.
struct Ahead {
  const uint8_t* data;
  int bytes;
  int turn;
  int64_t jump;
};

ACPU_INLINE void ask_for(const Ahead& part, int group) {
  const int64_t jump =
      part.jump & -(int64_t)(group >= part.turn); // a branch would have all of the loop made twice
  const uint8_t* at = part.data + (int64_t)group * part.bytes + jump;
  for (int i = 0; i < part.bytes; i += 64) prefetch(at + i);
}

// The panel after the one that is multiplied, asked for in the order in which it lies, a part with each of
// `num_pieces` groups' products.
class NextPanel {
 public:
  NextPanel(const LinearView& weight, const uint8_t* panel, int num_pieces)
      : data_(panel + weight.panel_bytes),
        end_(data_ + weight.panel_bytes),
        bytes_((int)(weight.panel_bytes / num_pieces + 63) / 64 * 64) {
    const size_t num_panels = (weight.num_outputs + kPanel - 1) / kPanel;
    if (data_ == weight.data + num_panels * weight.panel_bytes) data_ = end_;
  }
  Ahead part(int num_groups) {
    const Ahead ahead = {data_, data_ < end_ ? bytes_ : 0, num_groups, 0};
    data_ += (int64_t)num_groups * ahead.bytes;
    return ahead;
  }

 private:
  const uint8_t *data_, *end_;
  int bytes_;
};

template <int KIND, int R, int NV, bool ASKS = false>
ACPU_INLINE void add_group(const uint8_t* w, const int8_t* const* x, int at, vi (&acc)[R][NV]) {
  if (is_4bit(KIND))
    dot_group4<R, NV, ASKS>(w, x, at, acc);
  else
    dot_group8<R, NV, ASKS>(w, x, at, acc);
}

template <int KIND, int R, int NV, bool ASKS = false>
ACPU_INLINE void dot_group(const uint8_t* w, const int8_t* const* x, int at, vi (&acc)[R][NV]) {
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) acc[r][v] = izero();
  add_group<KIND, R, NV, ASKS>(w, x, at, acc);
}

// Whether sums of a group may start from others: not where 4-bit products are summed in 16 bits.
constexpr bool sums_go_on(int kind) {
#ifdef ACPU_NIBBLE_SUMS_IN_16_BITS
  return !is_4bit(kind);
#else
  return kind >= 0;
#endif
}

// The rows' group once more, for its low bytes; the sums are of the high ones.
template <int KIND, int R, int NV>
ACPU_INLINE void add_low(const uint8_t* w, const int8_t* const* low, int at, vi (&acc)[R][NV]) {
  if constexpr (sums_go_on(KIND)) {
    ACPU_UNROLL
    for (int r = 0; r < R; ++r) ACPU_UNROLL
    for (int v = 0; v < NV; ++v) acc[r][v] = times16(acc[r][v]);
    add_group<KIND, R, NV>(w, low, at, acc);
  } else {
    vi rest[R][NV];
    dot_group<KIND, R, NV>(w, low, at, rest);
    ACPU_UNROLL
    for (int r = 0; r < R; ++r) ACPU_UNROLL
    for (int v = 0; v < NV; ++v) acc[r][v] = iadd(times16(acc[r][v]), rest[r][v]);
  }
}

// One row's products of a group's high quad.
template <int KIND, int NV>
ACPU_INLINE void add_high(const uint8_t* w, const int8_t* behind, vi (&acc)[NV]) {
  acpu::HighQuad high;
  __builtin_memcpy(&high, behind, sizeof high);
  int32_t four;
  __builtin_memcpy(&four, high.bytes, 4);
  const vi b = iset(four);
  if (is_4bit(KIND)) { // of two quads that share bytes the first has the lower nibbles
    w += (high.quad & 3) * kPanel * 4;
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) acc[v] = dot4_nibble_times16(acc[v], iload(w + v * W * 4), high.quad & 4, b);
  } else {
    w += high.quad * kPanel * 4;
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) acc[v] = iadd(acc[v], times16(dot4(izero(), iload(w + v * W * 4), b)));
  }
}

template <int KIND, int R, int NV>
ACPU_INLINE void integer_tile(const LinearView& weight, const uint8_t* panel, int channel, const ActView& act,
                              int row, Ahead ahead, vf (&out)[R][NV]) {
  const int groups = weight.num_groups;
  const int bytes = acpu::bytes_of_group(act.forms); // of a group's inputs
  const int8_t *x[R], *behind[R];
  const float *scales[R], *weighted[R];
  const int32_t* sums[R];
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) {
    const int64_t at = (int64_t)(row + r) * groups;
    x[r] = act.q + at * bytes;
    behind[r] = x[r] + kGroup;
    scales[r] = act.scales + at;
    weighted[r] = act.weighted_sums + at;
    sums[r] = act.sums + at;
  }
  vf f[R][NV];
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) f[r][v] = zero();
  constexpr int kWeightBytes = kPanel * kGroup / (is_4bit(KIND) ? 2 : 1);
  constexpr bool kByLine = R == 1 && kAsksByLine;
  for (int g = 0; g < groups; ++g, panel += weight.record_bytes) {
    if (!kByLine) ask_for(ahead, g);
    vi acc[R][NV];
    const uint8_t* w = panel + channel * 4;
    const uint8_t* own = panel + kWeightBytes;
    dot_group<KIND, R, NV, kByLine>(w, x, g * bytes, acc);
    if (kByLine)
      for (size_t i = kWeightBytes; i < weight.record_bytes; i += 64) prefetch_near(panel + i + kStreamBytes);
    if (act.forms & acpu::kFormMixed) {
      ACPU_UNROLL
      for (int r = 0; r < R; ++r) add_high<KIND, NV>(w, behind[r] + g * bytes, acc[r]);
    } else if (act.forms & acpu::kFormInt12) {
      add_low<KIND>(w, behind, g * bytes, acc);
    }
    if (offset_of(KIND) != 0) {
      ACPU_UNROLL
      for (int r = 0; r < R; ++r) {
        const vi offset = iset(offset_of(KIND) * sums[r][g]);
        ACPU_UNROLL
        for (int v = 0; v < NV; ++v) acc[r][v] = iadd(acc[r][v], offset);
      }
    }
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) {
      const int at = channel + v * W;
      vf scale = zero(), minimum = zero();
      if (has_f32_scales(KIND))
        scale = load((const float*)own + at), minimum = load((const float*)own + kPanel + at);
      else if (KIND != acpu::kChannel8)
        scale = load_f16((const uint16_t*)own + at);
      if (KIND == acpu::kGroup4Min) minimum = load_f16((const uint16_t*)own + kPanel + at);
      ACPU_UNROLL
      for (int r = 0; r < R; ++r) {
        const vf s = set(scales[r][g]);
        f[r][v] = fma(to_f(acc[r][v]), KIND == acpu::kChannel8 ? s : mul(scale, s), f[r][v]);
        if (has_minima(KIND)) f[r][v] = fma(minimum, set(weighted[r][g]), f[r][v]);
      }
    }
  }
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) out[r][v] = f[r][v];
}

template <int R, int NV>
ACPU_INLINE void bf16_tile(const LinearView& weight, const uint8_t* panel, int channel, const ActView& act,
                           int row, vf (&out)[R][NV]) {
  const int64_t inputs = (int64_t)weight.num_groups * kGroup;
  const uint16_t* x = act.bf16 + row * inputs;
  vf f[R][NV];
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) f[r][v] = zero();
  const uint8_t* w = panel + channel * 4;
  for (int64_t k = 0; k < inputs; k += 2, w += kPanel * 4) {
    vi step[NV];
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) step[v] = iload(w + v * W * 4);
    ACPU_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t two;
      __builtin_memcpy(&two, x + r * inputs + k, 4);
      ACPU_UNROLL
      for (int v = 0; v < NV; ++v) f[r][v] = dot2_bf16(f[r][v], step[v], iset(two));
    }
  }
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) out[r][v] = f[r][v];
}

template <int R, int NV>
ACPU_INLINE void f32_tile(const LinearView& weight, const uint8_t* panel, int channel, const ActView& act,
                          int row, vf (&out)[R][NV]) {
  const int64_t inputs = (int64_t)weight.num_groups * kGroup;
  const float* x = act.f32 + row * inputs;
  const float* w = (const float*)panel + channel;
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) out[r][v] = zero();
  for (int64_t k = 0; k < inputs; ++k, w += kPanel) {
    ACPU_UNROLL
    for (int v = 0; v < NV; ++v) {
      const vf step = load(w + v * W);
      ACPU_UNROLL
      for (int r = 0; r < R; ++r) out[r][v] = fma(step, set(x[r * inputs + k]), out[r][v]);
    }
  }
}

template <int KIND, int R, int NV>
static inline void tile(const LinearView& weight, const uint8_t* panel, int channel, const ActView& act,
                        int row, Ahead ahead, float* out) {
  vf f[R][NV];
  if constexpr (KIND == acpu::kF32)
    f32_tile<R, NV>(weight, panel, channel, act, row, f);
  else if constexpr (KIND == acpu::kBF16)
    bf16_tile<R, NV>(weight, panel, channel, act, row, f);
  else
    integer_tile<KIND, R, NV>(weight, panel, channel, act, row, ahead, f);
  ACPU_UNROLL
  for (int r = 0; r < R; ++r) ACPU_UNROLL
  for (int v = 0; v < NV; ++v) store(out + r * kPanel + v * W, f[r][v]);
}

// R rows by `span` channels (a unit or a panel) from `channel` of the whole matrix, into rows of 64 floats.
template <int KIND, int R>
static void span_tile(const LinearView& weight, int channel, int span, const ActView& act, int row,
                      Ahead ahead, float* out) {
  constexpr int NV = gemm_vectors(R);
  const uint8_t* panel = panel_of(weight, channel);
  const int first = channel % kPanel;
  int done = 0;
  for (; done + NV * W <= span; done += NV * W)
    tile<KIND, R, NV>(weight, panel, first + done, act, row, ahead, out + done);
  if constexpr (NV * W > kUnit)
    if (done < span) tile<KIND, R, NV / 2>(weight, panel, first + done, act, row, ahead, out + done);
}

// How many rows to take at once of those that are left: the last two times alike.
static inline int vector_rows(int left) {
  return left <= kGemmRows ? left : left < 2 * kGemmRows ? (left + 1) / 2 : kGemmRows;
}

typedef void (*SpanTile)(const LinearView&, int, int, const ActView&, int, Ahead, float*);

template <int KIND>
static SpanTile tile_of_rows(int rows) {
  if constexpr (kGemmRows >= 4)
    if (rows == 4) return span_tile<KIND, 4>;
  if constexpr (kGemmRows >= 3)
    if (rows == 3) return span_tile<KIND, 3>;
  return rows == 2 ? span_tile<KIND, 2> : span_tile<KIND, 1>;
}

static SpanTile tile_of(int kind, int rows) {
  switch (kind) {
    case acpu::kF32: return tile_of_rows<acpu::kF32>(rows);
    case acpu::kBF16: return tile_of_rows<acpu::kBF16>(rows);
    case acpu::kChannel8: return tile_of_rows<acpu::kChannel8>(rows);
    case acpu::kGroup8: return tile_of_rows<acpu::kGroup8>(rows);
    case acpu::kGroup4: return tile_of_rows<acpu::kGroup4>(rows);
    case acpu::kGroup4Min: return tile_of_rows<acpu::kGroup4Min>(rows);
    case acpu::kAffine8: return tile_of_rows<acpu::kAffine8>(rows);
    default: return tile_of_rows<acpu::kAffine4>(rows);
  }
}

} // namespace

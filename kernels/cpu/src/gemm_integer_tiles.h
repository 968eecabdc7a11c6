// Products of integer weights and activations by the tile unit, which sums whole numbers exactly: what comes
// out is what the vectors' products give, bit by bit, so that either may serve a row.
#pragma once

#include "tiles.h"

namespace {

constexpr int kMostFactors = 512; // groups of one tile of rows, whose scales are kept side by side
constexpr int kMostTiles = 16;
constexpr int kGroupsAtOnce = 9;

constexpr int kTileGroup = 512; // bytes of 32 inputs of 16 channels, a byte each

constexpr bool has_offset(int kind) {
  return offset_of(kind) != 0;
}

// Scales of up to 16 rows side by side, and what is added for each group: its sum times the offset of the
// weights, or times the scale where weights have minima.
struct Factors {
  float scales[kTileHeight];
  union {
    float weighted[kTileHeight];
    int32_t offsets[kTileHeight];
  };
};

template <int KIND>
static void gather_factors(const ActView& act, int row, int rows, Factors* out) {
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (int64_t)(row + r) * act.num_groups;
    for (int g = 0; g < act.num_groups; ++g) {
      out[g].scales[r] = act.scales[at + g];
      if (has_minima(KIND))
        out[g].weighted[r] = act.weighted_sums[at + g];
      else
        out[g].offsets[r] = offset_of(KIND) * act.sums[at + g];
    }
  }
}

// 4-bit weights of 16 channels as a tile's rows of four inputs. Where activations have low bytes they are
// unpacked twice, 16 times as large for the high bytes and as they are for the low ones: one product adds
// both.
template <bool LOW>
ACPU_INLINE void unpack_nibbles(const uint8_t* w, uint8_t* out) {
  ACPU_UNROLL
  for (int k = 0; k < 4; ++k, out += 64) {
    const vi words = iload(w + k * kPanel * 4), low = low_nibbles(words), high = high_nibbles(words);
    if (LOW) {
      static_assert(acpu::kLowSteps == 16, "a nibble in the upper half of its byte");
      _mm512_storeu_si512(out, _mm512_slli_epi16(low, 4));
      _mm512_storeu_si512(out + 4 * 64, _mm512_andnot_si512(_mm512_set1_epi8(15), words));
    }
    _mm512_storeu_si512(out + (LOW ? kTileGroup : 0), low);
    _mm512_storeu_si512(out + (LOW ? kTileGroup : 0) + 4 * 64, high);
  }
}

// Up to 16 rows of activations.
struct TiledRows {
  const int8_t* x;
  int64_t stride;
  int group_bytes;
  const Factors* factors;
  int num_rows;
};

// The unit's shapes, set anew where they change.
class TileSetting {
 public:
  // Of bytes, so many inputs at once.
  void set_bytes(int rows, int inputs) {
    if (rows == rows_ && inputs == inputs_) return;
    rows_ = rows, inputs_ = inputs;
    TileShapes shapes;
    for (int tile = 0; tile < 6; ++tile) shapes.rows[tile] = (uint8_t)rows;
    shapes.row_bytes[4] = shapes.row_bytes[5] = (uint16_t)inputs;
    shapes.rows[6] = shapes.rows[7] = (uint8_t)(inputs / 4);
    tiles_.set(shapes);
  }
  // Of bfloat16, up to two tiles of rows.
  void set_pairs(int rows) {
    if (rows == rows_ && !inputs_) return;
    rows_ = rows, inputs_ = 0;
    TileShapes shapes;
    const int second = rows > kTileHeight ? rows - kTileHeight : rows;
    shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = (uint8_t)least(rows, kTileHeight);
    shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = (uint8_t)second;
    tiles_.set(shapes);
  }

 private:
  Tiles tiles_;
  int rows_ = 0;
  int inputs_ = 0; // of bytes, 0: in bfloat16
};

// Multiplies one group and leaves the sums in memory: [NV][all, or with TWO of high and of low
// bytes][16][16]. The channels' vectors lie `next` bytes apart, four inputs `step` bytes.
template <bool TWO, int NV>
ACPU_INLINE void multiply_group(const TiledRows& rows, int g, const uint8_t* w, int64_t step, int64_t next,
                                int32_t* sums) {
  constexpr int kSums = kTileHeight * 16;
  const int8_t* x = rows.x + g * rows.group_bytes;
  tile_load<4>(x, rows.stride);
  if constexpr (TWO) tile_load<5>(x + kGroup, rows.stride);
  tile_load<6>(w, step);
  tile_zero<0>(), tile_dot_bytes<0, 4, 6>(), tile_store<0>(sums, 64);
  if constexpr (TWO) tile_zero<1>(), tile_dot_bytes<1, 5, 6>(), tile_store<1>(sums + kSums, 64);
  if constexpr (NV > 1) {
    sums += (TWO ? 2 : 1) * kSums;
    tile_load<7>(w + next, step);
    tile_zero<2>(), tile_dot_bytes<2, 4, 7>(), tile_store<2>(sums, 64);
    if constexpr (TWO) tile_zero<3>(), tile_dot_bytes<3, 5, 7>(), tile_store<3>(sums + kSums, 64);
  }
}

// As integer_tile does, in the same order.
template <int KIND, bool TWO, int R, int NV>
ACPU_INLINE void add_group_sums(const uint8_t* own, int channel, const Factors& factors, const int32_t* sums,
                                vf (&f)[R][NV]) {
  constexpr int kSums = kTileHeight * 16;
  each<NV>([&](auto v) ACPU_ALWAYS {
    const int at = channel + v * W;
    const int32_t* from = sums + v * (TWO ? 2 : 1) * kSums;
    vf scale = zero(), minimum = zero();
    if (has_f32_scales(KIND))
      scale = load((const float*)own + at), minimum = load((const float*)own + kPanel + at);
    else if (KIND != acpu::kChannel8)
      scale = load_f16((const uint16_t*)own + at);
    if (KIND == acpu::kGroup4Min) minimum = load_f16((const uint16_t*)own + kPanel + at);
    each<R>([&](auto r) ACPU_ALWAYS {
      vi whole = iload(from + r * 16);
      if (TWO) whole = iadd(times16(whole), iload(from + kSums + r * 16));
      if (has_offset(KIND)) whole = iadd(whole, iset(factors.offsets[r]));
      const vf s = set(factors.scales[r]);
      f[r][v] = fma(to_f(whole), KIND == acpu::kChannel8 ? s : mul(scale, s), f[r][v]);
      if (has_minima(KIND)) f[r][v] = fma(minimum, set(factors.weighted[r]), f[r][v]);
    });
  });
}

// Adds `num_groups` groups' products of up to R rows by NV vectors of channels to `out`, rows of a panel. A
// group is multiplied while the one before is scaled.
template <int KIND, bool TWO, int R, int NV>
static void add_integer_tile(const LinearView& weight, const uint8_t* record, int channel,
                             const uint8_t* room, const TiledRows& rows, int num_groups, bool is_first,
                             Ahead ahead, float* out) {
  constexpr int kSums = kTileHeight * 16 * NV * (TWO ? 2 : 1);
  alignas(64) int32_t sums[2][kSums];
  vf f[R][NV];
  each<R * NV>([&](auto i) ACPU_ALWAYS {
    f[i / NV][i % NV] = is_first ? zero() : load(out + i / NV * kPanel + i % NV * W);
  });
  const uint8_t* w = is_4bit(KIND) ? room : record + channel * 4;
  const int64_t unpacked = rows.group_bytes / kGroup * kTileGroup;
  const int64_t of_group = is_4bit(KIND) ? NV * unpacked : weight.record_bytes;
  const int64_t next = is_4bit(KIND) ? unpacked : 64;
  constexpr int64_t kStep = is_4bit(KIND) ? 64 : kPanel * 4;
  multiply_group<TWO, NV>(rows, 0, w, kStep, next, sums[0]);
  for (int g = 0; g < num_groups; ++g, record += weight.record_bytes) {
    ask_for(ahead, g);
    if (g + 1 < num_groups)
      multiply_group<TWO, NV>(rows, g + 1, w + (g + 1) * of_group, kStep, next, sums[(g + 1) & 1]);
    add_group_sums<KIND, TWO, R, NV>(record + weight.scales_offset, channel, rows.factors[g], sums[g & 1], f);
  }
  each<R * NV>([&](auto i) ACPU_ALWAYS {
    if (i / NV < rows.num_rows) store(out + i / NV * kPanel + i % NV * W, f[i / NV][i % NV]);
  });
}

// A span's channels for all tiles of rows. Some groups at a time, NV vectors of channels at a time: the rows'
// own groups stay in the first cache for all channels, and the weights unpacked for all rows.
template <int KIND, bool LOW, int NV>
static void multiply_span(const LinearView& weight, const uint8_t* panel, int channel, int span,
                          const TiledRows* tiles, int num_tiles, TileSetting& setting, float* out) {
  constexpr int kUnpacked = LOW ? 2 * kTileGroup : kTileGroup;
  constexpr bool kTwo = LOW && !is_4bit(KIND);
  alignas(64) uint8_t room[is_4bit(KIND) ? kGroupsAtOnce * NV * kUnpacked : 64];
  const int end = channel + span;
  NextPanel next(weight, panel, weight.num_groups * num_tiles * (span / (NV * W)));
  for (int g = 0; g < weight.num_groups; g += kGroupsAtOnce) {
    const int count = least(kGroupsAtOnce, weight.num_groups - g);
    const uint8_t* record = panel + g * weight.record_bytes;
    for (int c = channel; c < end; c += NV * W) {
      for (int i = 0; i < count; ++i) {
        const uint8_t* own = record + i * weight.record_bytes;
        if constexpr (is_4bit(KIND))
          for (int v = 0; v < NV; ++v)
            unpack_nibbles<LOW>(own + c * 4 + v * 64, room + (i * NV + v) * kUnpacked);
      }
      float* to = out + c - channel;
      for (int t = 0; t < num_tiles; ++t) {
        TiledRows rows = tiles[t];
        rows.x += g * rows.group_bytes;
        rows.factors += g;
        setting.set_bytes(rows.num_rows, kTwo ? kGroup : rows.group_bytes);
        constexpr int kFew = NV == 1 ? 12 : 4, kMany = NV == 1 ? 16 : 8;
        const auto add = rows.num_rows > kFew ? add_integer_tile<KIND, kTwo, kMany, NV>
                                              : add_integer_tile<KIND, kTwo, kFew, NV>;
        add(weight, record, c, room, rows, count, g == 0, next.part(count), to);
        to += rows.num_rows * kPanel;
      }
    }
  }
}

// All of it: factors are kept while the rows stay the same.
class IntegerTiles {
 public:
  static bool can(const LinearView& weight, const ActView& act) {
    return weight.kind != acpu::kF32 && weight.kind != acpu::kBF16 && !(act.forms & acpu::kFormMixed) &&
           weight.num_groups <= kMostFactors;
  }
  static constexpr int kFewestRows = 5; // fewer are quicker by vectors

  // At once.
  static int most_rows(int num_groups) { return least(kMostTiles, kMostFactors / num_groups) * kTileHeight; }

  void run(const LinearView& weight, int channel, int span, const ActView& act, int row, int rows,
           TileSetting& setting, float* out) {
    switch (weight.kind) {
      case acpu::kChannel8:
        return run_kind<acpu::kChannel8>(weight, channel, span, act, row, rows, setting, out);
      case acpu::kGroup8: return run_kind<acpu::kGroup8>(weight, channel, span, act, row, rows, setting, out);
      case acpu::kGroup4: return run_kind<acpu::kGroup4>(weight, channel, span, act, row, rows, setting, out);
      case acpu::kGroup4Min:
        return run_kind<acpu::kGroup4Min>(weight, channel, span, act, row, rows, setting, out);
      case acpu::kAffine8:
        return run_kind<acpu::kAffine8>(weight, channel, span, act, row, rows, setting, out);
      default: return run_kind<acpu::kAffine4>(weight, channel, span, act, row, rows, setting, out);
    }
  }

 private:
  template <int KIND>
  void gather(const ActView& act, int row, int rows) {
    constexpr int form = has_minima(KIND) ? -1 : offset_of(KIND);
    if (of_ == act.scales && row == row_ && rows == rows_ && form == form_) return;
    of_ = act.scales, row_ = row, rows_ = rows, form_ = form;
    num_tiles_ = (rows + kTileHeight - 1) / kTileHeight;
    const int bytes = acpu::bytes_of_group(act.forms);
    const int64_t stride = (int64_t)act.num_groups * bytes;
    for (int t = 0; t < num_tiles_; ++t) {
      const int first = rows * t / num_tiles_, count = rows * (t + 1) / num_tiles_ - first;
      Factors* factors = factors_ + t * act.num_groups;
      gather_factors<KIND>(act, row + first, count, factors);
      tiles_[t] = {act.q + (row + first) * stride, stride, bytes, factors, count};
    }
  }

  template <int KIND>
  void run_kind(const LinearView& weight, int channel, int span, const ActView& act, int row, int rows,
                TileSetting& setting, float* out) {
    gather<KIND>(act, row, rows);
    const uint8_t* records = panel_of(weight, channel);
    const bool is_low = rows <= 8; // then two vectors' sums fit into registers
    const auto run = act.forms & acpu::kFormInt12
                         ? (is_low ? multiply_span<KIND, true, 2> : multiply_span<KIND, true, 1>)
                         : (is_low ? multiply_span<KIND, false, 2> : multiply_span<KIND, false, 1>);
    run(weight, records, channel % kPanel, span, tiles_, num_tiles_, setting, out);
  }

  const float* of_ = nullptr;
  int row_ = 0, rows_ = 0, form_ = 0, num_tiles_ = 0;
  TiledRows tiles_[kMostTiles];
  alignas(64) Factors factors_[kMostFactors];
};

} // namespace

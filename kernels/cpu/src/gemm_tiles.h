// Matrix products by the tile unit: in bfloat16 of weights that are stored so, and of integers, made bfloat16
// a panel at a time, where a step says that its rows' activations are; in whole numbers of several other
// rows. A row's sum is made in one order, whatever the number of rows.
#pragma once

#include "gemm_integer_tiles.h"

namespace {

constexpr int kTiledRows = 512; // at once: they share the weights made bfloat16
// Whose weights are kept for them: by a panel's channels, three quarters of a core's first cache.
constexpr int kTiledGroups = 9;
constexpr int kRecord = kPanel * kGroup * 2;

// 16 channels of an integer panel's record, as bfloat16 pairs: [16 pairs of inputs][16 channels][2], rows
// kPanel * 4 bytes apart. A byte or nibble stays where it is in its word; the scale makes up for that.
template <int KIND>
struct Dequantizer {
  static constexpr int kBits = is_4bit(KIND) ? 4 : 8;
  vf scales[32 / kBits], minimum;

  explicit Dequantizer(const uint8_t* own, int channel) {
    vf scale = set(1.0f);
    minimum = set(KIND == acpu::kGroup4 ? -8.0f : -128.0f);
    if (has_f32_scales(KIND))
      scale = load((const float*)own + channel), minimum = load((const float*)own + kPanel + channel);
    else if (KIND != acpu::kChannel8)
      scale = load_f16((const uint16_t*)own + channel), minimum = mul(minimum, scale);
    if (KIND == acpu::kGroup4Min) minimum = load_f16((const uint16_t*)own + kPanel + channel);
    // Divided by powers of two, in the exponent: a product would take a place that the sums need.
    const __mmask16 some = _mm512_test_epi32_mask((vi)scale, iset(0x7fffffff));
    for (int i = 0; i < 32 / kBits; ++i)
      scales[i] = (vf)_mm512_maskz_sub_epi32(some, (vi)scale, iset(i * kBits << 23));
  }

  // Number `i` of each word.
  vf value(vi words, int i) const {
    const vi mask = iset((int32_t)(((1u << kBits) - 1) << i * kBits));
    return fma(_mm512_cvtepu32_ps(_mm512_and_si512(words, mask)), scales[i], minimum);
  }

  // Two inputs side by side, rounded to the nearest.
  static vi pair(vf low, vf high) {
    const vi half = iset(0x8000);
    const vi lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vi upper_words = _mm512_mullo_epi32(lanes, iset(2 << 16 | 2));
    return _mm512_permutex2var_epi16(iadd((vi)low, half), iadd(upper_words, iset(33 << 16 | 1)),
                                     iadd((vi)high, half));
  }

  void run(const uint8_t* w, uint8_t* out) const {
    const auto put = [out](int at, vi v) { _mm512_storeu_si512(out + at * kPanel * 4, v); };
    for (int k = 0; k < (is_4bit(KIND) ? 4 : 8); ++k) {
      const vi words = iload(w + k * kPanel * 4);
      if constexpr (is_4bit(KIND)) {
        put(2 * k, pair(value(words, 0), value(words, 2)));
        put(2 * k + 1, pair(value(words, 4), value(words, 6)));
        put(2 * k + 8, pair(value(words, 1), value(words, 3)));
        put(2 * k + 9, pair(value(words, 5), value(words, 7)));
      } else {
        put(2 * k, pair(value(words, 0), value(words, 1)));
        put(2 * k + 1, pair(value(words, 2), value(words, 3)));
      }
    }
  }
};

template <int KIND>
static void dequantize(const LinearView& weight, const uint8_t* records, int num_groups, int channel,
                       int span, uint8_t* out) {
  for (int g = 0; g < num_groups; ++g, records += weight.record_bytes, out += kRecord)
    for (int c = channel; c < channel + span; c += 16)
      Dequantizer<KIND>(records + weight.scales_offset, c).run(records + c * 4, out + c * 4);
}

// Records of bfloat16 pairs: the weights' own, or made of them in `room`.
static const uint8_t* bf16_records(const LinearView& weight, const uint8_t* records, int num_groups,
                                   int channel, int span, uint8_t* room) {
  switch (weight.kind) {
    case acpu::kBF16: return records;
    case acpu::kChannel8:
      dequantize<acpu::kChannel8>(weight, records, num_groups, channel, span, room);
      break;
    case acpu::kGroup8: dequantize<acpu::kGroup8>(weight, records, num_groups, channel, span, room); break;
    case acpu::kGroup4: dequantize<acpu::kGroup4>(weight, records, num_groups, channel, span, room); break;
    case acpu::kGroup4Min:
      dequantize<acpu::kGroup4Min>(weight, records, num_groups, channel, span, room);
      break;
    case acpu::kAffine8: dequantize<acpu::kAffine8>(weight, records, num_groups, channel, span, room); break;
    default: dequantize<acpu::kAffine4>(weight, records, num_groups, channel, span, room);
  }
  return room;
}

// Adds the groups' products of up to 32 rows by 32 channels to `out`, rows of a panel. Tiles 0 to 3 are the
// sums, 4 and 5 rows, 6 and 7 channels.
template <bool TWO>
static void add_tiles(const uint16_t* x, int64_t stride, const uint8_t* w, int num_groups, bool is_first,
                      Ahead ahead, float* out) {
  constexpr int64_t kOut = kPanel * 4, kNext = kTileHeight * kPanel;
  if (is_first) {
    tile_zero<0>(), tile_zero<1>();
    if constexpr (TWO) tile_zero<2>(), tile_zero<3>();
  } else {
    tile_load<0>(out, kOut), tile_load<1>(out + 16, kOut);
    if constexpr (TWO) tile_load<2>(out + kNext, kOut), tile_load<3>(out + kNext + 16, kOut);
  }
  for (int g = 0; g < num_groups; ++g, x += kGroup, w += kRecord) {
    tile_load<4>(x, stride * 2);
    tile_load<6>(w, kPanel * 4);
    tile_dot<0, 4, 6>();
    ask_for(ahead, g);
    tile_load<7>(w + 64, kPanel * 4);
    tile_dot<1, 4, 7>();
    if constexpr (TWO) {
      tile_load<5>(x + kTileHeight * stride, stride * 2);
      tile_dot<2, 5, 6>();
      tile_dot<3, 5, 7>();
    }
  }
  tile_store<0>(out, kOut), tile_store<1>(out + 16, kOut);
  if constexpr (TWO) tile_store<2>(out + kNext, kOut), tile_store<3>(out + kNext + 16, kOut);
}

// A whole product of one tile's rows by a panel or half of it, whose sums stay in tiles 0 to 3: few rows are
// not worth keeping weights for, and each group's are made while the one before is multiplied.
static void add_few(const LinearView& weight, const uint8_t* panel, int channel, int span, const uint16_t* x,
                    int64_t stride, float* out) {
  alignas(64) uint8_t room[2][kRecord];
  const bool is_whole = span == kPanel;
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  const uint8_t* next = bf16_records(weight, panel, 1, channel, span, room[0]);
  for (int g = 0; g < weight.num_groups; ++g) {
    const uint8_t* w = next + channel * 4;
    panel += weight.record_bytes;
    if (g + 1 < weight.num_groups) next = bf16_records(weight, panel, 1, channel, span, room[(g + 1) % 2]);
    tile_load<4>(x + g * kGroup, stride * 2);
    tile_load<6>(w, kPanel * 4), tile_dot<0, 4, 6>();
    tile_load<7>(w + 64, kPanel * 4), tile_dot<1, 4, 7>();
    if (is_whole) {
      tile_load<6>(w + 128, kPanel * 4), tile_dot<2, 4, 6>();
      tile_load<7>(w + 192, kPanel * 4), tile_dot<3, 4, 7>();
    }
  }
  tile_store<0>(out, kPanel * 4), tile_store<1>(out + 16, kPanel * 4);
  if (is_whole) tile_store<2>(out + 32, kPanel * 4), tile_store<3>(out + 48, kPanel * 4);
}

// As in products.h.
class Multiplier {
 public:
  static constexpr int kMostRows = kTiledRows;

  static int rows_at_once(const GemmTask& task, int left) {
    const bool has_second = task.epilogue == acpu::kGate;
    const auto any = [&](auto uses) { return uses(task.weight) || (has_second && uses(task.second)); };
    if (any([&](const LinearView& w) { return uses_tiles(w, task.in_bf16); })) return least(left, kTiledRows);
    if (left >= IntegerTiles::kFewestRows &&
        any([&](const LinearView& w) { return IntegerTiles::can(w, task.act); }))
      return least(left, least(kTiledRows, IntegerTiles::most_rows(task.weight.num_groups)));
    return vector_rows(left);
  }

  void run(const LinearView& weight, int channel, int span, const ActView& act, bool in_bf16, int row,
           int rows, Ahead ahead, float* out) {
    if (uses_tiles(weight, in_bf16)) return run_tiles(weight, channel, span, act, row, rows, out);
    if (rows >= IntegerTiles::kFewestRows && IntegerTiles::can(weight, act)) {
      const int most = IntegerTiles::most_rows(weight.num_groups);
      for (int done = 0; done < rows; done += most)
        integers_.run(weight, channel, span, act, row + done, least(most, rows - done), setting_,
                      out + done * kPanel);
      return;
    }
    for (int done = 0; done < rows; done += kGemmRows) {
      const int count = least(kGemmRows, rows - done);
      tile_of(weight.kind, count)(weight, channel, span, act, row + done, ahead, out + done * kPanel);
    }
  }

 private:
  static bool uses_tiles(const LinearView& weight, bool in_bf16) {
    return weight.kind == acpu::kBF16 || (in_bf16 && weight.kind != acpu::kF32);
  }

  void run_tiles(const LinearView& weight, int channel, int span, const ActView& act, int row, int rows,
                 float* out) {
    alignas(64) uint8_t room[kTiledGroups * kRecord];
    const uint8_t* panel = panel_of(weight, channel);
    const int groups = weight.num_groups, first = channel % kPanel;
    const int64_t stride = (int64_t)groups * kGroup;
    if (rows <= kTileHeight) {
      setting_.set_pairs(rows);
      return add_few(weight, panel, first, span, act.bf16 + row * stride, stride, out);
    }
    NextPanel next(weight, panel,
                   groups * ((rows + 2 * kTileHeight - 1) / (2 * kTileHeight)) * (span / kUnit));
    for (int g = 0; g < groups; g += kTiledGroups) {
      const int count = least(kTiledGroups, groups - g);
      const uint8_t* records =
          bf16_records(weight, panel + g * weight.record_bytes, count, first, span, room);
      const uint16_t* x = act.bf16 + row * stride + (int64_t)g * kGroup;
      for (int r = 0; r < rows; r += 2 * kTileHeight) {
        const int height = least(2 * kTileHeight, rows - r);
        setting_.set_pairs(height);
        for (int c = 0; c < span; c += kUnit) {
          float* to = out + r * kPanel + c;
          const auto add = height > kTileHeight ? add_tiles<true> : add_tiles<false>;
          add(x + r * stride, stride, records + (first + c) * 4, count, g == 0, next.part(count), to);
        }
      }
    }
  }

  TileSetting setting_;
  IntegerTiles integers_;
};

} // namespace

// A task's products, a few rows at a time, and what becomes of them: stored, added, gated or made logits.
#pragma once

#include "gemm.h"

namespace {
using acpu::GemmTask;
}

#ifdef ACPU_TILES
#include "gemm_tiles.h"
#endif

namespace {

#ifndef ACPU_TILES
// Multiplies `rows` rows by `span` channels (a unit or a panel) from `channel` of the whole matrix, into rows
// of 64 floats.
class Multiplier {
 public:
  static constexpr int kMostRows = kGemmRows;
  static int rows_at_once(const GemmTask&, int left) { return vector_rows(left); }
  void run(const LinearView& weight, int channel, int span, const ActView& act, bool, int row, int rows,
           Ahead ahead, float* out) {
    tile_of(weight.kind, rows)(weight, channel, span, act, row, ahead, out);
  }
};
#endif

// With the scales and biases of whole channels.
static void multiplied(Multiplier& multiplier, const LinearView& weight, int channel, int span,
                       const ActView& act, bool in_bf16, int row, int rows, Ahead ahead, float* out) {
  multiplier.run(weight, channel, span, act, in_bf16, row, rows, ahead, out);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < span; i += W) {
      float* at = out + r * kPanel + i;
      if (weight.kind == acpu::kChannel8) store(at, mul(load(at), load(weight.channel_scales + channel + i)));
      if (weight.bias) store(at, add(load(at), load(weight.bias + channel + i)));
    }
}

static inline vf finished(const GemmTask& task, vf value, const float* old) {
  if (task.epilogue == acpu::kAdd) return fma(value, set(task.scale), load(old));
  if (task.epilogue == acpu::kLogits) {
    value = mul(value, set(task.scale));
    return task.softcap > 0.0f ? softcapped(value, task.softcap) : value;
  }
  return value;
}

static void finish_row(const GemmTask& task, int row, int channel, int span, float* tile) {
  float* out = task.out + row * task.out_stride + channel;
  const int valid = least(span, task.weight.num_outputs - channel);
  int i = 0;
  for (; i + W <= valid; i += W) store(out + i, finished(task, load(tile + i), out + i));
  if (i >= valid) return;
  float old[W] = {}, value[W];
  for (int j = i; j < valid; ++j) old[j - i] = task.epilogue == acpu::kAdd ? out[j] : 0.0f;
  store(value, finished(task, load(tile + i), old));
  for (int j = i; j < valid; ++j) out[j] = value[j - i];
}

static void gate_row_groups(const GemmTask& task, int row, int channel, int span, float* gate,
                            const float* up) {
  for (int i = 0; i < span; i += W)
    store(gate + i, mul(activated(load(gate + i), task.activation), load(up + i)));
  for (int i = 0; i < span; i += kGroup) store_group(gate + i, task.gated, row, (channel + i) / kGroup);
}

// What tile number `index` of `count` asks for while it works on a panel: its part of the next one. One tile
// alone asks for what follows in the same stream, a little ahead, and when the panel ends at `next`.
static inline Ahead ahead_of(const LinearView& weight, int channel, int index, int count,
                             const uint8_t* next) {
  const uint8_t* panel = panel_of(weight, channel);
  if (count < 2) {
    const int record = (int)weight.record_bytes;
    const int lead = least(weight.num_groups, (kStreamBytes + record - 1) / record);
    return {panel + (size_t)lead * record, record, weight.num_groups - lead,
            next - (panel + weight.panel_bytes)};
  }
  NextPanel following(weight, panel, weight.num_groups * count);
  following.part(index * weight.num_groups); // what the tiles before this one ask for
  return following.part(weight.num_groups);
}

static void gemm(const GemmTask& task, int row0, int row1, int unit0, int unit1) {
  alignas(64) float first[Multiplier::kMostRows * kPanel], second[Multiplier::kMostRows * kPanel];
  Multiplier multiplier;
  const bool has_second = task.epilogue == acpu::kGate;
  for (int unit = unit0; unit < unit1;) {
    const int units = unit % 2 == 0 && unit + 2 <= unit1 ? 2 : 1;
    const int channel = unit * kUnit, span = units * kUnit;
    const int at_once = Multiplier::rows_at_once(task, row1 - row0);
    const int num_tiles = (row1 - row0 + at_once - 1) / at_once;
    const uint8_t* next =
        unit + units < unit1 || !task.next ? panel_of(task.weight, channel + span) : task.next;
    for (int row = row0, index = 0; row < row1; ++index) {
      const int rows = Multiplier::rows_at_once(task, row1 - row);
      multiplied(multiplier, task.weight, channel, span, task.act, task.in_bf16, row, rows,
                 ahead_of(task.weight, channel, index, num_tiles,
                          has_second ? panel_of(task.second, channel) : next),
                 first);
      if (has_second)
        multiplied(multiplier, task.second, channel, span, task.act, task.in_bf16, row, rows,
                   ahead_of(task.second, channel, index, num_tiles, next), second);
      for (int r = 0; r < rows; ++r) {
        if (has_second)
          gate_row_groups(task, row + r, channel, span, first + r * kPanel, second + r * kPanel);
        else
          finish_row(task, row + r, channel, span, first + r * kPanel);
      }
      row += rows;
    }
    unit += units;
  }
}

} // namespace

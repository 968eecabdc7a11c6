// Compares every level of the machine it runs on with the portable one, on random data at odd sizes. A
// program of its own, so that it can run where there is no Python: under an emulator of another processor.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "model.h"
#include "pack.h"

using namespace acpu;

namespace {

std::mt19937 generator(7);
int failures = 0;

std::vector<float> random_floats(size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

void compare(const Level& level, const char* what, const std::vector<float>& got,
             const std::vector<float>& want, double limit) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) error += std::fabs(got[i] - want[i]), size += std::fabs(want[i]);
  const bool holds = error <= limit * size;
  std::printf("%-12s %-24s %.2e %s\n", level.name, what, error / size, holds ? "ok" : "FAILED");
  failures += !holds;
}

std::vector<float> multiplied(const Level& level, const LinearView& weight, const std::vector<float>& x,
                              int rows, int bits) {
  Arena arena{64};
  const ActView act = make_act(arena, rows, weight.num_inputs, form_of(weight.kind, bits));
  level.quantize(x.data(), weight.num_inputs, weight.num_inputs, act, 0, rows);
  std::vector<float> out(static_cast<size_t>(rows) * weight.num_outputs, NAN);
  GemmTask task = {};
  task.weight = weight;
  task.act = act;
  task.out = out.data();
  task.out_stride = weight.num_outputs;
  level.gemm(task, 0, rows, 0, num_units(weight));
  return out;
}

void compare_products(const Level& level, const Level& base) {
  for (int32_t kind = kF32; kind <= kGroup4Min; ++kind)
    for (int rows : {1, 2, 3, 7}) {
      const int outputs = 101, inputs = 100;
      const std::vector<float> w = random_floats(outputs * inputs), x = random_floats(rows * inputs);
      acpu_matrix m = {};
      m.struct_bytes = sizeof m;
      m.source = ACPU_SOURCE_F32;
      m.kind = kind;
      m.num_outputs = outputs;
      m.num_inputs = inputs;
      m.rows = w.data();
      m.rows_bytes = w.size() * sizeof(float);
      Arena arena{64};
      const LinearView weight = pack(m, arena, nullptr);
      const std::string name = "product of kind " + std::to_string(kind);
      for (int bits : {8, 12, int{ACPU_MIXED_BITS}})
        compare(level, name.c_str(), multiplied(level, weight, x, rows, bits),
                multiplied(base, weight, x, rows, bits), 1e-5);
    }
}

std::vector<float> attended(const Level& level, bool is_int8, const std::vector<float>& qkv) {
  const int tokens = 171, heads = 4, size = 32, half = 8, blocks = 11, block_size = 16;
  std::vector<uint8_t> keys(blocks * block_size * size * 2, 0xff), values(keys);
  std::vector<float> key_scales(blocks * block_size, NAN), value_scales(key_scales), cos(tokens * half),
      sin(cos);
  const KVView kv = {keys.data(), values.data(), key_scales.data(), value_scales.data(), 1, block_size,
                     size,        is_int8};
  std::vector<int32_t> table(blocks);
  for (int b = 0; b < blocks; ++b) table[b] = (b * 7 + 3) % blocks;
  HeadShape shape = {};
  shape.num_groups = heads;
  shape.rotary_size = 2 * half;
  shape.window = 120;
  shape.scale = 0.2f;
  shape.softcap = 5.0f;
  const int width = (heads + 2) * size;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < half; ++i)
      cos[t * half + i] = std::cos(t * 0.1f * i), sin[t * half + i] = std::sin(t * 0.1f * i);
    const float* k = &qkv[t * width + heads * size];
    const int64_t slot = table[t / block_size] * block_size + t % block_size;
    level.write_kv(kv, shape, k, k + size, &cos[t * half], &sin[t * half], slot, 0);
  }
  AttentionTile tile = {};
  tile.num_tokens = 11;
  const int first = tokens - tile.num_tokens;
  tile.q = &qkv[first * width];
  tile.q_stride = width;
  tile.cos = &cos[first * half];
  tile.sin = &sin[first * half];
  tile.rope_stride = half;
  tile.blocks = table.data();
  tile.first_limit = first + 1;
  tile.end_split = (tokens + kSplit - 1) / kSplit;
  std::vector<SplitState> states(tile.num_tokens * heads);
  std::vector<float> out(states.size() * size, NAN);
  level.attend(kv, shape, tile, false, states.data(), out.data());
  for (size_t i = 0; i < out.size(); ++i) out[i] /= states[i / size].sum;
  return out;
}

void compare_rows(const Level& level, const Level& base) {
  const std::vector<float> x = random_floats(101), w = random_floats(101);
  std::vector<float> got(101, NAN), want(101, NAN);
  level.norm(x.data(), w.data(), got.data(), 101, 1e-5f);
  base.norm(x.data(), w.data(), want.data(), 101, 1e-5f);
  compare(level, "norm", got, want, 1e-6);
  level.gate(x.data(), w.data(), got.data(), 101, kGeluTanh);
  base.gate(x.data(), w.data(), want.data(), 101, kGeluTanh);
  compare(level, "gate", got, want, 1e-6);
  int32_t place, base_place;
  const uint32_t allowed[4] = {0xfffffff0u, 0xffffffffu, 0u, 0x7u};
  const TokenMask mask = {allowed, 4};
  std::vector<float> weights(128, NAN), base_weights(128, NAN), totals(1), base_totals(1);
  const float top = level.peak(x.data(), mask, 101, &place);
  failures += top != base.peak(x.data(), mask, 101, &base_place) || place != base_place;
  level.weigh(x.data(), mask, 101, top, 0.7f, weights.data(), totals.data());
  base.weigh(x.data(), mask, 101, top, 0.7f, base_weights.data(), base_totals.data());
  compare(level, "weights", weights, base_weights, 1e-6);
  compare(level, "total", totals, base_totals, 1e-6);
  std::vector<int32_t> places(128, -1), base_places(128, -1);
  failures += level.at_least(base_weights.data(), 101, 0.2f, places.data()) !=
                  base.at_least(base_weights.data(), 101, 0.2f, base_places.data()) ||
              places != base_places;
  int32_t ids[9], base_ids[9];
  level.top_k(x.data(), 101, 9, ids, got.data());
  base.top_k(x.data(), 101, 9, base_ids, want.data());
  failures += std::memcmp(ids, base_ids, sizeof ids) != 0;
}

} // namespace

int main() {
  const Level& base = *level_portable();
  const std::vector<float> qkv = random_floats(171 * 6 * 32);
  for (const Level* level : available_levels()) {
    compare_products(*level, base);
    compare(*level, "attention", attended(*level, false, qkv), attended(base, false, qkv), 4e-3);
    compare(*level, "attention, INT8 pages", attended(*level, true, qkv), attended(base, true, qkv), 4e-3);
    compare_rows(*level, base);
  }
  return failures != 0;
}

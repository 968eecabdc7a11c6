// Single operations behind the C interface, for parity tests: each runs on the calling thread.
#include <algorithm>
#include <cstring>
#include <vector>

#include "acpu.h"
#include "failure.h"
#include "model.h"
#include "pack.h"

struct acpu_linear {
  acpu::Arena arena{64};
  acpu::LinearView view = {};
};

namespace {

using namespace acpu;

void run_linear(const LinearView& view, const Level& level, const float* x, float* out, int rows,
                int activation_bits) {
  Arena arena{64};
  const ActView act = make_act(arena, rows, view.num_inputs, form_of(view.kind, activation_bits));
  level.quantize(x, view.num_inputs, view.num_inputs, act, 0, rows);
  GemmTask task = {};
  task.weight = view;
  task.act = act;
  task.out = out;
  task.out_stride = view.num_outputs;
  task.epilogue = kStore;
  level.gemm(task, 0, rows, 0, num_units(view));
}

HeadShape shape_of(const acpu_attention& call, int num_kv_heads) {
  HeadShape shape = {};
  shape.q_norm = call.q_norm;
  shape.k_norm = call.k_norm;
  shape.num_groups = call.num_heads / num_kv_heads;
  shape.rotary_size = call.rotary_size;
  shape.window = call.window;
  shape.scale = call.scale;
  shape.softcap = call.softcap;
  shape.eps = call.eps;
  return shape;
}

void check_attention(const acpu_kv_layer& kv, const acpu_attention& call) {
  require_range("num_tokens", call.num_tokens, 1, 1 << 17);
  require_range("num_heads", call.num_heads, 1, 1024);
  require_range("rotary_size", call.rotary_size, 0, kv.head_size);
  require_range("first_position", call.first_position, 0, INT32_MAX - call.num_tokens);
  if (call.num_heads % kv.num_kv_heads || call.num_heads / kv.num_kv_heads > kMaxTileRows)
    fail(ACPU_BAD_ARGUMENT, "%d query heads do not group onto %d KV heads", call.num_heads, kv.num_kv_heads);
  for (const void* needed : {static_cast<const void*>(call.q), static_cast<const void*>(call.blocks),
                             static_cast<const void*>(call.out)})
    require_pointer(needed, "attention's q, blocks or out");
  if (call.k) require_pointer(call.v, "v");
  if (call.rotary_size) require_pointer(call.cos, "cos"), require_pointer(call.sin, "sin");
  const int64_t last = call.first_position + call.num_tokens - 1;
  require_range("max_blocks", call.max_blocks, last / kv.block_size + 1, 1 << 26);
  for (int i = 0; i <= last / kv.block_size; ++i)
    require_range("block", call.blocks[i], 0, kv.num_blocks - 1);
}

void write_all(const KVView& kv, const HeadShape& shape, const Level& level, const acpu_attention& call) {
  const int half = call.rotary_size / 2;
  for (int t = 0; t < call.num_tokens; ++t)
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      const int position = call.first_position + t;
      const int64_t slot =
          int64_t{call.blocks[position / kv.block_size]} * kv.block_size + position % kv.block_size;
      const int64_t at = (int64_t{t} * kv.num_kv_heads + h) * kv.head_size;
      level.write_kv(kv, shape, call.k + at, call.v + at, call.cos + t * half, call.sin + t * half, slot, h);
    }
}

// One tile, whole or as partials merged afterwards.
void attend_tile(const KVView& kv, const HeadShape& shape, const Level& level, AttentionTile tile,
                 bool by_split, std::vector<SplitState>& states, std::vector<float>& outputs) {
  const size_t rows = static_cast<size_t>(tile.num_tokens) * shape.num_groups;
  states.assign(rows, {});
  outputs.assign(rows * kv.head_size, 0.0f);
  if (!by_split) return level.attend(kv, shape, tile, false, states.data(), outputs.data());
  const int splits = tile.end_split;
  std::vector<SplitState> parts(rows * splits);
  std::vector<float> part_outputs(rows * splits * kv.head_size);
  level.attend(kv, shape, tile, true, parts.data(), part_outputs.data());
  for (SplitState& state : states) state.max = -__builtin_inff();
  for (int split = 0; split < splits; ++split)
    level.merge(states.data(), outputs.data(), &parts[split * rows], &part_outputs[split * rows * kv.head_size],
                kv.head_size, static_cast<int>(rows));
}

void attend_all(const KVView& kv, const HeadShape& shape, const Level& level, const acpu_attention& call) {
  const int size = kv.head_size, groups = shape.num_groups,
            tokens = call.by_split ? 1 : std::max(1, 48 / groups);
  std::vector<SplitState> states;
  std::vector<float> outputs;
  for (int first = 0; first < call.num_tokens; first += tokens)
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      AttentionTile tile = {};
      tile.q = call.q + (int64_t{first} * call.num_heads + head * groups) * size;
      tile.q_stride = int64_t{call.num_heads} * size;
      tile.rope_stride = call.rotary_size / 2;
      tile.cos = call.rotary_size ? call.cos + first * tile.rope_stride : call.q;
      tile.sin = call.rotary_size ? call.sin + first * tile.rope_stride : call.q;
      tile.blocks = call.blocks;
      tile.num_tokens = std::min(tokens, call.num_tokens - first);
      tile.first_limit = call.first_position + first + 1;
      tile.kv_head = head;
      tile.end_split = (tile.first_limit + tile.num_tokens - 1 + kSplit - 1) / kSplit;
      attend_tile(kv, shape, level, tile, call.by_split != 0, states, outputs);
      for (size_t row = 0; row < states.size(); ++row) {
        const int64_t at = (first + row / groups) * int64_t{call.num_heads} + head * groups + row % groups;
        for (int i = 0; i < size; ++i) call.out[at * size + i] = outputs[row * size + i] / states[row].sum;
      }
    }
}

float element(const KVView& kv, const uint8_t* pages, int64_t at, const float* scales, int64_t slot) {
  if (kv.is_int8) return scales[slot] * static_cast<float>(reinterpret_cast<const int8_t*>(pages)[at]);
  uint16_t bits;
  std::memcpy(&bits, pages + 2 * at, 2);
  return bf16_to_f32(bits);
}

void read_slot(const KVView& kv, int32_t block, int offset, int head, float* key, float* value) {
  const int64_t page = (int64_t{block} * kv.block_stride * kv.num_kv_heads + head) * kv.block_size;
  for (int d = 0; d < kv.head_size; ++d) {
    const int64_t k = page * kv.head_size + (int64_t{d / 2} * kv.block_size + offset) * 2 + d % 2;
    const int64_t v = page * kv.head_size + (int64_t{offset / 2} * kv.head_size + d) * 2 + offset % 2;
    key[d] = element(kv, kv.keys, k, kv.key_scales, page + offset);
    value[d] = element(kv, kv.values, v, kv.value_scales, page + offset);
  }
}

} // namespace

extern "C" {

int32_t acpu_linear_create(const acpu_matrix* matrix, acpu_linear** linear) {
  return guarded([&] {
    require_pointer(linear, "linear");
    *linear = nullptr;
    require_struct(matrix, "matrix");
    acpu_linear* made = new acpu_linear;
    *linear = made;
    made->view = pack(*matrix, made->arena, nullptr);
  });
}

int32_t acpu_linear_run(const acpu_linear* linear, const char* level, const float* x, float* out,
                        int32_t rows,
                        int32_t activation_bits) {
  return guarded([&] {
    require_pointer(linear, "linear");
    require_pointer(linear->view.data, "linear's weights");
    require_pointer(x, "x");
    require_pointer(out, "out");
    require_range("rows", rows, 1, 1 << 17);
    require_activation_bits(activation_bits);
    run_linear(linear->view, *find_level(level), x, out, rows, activation_bits);
  });
}

int32_t acpu_linear_row(const acpu_linear* linear, int32_t row, float* out) {
  return guarded([&] {
    require_pointer(linear, "linear");
    require_pointer(linear->view.data, "linear's weights");
    require_pointer(out, "out");
    require_range("row", row, 0, linear->view.num_outputs - 1);
    read_row(linear->view, row, out);
  });
}

void acpu_linear_destroy(acpu_linear* linear) {
  delete linear;
}

int32_t acpu_rms_norm(const char* level, const float* x, const float* weight, float* out, int32_t rows,
                      int32_t size, float eps) {
  return guarded([&] {
    require_pointer(x, "x");
    require_pointer(weight, "weight");
    require_pointer(out, "out");
    require_range("size", size, 1, 1 << 24);
    const Level* found = find_level(level);
    for (int64_t row = 0; row < rows; ++row) found->norm(x + row * size, weight, out + row * size, size, eps);
  });
}

int32_t acpu_gated(const char* level, int32_t activation, const float* gate, const float* up, float* out,
                   int32_t size) {
  return guarded([&] {
    require_pointer(gate, "gate");
    require_pointer(up, "up");
    require_pointer(out, "out");
    require_range("activation", activation, kSilu, kGeluTanh);
    find_level(level)->gate(gate, up, out, size, activation);
  });
}

int32_t acpu_top_k(const char* level, const float* logits, int32_t size, int32_t k, int32_t* ids,
                   float* values) {
  return guarded([&] {
    require_pointer(logits, "logits");
    require_pointer(ids, "ids");
    require_pointer(values, "values");
    require_range("k", k, 1, 1024);
    find_level(level)->top_k(logits, size, k, ids, values);
  });
}

int32_t acpu_attend(const char* level, const acpu_kv_layer* kv, const acpu_attention* call) {
  return guarded([&] {
    require_struct(kv, "kv");
    require_struct(call, "call");
    const KVView view = kv_view(*kv);
    check_attention(*kv, *call);
    const HeadShape shape = shape_of(*call, kv->num_kv_heads);
    const Level& found = *find_level(level);
    if (call->k) write_all(view, shape, found, *call);
    attend_all(view, shape, found, *call);
  });
}

int32_t acpu_kv_read(const acpu_kv_layer* kv, const int32_t* blocks, int32_t max_blocks, int32_t num_slots,
                     float* keys, float* values) {
  return guarded([&] {
    require_struct(kv, "kv");
    const KVView view = kv_view(*kv);
    require_pointer(blocks, "blocks");
    require_pointer(keys, "keys");
    require_pointer(values, "values");
    require_range("num_slots", num_slots, 0, int64_t{max_blocks} * kv->block_size);
    for (int slot = 0; slot < num_slots; ++slot) {
      const int32_t block = blocks[slot / kv->block_size];
      require_range("block", block, 0, kv->num_blocks - 1);
      for (int head = 0; head < kv->num_kv_heads; ++head) {
        const int64_t at = (int64_t{slot} * kv->num_kv_heads + head) * kv->head_size;
        read_slot(view, block, slot % kv->block_size, head, keys + at, values + at);
      }
    }
  });
}

} // extern "C"

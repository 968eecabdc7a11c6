// Building a model: every size is checked against the network's shape before a byte is packed.
#include "model.h"

#include <algorithm>
#include <cmath>

#include "failure.h"
#include "pack.h"

namespace acpu {

namespace {

// Checked before the pool starts its threads.
const acpu_config& checked(const acpu_config& c) {
  require_range("num_layers", c.num_layers, 1, 4096);
  require_range("hidden_size", c.hidden_size, 1, 1 << 17);
  require_range("intermediate_size", c.intermediate_size, 1, 1 << 19);
  require_range("num_heads", c.num_heads, 1, 1024);
  require_range("num_kv_heads", c.num_kv_heads, 1, c.num_heads);
  require_range("vocab_size", c.vocab_size, 1, 1 << 24);
  require_range("max_tokens", c.max_tokens, 1, 1 << 17);
  require_range("activation", c.activation, kSilu, kGeluTanh);
  require_range("norm_placement", c.norm_placement, kPre, kBoth);
  require_range("qk_norm", c.qk_norm, kNoQKNorm, kFullNorm);
  require_range("num_threads", c.num_threads, 1, 1024);
  require_activation_bits(c.activation_bits);
  require_range("spin_us", c.spin_us, 0, 1000000);
  require_range("num_ropes", c.num_ropes, 0, 64);
  require_range("num_experts", c.num_experts, 0, 1024);
  if (c.num_experts) {
    require_range("num_active_experts", c.num_active_experts, 1, c.num_experts);
    require_range("expert_size", c.expert_size, 1, 1 << 19);
  }
  if (c.num_heads % c.num_kv_heads)
    fail(ACPU_BAD_ARGUMENT, "num_heads %d is not a multiple of num_kv_heads %d", c.num_heads, c.num_kv_heads);
  if (c.num_heads / c.num_kv_heads > kMaxTileRows)
    fail(ACPU_UNSUPPORTED, "%d query heads share a KV head; at most %d may", c.num_heads / c.num_kv_heads,
         kMaxTileRows);
  if (c.head_size % 16 || c.head_size < 16 || c.head_size > kMaxHeadSize)
    fail(ACPU_UNSUPPORTED, "head_size %d is not a multiple of 16 up to %d", c.head_size, kMaxHeadSize);
  if (!(c.norm_eps > 0) || !std::isfinite(c.attention_scale) || !std::isfinite(c.embedding_scale))
    fail(ACPU_BAD_ARGUMENT, "norm_eps must be above 0, and the scales finite");
  if (c.num_ropes) require_pointer(c.ropes, "ropes");
  require_pointer(c.rope_of_layer, "rope_of_layer");
  require_pointer(c.windows, "windows");
  for (int i = 0; i < c.num_layers; ++i) {
    require_range("rope_of_layer", c.rope_of_layer[i], -1, c.num_ropes - 1);
    require_range("windows", c.windows[i], 0, 1 << 30);
  }
  return c;
}

Rope copied(const acpu_rope& rope, int head_size) {
  require_pointer(rope.frequencies, "rope frequencies");
  if (rope.rotary_size % 2) fail(ACPU_BAD_ARGUMENT, "rotary_size %d is odd", rope.rotary_size);
  require_range("rotary_size", rope.rotary_size, 2, head_size);
  return {
      {rope.frequencies, rope.frequencies + rope.rotary_size / 2}, rope.rotary_size, rope.attention_factor};
}

} // namespace

ActView make_act(Arena& arena, int rows, int num_inputs, int32_t forms, int32_t room) {
  ActView act = {};
  act.num_groups = (num_inputs + kGroup - 1) / kGroup;
  act.forms = forms;
  const size_t groups = static_cast<size_t>(rows) * act.num_groups;
  if (forms & kFormInt8) {
    act.q = arena.array<int8_t>(groups * bytes_of_group(forms));
    act.scales = arena.array<float>(groups);
    act.sums = arena.array<int32_t>(groups);
    act.weighted_sums = arena.array<float>(groups);
  }
  if ((forms | room) & kFormBF16) act.bf16 = arena.array<uint16_t>(groups * kGroup);
  if (forms & kFormF32) act.f32 = arena.array<float>(groups * kGroup);
  return act;
}

ActView in_bf16(const ActView& act) {
  ActView rows = act;
  if (act.forms & kFormInt8) rows.forms = (act.forms & kFormF32) | kFormBF16;
  return rows;
}

ActView act_from(const ActView& act, int first) {
  ActView rest = act;
  const size_t at = static_cast<size_t>(first) * act.num_groups;
  if (act.forms & kFormInt8)
    rest.q += at * bytes_of_group(act.forms), rest.scales += at, rest.sums += at, rest.weighted_sums += at;
  if (act.bf16) rest.bf16 += at * kGroup;
  if (act.forms & kFormF32) rest.f32 += at * kGroup;
  return rest;
}

KVView kv_view(const acpu_kv_layer& layer) {
  const int size = layer.block_size;
  if (size < 16 || size > kMaxBlockSize || (size & (size - 1)))
    fail(ACPU_UNSUPPORTED, "block_size %d is not a power of two from 16 to %d", size, kMaxBlockSize);
  if (layer.head_size % 16 || layer.head_size < 16 || layer.head_size > kMaxHeadSize)
    fail(ACPU_UNSUPPORTED, "head_size %d is not a multiple of 16 up to %d", layer.head_size, kMaxHeadSize);
  require_range("num_kv_heads", layer.num_kv_heads, 1, 1024);
  require_range("num_blocks", layer.num_blocks, 1, INT32_MAX / size);
  require_range("block_stride", layer.block_stride, 1, 1 << 16);
  require_pointer(layer.keys, "keys");
  require_pointer(layer.values, "values");
  if (layer.is_int8)
    require_pointer(layer.key_scales, "key_scales"), require_pointer(layer.value_scales, "value_scales");
  return {static_cast<uint8_t*>(layer.keys),
          static_cast<uint8_t*>(layer.values),
          layer.key_scales,
          layer.value_scales,
          layer.num_kv_heads,
          size,
          layer.head_size,
          layer.is_int8 != 0,
          layer.block_stride};
}

Model::Model(const acpu_config& c)
    : config(checked(c)),
      level(find_level(c.level)),
      pool(c.num_threads, c.spin_us),
      layers(c.num_layers),
      phase_seconds(8) {
  if (config.is_rough && config.activation_bits == 12 && !level->has_tiles)
    config.activation_bits = ACPU_MIXED_BITS;
  for (int i = 0; i < c.num_ropes; ++i) ropes.push_back(copied(c.ropes[i], c.head_size));
  for (int i = 0; i < c.num_layers; ++i) {
    layers[i].rope = c.rope_of_layer[i];
    layers[i].window = c.windows[i];
    for (auto& experts : layers[i].experts) experts.resize(c.num_experts);
  }
}

void Model::check_layer(int32_t layer) const {
  if (is_finished) fail(ACPU_BAD_ARGUMENT, "the model is finished; its weights cannot change");
  require_range("layer", layer, 0, config.num_layers - 1);
}

void Model::expected_shape(int32_t role, int* outputs, int* inputs) const {
  const int hidden = config.hidden_size, ffn = config.intermediate_size;
  *inputs = role == ACPU_OUTPUT ? query_width() : role == ACPU_DOWN ? ffn : hidden;
  switch (role) {
    case ACPU_EMBEDDING:
    case ACPU_HEAD: *outputs = config.vocab_size; break;
    case ACPU_QUERY: *outputs = query_width(); break;
    case ACPU_KEY:
    case ACPU_VALUE: *outputs = kv_width(); break;
    case ACPU_GATE:
    case ACPU_UP: *outputs = ffn; break;
    case ACPU_ROUTER: *outputs = config.num_experts; break;
    default: *outputs = hidden;
  }
}

void Model::set_linear(int32_t role, int32_t layer, const acpu_matrix& matrix) {
  require_range("role", role, 0, ACPU_NUM_LINEARS - 1);
  check_layer(layer);
  int outputs, inputs;
  expected_shape(role, &outputs, &inputs);
  if (!needs_linear(role)) fail(ACPU_BAD_ARGUMENT, "role %d has no place in this network: see num_experts", role);
  if (matrix.num_outputs != outputs || matrix.num_inputs != inputs)
    fail(ACPU_BAD_ARGUMENT, "role %d of layer %d is %d x %d; the network needs %d x %d", role, layer,
         matrix.num_outputs, matrix.num_inputs, outputs, inputs);
  LinearView& place = role == ACPU_EMBEDDING ? embedding_
                      : role == ACPU_HEAD    ? head_
                                             : layers[layer].linears[role];
  if (place.data) fail(ACPU_BAD_ARGUMENT, "role %d of layer %d is set already", role, layer);
  place = pack(matrix, arena, &pool);
}

void Model::set_expert(int32_t role, int32_t layer, int32_t expert, const acpu_matrix& matrix) {
  require_range("role", role, ACPU_GATE, ACPU_DOWN);
  check_layer(layer);
  require_range("expert", expert, 0, config.num_experts - 1);
  const int hidden = config.hidden_size, size = config.expert_size, is_down = role == ACPU_DOWN;
  if (matrix.num_outputs != (is_down ? hidden : size) || matrix.num_inputs != (is_down ? size : hidden))
    fail(ACPU_BAD_ARGUMENT, "role %d of layer %d's expert %d is %d x %d; the network needs %d x %d", role, layer,
         expert, matrix.num_outputs, matrix.num_inputs, is_down ? hidden : size, is_down ? size : hidden);
  if (matrix.bias) fail(ACPU_UNSUPPORTED, "experts have no biases");
  LinearView& place = layers[layer].experts[role - ACPU_GATE][expert];
  if (place.data) fail(ACPU_BAD_ARGUMENT, "role %d of layer %d's expert %d is set already", role, layer, expert);
  place = pack(matrix, arena, &pool);
}

bool Model::needs_linear(int32_t role) const {
  const bool is_ffn = role == ACPU_GATE || role == ACPU_UP || role == ACPU_DOWN;
  return config.num_experts ? !is_ffn : role != ACPU_ROUTER;
}

void Model::set_norm(int32_t role, int32_t layer, const float* weight, int32_t size) {
  require_range("norm role", role, 0, ACPU_NUM_NORMS - 1);
  check_layer(layer);
  require_pointer(weight, "norm weight");
  if (role != ACPU_FINAL_NORM && !needs_norm(role))
    fail(ACPU_BAD_ARGUMENT, "norm %d has no place in this network: see norm_placement and qk_norm", role);
  int expected = config.hidden_size;
  if (role == ACPU_QUERY_NORM || role == ACPU_KEY_NORM)
    expected = config.qk_norm == kHeadNorm ? config.head_size
               : role == ACPU_QUERY_NORM   ? query_width()
                                           : kv_width();
  if (size != expected) fail(ACPU_BAD_ARGUMENT, "norm %d has %d values; it needs %d", role, size, expected);
  float* copy = arena.array<float>(size);
  std::copy(weight, weight + size, copy);
  (role == ACPU_FINAL_NORM ? final_norm : layers[layer].norms[role]) = copy;
}

bool Model::needs_norm(int32_t role) const {
  switch (role) {
    case ACPU_ATTENTION_PRE_NORM:
    case ACPU_FFN_PRE_NORM: return config.norm_placement != kPost;
    case ACPU_ATTENTION_POST_NORM:
    case ACPU_FFN_POST_NORM: return has_post_norm();
    case ACPU_QUERY_NORM:
    case ACPU_KEY_NORM: return config.qk_norm != kNoQKNorm;
    default: return false;
  }
}

void Model::check_complete() const {
  if (!embedding_.data) fail(ACPU_BAD_ARGUMENT, "the embedding (role %d) is missing", ACPU_EMBEDDING);
  if (!final_norm) fail(ACPU_BAD_ARGUMENT, "the final norm (role %d) is missing", ACPU_FINAL_NORM);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int role = ACPU_QUERY; role < ACPU_NUM_LINEARS; ++role)
      if (needs_linear(role) && !layers[layer].linears[role].data)
        fail(ACPU_BAD_ARGUMENT, "role %d of layer %d is missing", role, layer);
    for (const auto& experts : layers[layer].experts)
      for (const LinearView& expert : experts)
        if (!expert.data) fail(ACPU_BAD_ARGUMENT, "an expert of layer %d is missing", layer);
    for (int role = 0; role < ACPU_NUM_NORMS; ++role)
      if (needs_norm(role) && !layers[layer].norms[role])
        fail(ACPU_BAD_ARGUMENT, "norm %d of layer %d is missing", role, layer);
  }
}

void Model::finish() {
  check_complete();
  is_finished = true;
}

void Model::bind_kv(const acpu_kv_layer* given, int32_t num_layers) {
  if (num_layers != config.num_layers)
    fail(ACPU_BAD_ARGUMENT, "%d layers of pages for %d layers", num_layers, config.num_layers);
  require_pointer(given, "kv layers");
  std::vector<KVView> bound;
  for (int i = 0; i < num_layers; ++i) {
    const acpu_kv_layer& layer = given[i];
    require_struct(&layer, "kv layer");
    if (layer.num_kv_heads != config.num_kv_heads || layer.head_size != config.head_size)
      fail(ACPU_BAD_ARGUMENT, "pages hold %d heads of %d; the network has %d of %d", layer.num_kv_heads,
           layer.head_size, config.num_kv_heads, config.head_size);
    if (layer.num_blocks != given[0].num_blocks || layer.block_size != given[0].block_size ||
        layer.is_int8 != given[0].is_int8)
      fail(ACPU_BAD_ARGUMENT, "layer %d's pages differ in number, size or type from layer 0's", i);
    bound.push_back(kv_view(layer));
  }
  std::lock_guard<std::mutex> lock(step_mutex);
  kv = std::move(bound);
  num_blocks = given[0].num_blocks;
}

HeadShape Model::head_shape(int layer) const {
  const LayerWeights& weights = layers[layer];
  HeadShape shape = {};
  shape.q_norm = config.qk_norm == kHeadNorm ? weights.norms[ACPU_QUERY_NORM] : nullptr;
  shape.k_norm = config.qk_norm == kHeadNorm ? weights.norms[ACPU_KEY_NORM] : nullptr;
  shape.num_groups = num_groups();
  shape.rotary_size = weights.rope < 0 ? 0 : ropes[weights.rope].rotary_size;
  shape.window = weights.window;
  shape.scale = config.attention_scale;
  shape.softcap = config.attention_softcap;
  shape.eps = config.norm_eps;
  return shape;
}

void Model::grow_scratch(int num_tokens) {
  if (num_tokens <= scratch.max_tokens) return;
  int rows = 64;
  while (rows < num_tokens) rows *= 2;
  rows = std::min(rows, config.max_tokens);
  Scratch& s = scratch;
  s.max_tokens = 0;
  s.arena.clear();
  int32_t hidden_forms = form_of(head().kind, config.activation_bits), attended_forms = 0, gated_forms = 0;
  for (const LayerWeights& layer : layers) {
    for (int role : {ACPU_QUERY, ACPU_KEY, ACPU_VALUE, ACPU_GATE, ACPU_UP, ACPU_ROUTER})
      if (needs_linear(role)) hidden_forms |= form_of(layer.linears[role].kind, config.activation_bits);
    attended_forms |= form_of(layer.linears[ACPU_OUTPUT].kind, config.activation_bits);
    if (!config.num_experts) gated_forms |= form_of(layer.linears[ACPU_DOWN].kind, config.activation_bits);
  }
  const size_t n = static_cast<size_t>(rows);
  s.hidden = s.arena.array<float>(n * config.hidden_size);
  s.qkv = s.arena.array<float>(n * qkv_width());
  s.attended = s.arena.array<float>(n * query_width());
  if (has_post_norm()) s.branch = s.arena.array<float>(n * config.hidden_size);
  s.cos.clear();
  s.sin.clear();
  for (const Rope& rope : ropes) {
    s.cos.push_back(s.arena.array<float>(n * rope.frequencies.size()));
    s.sin.push_back(s.arena.array<float>(n * rope.frequencies.size()));
  }
  s.hidden_act = make_act(s.arena, rows, config.hidden_size, hidden_forms, room_of(hidden_forms));
  s.attended_act = make_act(s.arena, rows, query_width(), attended_forms, room_of(attended_forms));
  if (!config.num_experts)
    s.gated_act = make_act(s.arena, rows, config.intermediate_size, gated_forms, room_of(gated_forms));
  s.max_tokens = rows;
}

} // namespace acpu

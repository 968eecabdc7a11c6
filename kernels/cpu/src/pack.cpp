// Reading source rows, quantizing where needed, and laying panels out.
#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "failure.h"

namespace acpu {

namespace {

constexpr int kStep = kPanel * 4; // bytes of one step of a panel: a 32-bit word per channel

bool is_4bit(int32_t kind) {
  return kind == kGroup4 || kind == kGroup4Min || kind == kAffine4;
}
bool has_minima(int32_t kind) {
  return kind == kGroup4Min || kind == kAffine4 || kind == kAffine8;
}
bool is_affine(int32_t kind) {
  return kind == kAffine4 || kind == kAffine8;
}

size_t scale_bytes(int32_t kind) {
  if (kind == kF32 || kind == kBF16 || kind == kChannel8) return 0;
  return static_cast<size_t>(kPanel) * (is_affine(kind) ? 4 : 2) * (has_minima(kind) ? 2 : 1);
}

size_t weight_bytes(int32_t kind) {
  const size_t steps = kind == kF32 ? 32 : kind == kBF16 ? 16 : is_4bit(kind) ? 4 : 8;
  return steps * kStep;
}

size_t row_bytes(int32_t source, size_t inputs) {
  switch (source) {
    case ACPU_SOURCE_F32: return inputs * 4;
    case ACPU_SOURCE_F16:
    case ACPU_SOURCE_BF16: return inputs * 2;
    case ACPU_SOURCE_Q4_0: return inputs / 32 * 18;
    case ACPU_SOURCE_Q4_1: return inputs / 32 * 20;
    case ACPU_SOURCE_Q8_0: return inputs / 32 * 34;
    default: return inputs;
  }
}

bool keeps_groups(int32_t source) {
  return source >= ACPU_SOURCE_Q4_0;
}

// The kind that holds a source's values exactly, without a detour through float32.
bool is_exact(int32_t source, int32_t kind) {
  return (source == ACPU_SOURCE_Q4_0 && kind == kGroup4) ||
         (source == ACPU_SOURCE_Q4_1 && kind == kGroup4Min) ||
         (source == ACPU_SOURCE_Q8_0 && kind == kGroup8) || (source == ACPU_SOURCE_AFFINE && is_affine(kind));
}

void check(const acpu_matrix& m) {
  require_struct(&m, "matrix");
  require_range("matrix source", m.source, 0, ACPU_NUM_SOURCES - 1);
  require_range("matrix kind", m.kind, 0, kNumKinds - 1);
  require_range("num_outputs", m.num_outputs, 1, 1 << 24);
  require_range("num_inputs", m.num_inputs, 1, 1 << 20);
  require_pointer(m.rows, "matrix rows");
  const bool affine = m.source == ACPU_SOURCE_AFFINE;
  if (affine != is_affine(m.kind))
    fail(ACPU_UNSUPPORTED, "source %d cannot be packed as kind %d: affine goes to affine only", m.source,
         m.kind);
  if (keeps_groups(m.source) && m.num_inputs % kGroup)
    fail(ACPU_BAD_ARGUMENT, "num_inputs is %d; grouped sources need a multiple of %d", m.num_inputs, kGroup);
  if (affine) require_pointer(m.scales, "matrix scales"), require_pointer(m.minima, "matrix minima");
  const size_t expected = row_bytes(m.source, m.num_inputs) * m.num_outputs;
  if (m.rows_bytes != expected)
    fail(ACPU_BAD_ARGUMENT, "the matrix has %zu bytes; %d x %d of source %d needs %zu", m.rows_bytes,
         m.num_outputs, m.num_inputs, m.source, expected);
  for (int i = 0; m.order && i < m.num_outputs; ++i)
    require_range("matrix order", m.order[i], 0, m.num_outputs - 1);
}

uint16_t u16_at(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

void decode_block(int32_t source, const uint8_t* block, float* out) {
  const float d = f16_to_f32(u16_at(block));
  if (source == ACPU_SOURCE_Q8_0) {
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<int8_t>(block[2 + i]);
    return;
  }
  const bool has_min = source == ACPU_SOURCE_Q4_1;
  const uint8_t* q = block + (has_min ? 4 : 2);
  const float minimum = has_min ? f16_to_f32(u16_at(block + 2)) : -8.0f * d;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(q[i] & 15) + minimum;
    out[i + 16] = d * static_cast<float>(q[i] >> 4) + minimum;
  }
}

void decode_row(int32_t source, const uint8_t* row, int inputs, float* out) {
  const size_t block = row_bytes(source, 32);
  if (source == ACPU_SOURCE_F32) std::memcpy(out, row, static_cast<size_t>(inputs) * 4);
  for (int i = 0; source == ACPU_SOURCE_F16 && i < inputs; ++i) out[i] = f16_to_f32(u16_at(row + 2 * i));
  for (int i = 0; source == ACPU_SOURCE_BF16 && i < inputs; ++i) out[i] = bf16_to_f32(u16_at(row + 2 * i));
  for (int i = 0; keeps_groups(source) && i < inputs; i += 32)
    decode_block(source, row + i / 32 * block, out + i);
}

// One channel's place in its panel.
struct Channel {
  uint8_t* panel;
  int index; // in the panel
  const LinearView& view;

  uint8_t* record(int g) const { return panel + g * view.record_bytes; }
  uint8_t* weights(int g) const { return record(g) + index * 4; }
  void set_f16(int g, int which, uint16_t bits) const {
    std::memcpy(record(g) + view.scales_offset + which * kPanel * 2 + index * 2, &bits, 2);
  }
  void set_f32(int g, int which, float value) const {
    std::memcpy(record(g) + view.scales_offset + which * kPanel * 4 + index * 4, &value, 4);
  }
  void set_bytes(int g, const uint8_t* q) const {
    for (int j = 0; j < 8; ++j) std::memcpy(weights(g) + j * kStep, q + 4 * j, 4);
  }
  void set_nibbles(int g, const uint8_t* packed) const {
    for (int j = 0; j < 4; ++j) std::memcpy(weights(g) + j * kStep, packed + 4 * j, 4);
  }
};

void pair_nibbles(const uint8_t* q, uint8_t* packed) {
  for (int i = 0; i < 16; ++i) packed[i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
}

void copy_blocks(const acpu_matrix& m, const uint8_t* row, const Channel& to) {
  const size_t block = row_bytes(m.source, 32);
  for (int g = 0; g < m.num_inputs / kGroup; ++g, row += block) {
    to.set_f16(g, 0, u16_at(row));
    if (m.source == ACPU_SOURCE_Q8_0) {
      uint8_t q[32];
      for (int i = 0; i < 32; ++i) q[i] = row[2 + i] ^ 0x80u;
      to.set_bytes(g, q);
    } else if (m.source == ACPU_SOURCE_Q4_1) {
      to.set_f16(g, 1, u16_at(row + 2));
      to.set_nibbles(g, row + 4);
    } else {
      to.set_nibbles(g, row + 2);
    }
  }
}

void copy_affine(const acpu_matrix& m, int row, const Channel& to) {
  const int groups = m.num_inputs / kGroup;
  const uint8_t* q = static_cast<const uint8_t*>(m.rows) + static_cast<size_t>(row) * m.num_inputs;
  for (int g = 0; g < groups; ++g, q += kGroup) {
    to.set_f32(g, 0, m.scales[static_cast<size_t>(row) * groups + g]);
    to.set_f32(g, 1, m.minima[static_cast<size_t>(row) * groups + g]);
    if (m.kind == kAffine8) {
      to.set_bytes(g, q);
      continue;
    }
    uint8_t packed[16];
    for (int i = 0; i < kGroup; ++i)
      if (q[i] > 15) fail(ACPU_BAD_ARGUMENT, "row %d holds %d; 4-bit weights end at 15", row, q[i]);
    pair_nibbles(q, packed);
    to.set_nibbles(g, packed);
  }
}

int rounded(float x, int low, int high) {
  return static_cast<int>(
      std::nearbyint(std::min(std::max(x, static_cast<float>(low)), static_cast<float>(high))));
}

float peak_of(const float* x, int n) {
  float peak = 0.0f;
  for (int i = 0; i < n; ++i) peak = std::max(peak, std::fabs(x[i]));
  return peak;
}

void quantize_bytes(const float* x, float scale, uint8_t* q) {
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kGroup; ++i) q[i] = static_cast<uint8_t>(rounded(x[i] * inverse, -127, 127) + 128);
}

// Offset 8 without a minimum: the value furthest from zero falls on -8 or close to 7.
void quantize_group4(const float* x, const Channel& to, int g) {
  float top = 0.0f;
  for (int i = 0; i < kGroup; ++i)
    if (std::fabs(x[i]) > std::fabs(top)) top = x[i];
  const uint16_t bits = f32_to_f16(top / -8.0f);
  const float scale = f16_to_f32(bits), inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  uint8_t q[32], packed[16];
  for (int i = 0; i < kGroup; ++i) q[i] = static_cast<uint8_t>(rounded(x[i] * inverse + 8.0f, 0, 15));
  pair_nibbles(q, packed);
  to.set_f16(g, 0, bits);
  to.set_nibbles(g, packed);
}

void quantize_group4_min(const float* x, const Channel& to, int g) {
  const auto ends = std::minmax_element(x, x + kGroup);
  const uint16_t scale_bits = f32_to_f16((*ends.second - *ends.first) / 15.0f),
                 min_bits = f32_to_f16(*ends.first);
  const float scale = f16_to_f32(scale_bits), minimum = f16_to_f32(min_bits);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  uint8_t q[32], packed[16];
  for (int i = 0; i < kGroup; ++i) q[i] = static_cast<uint8_t>(rounded((x[i] - minimum) * inverse, 0, 15));
  pair_nibbles(q, packed);
  to.set_f16(g, 0, scale_bits);
  to.set_f16(g, 1, min_bits);
  to.set_nibbles(g, packed);
}

void store_dense(const float* x, int32_t kind, const Channel& to, int g) {
  for (int i = 0; i < kGroup; ++i) {
    if (kind == kF32) {
      std::memcpy(to.weights(g) + i * kStep, x + i, 4);
    } else {
      const uint16_t bits = f32_to_bf16(x[i]);
      std::memcpy(to.weights(g) + i / 2 * kStep + i % 2 * 2, &bits, 2);
    }
  }
}

void quantize_row(const float* x, int inputs, int32_t kind, float* channel_scale, const Channel& to) {
  const float row_scale = peak_of(x, inputs) / 127.0f;
  if (kind == kChannel8) *channel_scale = row_scale;
  for (int g = 0; g < to.view.num_groups; ++g, x += kGroup) {
    uint8_t q[32];
    if (kind == kF32 || kind == kBF16) {
      store_dense(x, kind, to, g);
    } else if (kind == kGroup4) {
      quantize_group4(x, to, g);
    } else if (kind == kGroup4Min) {
      quantize_group4_min(x, to, g);
    } else {
      const uint16_t bits = f32_to_f16(peak_of(x, kGroup) / 127.0f);
      if (kind == kGroup8) to.set_f16(g, 0, bits);
      quantize_bytes(x, kind == kChannel8 ? row_scale : f16_to_f32(bits), q);
      to.set_bytes(g, q);
    }
  }
}

void pack_channel(const acpu_matrix& m, const LinearView& view, uint8_t* data, float* channel_scales, int n,
                  std::vector<float>& scratch) {
  const int row = m.order ? m.order[n] : n;
  const Channel to = {data + static_cast<size_t>(n / kPanel) * view.panel_bytes, n % kPanel, view};
  if (m.source == ACPU_SOURCE_AFFINE) return copy_affine(m, row, to);
  const size_t stride = row_bytes(m.source, m.num_inputs);
  const uint8_t* from = static_cast<const uint8_t*>(m.rows) + static_cast<size_t>(row) * stride;
  if (is_exact(m.source, m.kind)) return copy_blocks(m, from, to);
  scratch.assign(static_cast<size_t>(view.num_groups) * kGroup, 0.0f);
  decode_row(m.source, from, m.num_inputs, scratch.data());
  quantize_row(scratch.data(), m.num_inputs, m.kind, channel_scales ? channel_scales + n : nullptr, to);
}

} // namespace

int32_t form_of(int32_t kind, int activation_bits) {
  if (kind == kF32 || kind == kBF16)
    return kind == kF32 ? kFormF32 : kFormBF16;
  if (activation_bits == ACPU_MIXED_BITS) return kFormInt8 | kFormMixed;
  return activation_bits == 12 ? kFormInt8 | kFormInt12 : kFormInt8;
}

int32_t num_units(const LinearView& weight) {
  return (weight.num_outputs + kUnit - 1) / kUnit;
}

LinearView pack(const acpu_matrix& m, Arena& arena, Pool* pool) {
  check(m);
  LinearView view = {};
  view.kind = m.kind;
  view.num_outputs = m.num_outputs;
  view.num_inputs = m.num_inputs;
  view.num_groups = (m.num_inputs + kGroup - 1) / kGroup;
  view.scales_offset = weight_bytes(m.kind);
  view.record_bytes = view.scales_offset + scale_bytes(m.kind);
  view.panel_bytes = view.record_bytes * view.num_groups;
  const int panels = (m.num_outputs + kPanel - 1) / kPanel;
  uint8_t* data = arena.array<uint8_t>(view.panel_bytes * panels);
  float* scales = m.kind == kChannel8 ? arena.array<float>(static_cast<size_t>(panels) * kPanel) : nullptr;
  view.data = data;
  view.channel_scales = scales;
  if (m.bias) {
    float* bias = arena.array<float>(static_cast<size_t>(panels) * kPanel);
    std::copy(m.bias, m.bias + m.num_outputs, bias);
    view.bias = bias;
  }
  const int threads = pool ? pool->num_threads() : 1;
  std::vector<Failure> failures(threads, Failure{ACPU_OK, {}});
  const auto fill = [&](int t) {
    std::vector<float> scratch;
    const int first = panels * t / threads * kPanel,
              end = std::min(m.num_outputs, panels * (t + 1) / threads * kPanel);
    try {
      for (int n = first; n < end; ++n) pack_channel(m, view, data, scales, n, scratch);
    } catch (const Failure& failure) {
      failures[t] = failure;
    }
  };
  if (pool)
    pool->run(fill);
  else
    fill(0);
  for (const Failure& failure : failures)
    if (failure.status != ACPU_OK) throw failure;
  return view;
}

namespace {

// Scale, minimum and zero point of one channel's group.
struct GroupScale {
  float scale, minimum;
  int offset;
};

GroupScale group_scale(const LinearView& view, const uint8_t* record, int row) {
  const int c = row % kPanel;
  const uint8_t* scales = record + view.scales_offset;
  if (view.kind == kChannel8) return {view.channel_scales[row], 0.0f, 128};
  if (is_affine(view.kind)) {
    float scale, minimum;
    std::memcpy(&scale, scales + c * 4, 4);
    std::memcpy(&minimum, scales + (kPanel + c) * 4, 4);
    return {scale, minimum, 0};
  }
  const float scale = f16_to_f32(u16_at(scales + c * 2));
  if (view.kind == kGroup4Min) return {scale, f16_to_f32(u16_at(scales + (kPanel + c) * 2)), 0};
  return {scale, 0.0f, view.kind == kGroup4 ? 8 : 128};
}

void read_dense_group(int32_t kind, const uint8_t* w, float* out) {
  for (int i = 0; i < kGroup; ++i) {
    if (kind == kF32)
      std::memcpy(out + i, w + i * kStep, 4);
    else
      out[i] = bf16_to_f32(u16_at(w + i / 2 * kStep + i % 2 * 2));
  }
}

void read_group(const LinearView& view, const uint8_t* record, int row, float* out) {
  const uint8_t* w = record + row % kPanel * 4;
  if (view.kind == kF32 || view.kind == kBF16) return read_dense_group(view.kind, w, out);
  const GroupScale s = group_scale(view, record, row);
  for (int i = 0; i < kGroup; ++i) {
    const int j = is_4bit(view.kind) ? i % 16 : i;
    const int byte = w[j / 4 * kStep + j % 4];
    const int q = !is_4bit(view.kind) ? byte : i < 16 ? byte & 15 : byte >> 4;
    out[i] = s.scale * static_cast<float>(q - s.offset) + s.minimum;
  }
}

} // namespace

void read_row(const LinearView& view, int row, float* out) {
  const uint8_t* record = view.data + static_cast<size_t>(row / kPanel) * view.panel_bytes;
  float last[kGroup];
  for (int k = 0; k < view.num_inputs; k += kGroup, record += view.record_bytes) {
    const bool is_whole = k + kGroup <= view.num_inputs;
    read_group(view, record, row, is_whole ? out + k : last);
    if (!is_whole) std::copy(last, last + view.num_inputs - k, out + k);
  }
}

} // namespace acpu

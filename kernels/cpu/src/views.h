// Plain views that every part shares: packed weights, quantized activations, KV pages, one level's table.
// Knows no threads and owns no memory. Level files include this, so nothing here may emit code of its own.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace acpu {

constexpr int kPanel = 64;    // output channels that are packed side by side
constexpr int kUnit = 32;     // output channels that are scheduled together: half a panel
constexpr int kGroup = 32;    // inputs that share one activation scale, and one weight scale where grouped
constexpr int kLowSteps = 16; // of an activation's low byte make one of its high byte
constexpr int kSplit = 128;   // KV slots of one softmax partial; fixed, so that sums never depend on threads
constexpr int kMaxTileRows = 64; // query rows (tokens x heads of a group) of one attention tile
constexpr int kMaxHeadSize = 256;
constexpr int kMaxBlockSize = 256;

enum Kind : int32_t {
  kF32 = 0,       // dense float32
  kBF16 = 1,      // dense bfloat16
  kChannel8 = 2,  // INT8, one float32 scale per output channel
  kGroup8 = 3,    // INT8 in groups of 32, float16 scales (Q8_0 as it is)
  kGroup4 = 4,    // 4 bits in groups of 32, offset 8, float16 scales (Q4_0 as it is)
  kGroup4Min = 5, // 4 bits in groups of 32, float16 scales and minima (Q4_1 as it is)
  kAffine8 = 6,   // 8 bits unsigned in groups of 32, float32 scales and minima
  kAffine4 = 7,   // 4 bits unsigned in groups of 32, float32 scales and minima
  kNumKinds = 8,
};

// One packed matrix. A panel is num_groups records; a record holds, for 32 inputs of 64 channels, the
// weights, channel by channel in steps of four (or two, or one) inputs, then the scales, then the minima: the
// order in which they are read, which keeps the hardware's prefetching in step.
struct LinearView {
  const uint8_t* data;
  const float* channel_scales; // kChannel8 only, padded to panels
  const float* bias;           // or null, padded to panels
  int32_t kind;
  int32_t num_outputs;
  int32_t num_inputs;
  int32_t num_groups;
  size_t scales_offset; // in a record
  size_t record_bytes;
  size_t panel_bytes;
};

// Rows of activations in the forms that the consuming matrices read. Row stride: num_groups * 32 elements, or
// groups of bytes_of_group(forms).
struct ActView {
  int8_t* q;            // [rows, groups], each as its form says
  float* scales;        // [rows, groups]
  int32_t* sums;        // [rows, groups], of the whole numbers
  float* weighted_sums; // [rows, groups], scale * sum
  uint16_t* bf16;       // or null
  float* f32;           // or null
  int32_t num_groups;
  int32_t forms; // bits of Form
};

// kFormInt8: a group's inputs are 32 whole numbers of a byte, by a scale. Two more come with it:
// kFormInt12: (16 high + low), the 32 high bytes, then the 32 low ones.
// kFormMixed: 32 bytes, of which those of one quad (four inputs side by side) are low ones, then its HighQuad.
enum Form : int32_t { kFormInt8 = 1, kFormBF16 = 2, kFormF32 = 4, kFormInt12 = 8, kFormMixed = 16 };

constexpr int kQuad = 4;

// What lies behind a mixed group's bytes: the high bytes of one quad, and which one.
struct HighQuad {
  int8_t bytes[kQuad];
  uint8_t quad;
  uint8_t unused[3];
};

// A group's largest absolute value, the largest outside of that one's quad, and which quad it is.
struct Peaks {
  float first, second;
  int quad;
};

constexpr float kTiny = 1e-30f; // values below have no scale
constexpr int kMostByte = 127;
constexpr int kMostWhole = kMostByte * kLowSteps; // with a high byte
constexpr int bytes_of_group(int32_t forms) {
  return forms & kFormInt12 ? 2 * kGroup : forms & kFormMixed ? kGroup + (int)sizeof(HighQuad) : kGroup;
}

enum Epilogue : int32_t { kStore = 0, kAdd = 1, kGate = 2, kLogits = 3 };
enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// out = act * weight^T for a range of rows and units; kGate also reads `second` and writes activations.
struct GemmTask {
  LinearView weight;
  LinearView second;
  ActView act;
  ActView gated;
  float* out;
  int64_t out_stride;
  int32_t epilogue;
  int32_t activation;
  float scale;   // kAdd: residual scale; kLogits: logit scale
  float softcap; // kLogits, 0: none
  bool in_bf16;  // the rows are given in bfloat16, though integers are what the weights are
  const uint8_t* next; // weights that the thread reads after these, or null
};

struct KVView {
  uint8_t* keys;     // one layer: [blocks][kv heads][head_size / 2][block_size][2]
  uint8_t* values;   // one layer: [blocks][kv heads][block_size / 2][head_size][2]
  float* key_scales; // INT8 only: [blocks][kv heads][block_size]
  float* value_scales;
  int32_t num_kv_heads;
  int32_t block_size;
  int32_t head_size;
  int32_t is_int8;
  int32_t block_stride; // what lies between two blocks of this layer is other layers' blocks
};

struct HeadShape {
  const float* q_norm; // [head_size] or null
  const float* k_norm;
  int32_t num_groups;  // query heads of one KV head
  int32_t rotary_size; // 0: positions are left alone
  int32_t window;      // 0: none
  float scale;
  float softcap; // 0: none
  float eps;
};

// Where the slots lie that will be wanted next: `blocks` and `head` as for a tile, from slot `first` up to
// `end`.
struct NextSlots {
  const int32_t* blocks; // null: nothing follows
  int32_t head;
  int32_t first;
  int32_t end;
};

// `rows` consecutive tokens of one sequence; row i sees slots below first_limit + i.
struct AttentionTile {
  const float* q; // [tokens, q_stride], rows of this tile, the first head of this group
  int64_t q_stride;
  const float* cos; // [tokens, rotary / 2]
  const float* sin;
  int64_t rope_stride;
  const int32_t* blocks;
  int32_t num_tokens;
  int32_t first_limit;
  int32_t kv_head;
  int32_t first_split;
  int32_t end_split;
  NextSlots next; // after the last split, for prefetching
};

struct SplitState {
  float max;
  float sum;
};

// Which tokens may be chosen: a bit for each, the first in the lowest; null words: all of them.
struct TokenMask {
  const uint32_t* words;
  int32_t num_words; // tokens beyond are blocked
};

// Words whose weights have one total.
constexpr int kTotalWords = 8;

// What one instruction-set level offers. Every function works on the rows it is given, on the calling thread.
struct Level {
  const char* name;
  void (*quantize)(const float* x, int64_t stride, int num_inputs, const ActView& act, int row0, int row1);
  void (*norm)(const float* x, const float* weight, float* out, int size, float eps);
  void (*norm_add)(const float* x, const float* weight, float* accumulator, int size, float eps, float scale);
  void (*gemm)(const GemmTask& task, int row0, int row1, int unit0, int unit1);
  void (*write_kv)(const KVView& kv, const HeadShape& shape, const float* k, const float* v, const float* cos,
                   const float* sin, int64_t slot, int head);
  // Running softmax over splits [first_split, end_split); states and outputs per row: [tokens * groups].
  // With `partials`, each split's own state and output go to consecutive places, unmerged.
  void (*attend)(const KVView& kv, const HeadShape& shape, const AttentionTile& tile, bool partials,
                 SplitState* states, float* outputs);
  // Adds one more split to `num_rows` rows that lie side by side.
  void (*merge)(SplitState* into, float* into_outputs, const SplitState* from, const float* from_outputs,
                int size, int num_rows);
  void (*top_k)(const float* logits, int size, int k, int32_t* ids, float* values);
  void (*gate)(const float* gate, const float* up, float* out, int size, int activation);
  float (*peak)(const float* logits, const TokenMask& mask, int size, int32_t* place);
  void (*keep_allowed)(const float* logits, const TokenMask& mask, int size, float* out);
  void (*weigh)(const float* logits, const TokenMask& mask, int size, float top, float scale, float* weights,
                float* totals);
  int (*at_least)(const float* weights, int size, float floor, int32_t* places);
  bool has_tiles; // multiplies rows that are given in bfloat16
};

const Level* level_portable();
#if defined(__x86_64__) || defined(_M_X64)
const Level* level_avx2();
const Level* level_avx2_vnni();
const Level* level_avx512_vnni();
const Level* level_avx512();
const Level* level_avx512_amx();
#endif
#if defined(__aarch64__)
const Level* level_neon();
#endif

} // namespace acpu

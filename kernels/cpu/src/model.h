// A network: its shape, its packed weights, the pages it is bound to. Knows nothing of one step's batch.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acpu.h"
#include "arena.h"
#include "pool.h"
#include "views.h"

namespace acpu {

enum NormPlacement : int32_t { kPre = 0, kPost = 1, kBoth = 2 };
// Of queries and keys: each head by itself, or all heads of a token together.
enum QKNorm : int32_t { kNoQKNorm = 0, kHeadNorm = 1, kFullNorm = 2 };

struct Rope {
  std::vector<double> frequencies;
  int32_t rotary_size;
  float attention_factor;
};

struct LayerWeights {
  LinearView linears[ACPU_NUM_LINEARS] = {};
  const float* norms[ACPU_NUM_NORMS] = {};
  std::vector<LinearView> experts[3]; // gate, up, down of each
  int32_t rope = -1;
  int32_t window = 0;
};

// Where rows of one step live between its phases; grown to the largest step seen.
struct Scratch {
  Arena arena{size_t{8} << 20};
  Arena step_arena{size_t{2} << 20}; // rewound at each step
  int max_tokens = 0;
  float *hidden = nullptr, *qkv = nullptr, *attended = nullptr, *branch = nullptr;
  std::vector<float*> cos, sin; // by rope
  ActView hidden_act = {}, attended_act = {}, gated_act = {};
};

// Room for choosing one row's token; grown to the largest row seen.
struct ChoiceScratch {
  std::vector<float> weights, totals, values;
  std::vector<int32_t> places;

  void grow(size_t size);
};

// The names of the levels this machine runs, best first.
const std::vector<const Level*>& available_levels();
// The named level, or the best one for an empty name. Throws Failure.
const Level* find_level(const char* name);

// Checks one layer's pages. Throws Failure.
KVView kv_view(const acpu_kv_layer& layer);

// The rows from `first` on.
ActView act_from(const ActView& act, int first);
// `room` may name more forms than `forms`, which are those that are stored unless told otherwise.
ActView make_act(Arena& arena, int rows, int num_inputs, int32_t forms, int32_t room = 0);
// The same rows as a prompt's are stored where the level has tiles: bfloat16 in place of integers.
ActView in_bf16(const ActView& act);

class Model {
 public:
  explicit Model(const acpu_config& config);

  void set_linear(int32_t role, int32_t layer, const acpu_matrix& matrix);
  void set_expert(int32_t role, int32_t layer, int32_t expert, const acpu_matrix& matrix);
  void set_norm(int32_t role, int32_t layer, const float* weight, int32_t size);
  void finish();
  void bind_kv(const acpu_kv_layer* layers, int32_t num_layers);
  void grow_scratch(int num_tokens);
  // The forms that rows of `forms` may be stored in.
  int32_t room_of(int32_t forms) const {
    return level->has_tiles && (forms & kFormInt8) ? forms | kFormBF16 : forms;
  }

  const LinearView& head() const { return head_.data ? head_ : embedding_; }
  bool has_post_norm() const { return config.norm_placement != kPre; }
  int query_width() const { return config.num_heads * config.head_size; }
  int kv_width() const { return config.num_kv_heads * config.head_size; }
  int qkv_width() const { return query_width() + 2 * kv_width(); }
  int num_groups() const { return config.num_heads / config.num_kv_heads; }
  HeadShape head_shape(int layer) const;

  acpu_config config; // its pointers are not kept
  const Level* level;
  Pool pool;
  Arena arena{size_t{32} << 20};
  LinearView embedding_ = {}, head_ = {};
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
  std::vector<Rope> ropes;
  std::vector<KVView> kv;
  int32_t num_blocks = 0;
  bool is_finished = false;
  Scratch scratch;
  ChoiceScratch choice_scratch;
  std::mutex step_mutex;
  std::vector<double> phase_seconds;

 private:
  void check_layer(int32_t layer) const;
  bool needs_linear(int32_t role) const; // of a layer
  void expected_shape(int32_t role, int* outputs, int* inputs) const;
  bool needs_norm(int32_t role) const; // of a layer
  void check_complete() const;
};

// Throws Failure where the step does not fit the model or its pages.
void check_step(const Model& model, const acpu_step& step);
// Runs one step. Throws Failure before anything is written where the step is not valid.
void run_step(Model& model, const acpu_step& step);

// Chooses a token for each row, -1 where there is no number to choose by. Throws Failure.
void choose(Model& model, const acpu_choice* rows, int num_rows, int32_t* tokens);

} // namespace acpu

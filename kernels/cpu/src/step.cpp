// One step over a ragged batch: which thread does what, and where they wait for each other. Numbers are the
// levels' business; here are only ranges, and the order of phases.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "failure.h"
#include "model.h"
#include "pack.h"
#include "plan.h"

namespace acpu {

namespace {

// Up to this many tokens every thread prepares all rows for itself: that costs less than a barrier.
constexpr int kFewRows = 4;
// Activations of one block of rows, to stay in a core's cache while panels stream past.
constexpr size_t kRowBlockBytes = size_t{384} << 10;
constexpr size_t kLogitBytes = size_t{16} << 20;
constexpr int kTileTokensGoal = 48; // rows (tokens x heads) of an attention tile

enum Phase { kPhaseQkv, kPhaseAttention, kPhaseOutput, kPhaseGateUp, kPhaseDown, kPhaseHead, kPhaseSample, kPhasePrepare };

struct Range {
  int64_t begin, end;
};

Range share(int64_t total, int thread, int threads) {
  return {total * thread / threads, total * (thread + 1) / threads};
}

class StepRun {
 public:
  StepRun(Model& model, const acpu_step& step);
  void work(int thread);

 private:
  struct Worker {
    int thread;
    ActView hidden_act, attended_act; // own copies for few rows, shared views otherwise
    std::chrono::steady_clock::time_point phase_start;
  };

  void prepare_memory();
  void barrier() { model_.pool.barrier(); }
  void shared_barrier() {
    if (!is_small_) barrier();
  }
  void finish_phase(Worker& w, Phase phase);
  Range own_rows(int thread) const { return share(step_.num_tokens, thread, threads_); }
  Range rows_to_prepare(int thread) const { return is_small_ ? Range{0, step_.num_tokens} : own_rows(thread); }

  void embed(int thread);
  void turn(int thread);
  void run_layer(Worker& w, int layer);
  void prepare(Worker& w, const float* norm);
  void run_gemm(int thread, const GemmTask* tasks, int num_tasks, int num_rows);
  void add_branch(Worker& w, const ActView& act, const LinearView& weight, const float* post_norm);
  void attention_block(Worker& w, int layer);
  void feed_forward_block(Worker& w, int layer);
  void write_row(int layer, const HeadShape& shape, int row, int head);
  void write_pages(int thread, int layer, const HeadShape& shape);
  AttentionTile tile_of(const Span& span, int layer, int head) const;
  NextSlots slots_of_unit(const AttentionPlan& plan, size_t single, int64_t unit, int64_t end) const;
  void attend_singles(int thread, int layer, const HeadShape& shape, const AttentionPlan& plan);
  void attend_tiles(int layer, const HeadShape& shape, const AttentionPlan& plan);
  void merge_single(const AttentionPlan& plan, size_t single, float* out);
  void finish_attention(Worker& w, const AttentionPlan& plan);
  void run_head(Worker& w);
  void pick_tokens(int thread, int first, int count, const float* logits);

  Model& model_;
  const acpu_step& step_;
  const Level& level_;
  const acpu_config& config_;
  Scratch& scratch_;
  const int threads_;
  const bool is_small_;
  bool writes_in_place_ = true; // every sequence brings one token: who attends to it also writes it
  Arena& memory_;
  std::vector<AttentionPlan> plans_;
  std::vector<int> plan_of_layer_;
  std::vector<int32_t> single_of_row_; // -1: the row is in a tile
  std::vector<int32_t> sequence_of_row_;
  std::vector<std::atomic<int>> next_tile_;
  SplitState* partial_states_ = nullptr;
  float* partial_outputs_ = nullptr;
  std::vector<Worker> workers_;
  ActView head_act_ = {};
  float* head_hidden_ = nullptr;
  float* logits_ = nullptr;
  int logit_chunk_ = 0;
};

StepRun::StepRun(Model& model, const acpu_step& step)
    : model_(model), step_(step), level_(*model.level), config_(model.config), scratch_(model.scratch),
      threads_(model.pool.num_threads()), is_small_(step.num_tokens <= kFewRows), memory_(model.scratch.step_arena),
      next_tile_(config_.num_layers) {
  const int tile_rows = std::max(1, kTileTokensGoal / model.num_groups());
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const int window = model.layers[layer].window;
    size_t at = 0;
    while (at < plans_.size() && plans_[at].window != window) ++at;
    if (at == plans_.size())
      plans_.push_back(make_plan(step, window, config_.num_kv_heads, tile_rows, is_small_));
    plan_of_layer_.push_back(static_cast<int>(at));
    next_tile_[layer].store(0, std::memory_order_relaxed);
  }
  single_of_row_.assign(step.num_tokens, -1);
  for (size_t i = 0; i < plans_[0].singles.size(); ++i)
    single_of_row_[plans_[0].singles[i].first_row] = static_cast<int32_t>(i);
  sequence_of_row_.resize(step.num_tokens);
  for (int s = 0; s < step.num_sequences; ++s) {
    std::fill(&sequence_of_row_[0] + step.query_starts[s], &sequence_of_row_[0] + step.query_starts[s + 1], s);
    if (step.query_starts[s + 1] - step.query_starts[s] > 1) writes_in_place_ = false;
  }
  prepare_memory();
}

void StepRun::prepare_memory() {
  model_.grow_scratch(step_.num_tokens);
  memory_.rewind();
  int64_t units = 0;
  for (const AttentionPlan& plan : plans_) units = std::max(units, plan.num_units());
  const size_t states = static_cast<size_t>(units) * model_.num_groups();
  partial_states_ = memory_.array<SplitState>(states);
  partial_outputs_ = memory_.array<float>(states * config_.head_size);
  const size_t row_bytes = static_cast<size_t>(config_.vocab_size) * sizeof(float);
  const int rows = step_.num_logit_rows;
  logit_chunk_ = step_.logits ? rows : std::min<int>(rows, std::max<int>(kFewRows, static_cast<int>(kLogitBytes / row_bytes)));
  logits_ = step_.logits ? step_.logits : memory_.array<float>(static_cast<size_t>(logit_chunk_) * config_.vocab_size);
  head_hidden_ = memory_.array<float>(static_cast<size_t>(rows) * config_.hidden_size);
  head_act_ = make_act(memory_, std::max(1, rows), config_.hidden_size, scratch_.hidden_act.forms);
  for (int t = 0; t < threads_; ++t) {
    Worker w = {t, scratch_.hidden_act, scratch_.attended_act, {}};
    if (is_small_) {
      w.hidden_act = make_act(memory_, kFewRows, config_.hidden_size, w.hidden_act.forms);
      w.attended_act = make_act(memory_, kFewRows, model_.query_width(), w.attended_act.forms);
    }
    workers_.push_back(w);
  }
}

void StepRun::finish_phase(Worker& w, Phase phase) {
  if (w.thread != 0) return;
  const auto now = std::chrono::steady_clock::now();
  model_.phase_seconds[phase] += std::chrono::duration<double>(now - w.phase_start).count();
  w.phase_start = now;
}

void StepRun::embed(int thread) {
  const Range rows = own_rows(thread);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* out = scratch_.hidden + row * config_.hidden_size;
    read_row(model_.embedding_, step_.tokens[row], out);
    if (config_.embedding_scale != 1.0f)
      for (int i = 0; i < config_.hidden_size; ++i) out[i] *= config_.embedding_scale;
  }
}

// Angles in double: at position 100,000 a float32 angle is off by 4e-3.
void StepRun::turn(int thread) {
  const Range rows = own_rows(thread);
  for (size_t r = 0; r < model_.ropes.size(); ++r) {
    const Rope& rope = model_.ropes[r];
    const size_t half = rope.frequencies.size();
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (size_t i = 0; i < half; ++i) {
        const double angle = step_.positions[row] * rope.frequencies[i];
        scratch_.cos[r][row * half + i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
        scratch_.sin[r][row * half + i] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
      }
  }
}

// The layer's input, normed where the network norms before a block, as activations.
void StepRun::prepare(Worker& w, const float* norm) {
  const Range rows = rows_to_prepare(w.thread);
  const int size = config_.hidden_size;
  if (!norm) {
    level_.quantize(scratch_.hidden, size, size, w.hidden_act, static_cast<int>(rows.begin), static_cast<int>(rows.end));
    return;
  }
  thread_local std::vector<float> normed;
  normed.resize(size);
  for (int row = static_cast<int>(rows.begin); row < rows.end; ++row) {
    level_.norm(scratch_.hidden + static_cast<int64_t>(row) * size, norm, normed.data(), size, config_.norm_eps);
    level_.quantize(normed.data() - static_cast<int64_t>(row) * size, size, size, w.hidden_act, row, row + 1);
  }
}

// Work is cut into row blocks x units; each thread takes one stretch of that sequence.
void StepRun::run_gemm(int thread, const GemmTask* tasks, int num_tasks, int num_rows) {
  int units = 0;
  for (int i = 0; i < num_tasks; ++i) units += num_units(tasks[i].weight);
  const size_t row_bytes = static_cast<size_t>(tasks[0].weight.num_groups) * kGroup * 3 / 2;
  const int block = std::min(192, std::max<int>(24, static_cast<int>(kRowBlockBytes / row_bytes)) / 6 * 6);
  const int blocks = (num_rows + block - 1) / block;
  const Range own = share(int64_t{blocks} * units, thread, threads_);
  for (int b = static_cast<int>(own.begin / units); int64_t{b} * units < own.end; ++b) {
    const int row0 = num_rows * b / blocks, row1 = num_rows * (b + 1) / blocks;
    int64_t start = int64_t{b} * units;
    for (int i = 0; i < num_tasks; ++i) {
      const int count = num_units(tasks[i].weight);
      const int first = static_cast<int>(std::max<int64_t>(own.begin - start, 0));
      const int end = static_cast<int>(std::min<int64_t>(own.end - start, count));
      if (first < end) level_.gemm(tasks[i], row0, row1, first, end);
      start += count;
    }
  }
}

// hidden += scale * weight(act), by way of a norm where the network norms after a block.
void StepRun::add_branch(Worker& w, const ActView& act, const LinearView& weight, const float* post_norm) {
  const int size = config_.hidden_size;
  GemmTask task = {};
  task.weight = weight;
  task.act = act;
  task.out = post_norm ? scratch_.branch : scratch_.hidden;
  task.out_stride = size;
  task.epilogue = post_norm ? kStore : kAdd;
  task.scale = config_.residual_scale;
  run_gemm(w.thread, &task, 1, step_.num_tokens);
  barrier();
  if (!post_norm) return;
  const Range rows = own_rows(w.thread);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    level_.norm_add(scratch_.branch + row * size, post_norm, scratch_.hidden + row * size, size, config_.norm_eps,
                    config_.residual_scale);
  barrier();
}

void StepRun::write_row(int layer, const HeadShape& shape, int row, int head) {
  const int rope = model_.layers[layer].rope, size = config_.head_size;
  const float* k = scratch_.qkv + static_cast<int64_t>(row) * model_.qkv_width() + model_.query_width() + head * size;
  const int64_t at = static_cast<int64_t>(row) * (shape.rotary_size / 2);
  level_.write_kv(model_.kv[layer], shape, k, k + model_.kv_width(), rope < 0 ? nullptr : scratch_.cos[rope] + at,
                  rope < 0 ? nullptr : scratch_.sin[rope] + at, step_.slots[row], head);
}

void StepRun::write_pages(int thread, int layer, const HeadShape& shape) {
  const Range rows = own_rows(thread);
  for (int row = static_cast<int>(rows.begin); row < rows.end; ++row)
    for (int head = 0; head < config_.num_kv_heads; ++head) write_row(layer, shape, row, head);
}

AttentionTile StepRun::tile_of(const Span& span, int layer, int head) const {
  const int rope = model_.layers[layer].rope;
  const int64_t half = rope < 0 ? 0 : model_.ropes[rope].rotary_size / 2;
  AttentionTile tile = {};
  tile.q = scratch_.qkv + span.first_row * int64_t{model_.qkv_width()} + head * model_.num_groups() * config_.head_size;
  tile.q_stride = model_.qkv_width();
  tile.cos = rope < 0 ? scratch_.hidden : scratch_.cos[rope] + span.first_row * half;
  tile.sin = rope < 0 ? scratch_.hidden : scratch_.sin[rope] + span.first_row * half;
  tile.rope_stride = half;
  tile.blocks = step_.block_tables + int64_t{span.sequence} * step_.max_blocks;
  tile.num_tokens = span.num_rows;
  tile.first_limit = span.first_limit;
  tile.kv_head = head;
  return tile;
}

// The slots of a unit that begins a head, for prefetching; `single` is not after it.
NextSlots StepRun::slots_of_unit(const AttentionPlan& plan, size_t single, int64_t unit, int64_t end) const {
  if (unit >= end) return {};
  while (plan.unit_starts[single + 1] <= unit) ++single;
  const Span& span = plan.singles[single];
  const int splits = plan.num_splits(span), head = static_cast<int>((unit - plan.unit_starts[single]) / splits);
  return {step_.block_tables + int64_t{span.sequence} * step_.max_blocks, head, plan.first_split(span) * kSplit,
          span.first_limit};
}

void StepRun::attend_singles(int thread, int layer, const HeadShape& shape, const AttentionPlan& plan) {
  const Range own = share(plan.num_units(), thread, threads_);
  const auto& starts = plan.unit_starts;
  size_t single = std::upper_bound(starts.begin(), starts.end(), own.begin) - starts.begin() - 1;
  for (int64_t unit = own.begin; unit < own.end;) {
    while (starts[single + 1] <= unit) ++single;
    const Span& span = plan.singles[single];
    const int splits = plan.num_splits(span);
    const int head = static_cast<int>((unit - starts[single]) / splits);
    const int split = static_cast<int>((unit - starts[single]) % splits);
    const int count = static_cast<int>(std::min<int64_t>(splits - split, own.end - unit));
    if (writes_in_place_ && split + count == splits) write_row(layer, shape, span.first_row, head);
    AttentionTile tile = tile_of(span, layer, head);
    tile.first_split = plan.first_split(span) + split;
    tile.end_split = tile.first_split + count;
    const int64_t at = unit * shape.num_groups;
    tile.next = slots_of_unit(plan, single, unit + count, own.end);
    level_.attend(model_.kv[layer], shape, tile, true, partial_states_ + at, partial_outputs_ + at * config_.head_size);
    unit += count;
  }
}

void normalize(const SplitState& state, const float* from, float* out, int size) {
  const float inverse = state.sum > 0.0f ? 1.0f / state.sum : state.sum == 0.0f ? 0.0f : state.sum;
  for (int i = 0; i < size; ++i) out[i] = from[i] * inverse;
}

void StepRun::attend_tiles(int layer, const HeadShape& shape, const AttentionPlan& plan) {
  alignas(64) float outputs[kMaxTileRows * kMaxHeadSize];
  SplitState states[kMaxTileRows];
  const int size = config_.head_size, heads = config_.num_kv_heads, groups = shape.num_groups;
  const int count = static_cast<int>(plan.tiles.size()) * heads;
  // The longest tiles come last in a prompt; handed out first, they leave no thread waiting at the end.
  for (int i; (i = next_tile_[layer].fetch_add(1, std::memory_order_relaxed)) < count;) {
    const Span& span = plan.tiles[plan.tiles.size() - 1 - i / heads];
    const int head = i % heads;
    AttentionTile tile = tile_of(span, layer, head);
    tile.first_split = plan.first_split(span);
    tile.end_split = tile.first_split + plan.num_splits(span);
    level_.attend(model_.kv[layer], shape, tile, false, states, outputs);
    for (int r = 0; r < span.num_rows * groups; ++r) {
      float* out = scratch_.attended + (span.first_row + r / groups) * int64_t{model_.query_width()} +
                   (head * groups + r % groups) * size;
      normalize(states[r], outputs + static_cast<int64_t>(r) * size, out, size);
    }
  }
}

void StepRun::merge_single(const AttentionPlan& plan, size_t single, float* out) {
  const int splits = plan.num_splits(plan.singles[single]), groups = model_.num_groups(), size = config_.head_size;
  alignas(64) float merged[kMaxHeadSize];
  for (int head = 0; head < config_.num_heads; ++head) {
    SplitState state = {-INFINITY, 0.0f};
    for (int split = 0; split < splits; ++split) {
      const int64_t unit = plan.unit_starts[single] + int64_t{head / groups} * splits + split;
      const int64_t at = unit * groups + head % groups;
      level_.merge(&state, merged, partial_states_ + at, partial_outputs_ + at * size, size);
    }
    if (state.max == -INFINITY) std::memset(merged, 0, sizeof merged);
    normalize(state, merged, out + head * size, size);
  }
}

void StepRun::finish_attention(Worker& w, const AttentionPlan& plan) {
  const Range rows = rows_to_prepare(w.thread);
  const int width = model_.query_width();
  thread_local std::vector<float> merged;
  merged.resize(width);
  for (int row = static_cast<int>(rows.begin); row < rows.end; ++row) {
    const float* from = scratch_.attended + static_cast<int64_t>(row) * width;
    if (single_of_row_[row] >= 0) {
      merge_single(plan, single_of_row_[row], merged.data());
      from = merged.data();
    }
    level_.quantize(from - static_cast<int64_t>(row) * width, width, width, w.attended_act, row, row + 1);
  }
}

void StepRun::attention_block(Worker& w, int layer) {
  const LayerWeights& weights = model_.layers[layer];
  const AttentionPlan& plan = plans_[plan_of_layer_[layer]];
  const HeadShape shape = model_.head_shape(layer);
  prepare(w, weights.norms[ACPU_ATTENTION_PRE_NORM]);
  shared_barrier();
  GemmTask tasks[3] = {};
  int64_t column = 0;
  for (int i = 0; i < 3; ++i) {
    tasks[i].weight = weights.linears[ACPU_QUERY + i];
    tasks[i].act = w.hidden_act;
    tasks[i].out = scratch_.qkv + column;
    tasks[i].out_stride = model_.qkv_width();
    column += tasks[i].weight.num_outputs;
  }
  run_gemm(w.thread, tasks, 3, step_.num_tokens);
  barrier();
  finish_phase(w, kPhaseQkv);
  if (!writes_in_place_) {
    write_pages(w.thread, layer, shape);
    barrier();
  }
  attend_singles(w.thread, layer, shape, plan);
  attend_tiles(layer, shape, plan);
  barrier();
  finish_attention(w, plan);
  shared_barrier();
  finish_phase(w, kPhaseAttention);
  add_branch(w, w.attended_act, weights.linears[ACPU_OUTPUT], weights.norms[ACPU_ATTENTION_POST_NORM]);
  finish_phase(w, kPhaseOutput);
}

void StepRun::feed_forward_block(Worker& w, int layer) {
  const LayerWeights& weights = model_.layers[layer];
  prepare(w, weights.norms[ACPU_FFN_PRE_NORM]);
  shared_barrier();
  GemmTask task = {};
  task.weight = weights.linears[ACPU_GATE];
  task.second = weights.linears[ACPU_UP];
  task.act = w.hidden_act;
  task.gated = scratch_.gated_act;
  task.epilogue = kGate;
  task.activation = config_.activation;
  run_gemm(w.thread, &task, 1, step_.num_tokens);
  barrier();
  finish_phase(w, kPhaseGateUp);
  add_branch(w, scratch_.gated_act, weights.linears[ACPU_DOWN], weights.norms[ACPU_FFN_POST_NORM]);
  finish_phase(w, kPhaseDown);
}

void StepRun::pick_tokens(int thread, int first, int count, const float* logits) {
  if (step_.top_k == 0) return;
  const Range rows = share(count, thread, threads_);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = (first + row) * step_.top_k;
    level_.top_k(logits + row * config_.vocab_size, config_.vocab_size, step_.top_k, step_.top_ids + at,
                 step_.top_values + at);
  }
}

void StepRun::run_head(Worker& w) {
  const int size = config_.hidden_size;
  const Range rows = share(step_.num_logit_rows, w.thread, threads_);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    float* normed = head_hidden_ + i * size;
    level_.norm(scratch_.hidden + static_cast<int64_t>(step_.logit_rows[i]) * size, model_.final_norm, normed, size,
                config_.norm_eps);
    if (step_.hidden) std::memcpy(step_.hidden + i * size, normed, size * sizeof(float));
  }
  level_.quantize(head_hidden_, size, size, head_act_, static_cast<int>(rows.begin), static_cast<int>(rows.end));
  barrier();
  for (int first = 0; first < step_.num_logit_rows; first += logit_chunk_) {
    const int count = std::min(logit_chunk_, step_.num_logit_rows - first);
    GemmTask task = {};
    task.weight = model_.head();
    task.act = act_from(head_act_, first);
    task.out = logits_;
    task.out_stride = config_.vocab_size;
    task.epilogue = kLogits;
    task.scale = config_.logit_scale;
    task.softcap = config_.logit_softcap;
    run_gemm(w.thread, &task, 1, count);
    barrier();
    finish_phase(w, kPhaseHead);
    pick_tokens(w.thread, first, count, logits_);
    if (first + count < step_.num_logit_rows) barrier();
  }
  finish_phase(w, kPhaseSample);
}

void StepRun::work(int thread) {
  Worker& w = workers_[thread];
  w.phase_start = std::chrono::steady_clock::now();
  embed(thread);
  turn(thread);
  barrier();
  finish_phase(w, kPhasePrepare);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(w, layer);
    feed_forward_block(w, layer);
  }
  if (step_.num_logit_rows) run_head(w);
}

} // namespace

void run_step(Model& model, const acpu_step& step) {
  std::lock_guard<std::mutex> lock(model.step_mutex);
  check_step(model, step);
  StepRun run(model, step);
  model.pool.run([&run](int thread) { run.work(thread); });
}

} // namespace acpu

// The phases of a step, in order, and how their rows are shared out.
#include <cmath>
#include <cstring>

#include "pack.h"
#include "step_run.h"

namespace acpu {

StepRun::StepRun(Model& model, const acpu_step& step)
    : model_(model),
      step_(step),
      level_(*model.level),
      config_(model.config),
      scratch_(model.scratch),
      threads_(model.pool.num_threads()),
      end_layer_(step.end_layer ? step.end_layer : config_.num_layers),
      is_small_(step.num_tokens <= std::max(kFewRows, kFewRowsOfAllThreads / threads_)),
      merges_alone_(step.num_tokens <= kFewRows),
      memory_(model.scratch.step_arena),
      next_tile_(config_.num_layers * threads_),
      next_piece_((kProductsPerLayer * config_.num_layers + step.num_logit_rows) * threads_) {
  const int tile_rows = std::max(1, kTileTokensGoal / model.num_groups());
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const int window = model.layers[layer].window;
    size_t at = 0;
    while (at < plans_.size() && plans_[at].window != window) ++at;
    if (at == plans_.size())
      plans_.push_back(make_plan(step, window, config_.num_kv_heads, tile_rows, threads_,
                                 int64_t{model.num_groups()} * config_.head_size));
    plan_of_layer_.push_back(static_cast<int>(at));
  }
  shared_of_row_.assign(step.num_tokens, -1);
  for (size_t i = 0; i < plans_[0].shared.size(); ++i)
    for (int row = 0; row < plans_[0].shared[i].num_rows; ++row)
      shared_of_row_[plans_[0].shared[i].first_row + row] = static_cast<int32_t>(i);
  sequence_of_row_.resize(step.num_tokens);
  for (int s = 0; s < step.num_sequences; ++s) {
    std::fill(&sequence_of_row_[0] + step.query_starts[s], &sequence_of_row_[0] + step.query_starts[s + 1],
              s);
    if (step.query_starts[s + 1] - step.query_starts[s] > 1) writes_in_place_ = false;
  }
  find_runs();
  prepare_memory();
}

// Puts a row into the last of the runs, or a new one where it does not belong there.
void StepRun::add_row(std::vector<RowRun>& runs, int row) const {
  const bool in_bf16 = config_.is_rough && level_.has_tiles && in_prompt(row);
  if (runs.empty() || runs.back().end != row || runs.back().in_bf16 != in_bf16)
    runs.push_back({row, row, in_bf16});
  ++runs.back().end;
}

void StepRun::find_runs() {
  for (int row = 0; row < step_.num_tokens; ++row) add_row(runs_, row);
  std::vector<int32_t> rows(step_.logit_rows, step_.logit_rows + step_.num_logit_rows);
  std::sort(rows.begin(), rows.end());
  int num_read = 0;
  for (int32_t row : rows) {
    const int end = read_runs_.empty() ? -kShortGap : read_runs_.back().end;
    for (int r = row - end < kShortGap ? end : row; r <= row; ++r, ++num_read) add_row(read_runs_, r);
  }
  reads_all_ = num_read == step_.num_tokens;
}

void StepRun::prepare_memory() {
  model_.grow_scratch(step_.num_tokens);
  memory_.rewind();
  int64_t work = 0;
  for (const AttentionPlan& plan : plans_) work = std::max(work, plan.num_work());
  const size_t states = static_cast<size_t>(work) * model_.num_groups();
  partial_states_ = memory_.array<SplitState>(states);
  partial_outputs_ = memory_.array<float>(states * config_.head_size);
  const size_t row_bytes = static_cast<size_t>(config_.vocab_size) * sizeof(float);
  const int rows = step_.num_logit_rows;
  logit_chunk_ =
      step_.logits ? rows
                   : std::min<int>(rows, std::max<int>(kFewRows, static_cast<int>(kLogitBytes / row_bytes)));
  logits_ = step_.logits ? step_.logits
                         : memory_.array<float>(static_cast<size_t>(logit_chunk_) * config_.vocab_size);
  head_hidden_ = memory_.array<float>(static_cast<size_t>(rows) * config_.hidden_size);
  head_act_ = make_act(memory_, std::max(1, rows), config_.hidden_size, scratch_.hidden_act.forms);
  if (config_.num_experts) prepare_experts();
  for (int t = 0; t < threads_; ++t) {
    const size_t row_size = static_cast<size_t>(std::max(config_.hidden_size, model_.query_width()));
    Worker w = {t, scratch_.hidden_act, scratch_.attended_act, scratch_.gated_act, memory_.array<float>(row_size), {}};
    if (is_small_) {
      w.hidden_act = make_act(memory_, step_.num_tokens, config_.hidden_size, w.hidden_act.forms,
                              model_.room_of(w.hidden_act.forms));
    }
    if (merges_alone_)
      w.attended_act = make_act(memory_, step_.num_tokens, model_.query_width(), w.attended_act.forms,
                                model_.room_of(w.attended_act.forms));
    workers_.push_back(w);
  }
}

void StepRun::finish_phase(Worker& w, Phase phase) {
  if (w.thread != 0) return;
  const auto now = std::chrono::steady_clock::now();
  model_.phase_seconds[phase] += std::chrono::duration<double>(now - w.phase_start).count();
  w.phase_start = now;
}

// What the layers start from: the tokens' embeddings, or what the layers before them left.
void StepRun::embed(int thread) {
  const Range rows = own_rows(thread);
  if (step_.first_layer) return move_rows(step_.between, scratch_.hidden, rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* out = scratch_.hidden + row * config_.hidden_size;
    read_row(model_.embedding_, step_.tokens[row], out);
    if (config_.embedding_scale != 1.0f)
      for (int i = 0; i < config_.hidden_size; ++i) out[i] *= config_.embedding_scale;
  }
}

void StepRun::move_rows(const float* from, float* to, Range rows) {
  const size_t size = static_cast<size_t>(config_.hidden_size);
  std::memcpy(to + rows.begin * size, from + rows.begin * size, (rows.end - rows.begin) * size * sizeof(float));
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

// A run's rows as activations of its form.
void StepRun::quantize(const float* x, int64_t stride, int size, const ActView& act, const RowRun& run) {
  level_.quantize(x, stride, size, run.in_bf16 ? in_bf16(act) : act, run.begin, run.end);
}

// The layer's input, normed where the network norms before a block, as activations.
void StepRun::prepare(Worker& w, const float* norm, const std::vector<RowRun>& runs) {
  const int size = config_.hidden_size;
  for (const RowRun& run : runs) {
    const RowRun own = within(run, rows_to_prepare(w.thread));
    if (!norm) quantize(scratch_.hidden, size, size, w.hidden_act, own);
    for (int row = own.begin; norm && row < own.end; ++row) {
      level_.norm(scratch_.hidden + int64_t{row} * size, norm, w.row, size, config_.norm_eps);
      quantize(w.row, 0, size, w.hidden_act, {row, row + 1, own.in_bf16});
    }
  }
}

// hidden += scale * weight(act), by way of a norm where the network norms after a block.
void StepRun::add_branch(Worker& w, const ActView& act, const LinearView& weight, const float* post_norm,
                         const std::vector<RowRun>& runs, int piece_counter) {
  const int size = config_.hidden_size;
  GemmTask task = {};
  task.weight = weight;
  task.act = act;
  task.out = post_norm ? scratch_.branch : scratch_.hidden;
  task.out_stride = size;
  task.epilogue = post_norm ? kStore : kAdd;
  task.scale = config_.residual_scale;
  run_gemm(w.thread, &task, 1, runs, piece_counter);
  barrier();
  if (!post_norm) return;
  for (const RowRun& run : runs) {
    const RowRun own = within(run, own_rows(w.thread));
    for (int64_t row = own.begin; row < own.end; ++row)
      level_.norm_add(scratch_.branch + row * size, post_norm, scratch_.hidden + row * size, size,
                      config_.norm_eps, config_.residual_scale);
  }
  barrier();
}

// Queries and keys where one norm spans all heads of a token.
void StepRun::norm_all_heads(int thread, const LayerWeights& weights) {
  const Range rows = own_rows(thread);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float *q = scratch_.qkv + row * model_.qkv_width(), *k = q + model_.query_width();
    level_.norm(q, weights.norms[ACPU_QUERY_NORM], q, model_.query_width(), config_.norm_eps);
    level_.norm(k, weights.norms[ACPU_KEY_NORM], k, model_.kv_width(), config_.norm_eps);
  }
}

// Queries of the rows that the layer makes, keys and values of all.
void StepRun::make_qkv(Worker& w, int layer) {
  const LayerWeights& weights = model_.layers[layer];
  GemmTask tasks[3] = {};
  int64_t column = 0;
  for (int i = 0; i < 3; ++i) {
    tasks[i].weight = weights.linears[ACPU_QUERY + i];
    tasks[i].act = w.hidden_act;
    tasks[i].out = scratch_.qkv + column;
    tasks[i].out_stride = model_.qkv_width();
    column += tasks[i].weight.num_outputs;
  }
  const int first = kProductsPerLayer * layer;
  const std::vector<RowRun>& runs = runs_of(layer);
  if (&runs == &runs_) return run_gemm(w.thread, tasks, 3, runs_, first + kProductQkv);
  run_gemm(w.thread, tasks, 1, runs, first + kProductQkv);
  run_gemm(w.thread, tasks + 1, 2, runs_, first + kProductKeysValues);
}

void StepRun::attention_block(Worker& w, int layer) {
  const LayerWeights& weights = model_.layers[layer];
  const AttentionPlan& plan = plans_[plan_of_layer_[layer]];
  const HeadShape shape = model_.head_shape(layer);
  prepare(w, weights.norms[ACPU_ATTENTION_PRE_NORM], runs_);
  shared_barrier();
  make_qkv(w, layer);
  barrier();
  if (config_.qk_norm == kFullNorm) {
    norm_all_heads(w.thread, weights);
    barrier();
  }
  finish_phase(w, kPhaseQkv);
  if (!writes_in_place_) {
    write_pages(w.thread, layer, shape);
    barrier();
  }
  attend_shared(w.thread, layer, shape, plan);
  attend_tiles(w.thread, layer, shape, plan);
  barrier();
  finish_attention(w, plan, runs_of(layer));
  if (!merges_alone_) barrier();
  finish_phase(w, kPhaseAttention);
  add_branch(w, w.attended_act, weights.linears[ACPU_OUTPUT], weights.norms[ACPU_ATTENTION_POST_NORM],
             runs_of(layer), kProductsPerLayer * layer + kProductOutput);
  finish_phase(w, kPhaseOutput);
}

void StepRun::feed_forward_block(Worker& w, int layer) {
  const LayerWeights& weights = model_.layers[layer];
  const std::vector<RowRun>& runs = runs_of(layer);
  prepare(w, weights.norms[ACPU_FFN_PRE_NORM], runs);
  shared_barrier();
  GemmTask task = {};
  task.weight = weights.linears[ACPU_GATE];
  task.second = weights.linears[ACPU_UP];
  task.act = w.hidden_act;
  task.epilogue = kGate;
  task.activation = config_.activation;
  run_gemm(w.thread, &task, 1, runs, kProductsPerLayer * layer + kProductGateUp);
  barrier();
  finish_phase(w, kPhaseGateUp);
  add_branch(w, w.gated_act, weights.linears[ACPU_DOWN], weights.norms[ACPU_FFN_POST_NORM], runs,
             kProductsPerLayer * layer + kProductDown);
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
    level_.norm(scratch_.hidden + static_cast<int64_t>(step_.logit_rows[i]) * size, model_.final_norm, normed,
                size, config_.norm_eps);
    if (step_.hidden) std::memcpy(step_.hidden + i * size, normed, size * sizeof(float));
  }
  level_.quantize(head_hidden_, size, size, head_act_, static_cast<int>(rows.begin),
                  static_cast<int>(rows.end));
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
    run_gemm(w.thread, &task, 1, {{0, count, false}},
             kProductsPerLayer * config_.num_layers + first / logit_chunk_);
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
  for (int layer = step_.first_layer; layer < end_layer_; ++layer) {
    attention_block(w, layer);
    if (config_.num_experts)
      expert_block(w, layer);
    else
      feed_forward_block(w, layer);
  }
  if (end_layer_ < config_.num_layers) move_rows(scratch_.hidden, step_.between, own_rows(thread));
  if (step_.num_logit_rows) run_head(w);
}

void run_step(Model& model, const acpu_step& step) {
  std::lock_guard<std::mutex> lock(model.step_mutex);
  check_step(model, step);
  StepRun run(model, step);
  model.pool.run([&run](int thread) { run.work(thread); });
}

} // namespace acpu

// A mixture of experts in place of a layer's feed-forward block: choice, products by expert, weighted sum.
//
// Each token and each of its experts is a pair. Pairs lie in order of their expert, so that an expert's rows
// are one stretch; a token's sum goes over its experts in the order of their shares, whatever else is in the step.
#include <algorithm>
#include <cmath>

#include "pack.h"
#include "step_run.h"

namespace acpu {

void StepRun::prepare_experts() {
  const int tokens = step_.num_tokens, active = config_.num_active_experts;
  const size_t pairs = static_cast<size_t>(tokens) * active;
  int32_t input_forms = 0, gated_forms = 0;
  for (const LayerWeights& layer : model_.layers)
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      input_forms |= form_of(layer.experts[0][expert].kind, config_.activation_bits);
      input_forms |= form_of(layer.experts[1][expert].kind, config_.activation_bits);
      gated_forms |= form_of(layer.experts[2][expert].kind, config_.activation_bits);
    }
  ExpertPairs& e = experts_;
  e.logits = memory_.array<float>(static_cast<size_t>(tokens) * config_.num_experts);
  e.shares = memory_.array<float>(pairs);
  e.chosen = memory_.array<int32_t>(pairs);
  e.pair_of = memory_.array<int32_t>(pairs);
  e.row_of_pair = memory_.array<int32_t>(pairs);
  e.starts = memory_.array<int32_t>(config_.num_experts + 1);
  e.input = make_act(memory_, static_cast<int>(pairs), config_.hidden_size, input_forms);
  e.gated = make_act(memory_, static_cast<int>(pairs), config_.expert_size, gated_forms);
  e.out = memory_.array<float>(pairs * config_.hidden_size);
  e.next_piece = std::vector<std::atomic<int>>(2 * config_.num_layers);
}

// The most probable experts of a row and their shares. A row that is not finite keeps its not-a-number.
void StepRun::choose_experts(int row) {
  const int active = config_.num_active_experts, num = config_.num_experts;
  const float* logits = experts_.logits + static_cast<int64_t>(row) * num;
  int32_t* chosen = experts_.chosen + static_cast<int64_t>(row) * active;
  float* shares = experts_.shares + static_cast<int64_t>(row) * active;
  level_.top_k(logits, num, active, chosen, shares);
  const float top = shares[0];
  float whole = 0.0f, kept = 0.0f;
  for (int i = 0; i < num; ++i) whole += std::exp(logits[i] - top);
  for (int i = 0; i < active; ++i) {
    shares[i] = chosen[i] < 0 ? NAN : std::exp(shares[i] - top);
    kept += shares[i];
    if (chosen[i] < 0) chosen[i] = 0;
  }
  for (int i = 0; i < active; ++i) shares[i] /= config_.normalizes_experts ? kept : whole;
}

void StepRun::sort_pairs(const std::vector<RowRun>& runs) {
  const int active = config_.num_active_experts, num = config_.num_experts;
  for (int i = 0; i <= num; ++i) experts_.starts[i] = 0;
  for (const RowRun& run : runs) {
    for (int row = run.begin; row < run.end; ++row) choose_experts(row);
    for (int i = run.begin * active; i < run.end * active; ++i) ++experts_.starts[experts_.chosen[i] + 1];
  }
  for (int i = 0; i < num; ++i) experts_.starts[i + 1] += experts_.starts[i];
  std::vector<int32_t> next(experts_.starts, experts_.starts + num);
  for (const RowRun& run : runs)
    for (int i = run.begin * active; i < run.end * active; ++i) {
      const int32_t pair = next[experts_.chosen[i]]++;
      experts_.pair_of[i] = pair;
      experts_.row_of_pair[pair] = i / active;
    }
}

void StepRun::gather_inputs(Worker& w, const float* norm) {
  const int size = config_.hidden_size;
  const Range pairs = share(experts_.starts[config_.num_experts], w.thread, threads_);
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const float* row = scratch_.hidden + int64_t{experts_.row_of_pair[pair]} * size;
    if (norm) {
      level_.norm(row, norm, w.row, size, config_.norm_eps);
      row = w.row;
    }
    level_.quantize(row, 0, size, act_from(experts_.input, static_cast<int>(pair)), 0, 1);
  }
}

// Every expert's product over its own rows, a panel at a time to whichever thread is free.
void StepRun::run_experts(const LayerWeights& weights, bool is_down, int counter) {
  GemmTask task = {};
  task.act = is_down ? experts_.gated : experts_.input;
  task.gated = experts_.gated;
  task.out = experts_.out;
  task.out_stride = config_.hidden_size;
  task.epilogue = is_down ? kStore : kGate;
  task.activation = config_.activation;
  const int units = num_units(weights.experts[is_down ? 2 : 0][0]), pieces = (units + 1) / 2;
  std::atomic<int>& next = experts_.next_piece[counter];
  for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces * config_.num_experts;) {
    const int expert = i / pieces, unit = i % pieces * 2;
    const int first = experts_.starts[expert], end = experts_.starts[expert + 1];
    if (first == end) continue;
    task.weight = weights.experts[is_down ? 2 : 0][expert];
    task.second = weights.experts[1][expert];
    level_.gemm(task, first, end, unit, std::min(unit + 2, units));
  }
}

void StepRun::add_experts(int row, float* sum, const float* post_norm) {
  const int size = config_.hidden_size, active = config_.num_active_experts;
  float* hidden = scratch_.hidden + int64_t{row} * size;
  std::fill(sum, sum + size, 0.0f);
  for (int i = row * active; i < (row + 1) * active; ++i) {
    const float* out = experts_.out + int64_t{experts_.pair_of[i]} * size;
    for (int c = 0; c < size; ++c) sum[c] += experts_.shares[i] * out[c];
  }
  if (post_norm) return level_.norm_add(sum, post_norm, hidden, size, config_.norm_eps, config_.residual_scale);
  for (int c = 0; c < size; ++c) hidden[c] += config_.residual_scale * sum[c];
}

void StepRun::expert_block(Worker& w, int layer) {
  const LayerWeights& weights = model_.layers[layer];
  const float* norm = weights.norms[ACPU_FFN_PRE_NORM];
  const std::vector<RowRun>& runs = runs_of(layer);
  prepare(w, norm, runs);
  shared_barrier();
  GemmTask task = {};
  task.weight = weights.linears[ACPU_ROUTER];
  task.act = w.hidden_act;
  task.out = experts_.logits;
  task.out_stride = config_.num_experts;
  run_gemm(w.thread, &task, 1, runs, kProductsPerLayer * layer + kProductGateUp);
  barrier();
  if (w.thread == 0) sort_pairs(runs);
  barrier();
  gather_inputs(w, norm);
  barrier();
  run_experts(weights, false, 2 * layer);
  barrier();
  finish_phase(w, kPhaseGateUp);
  run_experts(weights, true, 2 * layer + 1);
  barrier();
  for (const RowRun& run : runs) {
    const RowRun own = within(run, own_rows(w.thread));
    for (int row = own.begin; row < own.end; ++row)
      add_experts(row, w.row, weights.norms[ACPU_FFN_POST_NORM]);
  }
  barrier();
  finish_phase(w, kPhaseDown);
}

} // namespace acpu

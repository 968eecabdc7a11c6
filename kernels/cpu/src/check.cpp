// Refuses a step that does not fit the model or its pages, before anything is touched.
#include <algorithm>

#include "failure.h"
#include "model.h"

namespace acpu {

namespace {

void check_sequence(const Model& model, const acpu_step& step, int s, int max_window) {
  const int block_size = model.kv[0].block_size;
  const int count = step.query_starts[s + 1] - step.query_starts[s], length = step.context_lens[s];
  if (count < 1) fail(ACPU_BAD_ARGUMENT, "sequence %d has %d new tokens; it needs at least 1", s, count);
  if (length < count)
    fail(ACPU_BAD_ARGUMENT, "sequence %d: context_len %d is below its %d new tokens", s, length, count);
  const int64_t room = int64_t{step.max_blocks} * block_size;
  if (length > room)
    fail(ACPU_BAD_ARGUMENT, "sequence %d: context_len %d exceeds the %lld slots of its block table", s,
         length, static_cast<long long>(room));
  const int first_slot = max_window > 0 ? std::max(0, length - count + 1 - max_window) : 0;
  const int32_t* table = step.block_tables + int64_t{s} * step.max_blocks;
  for (int b = first_slot / block_size; b <= (length - 1) / block_size; ++b)
    if (table[b] < 0 || table[b] >= model.num_blocks)
      fail(ACPU_BAD_ARGUMENT, "sequence %d: block %d of its table is %d; the pool has %d", s, b, table[b],
           model.num_blocks);
}

void check_tokens(const Model& model, const acpu_step& step) {
  const int64_t slots = int64_t{model.num_blocks} * model.kv[0].block_size;
  for (int i = 0; i < step.num_tokens; ++i) {
    if (step.tokens[i] < 0 || step.tokens[i] >= model.config.vocab_size)
      fail(ACPU_BAD_ARGUMENT, "token %d is %d; the vocabulary has %d", i, step.tokens[i],
           model.config.vocab_size);
    if (step.positions[i] < 0) fail(ACPU_BAD_ARGUMENT, "position %d is %d", i, step.positions[i]);
    if (step.slots[i] < 0 || step.slots[i] >= slots)
      fail(ACPU_BAD_ARGUMENT, "slot %d is %d; the pool has %lld", i, step.slots[i],
           static_cast<long long>(slots));
  }
  for (int i = 0; i < step.num_logit_rows; ++i)
    if (step.logit_rows[i] < 0 || step.logit_rows[i] >= step.num_tokens)
      fail(ACPU_BAD_ARGUMENT, "logit row %d is %d; the step has %d tokens", i, step.logit_rows[i],
           step.num_tokens);
}

// A call that runs some of the layers takes over between two of them, or leaves off there.
void check_layers(const Model& model, const acpu_step& step) {
  if (!step.first_layer && !step.end_layer) return;
  require_range("end_layer", step.end_layer, 1, model.config.num_layers);
  require_range("first_layer", step.first_layer, 0, step.end_layer - 1);
  const bool ends = step.end_layer == model.config.num_layers;
  if (step.first_layer || !ends) require_pointer(step.between, "between");
  if (!ends && step.num_logit_rows)
    fail(ACPU_BAD_ARGUMENT, "%d logit rows are wanted of a step that ends at layer %d of %d",
         step.num_logit_rows, step.end_layer, model.config.num_layers);
}

} // namespace

void check_step(const Model& model, const acpu_step& step) {
  require_struct(&step, "step");
  if (!model.is_finished) fail(ACPU_BAD_ARGUMENT, "the model is not finished");
  if (model.kv.empty()) fail(ACPU_BAD_ARGUMENT, "the model has no KV pages bound");
  require_range("num_tokens", step.num_tokens, 1, model.config.max_tokens);
  require_range("num_sequences", step.num_sequences, 1, step.num_tokens);
  require_range("max_blocks", step.max_blocks, 1, 1 << 26);
  require_range("num_logit_rows", step.num_logit_rows, 0, step.num_tokens);
  require_range("top_k", step.top_k, 0, std::min(1024, model.config.vocab_size));
  check_layers(model, step);
  require_pointer(step.tokens, "tokens");
  require_pointer(step.positions, "positions");
  require_pointer(step.slots, "slots");
  require_pointer(step.query_starts, "query_starts");
  require_pointer(step.context_lens, "context_lens");
  require_pointer(step.block_tables, "block_tables");
  if (step.num_logit_rows) require_pointer(step.logit_rows, "logit_rows");
  if (step.top_k && step.num_logit_rows)
    require_pointer(step.top_ids, "top_ids"), require_pointer(step.top_values, "top_values");
  if (step.query_starts[0] != 0 || step.query_starts[step.num_sequences] != step.num_tokens)
    fail(ACPU_BAD_ARGUMENT, "query_starts run from %d to %d; they must run from 0 to num_tokens %d",
         step.query_starts[0], step.query_starts[step.num_sequences], step.num_tokens);
  for (int s = 0; s < step.num_sequences; ++s)
    if (step.query_starts[s + 1] <= step.query_starts[s] || step.query_starts[s + 1] > step.num_tokens)
      fail(ACPU_BAD_ARGUMENT, "query_starts do not rise at sequence %d", s);
  int max_window = model.layers[0].window;
  for (const LayerWeights& layer : model.layers)
    max_window = layer.window == 0 || max_window == 0 ? 0 : std::max(max_window, layer.window);
  for (int s = 0; s < step.num_sequences; ++s) check_sequence(model, step, s, max_window);
  check_tokens(model, step);
}

} // namespace acpu

// Cutting a ragged batch into spans and splits.
#include "plan.h"

#include <algorithm>

namespace acpu {

// Fewer pieces than this a thread leave some waiting for the others.
static constexpr int kPiecesPerThread = 4;
// Results of splits wait in memory for each other: 64 MiB of them for prompts, which a long context has
// soon, and then whole tiles do.
static constexpr int64_t kMostResultFloats = int64_t{16} << 20;

int AttentionPlan::first_split(const Span& span) const {
  return window > 0 ? std::max(0, span.first_limit - window) / kSplit : 0;
}

int AttentionPlan::num_splits(const Span& span) const {
  const int limit = span.first_limit + span.num_rows - 1;
  return (limit + kSplit - 1) / kSplit - first_split(span);
}

size_t AttentionPlan::span_of(int64_t unit) const {
  return std::upper_bound(unit_starts.begin(), unit_starts.end(), unit) - unit_starts.begin() - 1;
}

int64_t AttentionPlan::unit_of(int64_t work) const {
  const size_t s = std::upper_bound(work_starts.begin(), work_starts.end(), work) - work_starts.begin() - 1;
  if (s == shared.size()) return num_units();
  const int rows = shared[s].num_rows;
  return unit_starts[s] + (work - work_starts[s] + rows - 1) / rows;
}

// Tokens of a span that is shared out by split, of `num_new` tokens that see `limit` slots at the end.
static int shared_rows(int num_new, int limit, int tile_rows, int num_kv_heads, int num_threads) {
  const int64_t splits = (limit + kSplit - 1) / kSplit;
  int rows = std::min(num_new, tile_rows);
  while (rows > 1 && splits * num_kv_heads * ((num_new + rows - 1) / rows) < kPiecesPerThread * num_threads)
    rows = (rows + 1) / 2;
  return rows;
}

AttentionPlan make_plan(const acpu_step& step, int window, int num_kv_heads, int tile_rows, int num_threads,
                        int64_t result_floats) {
  AttentionPlan plan;
  plan.window = window;
  plan.unit_starts.push_back(0);
  plan.work_starts.push_back(0);
  int64_t num_tiles = 0, prompt_work = 0;
  for (int s = 0; s < step.num_sequences; ++s) {
    const int num_new = step.query_starts[s + 1] - step.query_starts[s];
    if (num_new == 1) continue;
    num_tiles += (num_new + tile_rows - 1) / tile_rows;
    prompt_work += int64_t{num_new} * num_kv_heads * ((step.context_lens[s] + kSplit - 1) / kSplit);
  }
  const bool has_few_tiles = num_tiles * num_kv_heads < int64_t{kPiecesPerThread} * num_threads &&
                             prompt_work * result_floats <= kMostResultFloats;
  for (int s = 0; s < step.num_sequences; ++s) {
    const int begin = step.query_starts[s], end = step.query_starts[s + 1], limit = step.context_lens[s];
    const bool is_shared = has_few_tiles || end - begin == 1;
    const int rows =
        is_shared ? shared_rows(end - begin, limit, tile_rows, num_kv_heads, num_threads) : tile_rows;
    for (int row = begin; row < end; row += rows) {
      const Span span = {s, row, std::min(rows, end - row), limit - (end - row) + 1};
      if (!is_shared) {
        plan.tiles.push_back(span);
        continue;
      }
      const int64_t units = int64_t{num_kv_heads} * plan.num_splits(span);
      plan.shared.push_back(span);
      plan.unit_starts.push_back(plan.unit_starts.back() + units);
      plan.work_starts.push_back(plan.work_starts.back() + units * span.num_rows);
    }
  }
  return plan;
}

} // namespace acpu

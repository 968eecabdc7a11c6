// Cutting a ragged batch into spans and splits.
#include "plan.h"

#include <algorithm>

namespace acpu {

int AttentionPlan::first_split(const Span& span) const {
  return window > 0 ? std::max(0, span.first_limit - window) / kSplit : 0;
}

int AttentionPlan::num_splits(const Span& span) const {
  const int limit = span.first_limit + span.num_rows - 1;
  return (limit + kSplit - 1) / kSplit - first_split(span);
}

AttentionPlan make_plan(const acpu_step& step, int window, int num_kv_heads, int tile_rows,
                        bool only_singles) {
  AttentionPlan plan;
  plan.window = window;
  plan.unit_starts.push_back(0);
  for (int s = 0; s < step.num_sequences; ++s) {
    const int begin = step.query_starts[s], end = step.query_starts[s + 1];
    const bool is_single = only_singles || end - begin == 1;
    const int rows = is_single ? 1 : tile_rows;
    for (int row = begin; row < end; row += rows) {
      const Span span = {s, row, std::min(rows, end - row), step.context_lens[s] - (end - row) + 1};
      if (!is_single) {
        plan.tiles.push_back(span);
        continue;
      }
      plan.singles.push_back(span);
      plan.unit_starts.push_back(plan.unit_starts.back() + int64_t{num_kv_heads} * plan.num_splits(span));
    }
  }
  return plan;
}

} // namespace acpu

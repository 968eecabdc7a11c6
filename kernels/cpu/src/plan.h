// Which pieces of attention a step consists of, laid out so that threads can share them evenly.
#pragma once

#include <vector>

#include "acpu.h"
#include "views.h"

namespace acpu {

// Consecutive new tokens of one sequence that are worked on together.
struct Span {
  int32_t sequence;
  int32_t first_row; // among the step's tokens
  int32_t num_rows;
  int32_t first_limit; // slots that the first row sees
};

// One step's attention under one window. `shared` are shared out split by split, so that one long context
// keeps every thread busy: single tokens, and a few of a prompt. `tiles` are handed out whole, where there are
// enough of them. Which tokens are in which does not depend on the window.
struct AttentionPlan {
  int32_t window = 0;
  std::vector<Span> shared;
  std::vector<int64_t> unit_starts; // by shared span, one more at the end: units are [span][kv head][split]
  std::vector<int64_t> work_starts; // the same, a unit counted once for each of its tokens
  std::vector<Span> tiles;
  int64_t num_units() const { return unit_starts.back(); }
  int64_t num_work() const { return work_starts.back(); }
  size_t span_of(int64_t unit) const;
  int64_t unit_of(int64_t work) const; // the first unit that begins there or later
  int first_split(const Span& span) const;
  int num_splits(const Span& span) const;
};

// `result_floats` is what one head's query rows leave of one split for one token.
AttentionPlan make_plan(const acpu_step& step, int window, int num_kv_heads, int tile_rows, int num_threads,
                        int64_t result_floats);

} // namespace acpu

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

// One step's attention under one window. `singles` are one token each and are shared out split by split, so
// that one long context keeps every thread busy; `tiles` are many tokens and are handed out whole.
struct AttentionPlan {
  int32_t window = 0;
  std::vector<Span> singles;
  std::vector<int64_t> unit_starts; // by single, one more at the end: units are [single][kv head][split]
  std::vector<Span> tiles;
  int64_t num_units() const { return unit_starts.back(); }
  int first_split(const Span& span) const;
  int num_splits(const Span& span) const;
};

// `only_singles`: every token is a single, for steps too small to hand out in tiles.
AttentionPlan make_plan(const acpu_step& step, int window, int num_kv_heads, int tile_rows,
                        bool only_singles);

} // namespace acpu

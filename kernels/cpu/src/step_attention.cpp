// The attention phase: writing pages, sharing out queries by split or by tile, merging what was split.
#include <algorithm>
#include <cmath>

#include "step_run.h"

namespace acpu {

void StepRun::write_row(int layer, const HeadShape& shape, int row, int head) {
  const int rope = model_.layers[layer].rope, size = config_.head_size;
  const float* k =
      scratch_.qkv + static_cast<int64_t>(row) * model_.qkv_width() + model_.query_width() + head * size;
  const int64_t at = static_cast<int64_t>(row) * (shape.rotary_size / 2);
  level_.write_kv(model_.kv[layer], shape, k, k + model_.kv_width(),
                  rope < 0 ? nullptr : scratch_.cos[rope] + at, rope < 0 ? nullptr : scratch_.sin[rope] + at,
                  step_.slots[row], head);
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
  tile.q = scratch_.qkv + span.first_row * int64_t{model_.qkv_width()} +
           head * model_.num_groups() * config_.head_size;
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

// The slots of a unit that begins a head, for prefetching; the span `at` is not after it.
NextSlots StepRun::slots_of_unit(const AttentionPlan& plan, size_t at, int64_t unit, int64_t end) const {
  if (unit >= end) return {};
  while (plan.unit_starts[at + 1] <= unit) ++at;
  const Span& span = plan.shared[at];
  const int splits = plan.num_splits(span), head = static_cast<int>((unit - plan.unit_starts[at]) / splits);
  return {step_.block_tables + int64_t{span.sequence} * step_.max_blocks, head,
          plan.first_split(span) * kSplit, span.first_limit};
}

bool StepRun::reads_any(const Span& span, int layer) const {
  for (const RowRun& run : runs_of(layer))
    if (run.begin < span.first_row + span.num_rows && span.first_row < run.end) return true;
  return false;
}

void StepRun::attend_shared(int thread, int layer, const HeadShape& shape, const AttentionPlan& plan) {
  const Range work = share(plan.num_work(), thread, threads_);
  const int64_t end = plan.unit_of(work.end);
  int64_t unit = plan.unit_of(work.begin);
  for (size_t at = plan.span_of(unit); unit < end;) {
    while (plan.unit_starts[at + 1] <= unit) ++at;
    const Span& span = plan.shared[at];
    const int64_t of_span = unit - plan.unit_starts[at];
    const int splits = plan.num_splits(span), head = static_cast<int>(of_span / splits);
    const int split = static_cast<int>(of_span % splits);
    const int count = static_cast<int>(std::min<int64_t>(splits - split, end - unit));
    if (writes_in_place_ && split + count == splits) write_row(layer, shape, span.first_row, head);
    AttentionTile tile = tile_of(span, layer, head);
    tile.first_split = plan.first_split(span) + split;
    tile.end_split = tile.first_split + count;
    const int64_t state = (plan.work_starts[at] + of_span * span.num_rows) * shape.num_groups;
    tile.next = slots_of_unit(plan, at, unit + count, end);
    unit += count;
    if (!reads_any(span, layer)) continue;
    level_.attend(model_.kv[layer], shape, tile, true, partial_states_ + state,
                  partial_outputs_ + state * config_.head_size);
  }
}

static void normalize(const SplitState& state, const float* from, float* out, int size) {
  const float inverse = state.sum > 0.0f ? 1.0f / state.sum : state.sum == 0.0f ? 0.0f : state.sum;
  for (int i = 0; i < size; ++i) out[i] = from[i] * inverse;
}

void StepRun::attend_tiles(int thread, int layer, const HeadShape& shape, const AttentionPlan& plan) {
  const int heads = config_.num_kv_heads;
  const int64_t num_tiles = static_cast<int64_t>(plan.tiles.size());
  take_pieces(thread, &next_tile_[layer * threads_], [&](int owner, int64_t i) {
    const Range own = share(num_tiles, owner, threads_);
    if (i >= (own.end - own.begin) * heads) return false;
    // The longest tiles come last in a prompt; handed out first, they leave no thread waiting at the end.
    const Span& span = plan.tiles[own.end - 1 - i / heads];
    if (reads_any(span, layer)) attend_tile(layer, shape, plan, span, static_cast<int>(i % heads));
    return true;
  });
}

void StepRun::attend_tile(int layer, const HeadShape& shape, const AttentionPlan& plan, const Span& span,
                          int head) {
  alignas(64) float outputs[kMaxTileRows * kMaxHeadSize];
  SplitState states[kMaxTileRows];
  const int size = config_.head_size, groups = shape.num_groups;
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

// Puts a row's splits together, in their order.
void StepRun::merge_row(const AttentionPlan& plan, size_t at, int row, float* out) {
  const Span& span = plan.shared[at];
  const int splits = plan.num_splits(span), groups = model_.num_groups(), size = config_.head_size;
  SplitState states[kMaxTileRows];
  for (int head = 0; head < config_.num_kv_heads; ++head, out += groups * size) {
    std::fill(states, states + groups, SplitState{-INFINITY, 0.0f});
    for (int split = 0; split < splits; ++split) {
      const int64_t unit = int64_t{head} * splits + split;
      const int64_t from = (plan.work_starts[at] + unit * span.num_rows + row - span.first_row) * groups;
      level_.merge(states, out, partial_states_ + from, partial_outputs_ + from * size, size, groups);
    }
    for (int i = 0; i < groups; ++i) {
      if (states[i].max == -INFINITY) std::fill(out + i * size, out + (i + 1) * size, 0.0f);
      normalize(states[i], out + i * size, out + i * size, size);
    }
  }
}

void StepRun::finish_attention(Worker& w, const AttentionPlan& plan, const std::vector<RowRun>& runs) {
  const int width = model_.query_width();
  for (const RowRun& run : runs) {
    const RowRun own = within(run, rows_to_merge(w.thread));
    for (int row = own.begin; row < own.end; ++row) {
      const float* from = scratch_.attended + static_cast<int64_t>(row) * width;
      if (shared_of_row_[row] >= 0) {
        merge_row(plan, shared_of_row_[row], row, w.row);
        from = w.row;
      }
      quantize(from, 0, width, w.attended_act, {row, row + 1, own.in_bf16});
    }
  }
}

} // namespace acpu

// A step's products: how they are shared out, and what each thread reads next.
#include "pack.h"
#include "step_run.h"

namespace acpu {

// Work is cut into row blocks x units; each thread takes one stretch of that sequence.
//
// Many rows are taken piece by piece instead, a panel of one row block at a time (some 50 us); at the end of
// a stretch in halves, for all to be done at about the same time.
void StepRun::run_gemm(int thread, GemmTask* tasks, int num_tasks, const std::vector<RowRun>& runs,
                       int piece_counter) {
  int units = 0, num_rows = 0;
  for (int i = 0; i < num_tasks; ++i) units += num_units(tasks[i].weight);
  const size_t row_bytes = static_cast<size_t>(tasks[0].weight.num_groups) * kGroup * 3 / 2;
  const int of_integers =
      std::min(192, std::max<int>(24, static_cast<int>(kRowBlockBytes / row_bytes)) / 6 * 6);
  std::vector<RowRun> blocks;
  for (const RowRun& run : runs) {
    const int rows = run.end - run.begin, most = run.in_bf16 ? kRowBlockInBf16 : of_integers;
    const int count = (rows + most - 1) / most;
    for (int b = 0; b < count; ++b)
      blocks.push_back({run.begin + rows * b / count, run.begin + rows * (b + 1) / count, run.in_bf16});
    num_rows += rows;
  }
  const int64_t all = static_cast<int64_t>(blocks.size()) * units;
  if (num_rows < kManyRows)
    return run_units(tasks, num_tasks, blocks, share(all, thread, threads_),
                     start_after(thread, piece_counter));
  take_pieces(thread, &next_piece_[piece_counter * threads_], [&](int owner, int64_t i) {
    const Range panels = share((all + 1) / 2, owner, threads_);
    const int64_t begin = 2 * panels.begin, end = std::min(2 * panels.end, all);
    const int64_t whole = std::max<int64_t>(end - begin - 2, 0) / 2;
    const Range own = i < whole ? Range{begin + 2 * i, begin + 2 * i + 2}
                                : Range{begin + whole + i, begin + whole + i + 1};
    if (own.begin >= end) return false;
    run_units(tasks, num_tasks, blocks, own, nullptr);
    return true;
  });
}

// What a thread reads first of the weights that follow a product, by the product's counter.
const uint8_t* StepRun::start_after(int thread, int piece_counter) const {
  const int layer = piece_counter / kProductsPerLayer, product = piece_counter % kProductsPerLayer;
  if (layer >= end_layer_ || (config_.num_experts && product == kProductGateUp)) return nullptr;
  const LinearView* linears = model_.layers[layer].linears;
  const auto start_of = [&](const LinearView* weights, int count) {
    int units = 0;
    for (int i = 0; i < count; ++i) units += num_units(weights[i]);
    int64_t own = share(units, thread, threads_).begin;
    for (; own >= num_units(*weights); ++weights) own -= num_units(*weights);
    return weights->data + own * kUnit / kPanel * weights->panel_bytes;
  };
  const int after_attention = config_.num_experts ? ACPU_ROUTER : ACPU_GATE;
  if (product == kProductOutput) return start_of(linears + after_attention, 1);
  if (product == kProductGateUp) return start_of(linears + ACPU_DOWN, 1);
  if (product != kProductDown) return start_of(linears + ACPU_OUTPUT, 1);
  if (layer + 1 < end_layer_) return start_of(model_.layers[layer + 1].linears + ACPU_QUERY, 3);
  return step_.num_logit_rows ? start_of(&model_.head(), 1) : nullptr;
}

void StepRun::run_units(GemmTask* tasks, int num_tasks, const std::vector<RowRun>& blocks, Range own,
                        const uint8_t* after) {
  int units = 0;
  for (int i = 0; i < num_tasks; ++i) units += num_units(tasks[i].weight);
  for (int64_t b = own.begin / units; b * units < own.end; ++b) {
    int64_t start = b * units;
    for (int i = 0; i < num_tasks; ++i) {
      const int count = num_units(tasks[i].weight);
      const int first = static_cast<int>(std::max<int64_t>(own.begin - start, 0));
      const int end = static_cast<int>(std::min<int64_t>(own.end - start, count));
      tasks[i].in_bf16 = blocks[b].in_bf16;
      tasks[i].next = own.end > start + count && i + 1 < num_tasks ? tasks[i + 1].weight.data : after;
      if (tasks[i].epilogue == kGate)
        tasks[i].gated = blocks[b].in_bf16 ? in_bf16(scratch_.gated_act) : scratch_.gated_act;
      if (first < end) level_.gemm(tasks[i], blocks[b].begin, blocks[b].end, first, end);
      start += count;
    }
  }
}

} // namespace acpu

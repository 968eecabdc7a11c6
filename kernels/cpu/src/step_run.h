// One step's run: which thread does what, and where they wait for each other. Numbers are the levels'
// business.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "model.h"
#include "plan.h"

namespace acpu {

// Up to this many tokens every thread prepares all rows for itself: that costs less than a barrier. Few threads
// repeat little of it, but for attention's, where a row's splits are put together.
constexpr int kFewRows = 4;
constexpr int kFewRowsOfAllThreads = 24;
constexpr int kManyRows = 64; // from here on products are taken piece by piece
// Rows between two that the last layer makes are made too where they are fewer: every stretch of rows makes the
// weights bfloat16 for itself.
constexpr int kShortGap = 64;
// Activations of one block of rows, to stay in a core's cache while panels stream past.
constexpr size_t kRowBlockBytes = size_t{384} << 10;
constexpr int kRowBlockInBf16 = 256;
constexpr size_t kLogitBytes = size_t{16} << 20;
constexpr int kTileTokensGoal = 48; // rows (tokens x heads) of an attention tile

// A layer's products; the last one's keys and values by themselves where it makes fewer queries.
enum Product { kProductQkv, kProductOutput, kProductGateUp, kProductDown, kProductKeysValues, kProductsPerLayer };

enum Phase {
  kPhaseQkv,
  kPhaseAttention,
  kPhaseOutput,
  kPhaseGateUp,
  kPhaseDown,
  kPhaseHead,
  kPhaseSample,
  kPhasePrepare
};

struct Range {
  int64_t begin, end;
};

// Rows that are multiplied in the same way: a prompt's in bfloat16 where the level has tiles. Which way depends
// on the row's place in its sequence alone, so that a sequence's numbers never depend on the rest of the step.
struct RowRun {
  int begin, end;
  bool in_bf16;
};

inline Range share(int64_t total, int thread, int threads) {
  return {total * thread / threads, total * (thread + 1) / threads};
}

// The part of a run that lies in `rows`; empty where its end is not after its beginning.
inline RowRun within(const RowRun& run, Range rows) {
  return {std::max(run.begin, static_cast<int>(rows.begin)), std::min(run.end, static_cast<int>(rows.end)),
          run.in_bf16};
}

// What a step's mixtures of experts work on; a pair is a token and one of its experts.
struct ExpertPairs {
  float* logits = nullptr;       // [tokens, experts], of the router
  float* shares = nullptr;       // [tokens, active]
  int32_t* chosen = nullptr;     // [tokens, active]
  int32_t* pair_of = nullptr;    // [tokens, active]
  int32_t* row_of_pair = nullptr;
  int32_t* starts = nullptr;     // [experts + 1], the first pair of each
  ActView input = {}, gated = {}; // by pair
  float* out = nullptr;          // [pairs, hidden]
  std::vector<std::atomic<int>> next_piece; // two of each layer
};

class StepRun {
 public:
  StepRun(Model& model, const acpu_step& step);
  void work(int thread);

 private:
  struct Worker {
    int thread;
    ActView hidden_act, attended_act, gated_act; // own copies for few rows, shared views otherwise
    float* row;                       // of the widest kind
    std::chrono::steady_clock::time_point phase_start;
  };

  void find_runs();
  void add_row(std::vector<RowRun>& runs, int row) const;
  // The rows that a layer makes, but for keys and values, which are made of all.
  const std::vector<RowRun>& runs_of(int layer) const {
    return layer + 1 == config_.num_layers && !reads_all_ ? read_runs_ : runs_;
  }
  void prepare_memory();
  void barrier() { model_.pool.barrier(); }
  void shared_barrier() {
    if (!is_small_) barrier();
  }
  void finish_phase(Worker& w, Phase phase);
  Range own_rows(int thread) const { return share(step_.num_tokens, thread, threads_); }
  Range rows_to_merge(int thread) const {
    return merges_alone_ ? Range{0, step_.num_tokens} : own_rows(thread);
  }
  Range rows_to_prepare(int thread) const {
    return is_small_ ? Range{0, step_.num_tokens} : own_rows(thread);
  }

  // Pieces of work, by number, until `take` says that an owner has no more. A thread takes its own first, so
  // that what it has read and written stays in its caches from phase to phase, then what others have left: who
  // lost its processor for a while holds nobody up.
  template <class Take>
  void take_pieces(int thread, std::atomic<int>* next_of_owner, Take take) {
    for (int i = 0; i < threads_; ++i) {
      const int owner = (thread + i) % threads_;
      while (take(owner, next_of_owner[owner].fetch_add(1, std::memory_order_relaxed))) {
      }
    }
  }

  void embed(int thread);
  void move_rows(const float* from, float* to, Range rows);
  void turn(int thread);
  void prepare(Worker& w, const float* norm, const std::vector<RowRun>& runs);
  // The products of all rows of `runs`; the tasks' own rows and forms are set for each.
  void run_gemm(int thread, GemmTask* tasks, int num_tasks, const std::vector<RowRun>& runs, int piece_counter);
  const uint8_t* start_after(int thread, int piece_counter) const;
  // `after`: what the thread reads next of the weights, or null.
  void run_units(GemmTask* tasks, int num_tasks, const std::vector<RowRun>& blocks, Range own,
                 const uint8_t* after);
  bool in_prompt(int row) const {
    return step_.prompt_lens && step_.positions[row] < step_.prompt_lens[sequence_of_row_[row]];
  }
  void quantize(const float* x, int64_t stride, int size, const ActView& act, const RowRun& run);
  void add_branch(Worker& w, const ActView& act, const LinearView& weight, const float* post_norm,
                  const std::vector<RowRun>& runs, int piece_counter);
  void make_qkv(Worker& w, int layer);
  void norm_all_heads(int thread, const LayerWeights& weights);
  void attention_block(Worker& w, int layer);
  void feed_forward_block(Worker& w, int layer);
  void prepare_experts();
  void choose_experts(int row);
  void sort_pairs(const std::vector<RowRun>& runs);
  void gather_inputs(Worker& w, const float* norm);
  void run_experts(const LayerWeights& weights, bool is_down, int counter);
  void add_experts(int row, float* sum, const float* post_norm);
  void expert_block(Worker& w, int layer);
  void write_row(int layer, const HeadShape& shape, int row, int head);
  void write_pages(int thread, int layer, const HeadShape& shape);
  AttentionTile tile_of(const Span& span, int layer, int head) const;
  NextSlots slots_of_unit(const AttentionPlan& plan, size_t at, int64_t unit, int64_t end) const;
  void attend_shared(int thread, int layer, const HeadShape& shape, const AttentionPlan& plan);
  void attend_tile(int layer, const HeadShape& shape, const AttentionPlan& plan, const Span& span, int head);
  void attend_tiles(int thread, int layer, const HeadShape& shape, const AttentionPlan& plan);
  void merge_row(const AttentionPlan& plan, size_t at, int row, float* out);
  bool reads_any(const Span& span, int layer) const;
  void finish_attention(Worker& w, const AttentionPlan& plan, const std::vector<RowRun>& runs);
  void run_head(Worker& w);
  void pick_tokens(int thread, int first, int count, const float* logits);

  Model& model_;
  const acpu_step& step_;
  const Level& level_;
  const acpu_config& config_;
  Scratch& scratch_;
  const int threads_;
  const int end_layer_;
  const bool is_small_;      // every thread prepares all rows
  const bool merges_alone_;  // and attention's
  bool writes_in_place_ = true; // every sequence brings one token: who attends to it also writes it
  Arena& memory_;
  std::vector<AttentionPlan> plans_;
  std::vector<int> plan_of_layer_;
  std::vector<int32_t> shared_of_row_; // -1: the row is in a tile
  std::vector<int32_t> sequence_of_row_;
  std::vector<RowRun> runs_; // all rows, in order
  std::vector<RowRun> read_runs_; // those that somebody reads after the last layer
  bool reads_all_ = false;
  std::vector<std::atomic<int>> next_tile_;  // by layer and owner
  std::vector<std::atomic<int>> next_piece_; // by product (the layers', then the head's chunks) and owner
  SplitState* partial_states_ = nullptr;
  float* partial_outputs_ = nullptr;
  std::vector<Worker> workers_;
  ExpertPairs experts_;
  ActView head_act_ = {};
  float* head_hidden_ = nullptr;
  float* logits_ = nullptr;
  int logit_chunk_ = 0;
};

} // namespace acpu

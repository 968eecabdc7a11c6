// Chooses tokens: the likeliest allowed one, or one drawn from what is left after top-k, top-p and min-p.
#include <algorithm>
#include <cmath>

#include "failure.h"
#include "model.h"

namespace acpu {

namespace {

constexpr int kWordTokens = 32;
constexpr int kTotalTokens = kTotalWords * kWordTokens;
// As many are found by one pass that inserts; of more it would take longer than selecting.
constexpr int kFewBest = 128;
constexpr int kSortedAtOnce = 32;
constexpr float kLeastWeight = 1e-37f; // smaller ones are 0

// What may still be drawn: places in the vocabulary's order, and their weights beside them in `values`.
class RowChoice {
 public:
  RowChoice(const Level& level, ChoiceScratch& room, const acpu_choice& row)
      : level_(level), room_(room), row_(row), mask_{row.mask, row.num_mask_words} {}

  int32_t choose() {
    top_ = level_.peak(row_.logits, mask_, row_.size, &likeliest_);
    if (likeliest_ < 0 || !std::isfinite(top_)) return -1;
    if (row_.temperature <= 0.0f) return likeliest_;
    if (row_.top_k > 0 && row_.top_k < row_.size) {
      row_.top_k <= kFewBest ? keep_few_best() : keep_best();
      return cut_and_draw(kept_total());
    }
    const double total = weigh();
    if (!std::isfinite(total)) return -1;
    if (row_.top_p >= 1.0 && row_.min_p <= 0.0) return draw_of_all(total * row_.number);
    // What all below the floor weigh together is less than what a nucleus may leave out.
    keep_at_least(row_.top_p < 1.0 ? (1.0 - row_.top_p) * total / row_.size : row_.min_p);
    return cut_and_draw(total);
  }

 private:
  double weigh() {
    level_.weigh(row_.logits, mask_, row_.size, top_, 1.0f / row_.temperature, room_.weights.data(),
                 room_.totals.data());
    double total = 0.0;
    for (int i = 0; i < num_totals(); ++i) total += room_.totals[i];
    return total;
  }

  int num_totals() const { return (row_.size + kTotalTokens - 1) / kTotalTokens; }

  // Those that reach `floor`, or nearly: it is rounded.
  void keep_at_least(double floor) {
    const float rounded = static_cast<float>(floor * 0.9999);
    count_ = level_.at_least(room_.weights.data(), row_.size, std::max(rounded, kLeastWeight),
                             room_.places.data());
    take_weights();
  }

  void take_weights() {
    for (int i = 0; i < count_; ++i) room_.values[i] = room_.weights[room_.places[i]];
  }

  // The k likeliest, of equal ones the first; only these are weighed.
  void keep_few_best() {
    const float* logits = row_.logits;
    if (row_.mask) {
      level_.keep_allowed(row_.logits, mask_, row_.size, room_.weights.data());
      logits = room_.weights.data();
    }
    count_ = row_.top_k;
    level_.top_k(logits, row_.size, count_, room_.places.data(), room_.values.data());
    while (count_ > 1 && room_.values[count_ - 1] == -INFINITY) --count_;
    std::sort(room_.places.begin(), room_.places.begin() + count_);
    for (int i = 0; i < count_; ++i)
      room_.values[i] = std::exp((row_.logits[room_.places[i]] - top_) / row_.temperature);
  }

  void keep_best() {
    weigh();
    keep_at_least(kLeastWeight);
    if (count_ <= row_.top_k) return;
    const auto is_heavier = [this](int32_t a, int32_t b) {
      const float x = room_.weights[a], y = room_.weights[b];
      return x != y ? x > y : a < b;
    };
    const auto first = room_.places.begin();
    std::nth_element(first, first + row_.top_k, first + count_, is_heavier);
    count_ = row_.top_k;
    std::sort(first, first + count_);
    take_weights();
  }

  double kept_total() const {
    double total = 0.0;
    for (int i = 0; i < count_; ++i) total += room_.values[i];
    return total;
  }

  int32_t cut_and_draw(double total) {
    if (row_.top_p < 1.0) drop_below(nucleus_floor(row_.top_p * total));
    if (row_.min_p > 0.0) drop_below(static_cast<float>(row_.min_p)); // the largest weight is 1
    const double target = kept_total() * row_.number;
    double running = 0.0;
    for (int i = 0; i < count_; ++i)
      if ((running += room_.values[i]) > target) return room_.places[i];
    return likeliest_; // by a rounding
  }

  void drop_below(float floor) {
    int kept = 0;
    for (int i = 0; i < count_; ++i) {
      if (room_.values[i] < floor) continue;
      room_.values[kept] = room_.values[i];
      room_.places[kept++] = room_.places[i];
    }
    count_ = kept;
  }

  // The least weight in the smallest set of heaviest tokens that weighs `mass`.
  float nucleus_floor(double mass) {
    std::copy_n(room_.values.begin(), count_, room_.weights.begin());
    float *first = room_.weights.data(), *last = first + count_;
    while (last - first > kSortedAtOnce) {
      const float pivot = middle_of(first[0], first[(last - first) / 2], last[-1]);
      float* equal = std::partition(first, last, [pivot](float w) { return w > pivot; });
      float* smaller = std::partition(equal, last, [pivot](float w) { return w == pivot; });
      double heavier = 0.0;
      for (float* at = first; at < equal; ++at) heavier += *at;
      if (equal > first && heavier >= mass) {
        last = equal;
        continue;
      }
      const double with_equal = heavier + static_cast<double>(pivot) * static_cast<double>(smaller - equal);
      if (with_equal >= mass || smaller == last) return pivot;
      mass -= with_equal;
      first = smaller;
    }
    std::sort(first, last, [](float a, float b) { return a > b; });
    for (; first < last - 1; ++first)
      if ((mass -= *first) <= 0.0) break;
    return *first;
  }

  static float middle_of(float a, float b, float c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  }

  int32_t draw_of_all(double target) const {
    int chunk = 0;
    for (; chunk < num_totals() - 1 && target >= room_.totals[chunk]; ++chunk) target -= room_.totals[chunk];
    double running = 0.0;
    const int end = std::min(row_.size, (chunk + 1) * kTotalTokens);
    for (int i = chunk * kTotalTokens; i < end; ++i)
      if ((running += room_.weights[i]) > target) return i;
    return likeliest_; // by a rounding
  }

  const Level& level_;
  ChoiceScratch& room_;
  const acpu_choice& row_;
  const TokenMask mask_;
  float top_ = 0.0f;
  int32_t likeliest_ = -1;
  int count_ = 0;
};

void check_choice(const acpu_choice& row) {
  require_pointer(row.logits, "a choice's logits");
  require_range("a choice's size", row.size, 1, 1 << 24);
  require_range("num_mask_words", row.num_mask_words, row.mask ? 1 : 0, 1 << 20);
  const bool is_drawn = row.number >= 0.0 && row.number < 1.0;
  if (!is_drawn || !(row.temperature >= 0.0f) || !(row.top_p >= 0.0) || !(row.min_p >= 0.0))
    fail(ACPU_BAD_ARGUMENT, "a choice by number %g, temperature %g, top_p %g, min_p %g", row.number,
         static_cast<double>(row.temperature), row.top_p, row.min_p);
}

} // namespace

void ChoiceScratch::grow(size_t size) {
  if (weights.size() >= size + kWordTokens) return;
  weights.resize(size + kWordTokens);
  values.resize(size + kWordTokens);
  places.resize(size + kWordTokens);
  totals.resize(size / kTotalTokens + 1);
}

// On the caller's thread: by the time a sleeping one has woken, it is done.
void choose(Model& model, const acpu_choice* rows, int num_rows, int32_t* tokens) {
  for (int i = 0; i < num_rows; ++i) check_choice(rows[i]);
  std::lock_guard<std::mutex> lock(model.step_mutex);
  for (int i = 0; i < num_rows; ++i) {
    model.choice_scratch.grow(static_cast<size_t>(rows[i].size));
    tokens[i] = RowChoice(*model.level, model.choice_scratch, rows[i]).choose();
  }
}

} // namespace acpu

// Spinning, yielding and sleeping.
#include "pool.h"

#include <chrono>

#include "placement.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace acpu {

namespace {

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// Some 20 us of pauses, then the core is offered to others: on a busy machine the thread we wait for needs
// it.
constexpr int kPausesBeforeYield = 500;

template <class Condition>
void wait_until(Condition holds) {
  for (int i = 0; !holds();) {
    if (++i < kPausesBeforeYield)
      relax();
    else
      std::this_thread::yield();
  }
}

} // namespace

Pool::Pool(int num_threads, int spin_us) : num_threads_(num_threads), spin_us_(spin_us) {
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(const std::function<void(int)>& work) {
  if (num_threads_ > 1) {
    work_ = &work;
    caller_processor_ = current_processor();
    num_done_.store(0, std::memory_order_relaxed);
    // Sequentially consistent with the sleeper's own count and re-check, so that no wake-up is lost.
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
  }
  work(0);
  wait_until([this] { return num_done_.load(std::memory_order_acquire) == num_threads_ - 1; });
}

void Pool::barrier() {
  if (num_threads_ == 1) return;
  const uint32_t generation = barrier_generation_.load(std::memory_order_relaxed);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    num_arrived_.store(0, std::memory_order_relaxed);
    barrier_generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  wait_until([&] { return barrier_generation_.load(std::memory_order_acquire) != generation; });
}

bool Pool::wait_for_work(uint32_t seen) {
  const auto changed = [&] { return generation_.load(std::memory_order_seq_cst) != seen; };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
  for (int i = 0; !changed(); ++i) {
    if (i < kPausesBeforeYield) {
      relax();
      continue;
    }
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  if (!changed()) {
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, changed);
    num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }
  return !stopping_.load();
}

void Pool::serve(int thread) {
  for (uint32_t seen = 0; wait_for_work(seen); ++seen) {
    if (caller_processor_ >= 0 && current_processor() == caller_processor_)
      leave_processor(caller_processor_);
    (*work_)(thread);
    num_done_.fetch_add(1, std::memory_order_release);
  }
}

} // namespace acpu

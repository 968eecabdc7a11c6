// Threads that wait for a step. The caller is thread 0; the others spin briefly between steps, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace acpu {

class Pool {
 public:
  Pool(int num_threads, int spin_us);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return num_threads_; }
  // Runs work(thread) on every thread and returns when all are done. One caller at a time.
  void run(const std::function<void(int)>& work);
  // Inside run only: returns once every thread has arrived.
  void barrier();

 private:
  void serve(int thread);
  bool wait_for_work(uint32_t seen);

  const int num_threads_;
  const int spin_us_;
  int caller_processor_ = -1; // written before the generation that announces it
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> num_done_{0};
  alignas(64) std::atomic<int> num_arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_generation_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
};

} // namespace acpu

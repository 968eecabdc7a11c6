// Aligned memory that asks for huge pages: weights and scratch are streamed, and page walks cost a third.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace acpu {

// Freed with its owner; grown by chunks, never shrunk. Fresh memory is zero.
class Arena {
 public:
  explicit Arena(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws std::bad_alloc. Aligned to 64 bytes.
  void* take(size_t bytes);
  template <class T>
  T* array(size_t count) {
    return static_cast<T*>(take(count * sizeof(T)));
  }
  // Gives everything back to the system.
  void clear();
  // Forgets what was taken but keeps the memory, whose content is then stale.
  void rewind();
  size_t used_bytes() const { return used_bytes_; }

 private:
  struct Chunk {
    void* data;
    size_t bytes;
    size_t used;
  };
  size_t chunk_bytes_;
  size_t used_bytes_ = 0;
  size_t current_ = 0; // the chunk that is being filled
  std::vector<Chunk> chunks_;
};

} // namespace acpu

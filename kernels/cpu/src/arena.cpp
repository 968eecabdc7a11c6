// Chunks straight from the system.
#include "arena.h"

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(_WIN32)
#include <malloc.h>
#else
#include <sys/mman.h>
#endif

namespace acpu {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

#if defined(ACPU_SANITIZES)
// Every piece on its own, so that the address sanitizer sees where each ends.
void* map(size_t bytes) {
  void* p = std::aligned_alloc(64, bytes);
  if (p) std::memset(p, 0, bytes);
  return p;
}
void unmap(void* p, size_t) {
  std::free(p);
}
constexpr bool kOnePieceEach = true;
#elif defined(_WIN32)
constexpr bool kOnePieceEach = false;
void* map(size_t bytes) {
  void* p = _aligned_malloc(bytes, kHugePage);
  if (p) std::memset(p, 0, bytes);
  return p;
}
void unmap(void* p, size_t) {
  _aligned_free(p);
}
#else
constexpr bool kOnePieceEach = false;
// A mapping of our own, trimmed to whole huge pages: untouched parts cost nothing and nothing is cleared
// twice.
void* map(size_t bytes) {
  char* raw = static_cast<char*>(
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (raw == MAP_FAILED) return nullptr;
  char* start = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(raw), kHugePage));
  const size_t head = static_cast<size_t>(start - raw);
  if (head) munmap(raw, head);
  if (kHugePage - head) munmap(start + bytes, kHugePage - head);
#if defined(MADV_HUGEPAGE)
  madvise(start, bytes, MADV_HUGEPAGE);
#endif
  return start;
}
void unmap(void* p, size_t bytes) {
  munmap(p, bytes);
}
#endif

} // namespace

Arena::~Arena() {
  clear();
}

void Arena::clear() {
  for (const Chunk& chunk : chunks_) unmap(chunk.data, chunk.bytes);
  chunks_.clear();
  current_ = 0;
  used_bytes_ = 0;
}

void Arena::rewind() {
  if (kOnePieceEach) return clear();
  for (Chunk& chunk : chunks_) chunk.used = 0;
  current_ = 0;
  used_bytes_ = 0;
}

void* Arena::take(size_t bytes) {
  bytes = round_up(bytes ? bytes : 1, 64);
  while (current_ < chunks_.size() && chunks_[current_].bytes - chunks_[current_].used < bytes) ++current_;
  if (current_ == chunks_.size()) {
    const size_t whole = round_up(bytes > chunk_bytes_ ? bytes : chunk_bytes_, kHugePage);
    const size_t size = kOnePieceEach ? bytes : whole;
    void* data = map(size);
    if (!data) throw std::bad_alloc();
    chunks_.push_back({data, size, 0});
  }
  Chunk& chunk = chunks_[current_];
  void* p = static_cast<char*>(chunk.data) + chunk.used;
  chunk.used += bytes;
  used_bytes_ += bytes;
  return p;
}

} // namespace acpu

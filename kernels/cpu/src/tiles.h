// The tile unit (AMX): eight tiles of up to 16 rows of 64 bytes, and sums of products of pairs of bfloat16
// numbers. Every instruction is a barrier to the compiler, which knows nothing of what they read.
//
// While it is at work, products of vectors take twice as long, so what is done beside it is kept small.
#pragma once

namespace {

constexpr int kTileHeight = 16;

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The tiles' shapes, for as long as this lives.
class Tiles {
 public:
  ~Tiles() {
    if (is_set_) __asm__ volatile("tilerelease" ::: "memory");
  }
  void set(const TileShapes& shapes) {
    is_set_ = true;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }

 private:
  bool is_set_ = false;
};

template <int T>
ACPU_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(T) : "memory");
}
template <int T>
ACPU_INLINE void tile_load(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(p), "r"(stride) : "memory");
}
template <int T>
ACPU_INLINE void tile_store(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(p), "r"(stride) : "memory");
}
template <int SUM, int A, int B>
ACPU_INLINE void tile_dot() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B) : "memory");
}

} // namespace

// The tile unit (AMX): eight tiles of up to 16 rows of 64 bytes, and sums of products of pairs of bfloat16
// numbers or of fours of bytes. A load depends on all that lies from its address on, and a store changes it.
//
// While it is at work, products of vectors take twice as long, so what is done beside it is kept small.
#pragma once

namespace {

constexpr int kTileHeight = 16;

template <int I>
struct Index {
  constexpr operator int() const { return I; }
};

// Calls f for 0 to N - 1, each a constant: gcc keeps arrays that are walked so in registers, and those of an
// unrolled loop beside these instructions in memory.
template <int N, int I = 0, class F>
ACPU_INLINE void each(const F& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    each<N, I + 1>(f);
  }
}
#define ACPU_ALWAYS __attribute__((always_inline))

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
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
}
#if defined(__clang__) // knows no array without an end here, and keeps what it likes in registers anyway
#define ACPU_FROM(p)
#define ACPU_ONTO(p)
#define ACPU_CLOBBERS : "memory"
#else
#define ACPU_FROM(p) , "m"(*(const char (*)[])p)
#define ACPU_ONTO(p) "+m"(*(char (*)[])p)
#define ACPU_CLOBBERS
#endif

template <int T>
ACPU_INLINE void tile_load(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%[p],%[stride],1), %%tmm%c[tile]" ::[tile] "i"(T), [p] "r"(p),
                   [stride] "r"(stride)ACPU_FROM(p) ACPU_CLOBBERS);
}
template <int T>
ACPU_INLINE void tile_store(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c[tile], (%[p],%[stride],1)"
                   : ACPU_ONTO(p)
                   : [tile] "i"(T), [p] "r"(p), [stride] "r"(stride)ACPU_CLOBBERS);
}
template <int SUM, int A, int B>
ACPU_INLINE void tile_dot() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}

// Sums of products of bytes, signed in A and unsigned in B.
template <int SUM, int A, int B>
ACPU_INLINE void tile_dot_bytes() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}

} // namespace

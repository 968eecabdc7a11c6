// Vectors of 16 lanes: AVX-512 with VNNI, and BF16 where ACPU_BF16 is set.
#pragma once

#include <immintrin.h>

namespace {

typedef __m512 vf;
typedef __m512i vi;

constexpr int W = 16;
constexpr int kBias8 = 0;
constexpr int kGemmRows = 3;
constexpr int kTileRows = 6;
constexpr int gemm_vectors(int) {
  return 4;
}
constexpr float kExpFloor = -110.0f; // 2^-159 is zero even as a subnormal
constexpr int kTileVectors = 4;

static inline vf zero() {
  return _mm512_setzero_ps();
}
static inline vf set(float x) {
  return _mm512_set1_ps(x);
}
static inline vf load(const float* p) {
  return _mm512_loadu_ps(p);
}
static inline void store(float* p, vf v) {
  _mm512_storeu_ps(p, v);
}
static inline vf add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
static inline vf sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
static inline vf mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
static inline vf div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
static inline vf fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline vf vmax(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
static inline vf vmin(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
static inline vf vabs(vf a) {
  return _mm512_abs_ps(a);
}
static inline vf round(vf a) {
  return _mm512_roundscale_ps(a, 0);
}
static inline vf scale2(vf a, vf n) {
  return _mm512_scalef_ps(a, n);
}
static inline float sum(vf a) {
  return _mm512_reduce_add_ps(a);
}
static inline float max_of(vf a) {
  return _mm512_reduce_max_ps(a);
}

#define ACPU_PEAKS
static inline acpu::Peaks peaks_of(const vf (&x)[2]) {
  const vf a = vabs(x[0]), b = vabs(x[1]);
  const vf pairs = vmax(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  // Each lane of four holds two quads, one of either half, twice.
  const vf quads = vmax(_mm512_permute_ps(pairs, 0x88), _mm512_permute_ps(pairs, 0xdd));
  vf first = quads, second = zero();
  const auto meet = [&](vf other, vf next) __attribute__((always_inline)) {
    second = vmax(vmin(first, other), vmax(second, next));
    first = vmax(first, other);
  };
  meet(_mm512_permute_ps(first, 0xb1), _mm512_permute_ps(second, 0xb1));
  meet(_mm512_shuffle_f32x4(first, first, 0xb1), _mm512_shuffle_f32x4(second, second, 0xb1));
  meet(_mm512_shuffle_f32x4(first, first, 0x4e), _mm512_shuffle_f32x4(second, second, 0x4e));
  const int at = __builtin_ctz(_mm512_cmp_ps_mask(quads, first, _CMP_NLT_UQ) | 1 << 15);
  return {_mm512_cvtss_f32(first), _mm512_cvtss_f32(second), at / 4 + at % 2 * 4};
}

static inline vi izero() {
  return _mm512_setzero_si512();
}
static inline vi iset(int32_t x) {
  return _mm512_set1_epi32(x);
}
static inline vi iload(const void* p) {
  return _mm512_loadu_si512(p);
}
static inline vi iadd(vi a, vi b) {
  return _mm512_add_epi32(a, b);
}
static inline vi times16(vi a) {
  return _mm512_slli_epi32(a, 4);
}
static inline int32_t isum(vi a) {
  return _mm512_reduce_add_epi32(a);
}
static inline vf to_f(vi a) {
  return _mm512_cvtepi32_ps(a);
}
static inline vi to_i(vf a) {
  return _mm512_cvtps_epi32(a);
}

static inline vi dot4(vi acc, vi w, vi x) {
  return _mm512_dpbusd_epi32(acc, w, x);
}
static inline vi dot4_nibble(vi acc, vi w, vi x) {
  return _mm512_dpbusd_epi32(acc, w, x);
}
static inline vi whole_nibble_sum(vi acc) {
  return acc;
}
static inline vi dot2_i16(vi acc, vi a, vi b) {
  return _mm512_dpwssd_epi32(acc, a, b);
}
static inline vi low_nibbles(vi w) {
  return _mm512_and_si512(w, _mm512_set1_epi8(15));
}
static inline vi high_nibbles(vi w) {
  return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}

// Adds 16 times the products of the lower nibbles, or with `shift` 4 of the upper ones.
static inline vi dot4_nibble_times16(vi acc, vi w, int shift, vi x) {
  const vi upper = _mm512_sllv_epi32(w, iset(4 - shift));
  return _mm512_dpbusd_epi32(acc, _mm512_and_si512(upper, _mm512_set1_epi8((char)0xf0)), x);
}

static inline vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
static inline vi widen_i8(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
}
static inline void store_i8(int8_t* p, vi v) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(v));
}
static inline void store_i16(int16_t* p, vi v) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(v));
}

#ifdef ACPU_BF16
static inline vf dot2_bf16(vf acc, vi a, vi b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}
static inline void store_bf16(uint16_t* p, vf v) {
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v));
}
#else
static inline vf dot2_bf16(vf acc, vi a, vi b) {
  const vi high = _mm512_set1_epi32((int)0xffff0000);
  acc = fma((vf)_mm512_slli_epi32(a, 16), (vf)_mm512_slli_epi32(b, 16), acc);
  return fma((vf)_mm512_and_si512(a, high), (vf)_mm512_and_si512(b, high), acc);
}
static inline void store_bf16(uint16_t* p, vf v) {
  const vi odd = _mm512_and_si512(_mm512_srli_epi32((vi)v, 16), _mm512_set1_epi32(1));
  const vi u = _mm512_add_epi32((vi)v, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
#endif

// Lanes whose index base + lane lies outside [low, high) become `fill`.
static inline vf keep_range(vf v, float fill, int base, int low, int high) {
  const vi index = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                    _mm512_set1_epi32(base));
  const __mmask16 keep = _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32(high)) &
                         _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32(low));
  return _mm512_mask_mov_ps(_mm512_set1_ps(fill), keep, v);
}
// Lane i where bit i is set, else `fill`.
static inline vf keep_bits(vf v, float fill, uint32_t bits) {
  return _mm512_mask_mov_ps(_mm512_set1_ps(fill), (__mmask16)bits, v);
}
static inline uint32_t greater_bits(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
__attribute__((always_inline)) static inline void prefetch(const void* p) {
  _mm_prefetch((const char*)p, _MM_HINT_T1);
}
// Processors with BF16 but no tiles are nearly all AMD's, where a loop that asks for the second cache reads half as
// fast again as one that asks for the first (Zen 4, two threads: 29 to 31 GB/s against 20 to 24).
#if defined(ACPU_BF16) && !defined(ACPU_TILES)
#define ACPU_ASKS_BY_RECORD
constexpr int kPagesAhead = 2;
#else
constexpr int kPagesAhead = 3;
#endif
__attribute__((always_inline)) static inline void prefetch_near(const void* p) {
#ifdef ACPU_ASKS_BY_RECORD
  prefetch(p);
#else
  _mm_prefetch((const char*)p, _MM_HINT_T0);
#endif
}

} // namespace

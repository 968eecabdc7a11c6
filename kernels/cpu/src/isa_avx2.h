// Vectors of 8 lanes: AVX2 with FMA and F16C, and AVX-VNNI where ACPU_VNNI is set.
#pragma once

#include <immintrin.h>

namespace {

#define ACPU_16_REGISTERS
#define ACPU_FLOAT_FACTORS

typedef __m256 vf;
typedef __m256i vi;

constexpr int W = 8;
#ifdef ACPU_VNNI
constexpr int kGemmRows = 3;
#else
constexpr int kGemmRows = 4; // by 2 vectors, with the weights' two halves: 16 registers
#endif
constexpr int gemm_vectors(int rows) {
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
}
constexpr int kTileRows = 4; // 8 sums: as many as two multipliers of 4 cycles keep busy
constexpr float kExpFloor = -88.03f; // rounds to 2^-127, whose bits are those of zero
constexpr int kTileVectors = 2;
constexpr int kPagesAhead = 2;

static inline vf zero() {
  return _mm256_setzero_ps();
}
static inline vf set(float x) {
  return _mm256_set1_ps(x);
}
static inline vf load(const float* p) {
  return _mm256_loadu_ps(p);
}
static inline void store(float* p, vf v) {
  _mm256_storeu_ps(p, v);
}
static inline vf add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
static inline vf sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
static inline vf mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
static inline vf div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
static inline vf fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline vf vmax(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
static inline vf vmin(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
static inline vf vabs(vf a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf round(vf a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vi iset(int32_t x) {
  return _mm256_set1_epi32(x);
}
static inline vi iadd(vi a, vi b) {
  return _mm256_add_epi32(a, b);
}
static inline vi times16(vi a) {
  return _mm256_slli_epi32(a, 4);
}
static inline vf to_f(vi a) {
  return _mm256_cvtepi32_ps(a);
}
static inline vi to_i(vf a) {
  return _mm256_cvtps_epi32(a);
}
static inline vf scale2(vf a, vf n) {
  return mul(a, (vf)_mm256_slli_epi32(iadd(to_i(n), iset(127)), 23));
}
static inline float sum(vf a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float max_of(vf a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

#define ACPU_PEAKS
static inline acpu::Peaks peaks_of(const vf (&x)[4]) {
  const auto larger = [](vf a, vf b) {
    return vmax(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  };
  // The even quads, then the odd ones.
  const vf quads = larger(larger(vabs(x[0]), vabs(x[1])), larger(vabs(x[2]), vabs(x[3])));
  vf first = quads, second = zero();
  const auto meet = [&](vf other, vf next) {
    second = vmax(vmin(first, other), vmax(second, next));
    first = vmax(first, other);
  };
  meet(_mm256_permute_ps(first, 0xb1), _mm256_permute_ps(second, 0xb1));
  meet(_mm256_permute_ps(first, 0x4e), _mm256_permute_ps(second, 0x4e));
  meet(_mm256_permute2f128_ps(first, first, 1), _mm256_permute2f128_ps(second, second, 1));
  const int at = __builtin_ctz(_mm256_movemask_ps(_mm256_cmp_ps(quads, first, _CMP_NLT_UQ)) | 1 << 7);
  return {_mm256_cvtss_f32(first), _mm256_cvtss_f32(second), at % 4 * 2 + at / 4};
}

static inline vi izero() {
  return _mm256_setzero_si256();
}
static inline vi iload(const void* p) {
  return _mm256_loadu_si256((const __m256i*)p);
}
static inline int32_t isum(vi a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

#ifdef ACPU_VNNI
constexpr int kBias8 = 0;
static inline vi dot4(vi acc, vi w, vi x) {
  return _mm256_dpbusd_avx_epi32(acc, w, x);
}
static inline vi dot4_nibble(vi acc, vi w, vi x) {
  return _mm256_dpbusd_avx_epi32(acc, w, x);
}
static inline vi whole_nibble_sum(vi acc) {
  return acc;
}
#else
// The unsigned x signed product saturates at 16 bits with 8-bit weights, so they are made signed first and
// their sign moved to the activations: |w| <= 128, |x| <= 127, a pair of products stays under 32,513.
constexpr int kBias8 = 128;
static inline vi dot4(vi acc, vi w, vi x) {
  const vi s = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
  const vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s));
  return iadd(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#define ACPU_NIBBLE_SUMS_IN_16_BITS
// Sums of a group's products of 4-bit weights fit into 16 bits: 16 inputs by 15 by 127 are 30,480.
static inline vi dot4_nibble(vi acc, vi w, vi x) {
  return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
}
static inline vi whole_nibble_sum(vi acc) {
  return _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
}
#endif
static inline vi dot2_i16(vi acc, vi a, vi b) {
  return iadd(acc, _mm256_madd_epi16(a, b));
}
static inline vi low_nibbles(vi w) {
  return _mm256_and_si256(w, _mm256_set1_epi8(15));
}
static inline vi high_nibbles(vi w) {
  return _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
}

// Adds 16 times the products of the lower nibbles, or with `shift` 4 of the upper ones.
static inline vi dot4_nibble_times16(vi acc, vi w, int shift, vi x) {
#ifdef ACPU_VNNI
  const vi upper = _mm256_sllv_epi32(w, iset(4 - shift));
  return _mm256_dpbusd_avx_epi32(acc, _mm256_and_si256(upper, _mm256_set1_epi8((char)0xf0)), x);
#else
  const vi nibbles = low_nibbles(_mm256_srlv_epi32(w, iset(shift)));
  return iadd(acc, times16(whole_nibble_sum(_mm256_maddubs_epi16(nibbles, x))));
#endif
}

static inline vf load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
static inline vi widen_i8(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
}
static inline __m128i narrow_i16(vi v) {
  return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
static inline void store_i8(int8_t* p, vi v) {
  const __m128i s = narrow_i16(v);
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(s, s));
}
static inline void store_i16(int16_t* p, vi v) {
  _mm_storeu_si128((__m128i*)p, narrow_i16(v));
}

static inline vf even_bf16(vi a) {
  return (vf)_mm256_slli_epi32(a, 16);
}
static inline vf odd_bf16(vi a) {
  return (vf)_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000));
}
static inline vf dot2_bf16(vf acc, vi a, vi b) {
  return fma(odd_bf16(a), odd_bf16(b), fma(even_bf16(a), even_bf16(b), acc));
}
static inline vf rounded_to_bf16(vf v) {
  const vi odd = _mm256_and_si256(_mm256_srli_epi32((vi)v, 16), iset(1));
  return odd_bf16(iadd((vi)v, iadd(odd, iset(0x7fff))));
}
static inline void store_bf16(uint16_t* p, vf v) {
  const vi u = _mm256_srli_epi32((vi)rounded_to_bf16(v), 16);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}

static inline vf keep_range(vf v, float fill, int base, int low, int high) {
  const vi index = iadd(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), iset(base));
  const vi below = _mm256_cmpgt_epi32(iset(high), index);
  const vi above = _mm256_cmpgt_epi32(index, iset(low - 1));
  return _mm256_blendv_ps(set(fill), v, (vf)_mm256_and_si256(below, above));
}
// Lane i where bit i is set, else `fill`.
static inline vf keep_bits(vf v, float fill, uint32_t bits) {
  const vi lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const vi keep = _mm256_cmpeq_epi32(_mm256_and_si256(iset((int32_t)bits), lanes), lanes);
  return _mm256_blendv_ps(set(fill), v, (vf)keep);
}
static inline uint32_t greater_bits(vf a, vf b) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
__attribute__((always_inline)) static inline void prefetch(const void* p) {
  _mm_prefetch((const char*)p, _MM_HINT_T1);
}
__attribute__((always_inline)) static inline void prefetch_near(const void* p) {
  _mm_prefetch((const char*)p, _MM_HINT_T0);
}

} // namespace

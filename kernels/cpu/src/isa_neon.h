// Vectors of 4 lanes: 64-bit Arm with the dot-product extension.
#pragma once

#include <arm_neon.h>

namespace {

typedef float32x4_t vf;
typedef int32x4_t vi;

constexpr int W = 4;
constexpr int kBias8 = 128;
constexpr int kGemmRows = 2;
constexpr int kTileRows = 3;
constexpr int gemm_vectors(int) {
  return 4;
}
constexpr float kExpFloor = -88.03f; // rounds to 2^-127, whose bits are those of zero
constexpr int kTileVectors = 4;
constexpr int kPagesAhead = 2;

static inline vf zero() {
  return vdupq_n_f32(0.0f);
}
static inline vf set(float x) {
  return vdupq_n_f32(x);
}
static inline vf load(const float* p) {
  return vld1q_f32(p);
}
static inline void store(float* p, vf v) {
  vst1q_f32(p, v);
}
static inline vf add(vf a, vf b) {
  return vaddq_f32(a, b);
}
static inline vf sub(vf a, vf b) {
  return vsubq_f32(a, b);
}
static inline vf mul(vf a, vf b) {
  return vmulq_f32(a, b);
}
static inline vf div(vf a, vf b) {
  return vdivq_f32(a, b);
}
static inline vf fma(vf a, vf b, vf c) {
  return vfmaq_f32(c, a, b);
}
static inline vf vmax(vf a, vf b) {
  return vmaxq_f32(a, b);
}
static inline vf vmin(vf a, vf b) {
  return vminq_f32(a, b);
}
static inline vf vabs(vf a) {
  return vabsq_f32(a);
}
static inline vf round(vf a) {
  return vrndnq_f32(a);
}
static inline vi iset(int32_t x) {
  return vdupq_n_s32(x);
}
static inline vi izero() {
  return vdupq_n_s32(0);
}
static inline vi iadd(vi a, vi b) {
  return vaddq_s32(a, b);
}
static inline vi times16(vi a) {
  return vshlq_n_s32(a, 4);
}
static inline vi iload(const void* p) {
  return vreinterpretq_s32_u8(vld1q_u8((const uint8_t*)p));
}
static inline vf to_f(vi a) {
  return vcvtq_f32_s32(a);
}
static inline vi to_i(vf a) {
  return vcvtnq_s32_f32(a);
}
static inline vf scale2(vf a, vf n) {
  return mul(a, vreinterpretq_f32_s32(vshlq_n_s32(iadd(to_i(n), iset(127)), 23)));
}
static inline float sum(vf a) {
  return vaddvq_f32(a);
}
static inline float max_of(vf a) {
  return vmaxvq_f32(a);
}
static inline int32_t isum(vi a) {
  return vaddvq_s32(a);
}

static inline vi dot4(vi acc, vi w, vi x) {
  const uint8x16_t s = veorq_u8(vreinterpretq_u8_s32(w), vdupq_n_u8(0x80));
  return vdotq_s32(acc, vreinterpretq_s8_u8(s), vreinterpretq_s8_s32(x));
}
static inline vi dot4_nibble(vi acc, vi w, vi x) {
  return vdotq_s32(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}
static inline vi whole_nibble_sum(vi acc) {
  return acc;
}
static inline vi dot2_i16(vi acc, vi a, vi b) {
  const int16x8_t p = vreinterpretq_s16_s32(a), q = vreinterpretq_s16_s32(b);
  const vi low = vmull_s16(vget_low_s16(p), vget_low_s16(q));
  return iadd(acc, vpaddq_s32(low, vmull_high_s16(p, q)));
}
static inline vi low_nibbles(vi w) {
  return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(w), vdupq_n_u8(15)));
}
static inline vi high_nibbles(vi w) {
  return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(w), 4));
}
// Adds 16 times the products of the lower nibbles, or with `shift` 4 of the upper ones.
static inline vi dot4_nibble_times16(vi acc, vi w, int shift, vi x) {
  const uint8x16_t at = vshlq_u8(vreinterpretq_u8_s32(w), vdupq_n_s8((int8_t)-shift));
  return iadd(acc, times16(dot4_nibble(izero(), low_nibbles(vreinterpretq_s32_u8(at)), x)));
}
static inline vf load_f16(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vi widen_i8(const int8_t* p) {
  return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p)));
}
static inline void store_i16(int16_t* p, vi v) {
  vst1_s16(p, vqmovn_s32(v));
}
static inline void store_i8(int8_t* p, vi v) {
  const int16x4_t s = vqmovn_s32(v);
  const int8x8_t b = vqmovn_s16(vcombine_s16(s, s));
  vst1_lane_s32((int32_t*)(void*)p, vreinterpret_s32_s8(b), 0);
}
static inline vf dot2_bf16(vf acc, vi a, vi b) {
  const vi high = iset((int32_t)0xffff0000u);
  acc = fma(vreinterpretq_f32_s32(vshlq_n_s32(a, 16)), vreinterpretq_f32_s32(vshlq_n_s32(b, 16)), acc);
  return fma(vreinterpretq_f32_s32(vandq_s32(a, high)), vreinterpretq_f32_s32(vandq_s32(b, high)), acc);
}
static inline void store_bf16(uint16_t* p, vf v) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  vst1_u16(p, vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}
static inline vf keep_range(vf v, float fill, int base, int low, int high) {
  const int32_t lanes[4] = {base, base + 1, base + 2, base + 3};
  const vi index = vld1q_s32(lanes);
  const uint32x4_t keep = vandq_u32(vcltq_s32(index, iset(high)), vcgeq_s32(index, iset(low)));
  return vbslq_f32(keep, v, set(fill));
}
// Lane i where bit i is set, else `fill`.
static inline vf keep_bits(vf v, float fill, uint32_t bits) {
  const uint32_t lanes[4] = {1, 2, 4, 8};
  return vbslq_f32(vtstq_u32(vdupq_n_u32(bits), vld1q_u32(lanes)), v, set(fill));
}
static inline uint32_t greater_bits(vf a, vf b) {
  const uint32_t weights[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgtq_f32(a, b), vld1q_u32(weights)));
}
__attribute__((always_inline)) static inline void prefetch(const void* p) {
  __builtin_prefetch(p);
}
__attribute__((always_inline)) static inline void prefetch_near(const void* p) {
  __builtin_prefetch(p);
}

} // namespace

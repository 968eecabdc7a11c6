// Vectors of 8 lanes as plain arrays, for any machine; the compiler makes of them what it can.
#pragma once

#include <string.h>

namespace {

#define ACPU_ROLLED // the lanes are loops already: unrolling around them takes half a minute and gains
                    // nothing

constexpr int W = 8;
constexpr int kBias8 = 0;
constexpr int kGemmRows = 2;
constexpr int kTileRows = 2;
constexpr int gemm_vectors(int) {
  return 2;
}
constexpr float kExpFloor = -88.03f; // rounds to 2^-127, whose bits are those of zero
constexpr int kTileVectors = 2;
constexpr int kPagesAhead = 2;

struct vf {
  float v[W];
};
struct vi {
  int32_t v[W];
};

#define ACPU_EACH for (int i = 0; i < W; ++i)

static inline float as_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline uint32_t as_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
static inline vf set(float x) {
  vf r;
  ACPU_EACH r.v[i] = x;
  return r;
}
static inline vf zero() {
  return set(0.0f);
}
static inline vf load(const float* p) {
  vf r;
  memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void store(float* p, vf a) {
  memcpy(p, a.v, sizeof a.v);
}

#define ACPU_LANEWISE(name, type, expression) \
  static inline type name(type a, type b) {   \
    type r;                                   \
    ACPU_EACH r.v[i] = expression;            \
    return r;                                 \
  }
ACPU_LANEWISE(add, vf, a.v[i] + b.v[i])
ACPU_LANEWISE(sub, vf, a.v[i] - b.v[i])
ACPU_LANEWISE(mul, vf, a.v[i] * b.v[i])
ACPU_LANEWISE(div, vf, a.v[i] / b.v[i])
ACPU_LANEWISE(vmax, vf, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
ACPU_LANEWISE(vmin, vf, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
ACPU_LANEWISE(iadd, vi, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
#undef ACPU_LANEWISE

static inline vi times16(vi a) {
  ACPU_EACH a.v[i] *= 16;
  return a;
}
static inline vf fma(vf a, vf b, vf c) {
  ACPU_EACH c.v[i] += a.v[i] * b.v[i];
  return c;
}
static inline vf vabs(vf a) {
  ACPU_EACH a.v[i] = as_float(as_bits(a.v[i]) & 0x7fffffffu);
  return a;
}
// Adding 1.5 * 2^23 rounds to nearest even; right below 2^22 in size, and defined for every input.
static inline vi to_i(vf a) {
  vi r;
  ACPU_EACH r.v[i] = (int32_t)(as_bits(a.v[i] + 12582912.0f) - 0x4b400000u);
  return r;
}
static inline vf round(vf a) {
  ACPU_EACH a.v[i] = (a.v[i] + 12582912.0f) - 12582912.0f;
  return a;
}
static inline vf scale2(vf a, vf n) {
  const vi e = to_i(n);
  ACPU_EACH a.v[i] *= as_float((uint32_t)(e.v[i] + 127) << 23);
  return a;
}
static inline float sum(vf a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
static inline float max_of(vf a) {
  float m = a.v[0];
  for (int i = 1; i < W; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}

static inline vi iset(int32_t x) {
  vi r;
  ACPU_EACH r.v[i] = x;
  return r;
}
static inline vi izero() {
  return iset(0);
}
static inline vi iload(const void* p) {
  vi r;
  memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline int32_t isum(vi a) {
  int32_t s = 0;
  ACPU_EACH s += a.v[i];
  return s;
}
static inline vf to_f(vi a) {
  vf r;
  ACPU_EACH r.v[i] = (float)a.v[i];
  return r;
}

static inline vi dot4(vi acc, vi w, vi x) {
  uint8_t u[4 * W];
  int8_t s[4];
  memcpy(u, w.v, sizeof u);
  memcpy(s, x.v, sizeof s);
  ACPU_EACH acc.v[i] += u[4 * i] * s[0] + u[4 * i + 1] * s[1] + u[4 * i + 2] * s[2] + u[4 * i + 3] * s[3];
  return acc;
}
static inline vi dot4_nibble(vi acc, vi w, vi x) {
  return dot4(acc, w, x);
}
static inline vi whole_nibble_sum(vi acc) {
  return acc;
}
static inline vi dot2_i16(vi acc, vi a, vi b) {
  int16_t p[2 * W], q[2 * W];
  memcpy(p, a.v, sizeof p);
  memcpy(q, b.v, sizeof q);
  ACPU_EACH acc.v[i] += p[2 * i] * q[2 * i] + p[2 * i + 1] * q[2 * i + 1];
  return acc;
}
static inline vi low_nibbles(vi w) {
  ACPU_EACH w.v[i] = (int32_t)((uint32_t)w.v[i] & 0x0f0f0f0fu);
  return w;
}
static inline vi high_nibbles(vi w) {
  ACPU_EACH w.v[i] = (int32_t)(((uint32_t)w.v[i] >> 4) & 0x0f0f0f0fu);
  return w;
}
// Adds 16 times the products of the lower nibbles, or with `shift` 4 of the upper ones.
static inline vi dot4_nibble_times16(vi acc, vi w, int shift, vi x) {
  ACPU_EACH w.v[i] = (int32_t)((uint32_t)w.v[i] >> shift);
  return iadd(acc, times16(dot4_nibble(izero(), low_nibbles(w), x)));
}
static inline vf load_f16(const uint16_t* p) {
  vf r;
  // The exponent is rebased by a product, which also makes subnormals right. Scales are finite.
  ACPU_EACH r.v[i] = as_float(((uint32_t)(p[i] & 0x8000u) << 16) |
                              as_bits(as_float((uint32_t)(p[i] & 0x7fffu) << 13) * 5.192296858534828e33f));
  return r;
}
static inline vi widen_i8(const int8_t* p) {
  int16_t s[2 * W];
  for (int i = 0; i < 2 * W; ++i) s[i] = p[i];
  return iload(s);
}
static inline void store_i8(int8_t* p, vi v) {
  ACPU_EACH p[i] = (int8_t)(v.v[i] > 127 ? 127 : v.v[i] < -128 ? -128 : v.v[i]);
}
static inline void store_i16(int16_t* p, vi v) {
  ACPU_EACH p[i] = (int16_t)(v.v[i] > 32767 ? 32767 : v.v[i] < -32768 ? -32768 : v.v[i]);
}
static inline vf dot2_bf16(vf acc, vi a, vi b) {
  ACPU_EACH acc.v[i] += as_float((uint32_t)a.v[i] << 16) * as_float((uint32_t)b.v[i] << 16);
  ACPU_EACH acc.v[i] += as_float((uint32_t)a.v[i] & 0xffff0000u) * as_float((uint32_t)b.v[i] & 0xffff0000u);
  return acc;
}
static inline void store_bf16(uint16_t* p, vf v) {
  ACPU_EACH {
    const uint32_t u = as_bits(v.v[i]);
    p[i] = (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}
static inline vf keep_range(vf v, float fill, int base, int low, int high) {
  ACPU_EACH v.v[i] = base + i >= low && base + i < high ? v.v[i] : fill;
  return v;
}
// Lane i where bit i is set, else `fill`.
static inline vf keep_bits(vf v, float fill, uint32_t bits) {
  ACPU_EACH v.v[i] = bits >> i & 1u ? v.v[i] : fill;
  return v;
}
static inline uint32_t greater_bits(vf a, vf b) {
  uint32_t bits = 0;
  ACPU_EACH bits |= (uint32_t)(a.v[i] > b.v[i]) << i;
  return bits;
}
__attribute__((always_inline)) static inline void prefetch(const void* p) {
  __builtin_prefetch(p);
}
__attribute__((always_inline)) static inline void prefetch_near(const void* p) {
  __builtin_prefetch(p);
}

#undef ACPU_EACH

} // namespace

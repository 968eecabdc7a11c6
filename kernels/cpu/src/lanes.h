// Exponential, activations and sums over vectors, written once over a level's lanes.
#pragma once

namespace {

#if defined(ACPU_ROLLED)
#define ACPU_UNROLL
#elif defined(__clang__)
#define ACPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ACPU_UNROLL _Pragma("GCC unroll 16")
#endif

// Loops over a group's steps. With 16 registers gcc spills every product of an unrolled one: 110 against 155
// GOP/s.
#if defined(ACPU_16_REGISTERS) && !defined(__clang__)
#define ACPU_UNROLL_STEPS _Pragma("GCC unroll 1")
#else
#define ACPU_UNROLL_STEPS ACPU_UNROLL
#endif

// Where accumulators are passed by reference: a call would put them in memory.
#define ACPU_INLINE static inline __attribute__((always_inline))

// The same for clang alone. gcc's inlined loops over values lose a third of the read speed: 13 against 20
// GB/s.
#if defined(__clang__)
#define ACPU_CLANG_INLINE ACPU_INLINE
#else
#define ACPU_CLANG_INLINE static inline
#endif

static inline int least(int a, int b) {
  return a < b ? a : b;
}
static inline int most(int a, int b) {
  return a > b ? a : b;
}

// Two neighbouring factors of attention's products, a query's or a softmax's, in every lane. They are bfloat16
// numbers; levels that multiply in float32 keep them as such, so that no loop has to widen them.
#ifdef ACPU_FLOAT_FACTORS
typedef float Factor;
struct FactorPair {
  vf even, odd;
};
static inline FactorPair pair_at(const Factor* p) {
  return {set(p[0]), set(p[1])};
}
static inline void store_factors(Factor* p, vf v) {
  store(p, rounded_to_bf16(v));
}
static inline vf dot2_factors(vf acc, vi a, FactorPair b) {
  return fma(odd_bf16(a), b.odd, fma(even_bf16(a), b.even, acc));
}
#else
typedef uint16_t Factor;
typedef vi FactorPair;
static inline FactorPair pair_at(const Factor* p) {
  int32_t two;
  __builtin_memcpy(&two, p, 4);
  return iset(two);
}
static inline void store_factors(Factor* p, vf v) {
  store_bf16(p, v);
}
static inline vf dot2_factors(vf acc, vi a, FactorPair b) {
  return dot2_bf16(acc, a, b);
}
#endif

// Cephes' expf: relative error under 2e-7; exactly zero from kExpFloor down, minus infinity included.
static inline vf vexp(vf x) {
  x = vmin(vmax(x, set(kExpFloor)), set(88.0f));
  const vf n = round(mul(x, set(1.44269504f)));
  vf r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  vf p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  return scale2(fma(mul(p, r), r, add(r, set(1.0f))), n);
}

static inline float exp_of(float x) {
  float lanes[W];
  store(lanes, vexp(set(x)));
  return lanes[0];
}

// exp(x - top) for softmax's weights, x at most top: relative error under 3e-6 but for the rounding of x; exactly
// zero from kExpFloor down. Two thirds of vexp's operations.
static inline vf weight_below(vf x, float top) {
  constexpr float kLog2E = 1.44269504f;
  const vf t = vmax(fma(x, set(kLog2E), set(-top * kLog2E)), set(kExpFloor * kLog2E));
  const vf n = round(t);
  const vf r = sub(t, n);
  vf p = set(9.5701e-3f);
  p = fma(p, r, set(5.591786e-2f));
  p = fma(p, r, set(2.4024745e-1f));
  p = fma(p, r, set(6.9312181e-1f));
  p = fma(p, r, set(9.9999926e-1f));
  return scale2(p, n);
}

static inline vf sigmoid(vf x) {
  return div(set(1.0f), add(set(1.0f), vexp(sub(zero(), x))));
}

static inline vf softcapped(vf x, float cap) {
  const vf y = mul(x, set(2.0f / cap));
  return mul(set(cap), sub(mul(set(2.0f), sigmoid(y)), set(1.0f)));
}

// SiLU, or GELU by its tanh form: 0.5 (1 + tanh u) = sigmoid(2 u).
static inline vf activated(vf x, int activation) {
  if (activation == acpu::kSilu) return mul(x, sigmoid(x));
  const vf cube = mul(mul(x, x), x);
  return mul(x, sigmoid(mul(set(1.5957691216f), fma(set(0.044715f), cube, x))));
}

} // namespace

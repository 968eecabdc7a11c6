// 16-bit floats by their bits, for any machine.
#include <cmath>
#include <cstring>

#include "pack.h"

namespace acpu {

namespace {

uint32_t bits_of(float value) {
  uint32_t u;
  std::memcpy(&u, &value, 4);
  return u;
}

float float_of(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

} // namespace

float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) return float_of(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to nearest even; too large becomes infinity.
uint16_t f32_to_f16(float value) {
  const uint32_t u = bits_of(value), sign = (u >> 16) & 0x8000u;
  const float size = std::fabs(value);
  if (!(size < 65520.0f)) return static_cast<uint16_t>(sign | (size > 0 ? 0x7c00u : 0x7e00u));
  if (size < 0x1p-14f)
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(size * 0x1p24f)));
  const uint32_t rounded = (u & 0x7fffffffu) + 0xfffu + ((u >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

float bf16_to_f32(uint16_t bits) {
  return float_of(static_cast<uint32_t>(bits) << 16);
}

uint16_t f32_to_bf16(float value) {
  const uint32_t u = bits_of(value);
  if (value != value) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

} // namespace acpu

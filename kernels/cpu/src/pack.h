// Turns rows as files store them into the panels that the levels read, once, at load.
#pragma once

#include "acpu.h"
#include "arena.h"
#include "pool.h"
#include "views.h"

namespace acpu {

// The form of activations, of 8 or 16 bits, that a kind of weights multiplies.
int32_t form_of(int32_t kind, int activation_bits);
int32_t num_units(const LinearView& weight);

// Checks the matrix, takes its memory from `arena` and fills it, on the pool's threads where there is one.
// Throws Failure. Packed values equal the source's exactly where the kind is the source's own.
LinearView pack(const acpu_matrix& matrix, Arena& arena, Pool* pool);

// One output channel's weights as float32: [num_inputs].
void read_row(const LinearView& weight, int row, float* out);

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);

} // namespace acpu

// AVX2 with FMA and F16C.
#include "views.h"
#include "isa_avx2.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "avx2"
#include "level.h"

const acpu::Level* acpu::level_avx2() {
  return &kLevel;
}

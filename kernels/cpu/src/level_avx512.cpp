// AVX-512 with VNNI and BF16.
#include "views.h"
#define ACPU_BF16
#include "isa_avx512.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "avx512"
#include "level.h"

const acpu::Level* acpu::level_avx512() {
  return &kLevel;
}

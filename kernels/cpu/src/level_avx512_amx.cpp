// AVX-512 with VNNI and BF16, and tiles (AMX) for several rows at once.
#include "views.h"
#define ACPU_BF16
#define ACPU_TILES
#include "isa_avx512.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "avx512-amx"
#include "level.h"

const acpu::Level* acpu::level_avx512_amx() {
  return &kLevel;
}

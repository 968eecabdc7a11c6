// AVX-512 with VNNI.
#include "views.h"
#include "isa_avx512.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "avx512-vnni"
#include "level.h"

const acpu::Level* acpu::level_avx512_vnni() {
  return &kLevel;
}

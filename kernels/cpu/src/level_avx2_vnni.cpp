// AVX2 with AVX-VNNI.
#include "views.h"
#define ACPU_VNNI
#include "isa_avx2.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "avx2-vnni"
#include "level.h"

const acpu::Level* acpu::level_avx2_vnni() {
  return &kLevel;
}

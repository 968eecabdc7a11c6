// 64-bit Arm with dot products.
#include "views.h"
#include "isa_neon.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "neon"
#include "level.h"

const acpu::Level* acpu::level_neon() {
  return &kLevel;
}

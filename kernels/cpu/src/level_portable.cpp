// Any machine: what the compiler makes of plain loops.
#include "views.h"
#include "isa_portable.h"
#include "lanes.h"
#include "rows.h"
#define ACPU_LEVEL_NAME "portable"
#include "level.h"

const acpu::Level* acpu::level_portable() {
  return &kLevel;
}

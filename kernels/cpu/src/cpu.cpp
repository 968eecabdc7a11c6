// Which levels this processor and its operating system run.
#include <cstdint>
#include <cstring>

#include "failure.h"
#include "model.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace acpu {

namespace {

#if defined(__x86_64__)

struct Cpuid {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  Cpuid(uint32_t leaf, uint32_t sub) { __get_cpuid_count(leaf, sub, &a, &b, &c, &d); }
};

bool bit(uint32_t word, int n) {
  return (word >> n) & 1u;
}

uint64_t saved_states() {
  uint32_t low, high;
  __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux lets a process use tiles once it has asked; elsewhere we do not ask.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestState = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
#else
  return false;
#endif
}

void detect(std::vector<const Level*>& levels) {
  const Cpuid basic(1, 0), extended(7, 0), more(7, 1);
  const bool saves = bit(basic.c, 27);
  const uint64_t states = saves ? saved_states() : 0;
  const bool avx2 = (states & 6) == 6 && bit(basic.c, 12) && bit(basic.c, 29) && bit(extended.b, 5);
  const bool avx512 = avx2 && (states & 0xe6) == 0xe6 && bit(extended.b, 16) && bit(extended.b, 17) &&
                      bit(extended.b, 30) && bit(extended.b, 31) && bit(extended.c, 11);
  (void)avx512;
#if !defined(ACPU_WITHOUT_AVX512_AMX)
  const bool amx =
      (states & 0x60000) == 0x60000 && bit(extended.d, 22) && bit(extended.d, 24) && bit(extended.d, 25);
  if (avx512 && amx && bit(more.a, 5) && may_use_tiles()) levels.push_back(level_avx512_amx());
#endif
#if !defined(ACPU_WITHOUT_AVX512)
  if (avx512 && bit(more.a, 5)) levels.push_back(level_avx512());
#endif
#if !defined(ACPU_WITHOUT_AVX512_VNNI)
  if (avx512) levels.push_back(level_avx512_vnni());
#endif
#if !defined(ACPU_WITHOUT_AVX2_VNNI)
  if (avx2 && bit(more.a, 4)) levels.push_back(level_avx2_vnni());
#endif
#if !defined(ACPU_WITHOUT_AVX2)
  if (avx2) levels.push_back(level_avx2());
#endif
}

#elif defined(__aarch64__)

bool has_dot_product() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> 20) & 1u;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}

void detect(std::vector<const Level*>& levels) {
#if !defined(ACPU_WITHOUT_NEON)
  if (has_dot_product()) levels.push_back(level_neon());
#endif
}

#else

void detect(std::vector<const Level*>&) {}

#endif

} // namespace

const std::vector<const Level*>& available_levels() {
  static const std::vector<const Level*> levels = [] {
    std::vector<const Level*> found;
    detect(found);
    found.push_back(level_portable());
    return found;
  }();
  return levels;
}

const Level* find_level(const char* name) {
  if (!name || !*name) return available_levels().front();
  for (const Level* level : available_levels())
    if (std::strcmp(level->name, name) == 0) return level;
  fail(ACPU_UNSUPPORTED, "level '%s' does not run on this machine; it runs: %s", name, acpu_levels());
}

} // namespace acpu

extern "C" const char* acpu_levels(void) {
  static const std::string names = [] {
    std::string joined;
    for (const acpu::Level* level : acpu::available_levels())
      joined += (joined.empty() ? "" : " ") + std::string(level->name);
    return joined;
  }();
  return names.c_str();
}

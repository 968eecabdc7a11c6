// What a call could not do: a status for the caller and a sentence for the user.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>

#include "acpu.h"

namespace acpu {

struct Failure {
  int32_t status;
  std::string message;
};

#if defined(__GNUC__)
[[noreturn]] void fail(int32_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));
#endif

void set_last_error(const std::string& message);

// Runs `body`, turning failures into a status; nothing is thrown across the border.
template <class F>
int32_t guarded(F body) {
  try {
    body();
    return ACPU_OK;
  } catch (const Failure& failure) {
    set_last_error(failure.message);
    return failure.status;
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return ACPU_OUT_OF_MEMORY;
  } catch (const std::exception& problem) {
    set_last_error(problem.what());
    return ACPU_UNSUPPORTED;
  }
}

// A caller built against another layout is told so before any field is read.
template <class T>
void require_struct(const T* value, const char* name) {
  if (!value) fail(ACPU_BAD_ARGUMENT, "%s is null", name);
  if (value->struct_bytes != static_cast<int32_t>(sizeof(T)))
    fail(ACPU_BAD_ARGUMENT, "%s has %d bytes; this library expects %d", name, value->struct_bytes,
         static_cast<int>(sizeof(T)));
}

inline void require_pointer(const void* value, const char* name) {
  if (!value) fail(ACPU_BAD_ARGUMENT, "%s is null", name);
}

inline void require_activation_bits(int bits) {
  if (bits != 8 && bits != 12 && bits != ACPU_MIXED_BITS)
    fail(ACPU_BAD_ARGUMENT, "activation_bits is %d; 8, 12 and %d (mixed) are supported", bits,
         ACPU_MIXED_BITS);
}

inline void require_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(ACPU_BAD_ARGUMENT, "%s is %lld; it must be %lld to %lld", name, static_cast<long long>(value),
         static_cast<long long>(low), static_cast<long long>(high));
}

} // namespace acpu

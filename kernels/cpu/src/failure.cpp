// The last error of each thread.
#include "failure.h"

namespace acpu {

namespace {
thread_local std::string last_error;
} // namespace

void fail(int32_t status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Failure{status, text};
}

void set_last_error(const std::string& message) {
  last_error = message;
}

} // namespace acpu

extern "C" const char* acpu_last_error(void) {
  return acpu::last_error.c_str();
}

// Keeps workers off the processor that the caller runs on.
#pragma once

namespace acpu {

// The processor of the calling thread, -1 where the system does not say.
int current_processor();

// Moves the calling thread off `processor`, then lets it run anywhere again. Threads that wait for each other
// in microseconds are idle too rarely for the kernel to move them, so that two may share one processor for
// seconds while another is free: a step then takes twice its time. Nothing is pinned: on a busy machine that
// is worse.
void leave_processor(int processor);

} // namespace acpu

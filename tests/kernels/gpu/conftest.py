"""GPU kernels: `interpreted/` belongs to a process of its own, which test_interpreted.py starts."""

import os

# Triton decides when it is imported whether it compiles or interprets: one process, one mode.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]

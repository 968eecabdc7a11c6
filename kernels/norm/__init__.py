"""See Ops in kernels/ops.py for the contract."""

"""What the machine can do at best, under the names that the results use."""

from kernels.cpu.limits import PRODUCTS_GOP_S, READ_GB_S, measure_limits

__all__ = ["MACHINE", "PRODUCTS_GOP_S", "READ_GB_S", "measure_limits"]
MACHINE = "the machine"

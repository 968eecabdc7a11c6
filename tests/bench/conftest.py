"""The benchmarks are scripts of the checkout and belong to no package that is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

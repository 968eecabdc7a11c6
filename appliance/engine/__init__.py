"""The control plane: which tokens run next, for whom, in which blocks. Standard library only."""

"""Tensor operations: contracts, plain references and fast versions. Knows nothing of the appliance."""

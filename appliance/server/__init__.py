"""The HTTP surface. Loads no torch."""

"""Picking rows: reference and fast versions."""

"""Strict readers of model files over mmap. numpy only."""

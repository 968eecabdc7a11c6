"""Checks and measures the GPU engine on a machine that has little more than torch and triton."""

"""Passes over the graph for what only the native kernels here compute."""

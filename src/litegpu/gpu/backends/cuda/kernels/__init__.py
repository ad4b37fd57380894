"""Kernels in CUDA C++ for what the kernel language cannot say: tensor cores and asynchronous copies.

Each does what the kernel of the same op in the language does, which is its test.
"""

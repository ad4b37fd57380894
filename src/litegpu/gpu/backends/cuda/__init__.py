"""The CUDA backend: NVIDIA's GPUs by their own driver, with native kernels beside those of the language."""

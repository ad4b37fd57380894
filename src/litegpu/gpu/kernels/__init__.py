"""The kernels of every op of the GPU graph: each written once in the kernel language; a backend may have its own."""

"""The reference backend: kernels run by the language's own interpreter in NumPy, with its checks, on any machine."""

"""The GPU path: from a partition of a model to kernels running on a device."""

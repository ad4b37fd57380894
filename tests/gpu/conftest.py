"""Loads the backends whose native kernels these tests ask for by features alone, without opening a device."""

from litegpu.gpu.backends import registry

registry.backend("cuda")

"""Runtimes: each opens devices and runs Programs on them (base.py is the protocol, webgpu.py the portable one)."""

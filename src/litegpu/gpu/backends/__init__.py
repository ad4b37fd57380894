"""Backends: each is a folder that opens devices and runs programs on them. contract.py says what one has to have,
registry.py which there are; the other modules are what several of them use."""

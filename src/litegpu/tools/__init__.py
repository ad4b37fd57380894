"""The tools behind the `litegpu` command, built on the public API and on what the machine has."""

"""The version, in the only place that has it: packages, commands, pages and caches read it here."""

__version__ = "0.1.0"

"""Damaged models by the hundred thousand: what to damage, how, and a process to try them in."""

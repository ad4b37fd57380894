"""Whole small models at random: scripts/corpus counts how the GPU does on them, tests/gpu/test_corpus.py samples."""

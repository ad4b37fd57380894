"""Whole small models at random, and how the GPU does on them: scripts/corpus counts, tests/gpu/test_corpus.py samples."""

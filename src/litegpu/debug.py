"""What LITEGPU_DEBUG shows: 1 partitions, 2 the fused graph and the memory plan, 3 kernel texts, 4 timings."""

from __future__ import annotations

import logging
import os

PARTITIONS, GRAPH, KERNELS, TIMINGS = 1, 2, 3, 4


def level() -> int:
    """The number in the environment variable LITEGPU_DEBUG, 0 if it is unset or not a number."""
    text = os.environ.get("LITEGPU_DEBUG", "0")
    return int(text) if text.isdecimal() else 0


def say(at: int, message: str, *values: object) -> None:
    """Log `message` on "litegpu.debug" if LITEGPU_DEBUG is `at` or more; it shows on stderr without any set-up."""
    if level() >= at:
        logger = logging.getLogger("litegpu.debug")
        if not logger.handlers:
            logger.addHandler(logging.StreamHandler())
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
        logger.debug(message, *values)

"""Text for HTML and SVG, in elements and in quoted attributes."""

from __future__ import annotations

import html

from litegpu.visible import visible


def escape(text: str) -> str:
    """What a reader sees is the text; nothing in it is taken for markup, or turns around what stands beside it."""
    return html.escape(visible(text))

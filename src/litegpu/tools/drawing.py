"""Draws results on the picture that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from litegpu.tools.images import resize
from litegpu.tools.predictions import (
    LIMBS,
    Box,
    Classification,
    Detection,
    Labelled,
    Picture,
    Pose,
    Result,
    Segmentation,
)
from litegpu.visible import in_line

_SMALLEST_SIDE = 480  # of the drawing, in pixels: text has to be readable
_SHOWN_KEYPOINT = 0.05
_SHOWN_SHARE = 0.002


def draw(pixels: np.ndarray, result: Result) -> np.ndarray | None:
    """The picture (uint8 RGB) with a result drawn on it; None for results that cannot be drawn."""
    match result:
        case Classification():
            return _captioned(_enlarged(pixels), result.top)
        case Segmentation():
            return _segmented(_enlarged(pixels), result)
        case Detection():
            return _boxed(_enlarged(pixels), result)
        case Pose():
            return _posed(_enlarged(pixels), result)
        case Picture():
            return result.pixels
    return None


def draw_boxes(pixels: np.ndarray, found: Sequence[Box], wanted: Sequence[Box]) -> np.ndarray:
    """Boxes that were found, each in the colour of its class with its score, on those that should be found, in white
    with their labels at the bottom; uint8 RGB."""
    image, font, line = _canvas(_enlarged(pixels))
    pen = ImageDraw.Draw(image)
    for box in wanted:
        left, top, right, bottom = _edges(image, box)
        pen.rectangle((left - line, top - line, right + line, bottom + line), outline=(0, 0, 0), width=3 * line)
        pen.rectangle((left, top, right, bottom), outline=(255, 255, 255), width=line)
        _tag(pen, max(left, 0), bottom - font.size * 1.2, box.found.label, font, (255, 255, 255))
    _outline(image, font, line, found)
    return np.asarray(image)


def palette(count: int) -> np.ndarray:
    """The colours of the PASCAL VOC devkit, uint8 [count, 3]: bit j of a channel, from the top, is bit 3j + channel of
    the class number. Class 0 is black."""
    colours = np.zeros((count, 3), np.int64)
    numbers = np.arange(count)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> (3 * bit + channel)) & 1) << (7 - bit)
    return colours.astype(np.uint8)


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    factor = _SMALLEST_SIDE / min(pixels.shape[:2])
    if factor <= 1:
        return pixels
    return resize(pixels, round(pixels.shape[0] * factor), round(pixels.shape[1] * factor))


def _captioned(pixels: np.ndarray, top: Sequence[Labelled]) -> np.ndarray:
    lines = [(f"{entry.label}  {entry.score:.3f}", None) for entry in top]
    return _with_legend(pixels, lines)


def _segmented(pixels: np.ndarray, result: Segmentation) -> np.ndarray:
    height, width = pixels.shape[:2]
    colours = palette(max(256, int(result.mask.max()) + 1))
    rows = np.arange(height) * result.mask.shape[0] // height
    columns = np.arange(width) * result.mask.shape[1] // width
    mask = result.mask[rows][:, columns]
    blended = (0.4 * pixels + 0.6 * colours[mask] + 0.5).astype(np.uint8)
    overlaid = np.where((mask != 0)[..., None], blended, (pixels * 0.6).astype(np.uint8))
    overlaid[_borders(mask, max(1, min(height, width) // 400))] = 255
    entries = [
        (f"{entry.label}  {entry.score:.1%}", tuple(int(c) for c in colours[entry.index]))
        for entry in result.shares
        if entry.score >= _SHOWN_SHARE
    ]
    return _with_legend(overlaid, entries)


def _borders(mask: np.ndarray, width: int) -> np.ndarray:
    """Pixels that have another class within `width` pixels below or to the right."""
    borders = np.zeros(mask.shape, bool)
    for step in range(1, width + 1):
        borders[:-step] |= mask[:-step] != mask[step:]
        borders[:, :-step] |= mask[:, :-step] != mask[:, step:]
    return borders


def _boxed(pixels: np.ndarray, result: Detection) -> np.ndarray:
    image, font, line = _canvas(pixels)
    _outline(image, font, line, result.boxes)
    return np.asarray(image)


def _outline(image: Image.Image, font: ImageFont.FreeTypeFont, line: int, boxes: Sequence[Box]) -> None:
    pen = ImageDraw.Draw(image)
    colours = palette(256)
    for box in reversed(boxes):  # the best on top
        colour = tuple(int(c) for c in colours[box.found.index % 255 + 1])
        left, top, right, bottom = _edges(image, box)
        pen.rectangle((left, top, right, bottom), outline=colour, width=line)
        _tag(pen, max(left, 0), max(top - font.size * 1.2, 0), f"{box.found.label} {box.found.score:.2f}", font, colour)


def _edges(image: Image.Image, box: Box) -> tuple[float, float, float, float]:
    left, right = sorted((box.left * image.width, box.right * image.width))
    top, bottom = sorted((box.top * image.height, box.bottom * image.height))
    return left, top, right, bottom


def _posed(pixels: np.ndarray, result: Pose) -> np.ndarray:
    image, font, line = _canvas(pixels)
    pen = ImageDraw.Draw(image)
    points = [(k.x * image.width, k.y * image.height) for k in result.keypoints]
    shown = [k.score >= _SHOWN_KEYPOINT for k in result.keypoints]
    for start, end in LIMBS:
        if shown[start] and shown[end]:
            pen.line((points[start], points[end]), fill=(255, 220, 0), width=line)
    for (x, y), visible in zip(points, shown, strict=True):
        if visible:
            pen.ellipse((x - 2 * line, y - 2 * line, x + 2 * line, y + 2 * line), fill=(230, 30, 60))
    _tag(pen, 0, 0, f"{sum(shown)} of {len(shown)} keypoints", font, (230, 30, 60))
    return np.asarray(image)


def _with_legend(pixels: np.ndarray, lines: Sequence[tuple[str, tuple[int, ...] | None]]) -> np.ndarray:
    """Lines of text on a dark panel in the upper left corner, each with a square of its colour if it has one."""
    image, font, _ = _canvas(pixels)
    pen = ImageDraw.Draw(image, "RGBA")
    lines = [(in_line(text), colour) for text, colour in lines]
    step = font.size * 1.3
    indent = step if any(colour for _, colour in lines) else 0
    widest = max((pen.textlength(text, font=font) for text, _ in lines), default=0)
    pen.rectangle((0, 0, indent + widest + step, step * (len(lines) + 0.4)), fill=(0, 0, 0, 170))
    for row, (text, colour) in enumerate(lines):
        y = step * (row + 0.2)
        if colour is not None:
            pen.rectangle((step * 0.3, y + step * 0.1, step, y + step * 0.8), fill=colour, outline=(255, 255, 255))
        pen.text((indent + step * 0.4, y), text, fill=(255, 255, 255), font=font)
    return np.asarray(image)


def _tag(
    pen: ImageDraw.ImageDraw, x: float, y: float, text: str, font: ImageFont.FreeTypeFont, colour: tuple[int, ...]
) -> None:
    text = in_line(text)
    pen.rectangle(pen.textbbox((x + 3, y), text, font=font), fill=colour)
    light = sum(colour) > 380
    pen.text((x + 3, y), text, fill=(0, 0, 0) if light else (255, 255, 255), font=font)


def _canvas(pixels: np.ndarray) -> tuple[Image.Image, ImageFont.FreeTypeFont, int]:
    """An image to draw on, a font and a line width in proportion to it."""
    size = max(12, min(pixels.shape[:2]) // 26)
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise ImportError("Pillow was built without FreeType, so nothing can be written on pictures")
    return Image.fromarray(pixels), font, max(2, size // 6)

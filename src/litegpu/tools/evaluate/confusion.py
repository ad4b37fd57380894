"""The confusion matrix of a classifier, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_SIDE = 900  # of the matrix, in pixels, at most
_LARGEST_CELL = 120
_MOST_NAMED = 40  # classes that still have room for their labels
_LONGEST = 22
_INK, _GRID = (40, 44, 52), (225, 228, 233)
_RIGHT, _WRONG = (26, 110, 64), (192, 47, 61)


def confusion_matrix(counts: Mapping[tuple[str, str], int], labels: Sequence[str]) -> np.ndarray:
    """int64 [true label, label put first], in the order of `labels`."""
    places = {label: i for i, label in enumerate(labels)}
    matrix = np.zeros((len(labels), len(labels)), np.int64)
    for (truth, predicted), count in counts.items():
        matrix[places[truth], places[predicted]] += count
    return matrix


def confusion_picture(matrix: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """uint8 RGB [height, width, 3]: a row for each true label, a column for each that was put first; the darker, the
    larger the share of the row. The diagonal is green, mistakes are red."""
    count = len(labels)
    named = count <= _MOST_NAMED
    cell = min(max(1, _SIDE // count), _LARGEST_CELL)
    side = cell * count
    margin, head = (9 * _LONGEST if named else 30), (9 * _LONGEST if named else 50)
    image = Image.new("RGB", (side + margin + 20, side + head + 20), "white")
    image.paste(Image.fromarray(_coloured(matrix)).resize((side, side), Image.Resampling.NEAREST), (margin, head))
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(14)
    pen.rectangle((margin - 1, head - 1, margin + side, head + side), outline=_GRID)
    pen.text((8, 8), "columns: label put first; rows: true label", fill=_INK, font=font)
    if named:
        for i, label in enumerate(labels):
            short = label if len(label) <= _LONGEST else label[: _LONGEST - 2] + ".."
            middle = cell * i + cell / 2
            pen.text((margin - 8, head + middle), short, fill=_INK, font=font, anchor="rm")
            _upright(image, short, font, (round(margin + middle), head - 8))
    return np.asarray(image)


def _coloured(matrix: np.ndarray) -> np.ndarray:
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.sqrt(matrix / np.maximum(totals, 1))[..., None]  # small shares have to be seen
    ink = np.where(np.eye(len(matrix), dtype=bool)[..., None], np.array(_RIGHT), np.array(_WRONG))
    coloured: np.ndarray = np.rint(255 * (1 - shares) + ink * shares).astype(np.uint8)
    return coloured


def _upright(
    image: Image.Image, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, foot: tuple[int, int]
) -> None:
    """Text that reads upwards, its beginning at `foot`."""
    width, height = round(font.getlength(text)) + 2, 20
    strip = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(strip).text((0, height / 2), text, fill=_INK, font=font, anchor="lm")
    image.paste(strip.transpose(Image.Transpose.ROTATE_90), (foot[0] - height // 2, foot[1] - width))

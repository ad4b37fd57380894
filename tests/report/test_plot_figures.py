"""Where marks stand and what tooltips, drawings and verdicts say: numbers that were worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.report import charts
from litegpu.report.charts import _Axis
from litegpu.report.plot import Line, Plot, Rect, Text, _strokes
from litegpu.tools.drawing import draw, draw_boxes
from litegpu.tools.inference_diff.measures import Difference
from litegpu.tools.inference_diff.per_op import _concluded, _deviates, _growth
from litegpu.tools.predictions import KEYPOINTS, Box, Keypoint, Labelled, Pose, Segmentation
from litegpu.visible import in_line, visible


def rects(plot: Plot) -> list[Rect]:
    return [m for m in plot.marks if isinstance(m, Rect) and m.title]


def ticks(plot: Plot) -> list[str]:
    return [m.text for m in plot.marks if isinstance(m, Text) and m.role == "muted"]


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([0.0, 10.0], [0, 2, 4, 6, 8, 10]), ([0.0, 24.0], [0, 5, 10, 15, 20, 25]),
        ([-3.0, 3.0], [-3, -2, -1, 0, 1, 2, 3]), ([0.0, 0.6], [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    ],
)  # fmt: skip
def test_ticks_are_round(values: list[float], steps: list[float]) -> None:
    axis = _Axis(values, 100.0, 400.0)
    assert axis.ticks == pytest.approx(steps)
    whole = steps[-1] - steps[0]
    assert [axis(t) for t in steps] == pytest.approx([100 + 300 * (t - steps[0]) / whole for t in steps])


def test_logarithmic_axes() -> None:
    axis = _Axis([0.02, 300.0, -1.0, float("nan")], 0.0, 500.0, log=True)
    assert axis.ticks == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])
    assert [axis(v) for v in (0.01, 1, 1000, 10**0.5)] == pytest.approx([0, 200, 500, 250])


def test_bars_stand_one_below_the_other_and_begin_at_zero() -> None:
    plot = charts.bars("t", ["a", "b"], {"x": [10.0, -5.0], "y": [float("nan"), 5.0]}, unit="ms")
    found = rects(plot)
    assert [r.title for r in found] == ["a, x: 10 ms", "b, x: -5 ms", "b, y: 5 ms"]
    first, left, right = found
    zero = first.x
    assert left.x + left.width == pytest.approx(zero) and right.x == pytest.approx(zero)
    assert first.width == pytest.approx(2 * left.width) == pytest.approx(2 * right.width)
    assert right.y == left.y + 12 and left.y == first.y + 32
    assert sum(text == "nan" for text in ticks(plot)) == 1


def test_bars_of_a_histogram_stand_on_its_axis() -> None:
    plot = charts.histogram("t", [0.0, 1.0, 2.0, 3.0], [2, 0, 4])
    low, high = rects(plot)
    assert [low.title, high.title] == ["0 to 1: 2", "2 to 3: 4"]
    assert low.y + low.height == pytest.approx(240) == pytest.approx(high.y + high.height)
    assert high.height == pytest.approx(2 * low.height) and high.x - low.x == pytest.approx(2 * (low.width + 1))


def test_dashes_are_half_of_a_line() -> None:
    drawn = _strokes(Line(((0.0, 0.0), (0.0, 100.0)), "bad", dashed=True))
    assert sum(end[1] - start[1] for start, end in drawn) == pytest.approx(50, abs=5) and len(drawn) > 3
    assert _strokes(Line(((0.0, 0.0), (3.0, 4.0), (5.0, 5.0)), "bad")) == [((0, 0), (3, 4)), ((3, 4), (5, 5))]


def test_tooltips_are_text() -> None:
    svg = Plot("t", 9, 9, (Rect(0, 0, 1, 1, "s1", "<b>&"),)).svg()
    assert "<title>&lt;b&gt;&amp;</title>" in svg


# Drawings

GREY = np.full((500, 800, 3), 128, np.uint8)


def changed(drawn: np.ndarray | None) -> np.ndarray:
    assert drawn is not None
    return np.asarray((drawn != GREY).any(axis=2))


def box(top: float, left: float, bottom: float, right: float, index: int) -> Box:
    return Box(top, left, bottom, right, Labelled(index, "", 0.5))


def test_boxes_stand_where_they_are_and_the_best_on_top() -> None:
    marks = changed(draw_boxes(GREY, [box(0.5, 0.25, 0.75, 0.5, 1)], []))
    rows, columns = np.nonzero(marks[:, 300:])
    assert abs(rows.max() - 375) <= 1 and abs(columns.max() + 300 - 400) <= 1
    assert marks[300, 200] and not marks[300, 300] and not marks[:200].any()
    both = draw_boxes(GREY, [box(0.5, 0.25, 0.75, 0.5, 1), box(0.5, 0.25, 0.75, 0.5, 2)], [])
    alone = draw_boxes(GREY, [box(0.5, 0.25, 0.75, 0.5, 1)], [])
    assert (both[370:376, 250:350] == alone[370:376, 250:350]).all()


def test_masks_lie_on_their_pixels() -> None:
    mask = np.zeros((4, 8), int)
    mask[0, 7] = 1
    drawn = draw(GREY, Segmentation(mask, ()))
    assert drawn is not None
    assert drawn[60, 750].tolist() == [128, 51, 51], "a quarter of the height, an eighth of the width"
    assert drawn[60, 50].tolist() == drawn[400, 750].tolist() == [76, 76, 76]


def test_keypoints_that_were_hardly_found_are_left_out() -> None:
    points = [Keypoint(name, 0.5, 0.5, 0.04) for name in KEYPOINTS]
    points[0] = Keypoint("nose", 0.8, 0.25, 0.06)
    drawn = draw(GREY, Pose(tuple(points)))
    marks = changed(drawn)
    assert marks[400, 200] and not marks[250, 400]
    rows, columns = np.nonzero(marks[100:])
    assert abs(rows.mean() + 100 - 400) < 1 and abs(columns.mean() - 200) < 1


# Texts and verdicts


def test_lines_are_cut_beyond_their_length() -> None:
    assert [in_line("a" * n, 5) for n in (4, 5, 6)] == ["aaaa", "aaaaa", "aaaa…"]
    assert visible("\x1b\x9b\u202e\U000e0001\u0300") == "\\x1b\\x9b\\u202e\\U000e0001\u0300"
    assert visible("\u061c\u00ad") == "\\u061c\\xad"
    assert in_line("a\tb\nc\r", None) == "a\\tb\\nc\\r"


def difference(error: float, quanta: float | None = None) -> Difference:
    return Difference(0.0, quanta, error, 0.0, 1.0, 0.0, None)


def test_ops_deviate_beyond_the_tolerance_and_one_step() -> None:
    assert not _deviates(difference(0.25), 0.25) and _deviates(difference(0.26), 0.25)
    assert not _deviates(difference(9.0, 1.0), 0.25) and _deviates(difference(9.0, 2.0), 0.25)
    assert _deviates(difference(float("nan")), 0.25) and not _deviates(None, 0.25)
    assert _growth(0.5, [0.125, None, 0.25]) == 2.0 and _growth(0.5, []) is None and _growth(0.5, [0.0]) is None


def test_the_first_op_that_deviates_by_itself_is_blamed() -> None:
    def row(node: int, alone: float | None, lock_step: float, kernel: tuple[int, ...] = (), joined: float = 0.0) -> Any:
        from litegpu.tools.inference_diff.per_op import NodeDifference

        found = [None if e is None else difference(e) for e in (lock_step, alone, joined)]
        return NodeDifference(node, "ADD", "GPU", "t", (1,), kernel, found[0], found[1], found[2], None)

    rows = (row(0, 0.0, 0.3), row(1, 0.5, 0.5), row(2, 0.9, 0.9), row(3, 0.0, 0.0, (3, 4), 0.7))
    found = _concluded(rows, 0.25, True, True, ())
    values = list(vars(found).values())
    assert values[2:5] == [1, (3, 4), 0]

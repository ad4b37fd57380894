"""Pages and plots: well-formed, without references to anything outside, the same in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import check_self_contained
from PIL import Image

import litegpu
from litegpu.errors import OptionError
from litegpu.report import GraphNode, Page, Plot, bars, graph_nodes, histogram, lines
from litegpu.report.network import picture
from litegpu.report.plot import Line, Text
from litegpu.report.style import style_sheet
from litegpu.zoo import build_model


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page with one of everything."""
    png = tmp_path_factory.mktemp("report") / "dot.png"
    Image.new("RGB", (4, 4), "red").save(png)
    nodes = [
        GraphNode(0, "CONV_2D", "GPU"),
        GraphNode(1, "CUSTOM<b>", "CPU", (0,), "why & how"),
        GraphNode(2, "ADD", "GPU", (0, 1), marked=True),
    ]
    return (
        Page("A <title> & more", subtitle="sub")
        .figures([("median", "1.2 ms"), ("error", "1e-3", "bad")])
        .section("Section <1>")
        .text("para & graph")
        .code("litegpu x <y>")
        .table(("name", "ms"), [("a<b", "1.5"), ("c", "2 ms")], caption="cap", marked=[1])
        .table(("name",), [("folded",)], folded=True, caption="rest")
        .plot(bars("Bars", ["one", "two"], {"a": [1, 2], "b": [3, float("inf")]}, unit="ms"))
        .plot(lines("Lines", {"x": [1e-7, 0.0, 1e-3], "y": [(0, 1.0), (2, 2.0)]}, log=True, dots=True, mark=1))
        .plot(histogram("Histogram", [0, 1, 2, 3], [5, 0, 2]))
        .image(png.read_bytes(), alt="a dot")
        .graph(nodes)
    )


def test_a_page_is_well_formed_escaped_and_self_contained(page: Page) -> None:
    html = page.html()
    reader = check_self_contained(html)
    text = " ".join(reader.text)
    for expected in ("A <title> & more", "Section <1>", "a<b", "CUSTOM<b>", "para & graph", "litegpu x <y>", "folded"):
        assert expected in text
    assert reader.seen.count("svg") == 4 and reader.seen.count("table") == 2
    assert reader.references and reader.references[0].startswith("data:image/png;base64,")
    assert "prefers-color-scheme:dark" in html and 'name="viewport"' in html
    assert "<td class=num>2 ms</td>" in html and '<dd class="bad">1e-3</dd>' in html
    assert "<tr class=marked><td>c</td>" in html


def test_every_colour_that_a_page_uses_is_in_both_schemes(page: Page) -> None:
    html = page.html()
    used = set(re.findall(r"var\(--(\w+)\)", html)) | set(re.findall(r'class="[fl]-(\w+)"', html))
    light, dark = (set(re.findall(r"--(\w+):#", part)) for part in html.split("@media (prefers-color-scheme:dark)", 1))
    assert used <= light and light == dark


def test_a_page_that_cannot_be_written_is_an_error(page: Page, tmp_path: Path) -> None:
    page.write(tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == page.html()
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="Cannot write"):
        page.write(tmp_path / "file" / "page.html")


@pytest.mark.parametrize(
    "plot",
    [
        bars("b", ["one", "two"], {"a": [1e-6, 0.0]}, log=True),
        bars("none", [], {"a": []}),
        bars("all zero", ["x"], {"a": [0.0]}),
        bars("below", ["x", "y"], {"a": [-3.0, 2.0]}),
        lines("l", {"a": [1, 2, 3]}, x_label="node"),
        lines("one", {"a": [5.0]}),
        lines("nothing", {"a": []}, log=True),
        lines("no numbers", {"a": [float("nan"), float("inf")]}),
        histogram("h", [1e-9, 1e-8, 1e-7], [1000, 1], log_counts=True, x_label="error"),
        histogram("empty", [0, 1], [0]),
    ],
    ids=lambda plot: plot.title,
)
def test_plots_are_valid_svg_and_png_inside_their_frame(plot: Plot, tmp_path: Path) -> None:
    plot.write(tmp_path / "p.svg")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    for element in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(element.get(name, "nan")) for name in ("x", "y", "width", "height"))
        assert min(x, y) >= -10 and x + w <= plot.width + 10.2 and y + h <= plot.height + 10.2
    for element in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in element.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= plot.width and 0 <= y <= plot.height
    plot.write(tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.size == (round(plot.width * 2 + 40), round(plot.height * 2 + 40))
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 1  # something was drawn


def test_bars_are_as_long_as_their_values() -> None:
    found = re.findall(r'width="([\d.]+)" height="14.0"', bars("b", ["x", "y", "z"], {"a": [1, 2, 4]}).svg())
    assert [float(w) / float(found[0]) for w in found] == pytest.approx([1, 2, 4], rel=0.01)


def test_plots_have_two_file_formats(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.png or \.svg"):
        bars("b", ["x"], {"a": [1]}).write(tmp_path / "p.pdf")


def test_the_graph_of_a_model_by_partition() -> None:
    content = build_model("deeplab_v3", resolution=33)
    interpreter, model = litegpu.Interpreter(model_content=content), litegpu.read_model(content)
    nodes = graph_nodes(model.main, interpreter.delegation_report(), {3: "slow"}, marked=[3])
    assert [n.index for n in nodes] == list(range(len(model.main.operators)))
    assert nodes[3].note == "slow" and nodes[3].marked and not nodes[4].marked
    joins = [n for n in nodes if n.op == "ADD"]
    assert joins and all(len(n.inputs) == 2 for n in joins)
    plot = picture(nodes)
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="190.0"', plot.svg())
    assert len(boxes) == len(nodes) == len(set(boxes))  # none on top of another
    heights = [float(y) for _, y in boxes]
    assert all(heights[n.index] > heights[s] for n in nodes for s in n.inputs)


def test_a_large_graph_is_listed() -> None:
    nodes = [GraphNode(i, "ADD", "CPU", (i - 1,) if i else ()) for i in range(700)]
    html = Page("large").graph(nodes).html()
    assert "<svg" not in html and "699 ADD" in html


def browser() -> str:
    """A Chromium, or a skip."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_in_both_schemes_and_on_a_phone(page: Page, tmp_path: Path, scheme: str) -> None:
    page.write(tmp_path / "page.html")
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=500,900",
        f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'shot.png'}",
        *(["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []),
        (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Refused to" not in done.stderr  # the policy in the page allows all that is in it
    with Image.open(tmp_path / "shot.png") as image:
        background = image.convert("RGB").getpixel((2, 2))
        assert isinstance(background, tuple)
        assert min(background) > 240 if scheme == "light" else max(background) < 60
        colours = image.convert("RGB").getcolors(1 << 24) or []
        assert len(colours) > 20


def test_charts_are_never_cut_off() -> None:
    """Neither by the height of a window nor by the width of a phone; large graphs scroll by themselves."""
    chart = bars("t", [f"op {i}" for i in range(80)], {"ms": [1.0] * 80})
    assert '<div class="wide chart"><svg' in Page("t").plot(chart).html()
    assert "max-width:40rem){figure .wide.chart{overflow-x:auto}" in Page("t").html()  # on a telephone it scrolls
    sheet = style_sheet()
    assert "figure .wide.chart{overflow:visible;max-height:none}" in sheet and "min-width:34rem" not in sheet
    graph = Page("t").graph([GraphNode(0, "ADD", "CPU")]).html()
    assert '<div class="wide" tabindex="0"><svg' in graph and 'class="as-is"' in graph


def test_long_legends_take_several_rows() -> None:
    series = {f"configuration with a long name {i}": [1.0, 2.0] for i in range(8)}
    for plot in (bars("t", ["a", "b"], series), lines("t", series)):
        names = [m for m in plot.marks if isinstance(m, Text) and m.text.startswith("configuration")]
        assert len(names) == 8 and len({m.y for m in names}) > 1
        assert all(m.x + 8 * len(m.text) < plot.width + 40 for m in names)
        first = min(m.points[0][1] for m in plot.marks if isinstance(m, Line))
        assert max(m.y for m in names) < first


HOSTILE = "a\x1b[31m</script><img src=x onerror=alert(1)>\" onload='x' \u202etxt.exe\n\x00\u2028" + "long " * 3000


def test_texts_from_files_stay_texts() -> None:
    """Whatever stands in a name is seen as such: no markup, no control characters, no change of direction."""
    nodes = [GraphNode(0, HOSTILE, HOSTILE, (), HOSTILE, True), GraphNode(1, "ADD", "CPU", (0,))]
    page = Page(HOSTILE, subtitle=HOSTILE, footer=HOSTILE)
    page.figures([(HOSTILE, HOSTILE, HOSTILE)]).section(HOSTILE).text(HOSTILE, HOSTILE).code(HOSTILE)
    page.table([HOSTILE], [[HOSTILE]], caption=HOSTILE).table(["a"], [[HOSTILE]], caption=HOSTILE, folded=True)
    page.plot(bars(HOSTILE, [HOSTILE], {HOSTILE: [1.0], "b": [2.0]}, unit=HOSTILE), caption=HOSTILE)
    page.plot(lines(HOSTILE, {HOSTILE: [1.0, 2.0]}, x_label=HOSTILE, dots=True, point_labels=[HOSTILE]))
    page.image(b"", alt=HOSTILE, caption=HOSTILE).graph(nodes)
    html = page.html()
    assert "<script" not in html and "<img src=x" not in html and " onload='x" not in html and 'l" onload' not in html
    assert not any(c in html for c in "\x1b\u202e\x00\u2028") and "\\x1b[31m" in html
    ElementTree.fromstring(bars(HOSTILE, [HOSTILE], {HOSTILE: [1.0], "b": [2.0]}).svg(standalone=True))

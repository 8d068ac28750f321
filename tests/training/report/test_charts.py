"""Line charts and histograms as SVG."""

import math
import re
from xml.etree import ElementTree

import pytest

from tsplat.training.report.charts import POINTS_MAX, VARIABLES, Series, compact, histogram, line_chart


def chart(*series, **options):
    return parsed(line_chart("PSNR", series, show="{:.2f}".format, **options))


def parsed(chart):
    return ElementTree.fromstring(chart["svg"])


def areas(figure):
    """Left and right edge, and text, of each area that shows values."""
    found = []
    for group in figure.iter("g"):
        if group.get("class") == "at":
            xs = [x for x, _ in points(group.find(".//path"))]
            found.append((min(xs), max(xs), group.find("title").text))
    return found


def readouts(figure):
    return [text for *_, text in areas(figure)]


def points(path):
    return [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", path.get("d"))]


def paths(figure, color):
    """The points of each curve or bar chart of a color."""
    styled = [node for node in figure.iter("path") if node.get("clip-path") and f"var({color})" in node.get("style")]
    return [points(node) for node in styled]


def test_compact_numbers():
    assert [compact(v) for v in (0, 0.25, 4000, 12000, 1.5e6, 2e9, -3e4)] == [
        "0", "0.25", "4,000", "12k", "1.5M", "2G", "-30k",
    ]  # fmt: skip


def test_values_under_the_pointer():
    series = [Series("training", [(10, 20.0), (20, 22.5)], "faint"), Series("test", [(0, 15.0), (20, 21.25)])]
    figure = chart(*series)
    assert readouts(figure) == ["step 0: 15.00 test", "step 10: 20.00 training", "step 20: 22.50 training  21.25 test"]
    # The areas cover the chart without gaps.
    ends = areas(figure)
    assert [right for _, right, _ in ends[:-1]] == pytest.approx([left for left, *_ in ends[1:]])
    found = line_chart("PSNR", series, show=str)
    assert found["keys"] == [{"label": "training", "style": "faint"}, {"label": "test", "style": "main"}]


def test_higher_values_are_higher_in_the_chart():
    (line,) = paths(chart(Series("test", [(0, 1.0), (5, 3.0), (10, 2.0)])), "--accent")
    (x0, y0), (x1, y1), (x2, y2) = line
    assert x0 < x1 < x2
    assert y1 < y2 < y0


def test_colors_are_those_of_the_page():
    series = [Series("a", [(0, 1.0)], "faint"), Series("b", [(1, 2.0)])]
    text = line_chart("x", series, show=str)["svg"]
    assert set(re.findall(r"var\((--\w+)\)", text)) == {"--accent", "--faint", "--line", "--soft"}
    assert not any(color in text for color in VARIABLES)


def test_equal_charts_are_equal_and_names_in_a_page_differ():
    charts = [line_chart(t, [Series("a", [(0, 1.0), (1, 2.0)])], show=str) for t in "aab"]
    one, two, other = (chart["svg"] for chart in charts)
    assert one == two
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, other)]
    assert all(ids) and not ids[0] & ids[1]


def test_labels_are_escaped():
    figure = parsed(line_chart("<b>", [Series("a", [(0, 1.0)])], show=lambda _: "<&>"))
    assert readouts(figure) == ["step 0: <&>"]


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_without_finite_values_there_is_no_chart(values):
    series = Series("test", [(i, v) for i, v in enumerate(values)])
    assert line_chart("PSNR", [series], show=str) == {"title": "PSNR", "keys": [], "svg": None}


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [0.0], [1e300, -1e300], [1e-300], [1.0, math.nan, 3.0]])
def test_unusual_values_give_finite_coordinates(values):
    text = line_chart("x", [Series("a", list(enumerate(values)))], show=str, from_zero=True)["svg"]
    assert not re.search(r"\bnan|\binf", text)
    assert len(paths(ElementTree.fromstring(text), "--accent")) == 1


def test_long_series_are_thinned():
    values = [(float(i), float(i % 2)) for i in range(5000)]
    for style in ("faint", "main"):
        figure = chart(Series("a", values, style))
        assert 50 < len(readouts(figure)) <= POINTS_MAX
        # Neighbors are averaged, and the last marker is that of the last point.
        assert ("step 20: 0.50" in readouts(figure)) == (style == "faint")
        assert (readouts(figure)[-1] == "step 4,999: 1.00") == (style == "main")


def test_histogram():
    figure = parsed(histogram("Opacity", [0, 0.5, 1], [3, 1200], noun="Gaussians"))
    assert readouts(figure) == ["0 to 0.5: 3 Gaussians", "0.5 to 1: 1,200 Gaussians"]
    (outline,) = paths(figure, "--bar")
    top, low, bottom = sorted({y for _, y in outline})
    assert (bottom - top) / 1200 == pytest.approx((bottom - low) / 3, rel=0.01)


@pytest.mark.parametrize(("low", "high"), [(-3, 2), (-1.3, -0.9), (0, 0.4), (-30, 30), (0.1, 0.1001)])
def test_logarithmic_axis_has_a_few_labels(low, high):
    figure = parsed(histogram("Scale", [low, (low + high) / 2, high], [1, 2], log=True))
    (left, *_), (_, right, _) = areas(figure)
    texts = list(figure.iter("text"))
    bottom = max(float(node.get("y")) for node in texts)
    labels = [node for node in texts if float(node.get("y")) > bottom - 1]
    assert 2 <= len(labels) <= 16
    for node in labels:
        position = low + (float(node.get("x")) - left) / (right - left) * (high - low)
        value = float(node.text.replace("M", "e6").replace("k", "e3").replace("G", "e9"))
        assert value == pytest.approx(10**position, rel=0.01 + 0.02 * (high - low))


def test_empty_histogram():
    assert not re.search(r"\bnan", histogram("Opacity", [0, 1], [0])["svg"])

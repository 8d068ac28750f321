"""Line charts and histograms as SVG."""

import math
import re
from xml.etree import ElementTree

import pytest

from tsplat.viewing.charts import POINTS_MAX, Series, compact, histogram, line_chart, ticks


def chart(*series, **options):
    return ElementTree.fromstring(line_chart("PSNR", series, x_label="steps", show=lambda v: f"{v:.2f}", **options))


def readouts(figure):
    return [node.text for node in figure.iter("text") if node.get("class") == "end readout"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (14.2, 26.1, [15, 20, 25]),
        (0, 30000, [0, 10000, 20000, 30000]),
        (-3e-7, 3e-7, [-2e-7, 0, 2e-7]),
        (5, 5, [5]),
        (0, math.inf, [0]),
    ],
)
def test_ticks(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_compact_numbers():
    assert [compact(v) for v in (0, 0.25, 4000, 12000, 1.5e6, 2e9, -3e4)] == [
        "0", "0.25", "4000", "12k", "1.5M", "2G", "-30k",
    ]  # fmt: skip


def test_values_under_the_pointer():
    figure = chart(Series("training", [(10, 20.0), (20, 22.5)], "faint"), Series("test", [(0, 15.0), (20, 21.25)]))
    assert readouts(figure) == ["step 0: 15.00 test", "step 10: 20.00 training", "step 20: 22.50 training  21.25 test"]
    areas = [node for node in figure.iter("rect") if node.get("class") == "hit"]
    # The areas cover the chart without gaps.
    ends = [float(node.get("x")) + float(node.get("width")) for node in areas]
    assert ends[:-1] == pytest.approx([float(node.get("x")) for node in areas[1:]], abs=0.2)
    assert [node.text for node in figure.iter("span")] == ["training", "test"]


def test_higher_values_are_higher_in_the_chart():
    line = chart(Series("test", [(0, 1.0), (5, 3.0), (10, 2.0)])).find(".//polyline").get("points")
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in line.split())
    assert x0 < x1 < x2
    assert y1 < y2 < y0


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_without_finite_values_there_is_a_remark(values):
    figure = chart(Series("test", [(i, v) for i, v in enumerate(values)]))
    assert figure.find(".//svg") is None
    assert figure.find("p").text == "No values were recorded."


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [0.0], [1e300, -1e300], [1e-300], [1.0, math.nan, 3.0]])
def test_unusual_values_give_finite_coordinates(values):
    text = line_chart("x", [Series("a", list(enumerate(values)))], x_label="steps", show=str, from_zero=True)
    assert not re.search(r"nan|inf(?!o)", text)
    assert len(list(ElementTree.fromstring(text).iter("polyline"))) == 1


def test_long_series_are_thinned():
    points = [(float(i), float(i % 2)) for i in range(5000)]
    faint, main = chart(Series("a", points, "faint")), chart(Series("a", points))
    for figure in (faint, main):
        assert 50 < len(figure.find(".//polyline").get("points").split()) <= POINTS_MAX
    # Neighbors are averaged, and the last marker is that of the last point.
    assert "step 20: 0.50" in readouts(faint)
    assert readouts(main)[-1] == "step 4,999: 1.00"


def test_histogram():
    figure = ElementTree.fromstring(histogram("Opacity", [0, 0.5, 1], [3, 1200], noun="Gaussians"))
    assert readouts(figure) == ["0 to 0.5: 3 Gaussians", "0.5 to 1: 1,200 Gaussians"]
    heights = [float(node.get("height")) for node in figure.iter("rect") if node.get("class") == "bar"]
    assert heights[1] / 1200 == pytest.approx(heights[0] / 3, rel=0.2)


@pytest.mark.parametrize(("low", "high"), [(-3, 2), (-1.3, -0.9), (0, 0.4), (-30, 30), (0.1, 0.1001)])
def test_logarithmic_axis_has_a_few_labels(low, high):
    figure = ElementTree.fromstring(histogram("Scale", [low, (low + high) / 2, high], [1, 2], log=True))
    labels = [node for node in figure.iter("text") if node.get("class") == "middle"]
    assert 2 <= len(labels) <= 8
    for node in labels:
        position = low + (float(node.get("x")) - 48) / 340 * (high - low)
        assert float(node.text) == pytest.approx(10**position, rel=0.01 + 0.02 * (high - low))


def test_empty_histogram():
    assert "nan" not in histogram("Opacity", [0, 1], [0])

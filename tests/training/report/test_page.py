"""The page of a run: structure, figures, escaping, size."""

import dataclasses
import math
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.pages import Page, run_browser
from tests.support.plain_results import simplify
from tests.support.slow import slow_after
from tests.support.training_scenes import HEIGHT, WIDTH, make_gaussians, make_views
from tsplat.strategies import MCMCStrategy
from tsplat.training import History, RunConfig, preset
from tsplat.training.configuration import Config
from tsplat.training.presets import PRESETS
from tsplat.training.report.page import RunPage, ShownView, choose_views, render_page, write_run_page
from tsplat.training.report.quality import floater_shares, score_regions

pytestmark = pytest.mark.xdist_group("page")

HOSTILE = "<script>document.title='x'</script><img src=x onerror=alert(1)>\"'{{body}}"
URLS = {"src", "href", "action", "data", "poster", "srcset", "xlink:href", "background", "formaction"}


@pytest.fixture(scope="module")
def page():
    """A page with everything, and metrics of three views."""
    gaussians = make_gaussians()
    views = make_views(gaussians, 3)
    rows = [
        {"name": "a", "psnr": 21.123456, "ssim": 0.71234567, "seconds": 0.0125},
        {"name": "b", "psnr": 9.5, "ssim": 0.6, "seconds": 0.5},
        {"name": HOSTILE, "psnr": None, "ssim": 1.0, "seconds": 0.25},
    ]
    metrics = {
        "psnr": 20.98765, "ssim": 0.81234, "seconds_per_image": 0.25, "views": rows, "psnr_initial": 12.5,
        "ssim_initial": 0.3, "psnr_train": 25.5, "num_gaussians": 60, "steps": 40, "seconds": 83.5,
        "images_per_second": 4.0, "backend": "torch", "device": "cpu",
    }  # fmt: skip
    session = {
        "command": f"tsplat train {HOSTILE}",
        "machine": {"cpu": HOSTILE, "cores": 2, "device": "cpu", "gpu": None, "ranks": 1},
        "software": {"tsplat": "0.1", "torch": "2.11", "triton": "3.6", "python": "3.11"},
        "seconds": {"reading": 1.5, "training": 60.0, "evaluation": 12.0, "saving": 10.0, HOSTILE: 3.0},
    }
    shown = [
        ShownView(row, view.image, 255 - view.image, view.camera, remark)
        for row, view, remark in zip(rows, views, ("median", "worst", "best"))
    ]
    return RunPage(
        name=HOSTILE,
        metrics=metrics,
        rows=rows,
        shown=shown,
        history=History(
            [10, 20, 30, 40],
            [15.0, 17.0, 18.0, math.nan],
            [0.5, 0.4, 0.3, math.inf],
            [0, 40],
            [12.5, 20.98765],
            [50, 60],
        ),
        config=RunConfig(
            scene=f"/data/{HOSTILE.replace('/', '')}", backend="torch", steps=40, strategy=MCMCStrategy(cap_max=70)
        ),
        gaussians=gaussians,
        model_bytes=123_456,
        sessions=[session, session],
    )


@pytest.fixture
def without_charts(monkeypatch):
    simplify(monkeypatch.setattr)


@pytest.fixture(scope="module")
def text(page):
    return render_page(page)


@pytest.fixture(scope="module")
def parsed(text):
    return Page(text)


def figures(parsed):
    """The values of the data elements, in order; None where there is none."""
    return [None if data[1]["value"] == "" else float(data[1]["value"]) for data in parsed.of("data")]


def test_sections_are_in_order(parsed):
    assert [text for _, _, text in parsed.of("h2")] == [
        "Images", "Curves", "Test views", "Quality", "Distributions", "Configuration", "Machine", "Time",
        "Command line",
    ]  # fmt: skip
    assert len(parsed.of("svg")) == 6
    assert not [e for e in parsed.elements if "missing" in e[1].get("class", "")]


def test_figures_are_those_of_the_metrics(page, parsed):
    metrics = page.metrics
    expected = [metrics[key] for key in ("psnr", "ssim", "num_gaussians", "steps", "seconds")] + [page.model_bytes]
    expected += [row[key] for row in page.rows for key in ("psnr", "ssim", "seconds")]
    expected += [metrics[key] for key in ("psnr", "ssim", "seconds_per_image")]
    assert figures(parsed)[: len(expected)] == expected
    shown = [text for _, _, text in parsed.of("data")]
    assert shown[:9] == ["20.99 dB", "0.8123", "60", "40", "1 min 24 s", "0.1 MB", "21.12", "0.7123", "12.5"]
    assert shown[12] == "\N{INFINITY}"


def test_time_of_sessions_is_added(parsed):
    assert figures(parsed)[-4:] == [3.0, 120.0, 24.0, 20.0]


def test_nothing_is_loaded_and_nothing_hostile_runs(parsed):
    for tag, attributes, _ in parsed.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on")]
        for name in URLS & attributes.keys():
            assert attributes[name].startswith(("data:image/jpeg;base64,", "#"))
    style = parsed.of("style")[0][2]
    assert not re.search(r"url\(|@import|@font-face", style)
    assert len(parsed.of("script")) == 1
    assert "document.title" not in parsed.of("script")[0][2]
    policy = parsed.of("meta", **{"http-equiv": "Content-Security-Policy"})[0][1]["content"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    # The name is shown as it is.
    assert parsed.of("h1")[0][2] == HOSTILE
    assert parsed.of("title")[0][2] == f"{HOSTILE} - tsplat report"


def test_images_decode_to_the_sizes_of_the_views(parsed):
    images = parsed.images()
    assert len(images) == 12
    assert {image.size for image in images.values()} == {(WIDTH, HEIGHT)}
    target, rendered = images["a: photograph"], images["a: rendering"]
    total = np.asarray(target).astype(float) + np.asarray(rendered)
    assert abs(total.mean() - 255) < 3
    assert {"b: error \N{MULTIPLICATION SIGN} 4", "b: depth"} <= images.keys()


@pytest.mark.usefixtures("without_charts")
def test_quality_is_that_of_the_shown_views(page, parsed):
    text = parsed.of("section")[3][2]
    assert "The PSNR of training views is 25.50 dB, +4.51 dB compared with test views." in text
    scores = [score_regions(view.target, view.rendered) for view in page.shown]
    (first, *_), parts = scores, floater_shares(page.gaussians, [view.camera for view in page.shown])
    expected = [first["sharp"].psnr, first["flat"].psnr, first["border"].psnr, first["sharp"].ssim, first["flat"].ssim]
    shown = figures(parsed)[18:]
    assert shown[:7] == [*expected, first["border"].ssim, 100 * parts[0]]
    assert shown[21] == pytest.approx(sum(score["sharp"].psnr for score in scores) / 3)
    patches = parsed.images(class_="cut")
    assert len(patches) == 12 and {image.size for image in patches.values()} == {(16, 16)}
    alone = dataclasses.replace(page, metrics={}, gaussians=None, shown=page.shown[:1])
    parsed = Page(render_page(alone))
    assert "Training views have" not in parsed.of("section")[3][2]
    assert parsed.of("section")[3][2].count("\N{EN DASH}") == 2  # SSIM of a narrow border, floaters without a model


@pytest.mark.usefixtures("without_charts")
def test_images_without_a_scene_folder_are_not_called_photographs(page):
    text = render_page(dataclasses.replace(page, config=Config(steps=7)))
    assert "a: target" in Page(text).images()
    assert "photograph" not in re.sub(r"(?s)<(style|script)>.*?</\1>", "", text).lower()


def test_views_of_the_table_link_to_their_images(parsed):
    targets = [attributes["href"][1:] for _, attributes, _ in parsed.of("a")]
    assert targets == [figure[1]["id"] for figure in parsed.of("figure") if "id" in figure[1]]
    assert [badge[2] for badge in parsed.of("span", class_="badge")] == ["median", "worst", "best"]


@pytest.mark.usefixtures("without_charts")
def test_configuration_shows_what_differs_from_the_preset(page):
    parsed = Page(render_page(page))
    text = parsed.of("section")[5][2]
    shown, everything = text.split("settings", 1)
    for name in ("steps", "scene", "strategy.cap_max"):
        assert name in shown
    for name in ("means_rate", "opacities_rate", "keep"):
        assert name not in shown
        assert name in everything
    for name in PRESETS:
        same = dataclasses.replace(page, config=preset(name))
        text = Page(render_page(same)).of("section")[5][2]
        assert f"All settings are those of the preset {name}." in text


@pytest.mark.usefixtures("without_charts")
def test_size_is_stated_and_the_page_is_written(page, tmp_path):
    size = write_run_page(tmp_path / "a.html", page)
    assert (tmp_path / "a.html").stat().st_size == size
    stated = re.search(r"one file of ([\d.]+) MB", Page((tmp_path / "a.html").read_text()).of("footer")[0][2])
    assert float(stated[1]) == pytest.approx(size / 1e6, abs=0.006)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_equal_runs_give_equal_pages(page, text):
    assert text == render_page(dataclasses.replace(page))


@pytest.mark.long
def test_pages_of_large_noisy_photographs_stay_below_five_megabytes(page):
    generator = torch.Generator().manual_seed(2)
    noise = torch.randint(256, (700, 1000, 3), generator=generator, dtype=torch.uint8)
    shown = [ShownView({"name": f"{i}"}, noise, noise.flip(0), None) for i in range(4)]
    text = render_page(dataclasses.replace(page, shown=shown))
    assert 2e6 < len(text.encode()) < 5e6
    assert len(Page(text).images()) == 12


def test_an_empty_page_says_what_is_missing():
    parsed = Page(render_page(RunPage("run", notes=["No <b>metrics</b>."])))
    assert len(parsed.of("p", class_="missing")) == 9
    assert "No <b>metrics</b>." in parsed.of("div", class_="notes")[0][2]
    assert figures(parsed) == [None] * 6
    assert {data[2] for data in parsed.of("data")} == {"\N{EN DASH}"}


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize("value", slow_after(3, [math.nan, [1], HOSTILE, math.inf, 10**400, "12", True, {"a": 1}]))
def test_metrics_of_the_wrong_type_are_shown_as_missing(value, page):
    metrics = dict.fromkeys(page.metrics, value) | {"views": [{"name": value, "psnr": value, "ssim": value}]}
    broken = dataclasses.replace(
        page, metrics=metrics, rows=metrics["views"], shown=[], sessions=[dict.fromkeys(page.sessions[0], value)]
    )
    parsed = Page(render_page(broken))
    assert figures(parsed)[:5] == [None] * 5
    assert "\N{EN DASH}" in parsed.of("data")[0][2]


@pytest.mark.usefixtures("without_charts")
def test_gaussians_with_invalid_values_are_left_out_of_the_histograms(page):
    means = page.gaussians.means.clone()
    means[:2] = math.nan
    gaussians = dataclasses.replace(page.gaussians, means=means)
    text = Page(render_page(dataclasses.replace(page, gaussians=gaussians))).of("section")[4][2]
    assert "2 Gaussians with invalid values are left out" in text
    none = page.gaussians.map(lambda tensor: tensor[:0])
    parsed = Page(render_page(dataclasses.replace(page, gaussians=none, shown=page.shown[:1])))
    assert "no valid Gaussians" in parsed.of("section")[4][2]


@pytest.mark.parametrize(
    ("psnrs", "expected"),
    [
        ([], []),
        ([3.0], [(0, "")]),
        ([3.0, 1.0], [(1, "worst"), (0, "best")]),
        ([3.0, None, 1.0, 2.0], [(2, "worst"), (3, "median"), (1, "best"), (0, "")]),
        ([3.0, math.nan, 1.0], [(1, "worst"), (2, "median"), (0, "best")]),
        ([5.0] * 4, [(0, "worst"), (1, "median"), (3, "best"), (2, "")]),
    ],
)
def test_choose_views(psnrs, expected):
    assert choose_views(psnrs) == expected
    assert choose_views(psnrs, 2) == expected[:2]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("google-chrome")), reason="needs chromium")
class TestInBrowser:
    def test_scripts_of_the_page_run_and_others_do_not(self, page, tmp_path):
        write_run_page(tmp_path / "a.html", page)
        parsed = Page(run_browser("--dump-dom", f"file://{tmp_path}/a.html"))
        assert len(parsed.of("div", class_="wipe", style="--split: 50%;")) == 3
        assert parsed.of("title")[0][2] == f"{HOSTILE} - tsplat report"

    @pytest.mark.parametrize(("clicks", "order"), [(1, [9.5, 21.123456, None]), (2, [None, 21.123456, 9.5])])
    def test_table_is_sorted_by_a_click(self, clicks, order, page, tmp_path):
        click = (
            f"<script>for (let i = 0; i < {clicks}; i++) document.querySelectorAll('th button')[1].click();</script>"
        )
        text = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", render_page(page))
        (tmp_path / "a.html").write_text(text.replace("</body>", f"{click}</body>"))
        parsed = Page(run_browser("--dump-dom", f"file://{tmp_path}/a.html"))
        assert figures(parsed)[6:15:3] == order
        assert parsed.of("th", **{"aria-sort": ["ascending", "descending"][clicks - 1]})

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_colors_follow_the_system(self, scheme, page, tmp_path):
        write_run_page(tmp_path / "a.html", page)
        run_browser(
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            "--window-size=1280,900",
            f"--screenshot={tmp_path / 'a.png'}",
            f"file://{tmp_path}/a.html",
        )
        with Image.open(tmp_path / "a.png") as image:
            paper = sum(image.convert("RGB").getpixel((5, 5)))
        assert paper > 720 if scheme == "light" else paper < 90

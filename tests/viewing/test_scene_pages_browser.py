"""Scene pages in a web browser: opened from disk, they show what tsplat renders."""

import contextlib
import http.server
import json
import math
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.browser import CHROMIUM, open_page
from tests.support.paths import MODELS, SCENES
from tests.support.waiting import wait_for
from tsplat import cli
from tsplat.scene import Camera, look_at, open_model
from tsplat.viewing import export_page, first_view, render_frames
from tsplat.viewing.run_cameras import find_background, find_cameras

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
    pytest.mark.skipif(not MODELS.is_dir(), reason="needs the test models"),
]

PLAYBOT = MODELS / "playbot_3.from_sog.ply"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trains on a scene for a short time; returns the folder of the run."""
    folders = {}

    def train(scene):
        if scene not in folders:
            folders[scene] = tmp_path_factory.mktemp("runs") / scene
            command = ["train", str(SCENES / scene), "--out", str(folders[scene]), "--preset", "fixed"]
            assert cli.main([*command, "--steps", "150", "--downscale", "8"]) == 0
        return folders[scene]

    return train


def psnr(one, other):
    return 10 * math.log10(255**2 / max(((one.astype(float) - other) ** 2).mean(), 1e-3))


def rendered(model, width, height):
    """What tsplat renders in a window [h, w, 3] uint8: all of the first view or its core, but at most a right angle."""
    gaussians = open_model(model)
    start = first_view(gaussians, find_cameras(model))
    contained, covering = sorted((width / start.slopes[0], height / start.slopes[1]))
    focal = max(min(contained / start.core, covering), max(width, height)) / 2
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    camera = Camera(look_at(start.eye, start.target, start.up), K, width, height)
    (frame,) = render_frames(gaussians, [camera], background=find_background(model) or (0.0, 0.0, 0.0))
    return (frame * 255).round().byte().numpy()


def wait_until_loaded(page):
    """Waits for the first image, and hides the controls."""
    wait_for(lambda: page.evaluate("document.documentElement.dataset.loaded") is not None, 120, every=0.5)
    page.evaluate("document.querySelector('.sse-ui').style.display = 'none'")


def check(page, path, expected, least=38):
    """Checks what a page shows, to a PSNR, that nothing failed, and that it asked for nothing but itself."""
    wait_until_loaded(page)
    found = []

    def matches(image):
        found[:] = [psnr(image, expected)]
        return found[0] >= least

    assert page.wait_for(matches, seconds=60), found
    shown = page.screenshot()
    assert psnr(shown, expected[::-1]) < found[0] - 6
    assert np.abs((shown.astype(float) - expected).mean(axis=(0, 1))).max() < (1 if least == 38 else 2)
    assert page.errors == []
    others = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
    assert others == [path.as_uri()]


@pytest.mark.parametrize("format", ["sog", "compressed-ply"])
def test_page_shows_what_tsplat_renders(format, tmp_path):
    path = tmp_path / "playbot.html"
    export_page(PLAYBOT, path, format=format, warn=pytest.fail)
    with open_page(path.as_uri(), 640, 480) as page:
        check(page, path, rendered(PLAYBOT, 640, 480))


@contextlib.contextmanager
def served(folder):
    """Serves a folder over HTTP; yields its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=folder)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_streamed_page_loads_the_coarse_level_first(tmp_path):
    path = tmp_path / "site" / "index.html"
    assert cli.main(["export", str(PLAYBOT), "--out", str(path), "--format", "streamed-sog"]) == 0
    meta = json.loads((path.parent / "lod-meta.json").read_text())
    assert meta["counts"] == [31_000, 15_500]
    expected = rendered(PLAYBOT, 640, 480)
    with served(path.parent) as address, open_page(f"{address}/index.html", 640, 480) as page:
        wait_until_loaded(page)
        found = []
        assert page.wait_for(lambda image: found.append(psnr(image, expected)) or found[-1] >= 38, seconds=60), found
        assert psnr(page.screenshot(), expected[::-1]) < found[-1] - 6  # right side up
        assert page.errors == []
        assert all(url.startswith((address, "data:", "blob:")) for url in page.requests)
        levels = [url[len(address) + 1 :].split("_")[0] for url in page.requests if "/meta.json" in url]
        assert levels == ["1", "0"]
    with open_page(path.as_uri(), 640, 480) as page:
        wait_for(lambda: page.evaluate("document.getElementById('problem') !== null"), 60, every=0.5)
        assert "python -m http.server" in page.evaluate("document.body.textContent")


@pytest.mark.skipif(not SCENES.is_dir(), reason="needs the test scenes")
@pytest.mark.parametrize(("scene", "suffix"), [("banana", ".JPG"), ("lego_400", ".png")])
def test_page_of_a_run_is_like_the_photograph_of_its_first_view(scene, suffix, runs, tmp_path):
    run, path = runs(scene), tmp_path / "scene.html"
    assert cli.main(["export", str(run), "--out", str(path)]) == 0
    first = find_cameras(run)[0]
    (photograph,) = (SCENES / scene).rglob(f"{first.name.removesuffix(suffix)}{suffix}")
    with Image.open(photograph) as image:
        image = image.convert("RGBA")
        size = (400, round(400 * image.height / image.width))
        white = Image.new("RGBA", image.size, "white")
        target = np.array(Image.alpha_composite(white, image).convert("RGB").resize(size))
    with open_page(path.as_uri(), *size) as page:
        check(page, path, rendered(run, *size))
        shown = page.screenshot()
    shown, target = (np.array(Image.fromarray(image).resize((50, 50))) for image in (shown, target))
    assert psnr(shown, target) > max(15, psnr(shown[::-1], target) + 3)


@pytest.mark.skipif(not SCENES.is_dir(), reason="needs the test scenes")
@pytest.mark.parametrize("size", [(300, 600), (900, 300)])
def test_page_of_a_run_shows_the_core_of_the_photograph_in_a_window_of_another_shape(size, runs, tmp_path):
    run, path = runs("banana"), tmp_path / "scene.html"
    export_page(run, path, warn=pytest.fail)
    with open_page(path.as_uri(), *size) as page:
        check(page, path, rendered(run, *size))


def test_page_on_a_phone(tmp_path):
    path = tmp_path / "playbot.html"
    export_page(PLAYBOT, path, warn=pytest.fail)
    with open_page(path.as_uri(), 390, 700, phone=True) as page:
        expected = rendered(PLAYBOT, 390, 700)
        check(page, path, expected, least=28)  # phones start with half the width and height
        page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[dict(x=150, y=300)])
        for x in range(150, 270, 10):
            page.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[dict(x=x, y=300)])
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert page.wait_for(lambda image: psnr(image, expected) < 24)
        # The bar of buttons stays: SuperSplat's viewer alone hides it after 5.5 seconds.
        page.evaluate("document.querySelector('.sse-ui').style.display = ''")
        time.sleep(8)
        style = "getComputedStyle(document.querySelector('.sse-controlsWrap'))"
        assert [page.evaluate(f"{style}.{name}") for name in ("visibility", "opacity")] == ["visible", "1"]
        assert page.errors == []


def names(page):
    """Role -> names of what a screen reader finds."""
    page.call("Accessibility.enable")
    found = {}
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        if not node["ignored"]:
            found.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    return found


def test_page_has_names_annotations_and_a_floor(tmp_path):
    path, annotations = tmp_path / "playbot.html", tmp_path / "annotations.json"
    places = [{"title": "Foot </script>", "position": [0, 0, 0]}, {"title": "Hand", "position": [0.2, -0.3, 0.1]}]
    annotations.write_text(json.dumps(places))
    command = [
        "convert",
        str(PLAYBOT),
        str(path),
        "--annotations",
        str(annotations),
        "--walk",
        "0.1",
        "--title",
        "Robot",
    ]
    assert cli.main(command) == 0
    assert '<img id="preview" src="data:image/jpeg;base64,' in path.read_text("utf-8")
    expected = rendered(PLAYBOT, 900, 600)
    with open_page(f"{path.as_uri()}#positions", 900, 600) as page:
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        loaded = "document.documentElement.dataset.loaded"
        wait_for(lambda: page.evaluate(loaded) is not None, 120, every=0.5)
        assert page.evaluate("document.getElementById('preview')") is None
        wait_for(lambda: "Hand" in names(page)["button"], 60, every=0.5)
        found = names(page)
        assert {"Orbit camera", "Fly camera", "Walk", "Settings", "Full screen", "Foot </script>"} <= set(
            found["button"]
        )
        assert all(name for role in ("button", "switch", "application") for name in found.get(role, []))
        assert found["application"] == ["Robot"]
        assert page.evaluate("document.querySelector('.sse-controlsHint').classList.contains('sse-hidden')")
        # What is clicked is on the model: in front of the camera, in the frame of the file.
        for kind in ("mousePressed", "mouseReleased"):
            page.call("Input.dispatchMouseEvent", type=kind, x=450, y=330, button="left", clickCount=1)
        wait_for(lambda: page.evaluate("document.getElementById('picked') !== null"), 60, every=0.5)
        picked = json.loads("{" + page.evaluate("document.getElementById('picked').textContent") + "}")["position"]
        means = open_model(PLAYBOT).means
        assert (means - torch.tensor(picked)).norm(dim=1).min() < 0.02 * (means.amax(0) - means.amin(0)).norm()
        # Keys press what are no buttons in HTML: the camera goes to an annotation, whose text is shown.
        page.evaluate("document.querySelectorAll('.sse-annotation-hotspot')[1].focus()")
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
        wait_for(lambda: page.evaluate("document.querySelector('.sse-annotation-title').textContent") == "Hand", 60)
        page.evaluate("document.querySelector('.sse-fpsCamera').click()")
        wait_for(lambda: page.evaluate("document.querySelector('.sse-fpsCamera').classList.contains('sse-active')"), 60)
        assert page.wait_for(lambda image: psnr(image, expected) > 5)  # it is still drawn
        assert page.errors == []


def test_damaged_page_shows_a_message(tmp_path):
    path = tmp_path / "scene.html"
    export_page(PLAYBOT, path, warn=pytest.fail)
    text = path.read_text("utf-8")
    path.write_text(text.replace('id="model">', 'id="model">?', 1), "utf-8")
    with open_page(path.as_uri(), 400, 300) as page:
        page.wait_for(lambda image: page.evaluate("document.getElementById('problem') !== null"), seconds=30)
        assert "The scene cannot be shown" in page.evaluate("document.body.textContent")

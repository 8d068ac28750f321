"""Tests of structure-from-motion: synthetic photographs with known cameras, and real ones."""

import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch

from tests.support.captures import PHOTO_EYES, PHOTO_FOV, PHOTO_HEIGHT, PHOTO_WIDTH, write_image, write_photos
from tests.support.panoramas import photograph, poses, speckles_of
from tests.support.paths import SCENES
from tsplat import ArgumentError
from tsplat.scene import Camera, FileError, MissingExtraError, intrinsics, prepare, read_colmap
from tsplat.scene.cameras import panorama_intrinsics
from tsplat.scene.capture.colmap_pipeline import Pipeline, choose_matching
from tsplat.scene.images import read_image, to_bytes, write_jpeg
from tsplat.viewing.panoramas import panorama_metadata

pytestmark = pytest.mark.slow

pycolmap = pytest.importorskip("pycolmap")

PHOTOS = SCENES / "banana/images"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"))


def _distances(views):
    """Distances of all cameras from each other, in the units of their world."""
    return torch.pdist(torch.stack([-view.camera.viewmat[:3, :3].T @ view.camera.viewmat[:3, 3] for view in views]))


def test_prepare_recovers_the_cameras(photos, tmp_path):
    calls = []
    out = tmp_path / "new" / "scene"
    found = prepare(photos, out, on_progress=lambda *values: calls.append(values))
    assert found.registered == tuple(f"{i}.png" for i in range(5))
    assert found.unregistered == ()
    assert found.n_points > 100
    assert 0 < found.error < 1
    assert sorted(
        p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file() and p.parent != out and p.suffix == ".png"
    ) == [f"images/{i}.png" for i in range(5)]
    assert [path.name for path in out.parent.iterdir()] == ["scene"]
    assert sorted(path.name for path in out.iterdir()) == ["cameras.png", "images", "sparse"]
    plot = read_image(out / "cameras.png").float()
    assert plot.shape == (640, 1200, 3)
    for half in plot.split(600, 1):  # points of all colors and cameras on white
        assert 0.8 < float((half == 255).all(-1).float().mean()) < 0.995
    for stage, total in (("features", 5), ("matches", 10), ("cameras", 5)):
        done = [values[1:] for values in calls if values[0] == stage]
        assert done == sorted(done)
        assert done[-1] == (total, total)

    capture = read_colmap(out, test_every=2)
    views = sorted((*capture.train, *capture.test), key=lambda view: view.name)
    assert {view.camera_id for view in views} == {0}
    assert float(views[0].camera.K[0, 0]) == pytest.approx(
        float(intrinsics(PHOTO_WIDTH, PHOTO_HEIGHT, PHOTO_FOV)[0, 0]), rel=0.03
    )
    # Distances between cameras are recovered up to scale.
    ratios = _distances(views) / torch.pdist(torch.tensor(PHOTO_EYES))
    assert ratios.max() / ratios.min() < 1.06
    assert len(views[0].sparse) > 50


def test_panoramas_are_registered_as_they_are(tmp_path):
    K, matrices = panorama_intrinsics(384, 192), poses(5)
    (tmp_path / "photos").mkdir()
    for i, viewmat in enumerate(matrices):
        camera = Camera(viewmat, K, 384, 192, "equirectangular")
        write_jpeg(tmp_path / "photos" / f"{i}.jpg", photograph(camera, speckles_of), panorama_metadata(camera))
    found = prepare(tmp_path / "photos", tmp_path / "scene", max_size=384, mask_below=60)
    assert found.unregistered == ()
    assert found.notes == ("the metadata of the photographs says that they are panoramas",)
    assert found.error < 0.5
    assert found.n_points > 200
    assert (tmp_path / "scene" / "cameras.png").is_file()
    views = read_colmap(tmp_path / "scene", test_every=0).train
    for view in views:
        assert view.camera.model == "equirectangular"
        torch.testing.assert_close(view.camera.K, K)
        assert view.mask[:160].all()  # the horizon is row 96, and a degree has 1.07 rows
        assert not view.mask[160:].any()
    turns = torch.stack([view.camera.viewmat[:3, :3] for view in views])
    expected = torch.stack(matrices)[:, :3, :3]
    torch.testing.assert_close(turns @ turns[0].T, expected @ expected[0].T, atol=0.02, rtol=0)
    positions = torch.stack([-viewmat[:3, :3].T @ viewmat[:3, 3] for viewmat in matrices])
    ratios = _distances(views) / torch.pdist(positions)
    assert ratios.max() / ratios.min() < 1.03


@pytest.mark.long
def test_scenes_with_few_points_get_those_of_two_photographs(photos, tmp_path, monkeypatch):
    views, lengths, counts = [], [], []
    for most in (0, 10_000):
        monkeypatch.setattr("tsplat.scene.capture.colmap_pipeline.POINTS_PER_IMAGE", most)
        out = tmp_path / f"{most}"
        found = prepare(photos, out)
        assert found.error < 0.2
        views.append(read_colmap(out, test_every=0).train)
        points = pycolmap.Reconstruction(out / "sparse" / "0").points3D.values()
        assert len(points) == found.n_points
        counts.append(found.n_points)
        lengths.append(min(point.track.length() for point in points))
    assert lengths == [3, 2]
    assert counts[1] > 1.2 * counts[0]
    # COLMAP's world frame differs from run to run, so that only distances can be compared.
    ratios = _distances(views[1]) / _distances(views[0])
    assert ratios.max() / ratios.min() < 1.06
    assert all(len(many.sparse) > len(few.sparse) for few, many in zip(*views, strict=True))


@pytest.mark.long
def test_subfolders_are_cameras_and_masks_leave_out_features(photos, tmp_path):
    folder = tmp_path / "photos"
    for i in range(5):
        target = folder / ("left" if i < 3 else "right 2") / f"{i}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / f"{i}.png", target)
    mask = torch.zeros(PHOTO_HEIGHT, PHOTO_WIDTH, 3)
    mask[:, 60:] = 1
    write_image(folder / "masks" / "left" / "0.png", to_bytes(mask))
    write_image(folder / "masks" / "right 2" / "3.png.png", to_bytes(mask))
    found = prepare(folder, tmp_path / "scene", masks=folder / "masks")
    assert found.registered == ("left/0.png", "left/1.png", "left/2.png", "right 2/3.png", "right 2/4.png")
    assert found.notes == (
        "2 cameras, one of each folder: left (3), right 2 (2)",
        "3 photographs have no mask: all their pixels count (first: left/1.png)",
    )
    capture = read_colmap(tmp_path / "scene", test_every=0)
    assert [view.camera_id for view in capture.train] == [0, 0, 0, 1, 1]
    for i, view in enumerate(capture.train):
        leftmost = float(view.sparse[:, 0].min())
        if i in (0, 3):
            assert view.mask.float().mean() == pytest.approx(1 - 60 / PHOTO_WIDTH, abs=0.05)
            assert leftmost > 58
        else:
            assert view.mask is None or view.mask.float().mean() > 0.95
            assert leftmost < 58

    write_image(tmp_path / "wide.png", torch.zeros(6, 8, 3, dtype=torch.uint8))
    with pytest.raises(
        ArgumentError, match=r"wide\.png: expected a mask of the size of left/0\.png, 320×240, found 8×6"
    ):
        prepare(folder, tmp_path / "new", masks=tmp_path / "wide.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"empty: expected masks such as 0\.png\.png, found none"):
        prepare(folder / "left", tmp_path / "new", masks=tmp_path / "empty")


@pytest.mark.long
def test_one_mask_for_all_photographs(photos, tmp_path):
    mask = torch.full((PHOTO_HEIGHT, PHOTO_WIDTH, 3), 255, dtype=torch.uint8)
    mask[200:] = 0
    write_image(tmp_path / "mask.png", mask)
    found = prepare(photos, tmp_path / "scene", masks=tmp_path / "mask.png")
    assert len(found.registered) == 5
    for view in read_colmap(tmp_path / "scene", test_every=0).train:
        assert not view.mask[-30:].any()
        assert float(view.sparse[:, 1].max()) < 202


@pytest.mark.long
def test_reasons_of_photographs_without_a_pose(photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    noise = torch.rand(PHOTO_HEIGHT, PHOTO_WIDTH, 3, generator=torch.Generator().manual_seed(0))
    write_image(folder / "noise.png", to_bytes(noise))
    write_image(folder / "plain.png", torch.full((PHOTO_HEIGHT, PHOTO_WIDTH, 3), 90, dtype=torch.uint8))
    found = prepare(folder, tmp_path / "scene")
    assert found.unregistered == ("noise.png", "plain.png")
    assert found.reasons == {
        "noise.png": "overlaps no other photograph; take more photographs on the way to it",
        "plain.png": "few features: blurred, dark, plain or masked; retake it, or raise max_size (--max-size)",
    }


@pytest.mark.long
@pytest.mark.parametrize("matching", ["sequential", "vocabulary-tree"])
def test_matching_with_a_vocabulary_tree(photos, tmp_path, monkeypatch, matching):
    """The limits are lowered, so that five photographs have enough features."""
    for name, value in dict(OVERLAP=1, LOOP_IMAGES=2, SIMILAR=2, TREE_FEATURES=4000, TREE_WORDS=64).items():
        monkeypatch.setattr(f"tsplat.scene.capture.colmap_pipeline.{name}", value)
    calls, matched = [], []
    reconstruct = Pipeline.reconstruct

    def note_matches(pipeline, folder):
        matched.append(pipeline.matching)
        return reconstruct(pipeline, folder)

    monkeypatch.setattr(Pipeline, "reconstruct", note_matches)
    found = prepare(photos, tmp_path / "scene", matching=matching, on_progress=lambda *values: calls.append(values))
    assert matched == [matching]
    assert len(found.registered) == 5
    assert [total for stage, _, total in calls if stage == "matches"][-1] >= 4
    assert sorted(path.name for path in (tmp_path / "scene").iterdir()) == ["cameras.png", "images", "sparse"]


def test_matching_by_count():
    assert [choose_matching(n, False) for n in (2, 200, 201)] == ["exhaustive", "exhaustive", "vocabulary-tree"]
    assert [choose_matching(n, True) for n in (30, 31, 300)] == ["exhaustive", "sequential", "sequential"]


@pytest.mark.long
def test_photographs_that_cannot_be_used_are_skipped_or_converted(photos, tmp_path):
    from PIL import Image

    folder, masks = tmp_path / "photos", tmp_path / "masks"
    shutil.copytree(photos, folder)
    Image.open(folder / "1.png").save(folder / "1.webp", lossless=True)
    Image.open(folder / "3.png").save(folder / "cut.jpg", quality=95)
    content = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(content[: len(content) * 2 // 3])
    (folder / "1.png").unlink()
    (folder / "empty.png").touch()
    Image.new("RGB", (16000, 1)).save(folder / "line.png")
    shutil.copy(folder / "4.png", folder / "9.png")
    write_image(masks / "1.png", torch.full((PHOTO_HEIGHT, PHOTO_WIDTH, 3), 255, dtype=torch.uint8))
    found = prepare(folder, tmp_path / "scene", masks=masks)
    assert found.registered == ("0.png", "1.webp.png", "2.png", "3.png", "4.png", "9.png")
    damaged, narrow, copies, lacking, converted = found.notes
    assert damaged.startswith(f"skipped 2 photographs that cannot be read: {folder}/cut.jpg, {folder}/empty.png: ")
    assert "truncated" in damaged
    assert narrow.startswith(f"skipped 1 photographs that are too narrow: {folder}/line.png: 16000×1 pixels")
    assert copies == "1 photographs are copies of others: 9.png of 4.png; delete them"
    assert lacking == "5 photographs have no mask: all their pixels count (first: 0.png)"
    assert converted == "converted 1 photographs that COLMAP cannot read to PNG (first: 1.webp)"
    assert (folder / "1.webp").exists()
    views = read_colmap(tmp_path / "scene", test_every=0).train
    assert len(views) == 6
    assert all(view.mask is None or view.mask.all() for view in views)
    assert torch.equal(read_image(tmp_path / "scene" / "images" / "1.webp.png"), read_image(photos / "1.png"))


@pytest.mark.long
@pytest.mark.parametrize("size", [60_000, 300_000])
def test_full_disk_is_an_error_in_words(photos, tmp_path, size):
    done = subprocess.run(
        [sys.executable, "-m", "tsplat", "prepare", str(photos), "--out", str(tmp_path / "new" / "scene")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tsplat: error: ")
    assert "free some space" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_interrupt_leaves_no_files(photos, tmp_path):
    for stage in ("features", "matches", "cameras"):

        def interrupt(current, _done, _total, stage=stage):
            if current == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(photos, tmp_path / "new" / "scene", max_size=160, on_progress=interrupt)
        assert list(tmp_path.iterdir()) == []


def test_existing_output_is_not_overwritten(photos, tmp_path):
    (tmp_path / "old.txt").write_text("keep")
    for out in (tmp_path, tmp_path / "old.txt"):
        with pytest.raises(FileError, match="already exists"):
            prepare(photos, out)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]


def test_photographs_without_overlap_are_rejected(photos, tmp_path):
    folder = tmp_path / "noise"
    for i in range(3):
        noise = torch.rand(96, 128, 3, generator=torch.Generator().manual_seed(i))
        write_image(folder / f"{i}.png", to_bytes(noise))
    (tmp_path / "scene").mkdir()
    with pytest.raises(ArgumentError, match="no two of the 3 photographs overlap"):
        prepare(folder, tmp_path / "scene")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["noise", "scene"]
    assert list((tmp_path / "scene").iterdir()) == []


def test_unusable_photographs_are_rejected(photos, tmp_path):
    with pytest.raises(FileError, match="lost: no such folder"):
        prepare(tmp_path / "lost", tmp_path / "scene")
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(photos / "0.png", folder)
    with pytest.raises(FileError, match=r"at least two photographs .*found 1"):
        prepare(folder, tmp_path / "scene")
    write_image(folder / "b.png", torch.zeros(240, 200, 3))
    with pytest.raises(ArgumentError, match=r"1 of 320×240, 1 of 200×240.*single_camera=False"):
        prepare(folder, tmp_path / "scene")
    (folder / "b.png").write_bytes(b"not an image")
    with pytest.raises(FileError, match=r"found 1; skipped 1 photographs that .*b\.png: cannot be read"):
        prepare(folder, tmp_path / "scene")
    assert not (tmp_path / "scene").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(max_size=0), "max_size"),
        (dict(camera_model="FISHEYE"), "camera_model"),
        (dict(seed=-1), "seed"),
        (dict(matching="all"), "matching"),
        (dict(frames=10), "frames: only for a video"),
    ],
)
def test_invalid_argument_is_rejected(photos, tmp_path, values, words):
    with pytest.raises(ArgumentError, match=words):
        prepare(photos, tmp_path / "scene", **values)


@pytest.mark.parametrize("module", ["pycolmap", "PIL", "matplotlib"])
def test_missing_extra_is_named(photos, tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[train\]'"):
        prepare(photos, tmp_path / "new" / "scene")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="needs the test scenes")
@pytest.mark.skipif("TSPLAT_SLOW" not in os.environ, reason="slow; set TSPLAT_SLOW=1")
def test_prepare_registers_real_photographs(tmp_path):
    found = prepare(PHOTOS, tmp_path / "scene", max_size=800)
    assert len(found.registered) >= 13
    assert len(found.registered) + len(found.unregistered) == 15
    assert found.error < 0.5
    capture = read_colmap(tmp_path / "scene", downscale=4)
    assert sum(len(view.sparse) for view in (*capture.train, *capture.test)) > 10_000

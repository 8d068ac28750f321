"""Panoramas that are rendered: level cameras, and metadata."""

import math

import pytest
import torch

from tests.support.panoramas import rays_of
from tsplat import ArgumentError
from tsplat.scene import Camera, intrinsics, look_at
from tsplat.scene.cameras import panorama_intrinsics
from tsplat.scene.images import is_marked_panorama, read_image, write_jpeg, write_png
from tsplat.viewing.panoramas import level_panoramas, panorama_metadata, panorama_size


@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 0.0, 2.0)])
@pytest.mark.parametrize("pitch", [-90, -50, 0, 30, 90])
def test_panoramas_are_level_and_ahead_is_in_the_middle(up, pitch):
    axis = torch.nn.functional.normalize(torch.tensor(up), dim=0)
    ahead = torch.tensor([0.6, 0.0, 0.8]) if up[1] else torch.tensor([0.6, 0.8, 0.0])
    level = torch.linalg.cross(axis, ahead)
    forward = math.cos(math.radians(pitch)) * ahead + math.sin(math.radians(pitch)) * axis
    down = torch.linalg.cross(forward, torch.linalg.cross(ahead, axis))
    rotation = torch.stack([torch.linalg.cross(down, forward), down, forward])
    pose = torch.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, -rotation @ torch.tensor([3.0, 1.0, 2.0])
    assert abs(float(rotation[0] @ level)) > 0.999
    (panorama,) = level_panoramas([Camera(pose, intrinsics(40, 30, 50), 40, 30, near=0.3)], 64, 32, up)
    assert (panorama.model, panorama.width, panorama.height, panorama.near) == ("equirectangular", 64, 32, 0.3)
    torch.testing.assert_close(panorama.position.float(), torch.tensor([3.0, 1.0, 2.0]), atol=1e-5, rtol=0)
    rays = rays_of(panorama)
    torch.testing.assert_close(rays[15:17, 31:33].mean((0, 1)), ahead, atol=0.02, rtol=0)
    torch.testing.assert_close(rays[0].mean(0), axis, atol=0.02, rtol=0)


def test_up_is_that_of_the_cameras():
    targets = [(20 * (-1) ** i, 2, -3) for i in range(4)]
    poses = [look_at((i, 2, 0), target, (0, 0, 1)) for i, target in enumerate(targets)]
    cameras = [Camera(pose, intrinsics(40, 30, 50), 40, 30) for pose in poses]
    for camera in level_panoramas(cameras, 16, 8):
        assert camera.viewmat[1, :3] @ torch.tensor([0.0, 0.0, -1.0]) > 0.9


@pytest.mark.parametrize(
    ("given", "size"), [((None, None), (2048, 1024)), ((512, None), (512, 256)), ((None, 300), (600, 300))]
)
def test_sizes(given, size):
    assert panorama_size(*given) == size


@pytest.mark.parametrize("given", [(511, None), (512, 512)])
def test_panoramas_are_twice_as_wide_as_high(given):
    with pytest.raises(ArgumentError, match="--width: expected a panorama twice as wide as high"):
        panorama_size(*given)


@pytest.mark.parametrize(("write", "suffix"), [(write_png, ".png"), (write_jpeg, ".jpg")])
def test_images_say_that_they_are_panoramas(tmp_path, write, suffix):
    image = torch.linspace(0, 1, 32 * 16)[:, None].expand(-1, 3).reshape(16, 32, 3)
    camera = Camera(torch.eye(4), panorama_intrinsics(32, 16), 32, 16, "equirectangular")
    write(tmp_path / f"a{suffix}", image, panorama_metadata(camera))
    write(tmp_path / f"b{suffix}", image, panorama_metadata(Camera(torch.eye(4), torch.eye(3), 32, 16)))
    assert is_marked_panorama(tmp_path / f"a{suffix}")
    assert not is_marked_panorama(tmp_path / f"b{suffix}")
    assert torch.equal(read_image(tmp_path / f"a{suffix}"), read_image(tmp_path / f"b{suffix}"))
    assert (read_image(tmp_path / f"a{suffix}") / 255 - image).abs().max() < 0.03


def test_metadata_tells_which_part_an_image_is():
    K = panorama_intrinsics(400, 200)
    K[0, 2] -= 100
    K[1, 2] -= 40
    metadata = panorama_metadata(Camera(torch.eye(4), K, 150, 80, "equirectangular"))
    for name, value in {
        "ProjectionType": "equirectangular", "FullPanoWidthPixels": 400, "FullPanoHeightPixels": 200,
        "CroppedAreaImageWidthPixels": 150, "CroppedAreaImageHeightPixels": 80, "CroppedAreaLeftPixels": 100,
        "CroppedAreaTopPixels": 40,
    }.items():  # fmt: skip
        assert f'GPano:{name}="{value}"' in metadata

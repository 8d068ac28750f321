"""Panoramas: level cameras that show all directions, and the metadata by which players recognize their images."""

import dataclasses
import math
from collections.abc import Sequence

import torch

from ..errors import ArgumentError
from ..precision import fp64
from ..scene.cameras import Camera, look_at, panorama_intrinsics
from .run_cameras import mean_up

WIDTH = 2048
"""Default width of a panorama in pixels."""

LEVEL_MIN = 1e-3
"""Minimum length of the horizontal component of a unit viewing direction that determines a panorama's center."""

XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:GPano="http://ns.google.com/photos/1.0/panorama/"
{properties}/>
</rdf:RDF></x:xmpmeta>"""


def panorama_size(width: int | None, height: int | None) -> tuple[int, int]:
    """Returns the size of a panorama of 360 by 180 degrees, twice as wide as high. Raises ArgumentError for others."""
    if width is None:
        width = WIDTH if height is None else 2 * height
    if width != 2 * (width // 2 if height is None else height):
        found = f"{width}" if height is None else f"{width}×{height}"
        raise ArgumentError(f"--width: expected a panorama twice as wide as high, such as {WIDTH}×1024, found {found}")
    return width, width // 2


def level_panoramas(
    cameras: Sequence[Camera], width: int, height: int, up: Sequence[float] | None = None
) -> list[Camera]:
    """Returns panoramas from the positions of cameras, whose centers show the horizontal viewing directions.

    Args:
        cameras: At least one camera.
        width, height: Size in pixels.
        up: [3] world direction that is up in the panoramas; by default, the mean up direction of the cameras.
    """
    up = mean_up(cameras) if up is None else up
    up = (-cameras[0].viewmat[1, :3]).tolist() if up is None else up
    K = panorama_intrinsics(width, height)
    panoramas = []
    for camera in cameras:
        rotation = camera.viewmat[:3, :3].double()
        axis = torch.nn.functional.normalize(fp64(up).to(rotation), dim=0)
        # The horizontal direction ahead is at the bottom of the image of a camera that looks up, else at the top.
        bottom = rotation[1] * (rotation[2] @ axis).sign()
        level = [direction - (direction @ axis) * axis for direction in (rotation[2], bottom)]
        ahead = level[0] if level[0].norm() > LEVEL_MIN else level[1]
        distance = max(1.0, float(camera.position.norm()))
        target = camera.position + distance * ahead / ahead.norm()
        viewmat = look_at(camera.position.tolist(), target.tolist(), up)
        panoramas.append(
            dataclasses.replace(
                camera,
                viewmat=viewmat,
                K=K,
                width=width,
                height=height,
                model="equirectangular",
                distortion=None,
                viewmat_end=None,
                readout="GLOBAL",
            )
        )
    return panoramas


def panorama_metadata(camera: Camera) -> str:
    """Returns the XMP packet of a camera's image, with Google's GPano properties; empty for other cameras."""
    if not camera.is_panorama:
        return ""
    (fx, _, cx), (_, fy, cy), _ = camera.K.double().tolist()
    full_width, full_height = round(2 * math.pi * fx), round(math.pi * fy)
    properties = {
        "ProjectionType": "equirectangular",
        "UsePanoramaViewer": True,
        "FullPanoWidthPixels": full_width,
        "FullPanoHeightPixels": full_height,
        "CroppedAreaImageWidthPixels": camera.width,
        "CroppedAreaImageHeightPixels": camera.height,
        "CroppedAreaLeftPixels": round(math.pi * fx - cx) % full_width,
        "CroppedAreaTopPixels": round(math.pi * fy / 2 - cy),
    }
    return XMP.format(properties="\n".join(f'GPano:{name}="{value}"' for name, value in properties.items()))

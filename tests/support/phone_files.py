"""Writes captures of the procedural scene like those that Polycam and Record3D export from phones."""

import json

import numpy as np
import torch
from PIL import Image
from scipy.spatial.transform import Rotation

from tests.support.captures import OPENGL_AXES
from tsplat.scene.capture.procedural import trace

DEPTH_SCALE = 2
"""Pixels of a photograph per pixel of its depth map, along each axis."""


def depth_of(view):
    """Returns the depth [H, W] of the procedural scene along the optical axis at half the size; 0 if there is none."""
    width, height = view.width // DEPTH_SCALE, view.height // DEPTH_SCALE
    K = torch.diag(torch.tensor([1 / DEPTH_SCALE, 1 / DEPTH_SCALE, 1])) @ view.camera.K
    depth = torch.zeros(height, width)
    _, points, _ = trace(view.camera.viewmat[None], K, width, height)
    camera = view.camera.viewmat[:3, :3] @ points + view.camera.viewmat[:3, 3:]
    pixels = K @ (camera / camera[2])
    depth[pixels[1].long().clamp(0, height - 1), pixels[0].long().clamp(0, width - 1)] = camera[2]
    return depth.numpy()


def _pose(view):
    """Returns the camera-to-world matrix in OpenGL axes, [4, 4] fp64."""
    return torch.linalg.inv(view.camera.viewmat.double()) @ OPENGL_AXES


def write_polycam(folder, views, corrected=True, depth=True, **values):
    """Writes raw data of Polycam and returns the folder; `values` replace values of each camera."""
    prefix = "corrected_" if corrected else ""
    frames = folder / "keyframes"
    for name in (f"{prefix}images", f"{prefix}cameras", "depth", "confidence"):
        (frames / name).mkdir(parents=True)
    for i, view in enumerate(views):
        name = str(1_000_000 + 333 * i)
        Image.fromarray(view.image.numpy()).save(frames / f"{prefix}images" / f"{name}.jpg", quality=100, subsampling=0)
        camera = {"width": view.width, "height": view.height, "blur_score": 90.5, "timestamp": int(name)}
        camera |= {key: float(view.camera.K[j]) for key, j in dict(fx=(0, 0), fy=(1, 1), cx=(0, 2), cy=(1, 2)).items()}
        camera |= {f"t_{r}{c}": float(_pose(view)[r, c]) for r in range(3) for c in range(4)}
        (frames / f"{prefix}cameras" / f"{name}.json").write_text(json.dumps(camera | values))
        if depth:
            millimeters = np.round(1000 * depth_of(view)).astype(np.uint16)
            Image.fromarray(millimeters).save(frames / "depth" / f"{name}.png")
            confidence = np.full(millimeters.shape, 255, np.uint8)
            confidence[0] = 127
            Image.fromarray(confidence).save(frames / "confidence" / f"{name}.png")
    return folder


def write_record3d(folder, views, per_frame=True, depth=False, **values):
    """Writes an EXR + JPG sequence of Record3D and returns the folder; `values` replace values of the metadata."""
    (folder / "rgb").mkdir(parents=True)
    (folder / "depth").mkdir()
    poses, coefficients = [], []
    for i, view in enumerate(views):
        Image.fromarray(view.image.numpy()).save(folder / "rgb" / f"{i}.jpg", quality=100, subsampling=0)
        pose = _pose(view)
        poses.append([*Rotation.from_matrix(pose[:3, :3].numpy()).as_quat().tolist(), *pose[:3, 3].tolist()])
        coefficients.append([float(view.camera.K[j]) for j in ((0, 0), (1, 1), (0, 2), (1, 2))])
        if depth:
            import OpenEXR

            channels = {"R": np.ascontiguousarray(depth_of(view))}
            OpenEXR.File({"type": OpenEXR.scanlineimage}, channels).write(str(folder / "depth" / f"{i}.exr"))
    fx, fy, cx, cy = coefficients[0]
    metadata = {"w": views[0].width, "h": views[0].height, "fps": 60, "K": [fx, 0, 0, 0, fy, 0, cx, cy, 1]}
    metadata |= {"poses": poses} | ({"perFrameIntrinsicCoeffs": coefficients} if per_frame else {})
    (folder / "metadata.json").write_text(json.dumps(metadata | values))
    return folder

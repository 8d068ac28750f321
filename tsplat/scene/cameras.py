"""Cameras: world-to-camera matrices [4, 4] and intrinsics [3, 3].

Camera frame as in OpenCV and COLMAP: x right, y down, z forward. Pixel centers lie at +0.5.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import CameraModel, RollingShutterType
from ..errors import ArgumentError, UnsupportedError
from ..formulas.panorama_angles import full_panorama, longitude_and_latitude
from ..precision import fp32, fp64, product

UP = (0.0, -1.0, 0.0)
"""Default up direction in the world frame: structure-from-motion usually produces scenes with y down."""


@dataclasses.dataclass(frozen=True, eq=False)
class Camera:
    """A camera with its pose, lens and shutter.

    Attributes:
        viewmat: [4, 4] world to camera.
        K: [3, 3] intrinsics in pixels.
        width, height: Image size in pixels.
        model: The ``camera_model`` of :func:`tsplat.rasterization`. For ``"equirectangular"`` panoramas, depth and
            `near` are distances from the camera.
        distortion: [4] OpenCV's k1, k2, p1, p2 of a pinhole lens, or [8] with k3 to k6 appended, or [4] k1 to k4 of a
            fisheye lens; None for a lens without distortion.
        viewmat_end: [4, 4] pose at the end of the readout of a rolling shutter; `viewmat` is the pose at its start.
            None for a global shutter.
        readout: Name of the shutter, a :class:`tsplat.RollingShutterType`.
        name: Name of the camera's photograph, if there is one.
        is_test: Whether the photograph was held out from training.
        near: Near plane in world units, the ``near_plane`` of :func:`tsplat.rasterization`. If None, training,
            evaluation and videos choose one from the scene; :func:`tsplat.viewing.render` uses the rasterizer's
            default, 0.01.
    """

    viewmat: Tensor
    K: Tensor
    width: int
    height: int
    model: CameraModel = "pinhole"
    name: str = ""
    is_test: bool = False
    distortion: Tensor | None = None
    viewmat_end: Tensor | None = None
    readout: str = RollingShutterType.GLOBAL.name
    near: float | None = None

    def __repr__(self) -> str:
        return f"Camera({self.description})"

    @property
    def description(self) -> str:
        """Name, size and model, such as ``"DSC_0423.JPG, 800×532, pinhole"``."""
        return ", ".join(filter(None, [self.name, f"{self.width}×{self.height}", self.model]))

    @property
    def is_panorama(self) -> bool:
        """Whether the camera is a panorama, full or partial. Its depths are distances from the camera."""
        return self.model == "equirectangular"

    @property
    def position(self) -> Tensor:
        """Center of the camera, [3] fp64, world frame."""
        viewmat = self.viewmat.double()
        return -viewmat[:3, :3].T @ viewmat[:3, 3]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of the camera by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Camera":
        """Returns a copy with `function` applied to every tensor."""
        changed: dict[str, Any] = {name: function(tensor) for name, tensor in self.tensors().items()}
        return dataclasses.replace(self, **changed)

    def to(self, device: torch.device | str) -> "Camera":
        """Returns a copy on another device."""
        return self.map(lambda tensor: tensor.to(device))


def project_points(camera: Camera, points: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projects points, ignoring distortion; uses the first pose of a rolling shutter.

    Args:
        camera: A camera, or several of equal size and model with stacked matrices, [..., 4, 4] and [..., 3, 3].
        points: [P, 3], world frame.

    Returns:
        Pixels x and y, each [..., P]; depths [..., P]; and a mask of points with positive depth inside the image, [...,
        P] bool. Depth is z; for fisheye lenses, r / atan2(r, z) with the distance r from the optical axis; for
        panoramas, the distance from the camera.
    """
    viewmat, K = camera.viewmat.to(points), camera.K.to(points)[..., None]
    x, y, z = (product(viewmat[..., :3, :3], points.T) + viewmat[..., :3, 3:]).unbind(-2)  # [..., P], each contiguous
    depths = z
    if camera.is_panorama:
        longitudes, latitudes = longitude_and_latitude(x, y, z)
        u = (K[..., 0, 0, :] * longitudes + K[..., 0, 2, :]).remainder(2 * math.pi * K[..., 0, 0, :])
        v = K[..., 1, 1, :] * latitudes + K[..., 1, 2, :]
        depths = torch.hypot(torch.hypot(x, z), y)
        return u, v, depths, (depths > 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    if camera.model == "fisheye":
        radius = torch.hypot(x, y).clamp_min(1e-9)
        depths = radius / torch.atan2(radius, z)
    scale = 1.0 if camera.model == "ortho" else depths
    u, v = K[..., 0, 0, :] * x / scale + K[..., 0, 2, :], K[..., 1, 1, :] * y / scale + K[..., 1, 2, :]
    inside = (depths > 0) & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    return u, v, depths, inside


def rasterization_arguments(
    cameras: Sequence[Camera], n: int | None = None, *, surfels: bool = False
) -> dict[str, Any]:
    """Returns the arguments of :func:`tsplat.rasterization` that describe its cameras.

    Args:
        cameras: At least one camera. All have the size, the model and the shutter of the first.
        n: Number of cameras to pass, by default all. With 0, a rank joins a collective call without a camera.
        surfels: Whether to return the arguments of :func:`tsplat.rasterization_2dgs`, which has no ``camera_model``.

    Returns:
        ``viewmats`` [n, 4, 4] and ``Ks`` [n, 3, 3], differentiable with respect to the matrices of the cameras;
        ``width``, ``height`` and ``camera_model``; distortion coefficients, if any camera has distortion; the poses at
        the end of the readout, for rolling shutters; and the smallest ``near_plane``, if any camera has one.

    Raises:
        ArgumentError: The sizes, the models or the shutters differ.
        UnsupportedError: `surfels` is set and the cameras have distortion or a rolling shutter, or are not pinhole
            cameras.
    """
    first = cameras[0]
    for camera in cameras[1:]:
        if _describe_format(camera) != _describe_format(first):
            raise ArgumentError(
                f"cameras: expected {_describe_format(first)} cameras as the first, found a {_describe_format(camera)} "
                "camera; render them one at a time"
            )
    viewmats, Ks = [camera.viewmat for camera in cameras], [camera.K for camera in cameras]
    lens = {"camera_model": first.model, **_coefficients(cameras, n), **_shutters(cameras, n)}
    planes = [camera.near for camera in cameras if camera.near is not None]
    if surfels:
        model = lens.pop("camera_model")
        if model != "pinhole" or lens:
            raise UnsupportedError(
                "cameras: 2D Gaussians are rendered with pinhole cameras without distortion or rolling shutter, found "
                f"a {_describe_format(first)} camera{' with distortion' if 'radial_coeffs' in lens else ''}; undistort "
                "photographs, or use 3D Gaussians"
            )
    return {
        "viewmats": _stack(viewmats)[:n],
        "Ks": _stack(Ks)[:n],
        "width": first.width,
        "height": first.height,
        **({"near_plane": min(planes)} if planes else {}),
        **lens,
    }


def _coefficients(cameras: Sequence[Camera], n: int | None) -> dict[str, Any]:
    """Returns the arguments that describe the lenses; none for pinhole and fisheye cameras without distortion."""
    if all(camera.distortion is None for camera in cameras):
        return {"with_ut": True} if cameras[0].is_panorama else {}
    zeros = cameras[0].viewmat.new_zeros(4)
    distortions = [zeros if camera.distortion is None else camera.distortion for camera in cameras]
    if cameras[0].model == "fisheye":
        return {"with_ut": True, "radial_coeffs": _stack(distortions)[:n]}
    distortion = _stack([torch.nn.functional.pad(values, (0, 8 - len(values))) for values in distortions])[:n]
    radial = torch.cat([distortion[:, :2], distortion[:, 4:]], 1)
    return {"with_ut": True, "radial_coeffs": radial, "tangential_coeffs": distortion[:, 2:4]}


def _describe_format(camera: Camera) -> str:
    """Describes the size, the model and the shutter of a camera, which all cameras of one call share."""
    shutter = "" if camera.viewmat_end is None else f" {camera.readout}"
    return f"{camera.width}×{camera.height} {camera.model}{shutter}"


def _shutters(cameras: Sequence[Camera], n: int | None) -> dict[str, Any]:
    """Returns the arguments that describe rolling shutters; none for global shutters."""
    ends = [camera.viewmat_end for camera in cameras if camera.viewmat_end is not None]
    if not ends:
        return {}
    return {"with_ut": True, "rolling_shutter": cameras[0].readout, "viewmats_rs": _stack(ends)[:n]}


def map_poses(camera: Camera, change: Callable[[Tensor], Tensor]) -> Camera:
    """Returns a camera with `change` applied to its poses, at the start and at the end of the readout."""
    end = camera.viewmat_end
    poses: dict[str, Any] = {"viewmat": change(camera.viewmat), "viewmat_end": None if end is None else change(end)}
    return dataclasses.replace(camera, **poses)


def _stack(tensors: list[Tensor]) -> Tensor:
    """Stacks tensors; a single one is not copied."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def intrinsics(width: int, height: int, fov: float) -> Tensor:
    """Returns the intrinsics of a pinhole camera with square pixels and a centered principal point.

    Args:
        width, height: Image size in pixels.
        fov: Vertical field of view in degrees, between 0 and 180.

    Returns:
        K [3, 3] in pixels.

    Raises:
        ArgumentError: `fov` is out of range.
    """
    if not 0 < fov < 180:
        raise ArgumentError(f"fov: expected degrees between 0 and 180, found {fov}")
    focal = 0.5 * height / math.tan(math.radians(fov) / 2)
    return fp32([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])


def panorama_intrinsics(width: int, height: int) -> Tensor:
    """Returns the intrinsics K [3, 3] of a panorama of 360 by 180 degrees; focal lengths are pixels per radian."""
    fx, fy, cx, cy = full_panorama(width, height)
    return fp32([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def look_at(eye: Sequence[float], target: Sequence[float], up: Sequence[float] = UP) -> Tensor:
    """Returns the pose of a camera at `eye` with `target` at its image center and `up` pointing up in the image.

    Args:
        eye, target: Positions in the world frame.
        up: Direction in the world frame, of any length.

    Returns:
        World-to-camera matrix [4, 4].

    Raises:
        ArgumentError: A value is not finite, `eye` equals `target`, or `up` is parallel to the viewing direction.

    Example::

        from tsplat.scene import intrinsics, look_at

        viewmat = look_at(eye=(0, -1, -3), target=(0, 0, 0))  # y points down in the world
        K = intrinsics(width=160, height=120, fov=50)
    """
    points = {name: fp64(p) for name, p in (("eye", eye), ("target", target), ("up", up))}
    for name, point in points.items():
        if point.shape != (3,) or not point.isfinite().all():
            raise ArgumentError(f"{name}: expected three finite numbers, found {list(point.tolist())}")
    forward = points["target"] - points["eye"]
    if forward.norm() <= 1e-9 * max(points["eye"].norm(), points["target"].norm()):
        raise ArgumentError(f"eye: {list(eye)} equals the point to look at; move one of them")
    z = forward / forward.norm()
    x = z.cross(points["up"], -1)
    if x.norm() <= 1e-6 * points["up"].norm():
        raise ArgumentError(f"up: {list(up)} is zero or parallel to the viewing direction; choose another direction")
    x = x / x.norm()
    return viewmat_from_pose(torch.stack([x, z.cross(x, -1), z]).T, points["eye"]).float()


def viewmat_from_pose(rotation: Tensor, position: Tensor) -> Tensor:
    """Returns the world-to-camera matrix [4, 4] of a camera-to-world `rotation` [3, 3] and a `position` [3]."""
    viewmat = torch.eye(4, dtype=rotation.dtype, device="cpu")
    viewmat[:3, :3] = rotation.T
    viewmat[:3, 3] = -rotation.T @ position
    return viewmat


def move_camera(camera: Camera, matrix: Tensor) -> Camera:
    """Moves a camera as :func:`tsplat.scene.transform_gaussians` moves a model, so that the image does not change."""
    matrix = matrix.double()
    scale = float(torch.linalg.det(matrix[:3, :3]).abs() ** (1 / 3))

    def move(pose: Tensor) -> Tensor:
        viewmat = pose.double() @ torch.linalg.inv(matrix)
        viewmat[:3] *= scale
        moved: Tensor = viewmat.to(pose)
        return moved

    return dataclasses.replace(map_poses(camera, move), near=None if camera.near is None else scale * camera.near)


def resize_camera(camera: Camera, longest: int) -> Camera:
    """Scales the image of a camera down so that its longer side has at most `longest` pixels; the field of view is
    kept."""
    factor = longest / max(camera.width, camera.height)
    if factor >= 1:
        return camera
    width, height = max(1, round(camera.width * factor)), max(1, round(camera.height * factor))
    K = camera.K.clone()
    K[0] *= width / camera.width
    K[1] *= height / camera.height
    return dataclasses.replace(camera, K=K, width=width, height=height)


def choose_evenly(cameras: Sequence[Camera], n: int) -> list[Camera]:
    """Returns at most `n` cameras at even intervals of the sequence."""
    step = max(1.0, len(cameras) / n)
    return [cameras[int(i * step)] for i in range(int(len(cameras) / step))]


def centers(poses: Tensor) -> Tensor:
    """Returns the camera centers [C, 3] in the world frame, given world-to-camera matrices [C, 4, 4]."""
    return -product(poses[:, :3, :3].mT, poses[:, :3, 3:]).squeeze(-1)


def orbit(
    target: Sequence[float],
    radius: float,
    azimuths: Sequence[float],
    elevations: Sequence[float],
    up: Sequence[float] = UP,
) -> Tensor:
    """Places cameras on a sphere around `target`, looking at its center.

    Args:
        target: Center of the sphere, world frame.
        radius: Distance from `target`, world units.
        azimuths: C angles around `up`, degrees.
        elevations: C angles above the plane through `target` that is perpendicular to `up`, degrees.
        up: Direction in the world frame.

    Returns:
        World-to-camera matrices [C, 4, 4].

    Raises:
        ArgumentError: See :func:`look_at`.
    """
    axis = fp64(up)
    axis = axis / axis.norm()
    # Azimuth zero is -z, or -x if up is close to the z axis.
    front = fp64([0.0, 0.0, -1.0] if abs(float(axis[2])) < 0.9 else [-1.0, 0.0, 0.0])
    front = front - (front @ axis) * axis
    front = front / front.norm()
    side = axis.cross(front, -1)
    center = fp64(target)
    matrices = []
    for azimuth, elevation in zip(azimuths, elevations, strict=True):
        a, e = math.radians(azimuth), math.radians(elevation)
        offset = math.cos(e) * (math.cos(a) * front + math.sin(a) * side) + math.sin(e) * axis
        matrices.append(look_at((center + radius * offset).tolist(), target, up))
    return torch.stack(matrices)

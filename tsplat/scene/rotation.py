"""Transforms a model: the centers, rotations, scales and spherical harmonics of its Gaussians."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..formulas import rotations as formulas
from ..functional.shading import spherical_harmonics
from ..precision import differentiable, fp64, identity, in_full_precision, product
from .gaussians import Gaussians

SIMILARITY_TOLERANCE = 1e-3
"""Tolerance for matrices to count as rotations, because files store few digits."""

N_DIRECTIONS = 200
"""Number of directions at which rotated spherical harmonics are fitted; a degree has at most 9 coefficients."""


def upright(up: Sequence[float]) -> Tensor:
    """Returns the rotation [4, 4] fp64 that maps the direction `up` [3] to -y, as in models of structure-from-motion.

    For +y, this is a rotation by 180 degrees about x, and for +z by 90 degrees. Raises ArgumentError if `up` is zero or
    not finite.
    """
    length = math.hypot(*up)
    if not 0 < length < math.inf:
        raise ArgumentError(f"up: expected a finite direction that is not zero, found {list(up)}")
    return similarity(rotation_matrix(rotation_to_y([-value for value in up])))


def similarity(
    rotation: Tensor | None = None, translation: Sequence[float] = (0.0, 0.0, 0.0), scale: float = 1.0
) -> Tensor:
    """Returns the matrix [4, 4] fp64 that rotates by [3, 3], scales, and then translates."""
    matrix = identity(4)
    matrix[:3, :3] = scale * (matrix[:3, :3] if rotation is None else rotation)
    matrix[:3, 3] = fp64(translation)
    return matrix


def rotation_to_y(direction: Sequence[float]) -> list[float]:
    """Returns the rotation that turns a direction [3] to +y, as a unit quaternion wxyz."""
    length = math.hypot(*direction)
    x, y, z = (float(value) / length for value in direction)
    # The shortest rotation. For y < 0, it follows a rotation by 180 degrees about x, so that 1 + |y| is never small.
    quat = (1 + y, -z, 0.0, x) if y >= 0 else (-z, 1 - y, x, 0.0)
    norm = math.hypot(*quat)
    return [value / norm for value in quat]


def rotate_gaussians(gaussians: Gaussians, quat: Sequence[float]) -> Gaussians:
    """Returns a model rotated about the origin, with its view-dependent colors.

    Args:
        quat: [4] rotation wxyz, of any nonzero norm.
    """
    unit = torch.nn.functional.normalize(fp64(quat), dim=0)
    return transform_gaussians(gaussians, similarity(rotation_matrix(unit.tolist())))


@in_full_precision
def transform_gaussians(gaussians: Gaussians, matrix: Tensor) -> Gaussians:
    """Returns a rotated, scaled, mirrored and translated model, including its view-dependent colors.

    A camera that is moved in the same way sees the same image. Not differentiable with respect to `matrix`.

    Args:
        matrix: [4, 4] or [3, 4], from the old to the new world frame: a rotation or reflection times a positive factor,
            and a translation.

    Raises:
        ArgumentError: The matrix has another shape, is not finite, or is not such a transform.

    Example::

        import torch
        from tsplat.scene import Gaussians, transform_gaussians

        gaussians = Gaussians.from_points(torch.rand(100, 3), torch.rand(100, 3))
        half = torch.diag(torch.tensor([0.5, 0.5, 0.5, 1.0]))
        assert torch.allclose(transform_gaussians(gaussians, half).means, gaussians.means / 2)
    """
    scale, rotation, translation = decompose_similarity(matrix)
    means = (scale * gaussians.means.double() @ rotation.T.to(gaussians.means.device)).to(gaussians.means)
    moved = dataclasses.replace(
        gaussians, means=means + translation.to(means), log_scales=gaussians.log_scales + math.log(scale)
    )
    _check_range(gaussians, moved, scale)
    if gaussians.surfels:
        moved = moved.as_surfels()  # keeps the third scale constant
    if torch.equal(rotation, identity(3)):
        return moved
    # An ellipsoid is symmetric about its center, so the mirrored ellipsoid is also a rotated one.
    unit = positive_quaternions(rotation * torch.linalg.det(rotation).sign())
    blocks = _sh_blocks(gaussians.sh_degree, rotation)
    ends = list(itertools.accumulate((len(block) for block in blocks), initial=0))
    bands = [gaussians.shN[:, start:end] for start, end in itertools.pairwise(ends)]
    parts = [differentiable(_rotate_band, block.to(band), band) for block, band in zip(blocks, bands)]
    return dataclasses.replace(
        moved,
        quats=product(gaussians.quats, _left_product(unit).T.to(gaussians.quats)),
        shN=torch.cat(parts, 1) if parts else gaussians.shN,
    )


def _check_range(before: Gaussians, after: Gaussians, scale: float) -> None:
    """Raises ArgumentError if coordinates or scales have left the range of their dtype, or have become equal."""
    finite = before.finite
    old, new = (model.select(finite).map(lambda tensor: tensor.detach()) for model in (before, after))
    if not len(old):
        return
    range_ = torch.finfo(new.means.dtype)
    fix = "choose other values, or move the model by a translation first"
    if not new.means.isfinite().all():
        raise ArgumentError(f"matrix: coordinates exceed {range_.max:.3g}, the range of {new.means.dtype}; {fix}")
    sizes = [float((model.means.amax(0) - model.means.amin(0)).max()) for model in (old, new)]
    # Below this size, coordinates lose precision or become 0.
    least = range_.tiny / range_.eps
    if (sizes[0] > 0 and not sizes[1] > 0) or (sizes[1] < least <= sizes[0]):
        raise ArgumentError(
            f"matrix: the model would be {scale * sizes[0]:.3g} wide, which {new.means.dtype} cannot represent there; "
            f"{fix}"
        )
    limits = math.log(range_.tiny), math.log(range_.max)
    inside = [
        ((model.log_scales > limits[0]) & (model.log_scales < limits[1])).any(-1).float().mean() for model in (old, new)
    ]
    if float(inside[1]) < 0.5 * float(inside[0]):
        raise ArgumentError(
            f"matrix: most scales times {scale:.3g} leave the range of {new.means.dtype}, {range_.tiny:.3g} to "
            f"{range_.max:.3g}; {fix}"
        )


def flip_axes(gaussians: Gaussians, signs: tuple[int, int, int]) -> Gaussians:
    """Returns a model whose x, y and z are multiplied by signs, 1 or -1, without rounding. Applying it twice is the
    identity."""
    axes = torch.tensor(signs, dtype=torch.float32, device=gaussians.means.device)
    # The axis of a rotation is a pseudovector: a reflection additionally negates it.
    turns = torch.cat([axes.new_ones(1), axes * axes.prod()])
    return dataclasses.replace(
        gaussians,
        means=gaussians.means * axes,
        quats=gaussians.quats * turns,
        shN=gaussians.shN * sh_signs(gaussians.sh_degree, signs).to(axes)[:, None],
    )


def sh_signs(degree: int, signs: tuple[int, int, int]) -> Tensor:
    """Returns the sign of each SH basis function above degree 0 after x, y, z are multiplied by signs, [K - 1] fp32."""
    x, y, z = signs
    return torch.tensor(
        [
            x ** (abs(order) + (order < 0)) * y ** (order < 0) * z ** (band - abs(order))
            for band in range(1, degree + 1)
            for order in range(-band, band + 1)
        ],
        dtype=torch.float32,
        device="cpu",
    )


def _rotate_band(block: Tensor, band: Tensor) -> Tensor:
    """Multiplies the SH coefficients of one degree by a matrix. [i, j], [N, j, 3] -> [N, i, 3]"""
    return torch.einsum("ij,njc->nic", block, band)


def decompose_similarity(matrix: Tensor, name: str = "matrix") -> tuple[float, Tensor, Tensor]:
    """Decomposes a similarity transform [4, 4] or [3, 4] into scale, rotation or reflection [3, 3] and translation [3],
    fp64.

    Raises an ArgumentError that names the argument if the matrix is not a similarity transform.
    """
    expected = f"{name}: expected a rotation or reflection times a positive factor, and a translation, [4, 4] or [3, 4]"
    matrix = matrix.detach().double().cpu()
    if matrix.shape not in ((4, 4), (3, 4)):
        raise ArgumentError(f"{expected}; found {list(matrix.shape)}")
    last = fp64([0, 0, 0, 1])
    if not matrix.isfinite().all() or (len(matrix) == 4 and not torch.allclose(matrix[3], last)):
        raise ArgumentError(f"{expected}; found {matrix.tolist()}")
    u, stretch, v = torch.linalg.svd(matrix[:3, :3])
    scale = float(stretch.prod() ** (1 / 3))
    if not scale > 0 or not (stretch / scale - 1).abs().max() < SIMILARITY_TOLERANCE:
        raise ArgumentError(
            f"{expected}; found {matrix.tolist()}, which stretches by {', '.join(f'{s:.4g}' for s in stretch.tolist())}"
        )
    return scale, u @ v, matrix[:3, 3]


def similarity_scale(matrix: Tensor) -> float:
    """Returns the scale of a similarity transform [4, 4] that is not a reflection."""
    return float(torch.linalg.det(matrix[:3, :3]) ** (1 / 3))


def positive_quaternions(rotations: Tensor) -> Tensor:
    """Converts rotation matrices [..., 3, 3] to unit quaternions wxyz [..., 4] with w >= 0."""
    quats = formulas.quaternions(rotations)
    return quats * quats[..., :1].sign().where(quats[..., :1] != 0, 1)


def axis_rotations(degrees: Sequence[float]) -> Tensor:
    """Returns the rotation [3, 3] fp64 about the x, then the y, then the z axis of the world."""
    x, y, z = (
        rotation_matrix([math.cos(half), *(math.sin(half) * (axis == i) for i in range(3))])
        for axis, half in enumerate(math.radians(angle) / 2 for angle in degrees)
    )
    return z @ y @ x


def is_rotation(matrix: Tensor) -> bool:
    """Returns whether a matrix [3, 3] fp64 is a rotation within the tolerance for files."""
    skew = (matrix.T @ matrix - identity(3)).abs().max()
    return bool(skew <= SIMILARITY_TOLERANCE) and bool(torch.linalg.det(matrix) > 0)


def rotation_matrix(quat: Sequence[float]) -> Tensor:
    """Returns the [3, 3] fp64 rotation matrix of a unit quaternion wxyz."""
    return formulas.rotation_matrices(fp64([*quat]))


def _left_product(unit: Tensor) -> Tensor:
    """Returns the [4, 4] matrix of the product with a unit quaternion wxyz from the left."""
    w, x, y, z = unit.tolist()
    return unit.new_tensor([[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]])


def _sh_blocks(degree: int, matrix: Tensor) -> list[Tensor]:
    """Returns the matrices [2 l + 1, 2 l + 1] that rotate the coefficients of the degrees l above 0.

    The rotated color in direction d is the original color in the direction that is rotated to d. The functions of one
    degree span a space that is invariant under rotation, so a least-squares fit is exact.
    """
    if degree == 0:
        return []
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(N_DIRECTIONS, 3, generator=generator, dtype=torch.float64, device="cpu")
    n_bases = (degree + 1) ** 2
    each = torch.eye(n_bases, dtype=torch.float64, device="cpu").expand(N_DIRECTIONS, n_bases, n_bases)
    # With one basis function per channel, the colors are the values of all basis functions, [N_DIRECTIONS, n_bases].
    after, before = (spherical_harmonics(degree, d, each, backend="torch") for d in (directions, directions @ matrix))
    bands = [slice(band * band, (band + 1) ** 2) for band in range(1, degree + 1)]
    return [torch.linalg.lstsq(after[:, band], before[:, band]).solution for band in bands]

"""The settings of Inria's rasterizer and its forks, and the camera that they describe."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ArgumentError
from ...arguments import check_bool, check_number, check_tensor
from ...runtime.compilation import eager
from ...scalars import check_size
from .forks import refuse_arguments

SHAPES: dict[str, list[int | None]] = dict(bg=[None], viewmatrix=[4, 4], projmatrix=[4, 4], campos=[3])
"""Shapes of the tensors in the settings."""

ROUNDINGS = 3
"""Number of roundings of an entry of `projmatrix`: of both factors, and of their product."""

ROUNDOFFS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
"""Dtype -> largest relative rounding error. TF32 has the error of fp16."""

LOW_PRECISION = (torch.bfloat16, torch.float16)

NOTICEABLE = 0.01
"""Largest error of a principal point in pixels that is not visible."""

FP32_ERROR = 2.0**-18
"""Upper bound of the error of products in fp32, relative to the sum of magnitudes."""


class _Settings(NamedTuple):
    """See :class:`GaussianRasterizationSettings`."""

    image_height: int
    image_width: int
    tanfovx: float
    tanfovy: float
    bg: Tensor
    scale_modifier: float
    viewmatrix: Tensor
    projmatrix: Tensor
    sh_degree: int
    campos: Tensor
    prefiltered: bool = False
    debug: bool = False
    antialiasing: bool | None = None
    kernel_size: float | None = None
    subpixel_offset: Tensor | None = None
    projmatrix_raw: Tensor | None = None
    include_feature: bool | None = None
    confidence: Tensor | None = None
    f_count: bool | None = None
    do_depth: bool | None = None
    render_indices: Tensor | None = None
    parent_indices: Tensor | None = None
    interpolation_weights: Tensor | None = None
    num_node_kids: Tensor | None = None


class GaussianRasterizationSettings(_Settings):
    """The camera and the rendering settings.

    Attributes:
        image_height, image_width: Image size in pixels.
        tanfovx, tanfovy: Tangents of half the fields of view; they determine the focal lengths.
        bg: [C] background color.
        scale_modifier: Factor applied to `scales`; not to `cov3D_precomp`.
        viewmatrix: [4, 4] world to camera, transposed for multiplication with row vectors. [1, 4, 4], as in SplaTAM and
            Dynamic 3D Gaussians, also selects the values that their fork returns.
        projmatrix: [4, 4] or [1, 4, 4] world to clip space, transposed; determines the principal point. If the
            principal point cannot be distinguished from the image center at the precision of the matrix, the center is
            used.
        sh_degree: Highest degree of spherical harmonics to use.
        campos: [3] camera center, world frame, for the view directions of `shs`.
        prefiltered: Whether the depth of all Gaussians is above 0.2; if set, other Gaussians raise an error.
        debug: Whether to raise an error for invalid values and probable mistakes.
        antialiasing: Whether to compensate opacities for the larger projected area due to the blur. None, the default,
            means False and the generation of 2023, which does not have this field.
        kernel_size: Variance of the blur in pixels^2, with compensated opacities, as in Mip-Splatting. None, the
            default, means 0.3.
        subpixel_offset: [H, W, 2] offsets of pixel centers, as in Mip-Splatting, up to 0.5 along each axis. None, the
            default, means zeros. Not differentiable.
        projmatrix_raw: [4, 4] camera to clip space, transposed, as in MonoGS; if given, it determines the principal
            point.
        include_feature: Whether to render `language_feature_precomp`, as in LangSplat.
        confidence: [N, 1] factors of the gradients of Gaussians, as in FSGS.
        f_count: Whether to return counts and scores of Gaussians, as in LightGaussian.
        do_depth: Whether to return inverse depths, as in the hierarchical 3DGS.
        render_indices, parent_indices, interpolation_weights, num_node_kids: Settings of the hierarchical 3DGS; they
            must be empty.

    Raises:
        UnsupportedError: An argument belongs to another fork of the rasterizer.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> "GaussianRasterizationSettings":
        refuse_arguments(set(kwargs) - set(cls._fields))
        return super().__new__(cls, *args, **kwargs)

    @eager
    def checked(self) -> "GaussianRasterizationSettings":
        """Returns the settings with numbers converted to ints and floats, and matrices to [4, 4]."""
        given = {name: getattr(self, name) for name in SHAPES}
        given |= {name: _matrix(name, given[name]) for name in ("viewmatrix", "projmatrix")}
        checked: dict[str, Any] = {
            name: check_tensor(name, given[name], shape, str(shape).replace("None", "C"))
            for name, shape in SHAPES.items()
        }
        if checked["viewmatrix"].dtype in LOW_PRECISION:
            _warn_once(
                f"viewmatrix: found {checked['viewmatrix'].dtype}, which rounds the pose of the camera itself; compute "
                "it with autocast off"
            )
        for name in ("image_height", "image_width"):
            checked[name] = check_size(name, getattr(self, name))
        for name, least in (("tanfovx", 1e-6), ("tanfovy", 1e-6), ("scale_modifier", 0.0)):
            checked[name] = check_number(name, getattr(self, name), least, finite=True)
        if self.kernel_size is not None:
            checked["kernel_size"] = check_number("kernel_size", self.kernel_size, 0.0, finite=True)
        if self.subpixel_offset is not None:
            size = [checked["image_height"], checked["image_width"], 2]
            offset = check_tensor("subpixel_offset", self.subpixel_offset, size, "[H, W, 2]")
            checked["subpixel_offset"] = offset if offset.any() else None
        if self.projmatrix_raw is not None:
            checked["projmatrix_raw"] = _matrix("projmatrix_raw", self.projmatrix_raw)
        for name in ("include_feature", "f_count", "do_depth"):
            if getattr(self, name) is not None:
                checked[name] = check_bool(name, getattr(self, name))
        for name in ("render_indices", "parent_indices", "interpolation_weights", "num_node_kids"):
            if getattr(self, name) is not None and len(getattr(self, name)) > 0:
                refuse_arguments([name])
        return self._replace(**checked)

    def intrinsics(self, like: Tensor) -> Tensor:
        """Returns intrinsics [1, 3, 3] in pixels: focal lengths from the fields of view, principal point from
        `projmatrix`."""
        x, y = self._offsets()
        width, height = self.image_width, self.image_height
        K = [
            [width / (2 * self.tanfovx), 0, 0.5 * width * (1 + x)],
            [0, height / (2 * self.tanfovy), 0.5 * height * (1 + y)],
            [0, 0, 1],
        ]
        return torch.tensor([K], dtype=like.dtype, device=like.device)

    @torch.no_grad()  # poses that are optimized move both matrices, and not the principal point
    def _offsets(self) -> list[float]:
        """Returns the principal point minus the image center along both axes, in units in which the image spans -1 to
        1.

        With row vectors, clip = world @ viewmatrix @ projection; row 2 of the projection is the contribution of depth.
        Programs compute the product of these matrices, in bf16 or fp16 under autocast; for rotated cameras, its
        rounding looks like an offset. Therefore, offsets that rounding can cause are set to 0.
        """
        if self.projmatrix_raw is not None:
            offsets: list[float] = self.projmatrix_raw[2, :2].double().tolist()
            return offsets
        matrices = torch.cat([self.viewmatrix[:3, :3].double(), self.projmatrix[:3, :2].double()], -1).cpu()
        view, product = matrices[:, :3], matrices[:, 3:]
        inverse, problem = torch.linalg.inv_ex(view)
        if problem:
            raise ArgumentError("viewmatrix: expected a matrix with an inverse, found a singular one")
        projection = inverse @ product  # in fp64, which autocast leaves alone
        # The error of an entry of the projection, for a relative error of 1 of each entry of the product.
        errors = inverse.abs() @ product.abs()
        # Entries that are zero for every lens reveal products in TF32, whose dtype is fp32.
        skew = min(float((projection / errors)[entry].abs().nan_to_num(0)) for entry in ((0, 1), (1, 0)))
        roundoff = max(_roundoff(view), _roundoff(product), _roundoff_of_error(skew))
        bounds = ROUNDINGS * roundoff * errors[2]
        offsets, hidden = projection[2].tolist(), projection[2].abs() <= bounds
        pixels = 0.5 * max(self.image_width * float(bounds[0]), self.image_height * float(bounds[1]))
        if pixels > NOTICEABLE and (hidden.any() or self.projmatrix.dtype in LOW_PRECISION):
            _warn_once(
                f"projmatrix: found values of low precision, such as products under autocast; they determine the "
                f"principal point to {pixels:.2g} pixels, and smaller offsets from the image center are ignored. "
                "Rendering is in fp32. To pass other principal points exactly, compute projmatrix with autocast off"
            )
        return [0.0 if is_hidden else offset for offset, is_hidden in zip(offsets, hidden.tolist())]


def _matrix(name: str, value: object) -> Tensor:
    """Returns a matrix [4, 4] given as [4, 4] or [1, 4, 4]."""
    matrix = check_tensor(name, value, [..., 4, 4], "[4, 4]")
    return check_tensor(name, matrix[0] if matrix.shape == (1, 4, 4) else matrix, [4, 4], "[4, 4]")


def _roundoff(values: Tensor) -> float:
    """Returns the largest relative rounding error of the smallest dtype that represents the values exactly."""
    exact = [roundoff for dtype, roundoff in ROUNDOFFS.items() if values.equal(values.to(dtype).to(values.dtype))]
    return exact[0] if exact else 0.0


def _roundoff_of_error(error: float) -> float:
    """Returns the unit roundoff of the low-precision products that explain a relative error larger than that of
    fp32."""
    if error <= FP32_ERROR:
        return 0.0
    return next((ROUNDOFFS[d] for d in reversed(LOW_PRECISION) if error <= ROUNDINGS * ROUNDOFFS[d]), 0.0)


_warnings: set[str] = set()
"""First words of the warnings that this process has issued."""


def _warn_once(text: str) -> None:
    """Issues a warning once per process and argument."""
    name = text.partition(":")[0]
    if name not in _warnings:
        _warnings.add(name)
        warnings.warn(text, stacklevel=2)

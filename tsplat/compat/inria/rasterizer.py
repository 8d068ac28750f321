"""The names of Inria's ``diff_gaussian_rasterization``, in its generations of 2023 and 2024, and those of some forks.

The arguments, the returned tuple and the gradient of `means2D`, which densification reads, are the same. The constants
are those of `numerics="inria"`.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ... import ArgumentError, UnsupportedError
from ...arguments import check_choice, check_devices, check_number, check_size, check_tensor
from ...data import Cameras, Gaussians3D
from ...precision import full_precision
from ...stages.autograd import zeros_for
from ...stages.compilation import with_plain_tensors
from ...stages.intersection import isect_offset_encode, isect_tiles
from ...stages.pixels import rasterize_to_pixels
from ...stages.projection import fully_fused_projection
from ...stages.shading import spherical_harmonics
from ...stages.validation import raise_if_invalid
from ...strategies.relocation import compute_relocation as relocate

NUMERICS: Final = "inria"
NEAR, BLUR = 0.2, 0.3
TILE_SIZE = 16
SHAPES: dict[str, list[int | None]] = dict(bg=[None], viewmatrix=[4, 4], projmatrix=[4, 4], campos=[3])
"""Shapes of the tensors of the settings."""

Generation = Literal[2023, 2024, "mcmc"]

FORKS = {
    "all_map": "PGSR", "render_geo": "PGSR", "f_count": "LightGaussian", "theta": "MonoGS", "rho": "MonoGS",
    "require_coord": "RaDe-GS", "require_depth": "RaDe-GS", "pixel_weights": "Taming 3DGS",
}  # fmt: skip
"""Arguments that only a fork of the rasterizer has, and which."""


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


class GaussianRasterizationSettings(_Settings):
    """The camera and the rendering settings.

    Attributes:
        image_height, image_width: Image size in pixels.
        tanfovx, tanfovy: Tangents of half the fields of view; they determine the focal lengths.
        bg: [C] background color.
        scale_modifier: Factor applied to `scales`; not to `cov3D_precomp`.
        viewmatrix: [4, 4] world to camera, transposed, to multiply row vectors.
        projmatrix: [4, 4] world to clip space, transposed; it determines the principal point.
        sh_degree: Highest degree of spherical harmonics to use.
        campos: [3] camera center, world frame, for the view directions of `shs`.
        prefiltered: Whether all Gaussians are more than 0.2 in front of the camera; if set, others raise.
        debug: Whether to raise for invalid values and for those that are probably mistakes.
        antialiasing: Whether to scale opacities by how much the blur enlarges the projected area. None, the default,
            means False and the generation of 2023, which does not have this field.
        kernel_size: Variance of the blur in pixels^2, which then scales opacities, as in Mip-Splatting. None, the
            default, for 0.3.
        subpixel_offset: [H, W, 2] offsets of pixel centers, as in Mip-Splatting, up to 0.5 along each axis. None, the
            default, for zeros. Not differentiable.

    Raises:
        UnsupportedError: An argument that only another fork of the rasterizer has.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> "GaussianRasterizationSettings":
        _refuse_arguments_of_forks(set(kwargs) - set(cls._fields))
        return super().__new__(cls, *args, **kwargs)


class GaussianRasterizer(torch.nn.Module):
    """Renders Gaussians as seen by a camera.

    Args:
        raster_settings: The camera and the rendering settings.
        generation: Whose returned values to return: 2023 for ``(color, radii)``, 2024 for ``(color, radii,
            invdepths)``, "mcmc" for ``(color, radii, is_used)`` of 3dgs-mcmc. By default 2024 if the settings name
            ``antialiasing``, as the programs of 2024 do; otherwise :attr:`default_generation`.

    Attributes:
        default_generation: 2023; "mcmc" once something has imported ``compute_relocation``, as 3dgs-mcmc does.

    Raises:
        ArgumentError: The generation is unknown, or a setting is invalid.
    """

    default_generation: ClassVar[Generation] = 2023

    def __init__(self, raster_settings: GaussianRasterizationSettings, *, generation: Generation | None = None) -> None:
        super().__init__()
        if generation is None:
            generation = self.default_generation if raster_settings.antialiasing is None else 2024
        check_choice("generation", generation, get_args(Generation))
        self.raster_settings = _checked(raster_settings)
        self.generation = generation

    @torch.no_grad()
    def markVisible(self, positions: Tensor) -> Tensor:  # noqa: N802 - Inria's name
        """Returns which positions [N, 3] lie more than 0.2 in front of the camera, as [N] bool."""
        check_tensor("positions", positions, [None, 3], "[N, 3]")
        return _depths(positions, self.raster_settings.viewmatrix) > NEAR

    @torch.no_grad()
    def visible_filter(
        self,
        means3D: Tensor,
        scales: Tensor | None = None,
        rotations: Tensor | None = None,
        cov3D_precomp: Tensor | None = None,
    ) -> Tensor:
        """Returns the radii [N] int32 that :meth:`forward` returns for opaque Gaussians, as Scaffold-GS asks for."""
        n = len(means3D)
        scales = None if scales is None else scales * self.raster_settings.scale_modifier
        gaussians = Gaussians3D(means3D, rotations, scales, cov3D_precomp, means3D.new_ones(n))
        radii = self._project(gaussians)[0]
        assert radii is not None
        return radii[0, :, 0].contiguous()

    @with_plain_tensors
    def forward(
        self,
        means3D: Tensor,
        means2D: Tensor | None,
        opacities: Tensor,
        shs: Tensor | None = None,
        colors_precomp: Tensor | None = None,
        scales: Tensor | None = None,
        rotations: Tensor | None = None,
        cov3D_precomp: Tensor | None = None,
        *,
        dc: Tensor | None = None,
        **others: object,
    ) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
        """Renders an image.

        Args:
            means3D: [N, 3] centers, world frame.
            means2D: [N, 3], values are ignored; receives the gradient of the projected means, in units where the image
                spans -1 to 1. None if that gradient is not needed.
            opacities: [N, 1] after sigmoid.
            shs: [N, K, 3] spherical harmonics coefficients. Pass either these or `colors_precomp`.
            colors_precomp: [N, C] colors.
            scales, rotations: [N, 3] after exp, and [N, 4] wxyz. Pass either these or `cov3D_precomp`.
            cov3D_precomp: [N, 6] upper triangles of the covariances.
            dc: [N, 1, 3] coefficients of degree 0, as in Inria's accelerated rasterizer. `shs` are then those of the
                higher degrees, [N, K - 1, 3].

        Returns:
            ``color`` [C, H, W] and ``radii`` [N] int32 in pixels, 0 for Gaussians that are not visible. For the
            generation of 2024 also ``invdepths`` [1, H, W], the sum of weight / depth; for "mcmc" ``is_used`` [N] bool,
            which Gaussians reach a pixel. Differentiable with respect to all arguments.

        Raises:
            ArgumentError: Both or neither of two alternatives, an invalid shape, or ``prefiltered`` is set and a
                Gaussian is at most 0.2 in front of the camera.
            InvalidValueError: ``debug`` is set and there are invalid values.
            UnsupportedError: An argument that only another fork of the rasterizer has.
        """
        _refuse_arguments_of_forks(others)
        s = self.raster_settings
        if (shs is None) == (colors_precomp is None):
            raise ArgumentError("shs: pass either shs or colors_precomp")
        if dc is not None and shs is None:
            raise ArgumentError("dc: pass it with the shs of higher degrees, not with colors_precomp")
        given = [tensor is not None for tensor in (scales, rotations, cov3D_precomp)]
        if given not in ([True, True, False], [False, False, True]):
            raise ArgumentError("scales: pass either scales and rotations, or cov3D_precomp")
        check_tensor("means3D", means3D, [None, 3], "[N, 3]")
        check_devices(dict(means3D=means3D) | {name: getattr(s, name) for name in SHAPES})
        n = means3D.shape[0]
        if means2D is not None:
            check_tensor("means2D", means2D, [n, 3], "[N, 3] as means3D")
        check_tensor("opacities", opacities, [n, 1], "[N, 1] as means3D")
        if colors_precomp is not None:
            check_tensor("colors_precomp", colors_precomp, [n, None], "[N, C] as means3D")
        if s.prefiltered:
            self._check_prefiltered(means3D)
        if scales is not None:
            check_tensor("scales", scales, [n, 3], "[N, 3] as means3D")
            scales = scales * s.scale_modifier
        with full_precision():
            colors = self._shade(means3D, dc, shs) if colors_precomp is None else colors_precomp
            gaussians = Gaussians3D(means3D, rotations, scales, cov3D_precomp, opacities[:, 0])
            image, radii, flatten_ids = self._render(gaussians, means2D, colors)
        if self.generation == 2023:
            return image[:-1], radii
        if self.generation == "mcmc":
            is_used = torch.zeros(n, dtype=torch.bool, device=means3D.device)
            return image[:-1], radii, is_used.index_fill_(0, flatten_ids.long(), True)
        return image[:-1], radii, image[-1:]

    def _shade(self, means: Tensor, dc: Tensor | None, shs: Tensor | None) -> Tensor:
        """Colors [N, 3] as seen from the camera center."""
        s, n = self.raster_settings, means.shape[0]
        check_tensor("shs", shs, [n, None, 3], "[N, K, 3] as means3D")
        assert shs is not None
        if dc is not None:
            check_tensor("dc", dc, [n, 1, 3], "[N, 1, 3] as means3D")
            shs = torch.cat([dc, shs], 1)
        return (spherical_harmonics(s.sh_degree, means - s.campos, shs) + 0.5).clamp_min(0)

    def _project(self, gaussians: Gaussians3D) -> tuple[Tensor | None, ...]:
        """Projects Gaussians as :func:`tsplat.fully_fused_projection` does."""
        s = self.raster_settings
        means, quats, scales, covars, opacities, _ = gaussians
        return fully_fused_projection(
            means, covars, quats, scales, s.viewmatrix.T[None], self._intrinsics(means), s.image_width, s.image_height,
            eps2d=BLUR if s.kernel_size is None else s.kernel_size, opacities=opacities, numerics=NUMERICS,
            calc_compensations=bool(s.antialiasing) or s.kernel_size is not None,
        )  # fmt: skip

    def _render(self, gaussians: Gaussians3D, means2D: Tensor | None, colors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Renders colors [N, C] and inverse depths.

        Returns:
            The image [C + 1, H, W], with inverse depths last; radii [N] int32; and Gaussians in tiles, [M] int32.
        """
        s = self.raster_settings
        width, height, opacities = s.image_width, s.image_height, gaussians.opacities
        assert opacities is not None
        if s.debug:
            cameras = Cameras(s.viewmatrix.T[None], self._intrinsics(gaussians.means))
            raise_if_invalid(gaussians, cameras, colors, None)
        radii, pixels, depths, conics, compensations = self._project(gaussians)
        assert radii is not None and pixels is not None and depths is not None and conics is not None
        alphas = opacities[None]
        if compensations is not None:
            alphas = alphas * compensations
        if means2D is not None:
            # Adds zero, and scales the gradient from pixels to units where the image spans -1 to 1.
            half = pixels.new_tensor([0.5 * width, 0.5 * height])
            pixels = pixels + (zeros_for(means2D)[:, :2] * half)[None]
        tiles = (-(-width // TILE_SIZE), -(-height // TILE_SIZE))
        # Exact tests of tiles are for pixel centers.
        exact = s.subpixel_offset is None
        _, ids, flatten_ids = isect_tiles(
            pixels.detach(), radii, depths.detach(), TILE_SIZE, *tiles, conics=conics.detach() if exact else None,
            opacities=alphas.detach() if exact else None, numerics=NUMERICS,
        )  # fmt: skip
        visible = depths > 0
        inverse = torch.where(visible, 1 / torch.where(visible, depths, 1.0), 0.0)[..., None]
        image, _ = rasterize_to_pixels(
            pixels, conics, torch.cat([colors[None].to(inverse), inverse], -1), alphas, width, height, TILE_SIZE,
            isect_offset_encode(ids, 1, *tiles), flatten_ids,
            backgrounds=torch.cat([s.bg.to(inverse), inverse.new_zeros(1)])[None], numerics=NUMERICS,
            subpixel_offset=None if s.subpixel_offset is None else s.subpixel_offset[None],
        )  # fmt: skip
        # Contiguous as Inria's, so that programs can call view.
        return image[0].movedim(-1, 0).contiguous(), radii[0, :, 0].contiguous(), flatten_ids

    @torch.no_grad()
    def _check_prefiltered(self, means: Tensor) -> None:
        n_culled = int((_depths(means, self.raster_settings.viewmatrix) <= NEAR).sum())
        if n_culled:
            raise ArgumentError(
                f"prefiltered: {n_culled} of {len(means)} Gaussians are at most {NEAR} in front of the camera; remove "
                "them with markVisible, or pass prefiltered=False"
            )

    @torch.no_grad()  # poses that are optimized move both matrices, and not the principal point
    def _intrinsics(self, like: Tensor) -> Tensor:
        """Intrinsics [1, 3, 3] in pixels: focal lengths from the fields of view, principal point from `projmatrix`."""
        s = self.raster_settings
        # With row vectors, clip = world @ viewmatrix @ projection; row 2 of the projection is what depth contributes.
        try:
            projection = torch.linalg.solve(s.viewmatrix.double(), s.projmatrix.double()).to(like.dtype)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise ArgumentError("viewmatrix: expected a matrix with an inverse, found a singular one") from error
        Ks = torch.zeros(1, 3, 3, dtype=like.dtype, device=like.device)
        for axis, (size, tangent) in enumerate(((s.image_width, s.tanfovx), (s.image_height, s.tanfovy))):
            Ks[0, axis, axis] = size / (2 * tangent)
            Ks[0, axis, 2] = 0.5 * size * (1 + projection[2, axis])
        Ks[0, 2, 2] = 1
        return Ks


def _checked(settings: GaussianRasterizationSettings) -> GaussianRasterizationSettings:
    """Returns settings with numbers of any type as ints and floats."""
    checked: dict[str, Any] = {
        name: check_tensor(name, getattr(settings, name), shape, str(shape).replace("None", "C"))
        for name, shape in SHAPES.items()
    }
    for name in ("image_height", "image_width"):
        checked[name] = check_size(name, getattr(settings, name))
    for name, least in (("tanfovx", 1e-6), ("tanfovy", 1e-6), ("scale_modifier", 0.0)):
        checked[name] = check_number(name, getattr(settings, name), least, finite=True)
    if settings.kernel_size is not None:
        checked["kernel_size"] = check_number("kernel_size", settings.kernel_size, 0.0, finite=True)
    if settings.subpixel_offset is not None:
        size = [checked["image_height"], checked["image_width"], 2]
        offset = check_tensor("subpixel_offset", settings.subpixel_offset, size, "[H, W, 2]")
        checked["subpixel_offset"] = offset if offset.any() else None
    return settings._replace(**checked)


def _depths(positions: Tensor, viewmatrix: Tensor) -> Tensor:
    return (positions * viewmatrix[:3, 2]).sum(-1) + viewmatrix[3, 2]


def _refuse_arguments_of_forks(names: Iterable[str]) -> None:
    for name in sorted(names):
        fork = f"of the fork {FORKS[name]}" if name in FORKS else "not of Inria's rasterizer but of a fork"
        raise UnsupportedError(
            f"{name}: an argument {fork}; tsplat stands in for Inria's rasterizer here, and for the forks in "
            "docs/from_inria.md"
        )


def compute_relocation(
    opacity_old: Tensor, scale_old: Tensor, N: Tensor, binoms: Tensor, n_max: int
) -> tuple[Tensor, Tensor]:
    """Returns opacities and scales of N copies, as :func:`tsplat.strategies.compute_relocation` does, for 3dgs-mcmc."""
    return relocate(opacity_old, scale_old, N, binoms[:n_max, :n_max])


def rasterize_gaussians(
    means3D: Tensor,
    means2D: Tensor | None,
    sh: Tensor | None,
    colors_precomp: Tensor | None,
    opacities: Tensor,
    scales: Tensor | None,
    rotations: Tensor | None,
    cov3Ds_precomp: Tensor | None,
    raster_settings: GaussianRasterizationSettings,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Renders an image, as :class:`GaussianRasterizer` does. Tensors [0] stand for None, as in Inria's function."""

    def given(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None or tensor.shape == (0,) else tensor

    rasterizer = GaussianRasterizer(raster_settings)
    return rasterizer.forward(
        means3D, given(means2D), opacities, given(sh), given(colors_precomp), given(scales), given(rotations),
        given(cov3Ds_precomp),
    )  # fmt: skip

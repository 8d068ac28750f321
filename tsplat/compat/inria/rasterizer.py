"""The names of Inria's ``diff_gaussian_rasterization`` of 2023 and 2024, and of some forks.

The arguments, the returned tuple and the gradient of `means2D`, which densification reads, are those of Inria's
rasterizer. The constants are those of `numerics="inria"`.
"""

import functools
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ... import ArgumentError
from ...arguments import check_devices, check_tensor, compute_dtype
from ...data import Cameras, Gaussians3D, Splats
from ...formulas.pixel_centers import pixel_centers
from ...functional import (
    fully_fused_projection,
    isect_offset_encode,
    isect_tiles,
    rasterize_to_pixels,
    spherical_harmonics,
)
from ...functional.tile_lists import TileLists
from ...precision import full_precision
from ...runtime.autograd import zeros_for
from ...runtime.compilation import eager, with_plain_tensors
from ...scalars import check_choice
from ...stages.value_checks import raise_if_invalid
from ...strategies.relocation import compute_relocation as relocate
from . import measures
from .forks import refuse_arguments, refuse_method
from .returns import (
    OF_ARGUMENTS,
    OF_BATCHED_MATRICES,
    OF_GENERATIONS,
    OF_SETTINGS,
    Names,
    Returned,
    parse_returns,
    returns_of_environment,
)
from .settings import SHAPES, GaussianRasterizationSettings

NUMERICS: Final = "inria"
NEAR, BLUR = 0.2, 0.3
TILE_SIZE = 16

Generation = Literal[2023, 2024, "mcmc"]

FEATURES = frozenset({"semantic_feature", "language_feature_precomp", "sh_objs", "mask", "semantics"})
"""Arguments of forks that are rendered as additional channels without a background."""

DENSIFIED = ("means2D_densify", "means2D_abs")
"""Arguments of forks that receive the sums of absolute gradients over pixels."""


class GaussianRasterizer(torch.nn.Module):
    """Renders Gaussians as seen by a camera.

    Args:
        raster_settings: The camera and the rendering settings.
        generation: Selects the returned values: 2023 for ``(color, radii)``, 2024 for ``(color, radii, invdepths)``,
            "mcmc" for ``(color, radii, is_used)`` of 3dgs-mcmc.
        returns: Names of the values to return instead, such as ``("color", "radii", "depth")``; see docs/from_inria.md.
            By default, the names in the environment variable ``TSPLAT_INRIA_RETURNS``; otherwise the values of the fork
            that the settings or arguments identify; otherwise those of 2024 if the settings contain ``antialiasing``,
            as in the programs of 2024; otherwise those of :attr:`default_generation`.

    Attributes:
        default_generation: 2023; "mcmc" after ``compute_relocation`` has been imported, as 3dgs-mcmc does.
        own_returns: Values that the module of a fork always returns, such as ``diff_gaussian_rasterization_ms``; or
            None.
        n_scales: Number of columns of ``scales``.
        others: Additional arguments of forks that :meth:`forward` takes.
        features: The additional arguments that are rendered as channels.

    Raises:
        ArgumentError: The generation or a name is unknown, or a setting is invalid.
    """

    default_generation: ClassVar[Generation] = 2023
    own_returns: ClassVar[Names | None] = None
    features: ClassVar[frozenset[str]] = FEATURES
    n_scales: ClassVar[int] = 3
    others: ClassVar[frozenset[str]] = FEATURES | {"means2D_densify", "theta", "rho"}

    def __init__(
        self,
        raster_settings: GaussianRasterizationSettings,
        *,
        generation: Generation | None = None,
        returns: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if generation is not None:
            check_choice("generation", generation, get_args(Generation))
            returns = OF_GENERATIONS[generation] if returns is None else returns
        self.generation = generation
        self.returns = None if returns is None else parse_returns(",".join(returns))
        self.has_batched_matrices = getattr(raster_settings.viewmatrix, "ndim", 2) == 3
        self.raster_settings = raster_settings.checked()

    def _returned(self, arguments: dict[str, Any]) -> Names:
        """Returns the names of the values to return for a call with these fork arguments."""
        chosen = self.returns or self.own_returns or returns_of_environment()
        if chosen is not None:
            return chosen
        s = self.raster_settings
        if s.f_count:
            return "count", "score", "color", "radii"
        marks = [names for name, names in OF_ARGUMENTS.items() if name in arguments]
        marks += [names for name, names in OF_SETTINGS.items() if getattr(s, name) is not None]
        if self.has_batched_matrices:
            marks.append(OF_BATCHED_MATRICES)
        return marks[0] if marks else OF_GENERATIONS[self.default_generation]

    def __getattr__(self, name: str) -> Any:
        refuse_method(name)
        return super().__getattr__(name)

    @torch.no_grad()
    def markVisible(self, positions: Tensor) -> Tensor:  # noqa: N802 - Inria's name
        """Returns a mask [N] bool of the positions [N, 3] whose depth is above 0.2."""
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
        """Returns the radii [N] int32 of opaque Gaussians, for Scaffold-GS."""
        opaque = means3D.new_ones(len(means3D))
        scales = _scaled(scales, self.raster_settings.scale_modifier)
        radii = self._project(Gaussians3D(means3D, rotations, scales, cov3D_precomp, opaque), None)[0]
        assert radii is not None
        return radii[0, :, 0].contiguous()

    @eager
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
        **others: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Renders an image.

        Args:
            means3D: [N, 3] centers, world frame.
            means2D: [N, 3], values are ignored; receives the gradient of the projected means, in units in which the
                image spans -1 to 1. None if the gradient is not needed. [N, 4] as in AbsGS: the last two columns
                receive the sums of absolute gradients over pixels.
            opacities: [N, 1] or [N] after sigmoid.
            shs: [N, K, 3] spherical harmonics coefficients. Pass either these or `colors_precomp`.
            colors_precomp: [N, C] colors.
            scales, rotations: [N, 3] after exp, and [N, 4] wxyz. Pass either these or `cov3D_precomp`.
            cov3D_precomp: [N, 6] upper triangles of the covariances.
            dc: [N, 1, 3] coefficients of degree 0, as in Inria's accelerated rasterizer. `shs` are then the
                coefficients of the higher degrees, [N, K - 1, 3].
            others: Arguments of forks: ``semantic_feature``, ``language_feature_precomp``, ``sh_objs``, ``mask``,
                ``semantics`` or ``all_map`` [N, ...], rendered as ``features``; ``theta`` and ``rho`` [3], which
                receive the gradients of a rotation and a translation of the camera frame, applied after the view
                matrix; ``means2D_densify`` or ``means2D_abs`` [N, 3], which receive the sums of absolute gradients over
                pixels.

        Returns:
            ``color`` [C, H, W] and ``radii`` [N] int32 in pixels, 0 for Gaussians that are not visible. For the
            generation of 2024 also ``invdepths`` [1, H, W], the sum of weight / depth; for "mcmc" ``is_used`` [N] bool,
            whether a Gaussian reaches a pixel; for forks the values in the table of docs/from_inria.md. All images
            except ``median_depth`` are differentiable with respect to all arguments.

        Raises:
            ArgumentError: Both or neither of two alternatives are given, a shape is invalid, or ``prefiltered`` is set
                and the depth of a Gaussian is 0.2 or less. Unpacking another number of values than are returned raises
                it, too.
            InvalidValueError: ``debug`` is set and there are invalid values.
            UnsupportedError: An argument belongs to another fork of the rasterizer.
        """
        refuse_arguments(others.keys() - self.others)
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
            columns = 4 if getattr(means2D, "ndim", 0) == 2 and means2D.shape[1] == 4 else 3
            check_tensor("means2D", means2D, [n, columns], "[N, 3] as means3D")
        check_tensor("opacities", opacities, [n] if getattr(opacities, "ndim", 2) == 1 else [n, 1], "[N, 1] as means3D")
        if colors_precomp is not None:
            check_tensor("colors_precomp", colors_precomp, [n, None], "[N, C] as means3D")
        if s.prefiltered:
            self._check_prefiltered(means3D)
        if scales is not None:
            check_tensor("scales", scales, [n, self.n_scales], f"[N, {self.n_scales}] as means3D")
        pose = Pose.of(s, others)
        with full_precision():
            if s.confidence is not None:
                confidence = check_tensor("confidence", s.confidence, [n, 1], "[N, 1] as means3D")
                scale = functools.partial(_with_scaled_gradient, factor=confidence)
                means3D, opacities = scale(means3D), scale(opacities.reshape(n, 1))
                dc, shs, colors_precomp, scales, rotations, cov3D_precomp = (
                    None if tensor is None else scale(tensor)
                    for tensor in (dc, shs, colors_precomp, scales, rotations, cov3D_precomp)
                )
            scales = _scaled(scales, s.scale_modifier)
            colors = self._shade(means3D, dc, shs, pose) if colors_precomp is None else colors_precomp
            gaussians = Gaussians3D(means3D, rotations, scales, cov3D_precomp, opacities.reshape(n))
            screen = Screen(means2D, [others[name] for name in DENSIFIED if others.get(name) is not None])
            features = _features(s, {name: others[name] for name in self.features & others.keys()}, n)
            names = self._returned(others)
            return Returned.of(self._render(gaussians, screen, pose, colors, features, names))

    def _shade(self, means: Tensor, dc: Tensor | None, shs: Tensor | None, pose: "Pose | None") -> Tensor:
        """Returns the colors [N, 3] as seen from the camera center."""
        s, n = self.raster_settings, means.shape[0]
        check_tensor("shs", shs, [n, None, 3], "[N, K, 3] as means3D")
        assert shs is not None
        if dc is not None:
            check_tensor("dc", dc, [n, 1, 3], "[N, 1, 3] as means3D")
            shs = torch.cat([dc, shs], 1)
        center = s.campos.to(compute_dtype(means, s.campos))
        if pose is not None:
            center = center + pose.shift(s.viewmatrix.to(center))
        return (spherical_harmonics(s.sh_degree, means - center, shs) + 0.5).clamp_min(0)

    def _project(self, gaussians: Gaussians3D, pose: "Pose | None") -> tuple[Tensor | None, ...]:
        """Projects Gaussians with :func:`tsplat.fully_fused_projection`."""
        s = self.raster_settings
        means, quats, scales, covars, opacities, _ = gaussians
        viewmats = s.viewmatrix.T[None]
        return fully_fused_projection(
            means, covars, quats, scales, viewmats if pose is None else pose.apply(viewmats),
            s.intrinsics(means), s.image_width, s.image_height, eps2d=BLUR if s.kernel_size is None else s.kernel_size,
            opacities=opacities, numerics=NUMERICS,
            calc_compensations=bool(s.antialiasing) or s.kernel_size is not None,
        )  # fmt: skip

    def _render(
        self,
        gaussians: Gaussians3D,
        screen: "Screen",
        pose: "Pose | None",
        colors: Tensor,
        features: Tensor | None,
        names: Names,
    ) -> dict[str, Tensor]:
        """Renders colors [N, C], features [N, F], depths and inverse depths; returns the results by name."""
        s = self.raster_settings
        width, height, opacities = s.image_width, s.image_height, gaussians.opacities
        assert opacities is not None
        if s.debug:
            cameras = Cameras(s.viewmatrix.T[None], s.intrinsics(gaussians.means))
            raise_if_invalid(gaussians, cameras, colors, None)
        radii, pixels, depths, conics, compensations = self._project(gaussians, pose)
        assert radii is not None and pixels is not None and depths is not None and conics is not None
        alphas = opacities[None]
        if compensations is not None:
            alphas = alphas * compensations
        pixels, absgrad = screen.attach(pixels, width, height)
        tiles = (-(-width // TILE_SIZE), -(-height // TILE_SIZE))
        # Exact tile tests assume that pixels are sampled at their centers.
        exact = s.subpixel_offset is None
        _, ids, flatten_ids = isect_tiles(
            pixels.detach(), radii, depths.detach(), TILE_SIZE, *tiles, conics=conics.detach() if exact else None,
            opacities=alphas.detach() if exact else None, numerics=NUMERICS,
        )  # fmt: skip
        offsets = isect_offset_encode(ids, 1, *tiles)
        visible = depths > 0
        inverse = torch.where(visible, 1 / torch.where(visible, depths, 1.0), 0.0)[..., None]
        channels = {"color": colors[None].to(inverse)}
        if features is not None:
            channels["features"] = features[None].to(inverse)
        if "depth" in names:
            channels["depth"] = depths[..., None]
        channels["invdepth"] = inverse
        n_others = sum(channel.shape[-1] for name, channel in channels.items() if name != "color")
        images, alpha = rasterize_to_pixels(
            pixels, conics, torch.cat(list(channels.values()), -1), alphas, width, height, TILE_SIZE, offsets,
            flatten_ids, backgrounds=torch.cat([s.bg.to(inverse), inverse.new_zeros(n_others)])[None], absgrad=absgrad,
            numerics=NUMERICS, subpixel_offset=None if s.subpixel_offset is None else s.subpixel_offset[None],
        )  # fmt: skip
        # Contiguous like Inria's, because programs call view.
        split = torch.split(images[0].movedim(-1, 0), [channel.shape[-1] for channel in channels.values()])
        values = {name: image.contiguous() for name, image in zip(channels, split)}
        values |= dict(radii=radii[0, :, 0].contiguous(), alpha=alpha[0].movedim(-1, 0).contiguous())
        if "features" in names and features is None:
            values["features"] = images.new_zeros(_features_without_values(s, names), height, width)
        if "plane_depth" in names:
            values["plane_depth"] = self._plane_depth(values["features"], features)
        if "is_used" in names:
            is_used = torch.zeros_like(values["radii"], dtype=torch.bool)
            values["is_used"] = is_used.index_fill_(0, flatten_ids.long(), True)
        if not set(names) <= values.keys():
            if not exact:
                raise ArgumentError(f"subpixel_offset: expected zeros, as {', '.join(names)} are returned")
            rows = pixels.detach()[0], conics.detach()[0], alphas.detach()[0].to(pixels)
            lists = TileLists.check(width, height, TILE_SIZE, offsets, flatten_ids, None)
            splats = Splats(*rows, None)
            if "weights" in names:
                values["weights"] = measures.sum_weights(splats, lists, NUMERICS)
            if "median_depth" in names:
                values["median_depth"] = measures.median_depths(splats, depths.detach()[0], lists, NUMERICS)
            if not set(names) <= values.keys():
                values = measures.measure(splats, lists, NUMERICS) | values
        return {name: values[name] for name in names}

    def _plane_depth(self, images: Tensor, features: Tensor | None) -> Tensor:
        """Returns the depth at which rays meet planes, [1, H, W], from images of normals (3), alpha and distances, as
        in PGSR."""
        if features is None:
            return images[:1]
        check_tensor("all_map", features, [None, 5], "[N, 5]")
        K = self.raster_settings.intrinsics(images)[0]
        height, width = images.shape[1:]
        x, y = pixel_centers(width, height, images)
        x, y = (x - K[0, 2]) / K[0, 0], ((y - K[1, 2]) / K[1, 1])[:, None]
        return (images[4] / -(images[0] * x + images[1] * y + images[2] + 1e-8))[None]

    @torch.no_grad()
    def _check_prefiltered(self, means: Tensor) -> None:
        n_culled = int((_depths(means, self.raster_settings.viewmatrix) <= NEAR).sum())
        if n_culled:
            raise ArgumentError(
                f"prefiltered: {n_culled} of {len(means)} Gaussians are at most {NEAR} in front of the camera; remove "
                "them with markVisible, or pass prefiltered=False"
            )


class Pose(NamedTuple):
    """A rotation vector and a translation of the camera frame, [3] each; they are zero and receive gradients."""

    theta: Tensor
    rho: Tensor

    @classmethod
    def of(cls, settings: GaussianRasterizationSettings, arguments: dict[str, Tensor | None]) -> "Pose | None":
        """Returns the pose for the arguments ``theta`` and ``rho``, whose values are not read; None if neither is
        given."""
        given = {name: arguments.get(name) for name in ("theta", "rho")}
        if all(tensor is None for tensor in given.values()):
            return None
        zeros = settings.viewmatrix.new_zeros(3, dtype=compute_dtype(settings.viewmatrix))
        for name, tensor in given.items():
            if tensor is not None and tensor.numel() != 3:
                check_tensor(name, tensor, [3], "[3]")
        theta, rho = (zeros if t is None else zeros_for(t).reshape(3).to(zeros) for t in given.values())
        return cls(theta, rho)

    def apply(self, viewmats: Tensor) -> Tensor:
        """Adds the first-order change by the pose to view matrices [1, 4, 4]: Exp(rho, theta) viewmat."""
        rows = viewmats[0, :3].to(self.rho)
        change = torch.linalg.cross(self.theta[:, None].expand(3, 4), rows, dim=0)
        change = change + torch.nn.functional.pad(self.rho[:, None], (3, 0))
        return viewmats + torch.nn.functional.pad(change, (0, 0, 0, 1))[None]

    def shift(self, viewmatrix: Tensor) -> Tensor:
        """Returns the change of the camera center by the pose, [3], given a transposed view matrix."""
        return -(viewmatrix[:3, :3] * self.rho.to(viewmatrix)).sum(-1)


class Screen(NamedTuple):
    """Tensors [N, 3 or 4] that receive gradients of projected means, and tensors that receive sums of absolute
    gradients over pixels."""

    means: Tensor | None
    densified: list[Tensor | None]

    def attach(self, pixels: Tensor, width: int, height: int) -> tuple[Tensor, bool]:
        """Attaches the tensors to pixels [1, N, 2], so that they receive the gradients of the returned pixels.

        Also returns whether absolute gradients are needed. Gradients are scaled from pixels to units in which the image
        spans -1 to 1.
        """
        half = pixels.new_tensor([0.5 * width, 0.5 * height])
        if self.means is not None:
            pixels = pixels + (zeros_for(self.means)[:, :2] * half)[None]
        targets = []
        for target in self.densified:
            assert target is not None
            targets.append(check_tensor("means2D_densify", target, [pixels.shape[1], 3], "[N, 3] as means3D"))
        if self.means is not None and self.means.shape[1] == 4:
            targets.append(self.means)
        targets = [target for target in targets if target.requires_grad]
        if not targets:
            return pixels, False
        output: list[weakref.ref[Tensor]] = []
        attached: Tensor = _AbsoluteGradients.apply(pixels, half, output, *targets)  # type: ignore[no-untyped-call]
        output.append(weakref.ref(attached))
        return attached, True


class _AbsoluteGradients(torch.autograd.Function):
    """Passes pixels [1, N, 2] through; targets [N, 3 or 4] receive the ``absgrad`` of the output, in the last two of
    four columns, or in the first two of three."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, half: Tensor, output: list[Any], *targets: Tensor) -> Tensor:
        ctx.half, ctx.output = half, output
        ctx.targets = [(target.shape, target.dtype) for target in targets]
        return pixels.clone()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        absgrad = getattr(ctx.output[0](), "absgrad", None)
        absolute = torch.zeros_like(v[0]) if absgrad is None else absgrad[0] * ctx.half
        gradients = []
        for shape, dtype in ctx.targets:
            columns = shape[-1]
            pad = (columns - 2, 0) if columns == 4 else (0, columns - 2)
            gradients.append(torch.nn.functional.pad(absolute, pad).to(dtype))
        return v, None, None, *gradients


def _features(settings: GaussianRasterizationSettings, arguments: dict[str, Tensor | None], n: int) -> Tensor | None:
    """Returns the features [N, F] in the arguments, or None."""
    given = {name: tensor for name, tensor in arguments.items() if tensor is not None and tensor.numel() > 0}
    if settings.include_feature is False:
        given.pop("language_feature_precomp", None)
    if len(given) > 1:
        raise ArgumentError(f"{sorted(given)[1]}: pass one of {', '.join(sorted(given))}, which are of different forks")
    for name, tensor in given.items():
        return check_tensor(name, tensor, [n, *[None] * (tensor.ndim - 1)], "[N, ...] as means3D").reshape(n, -1)
    return None


def _features_without_values(settings: GaussianRasterizationSettings, names: Names) -> int:
    """Returns the number of zero channels that forks return if no features are given."""
    if "plane_depth" in names:
        return 5
    return 3 if settings.include_feature is not None else 0


def _with_scaled_gradient(tensor: Tensor, factor: Tensor) -> Tensor:
    """Returns a tensor [N, ...] unchanged; multiplies its gradient by factors [N, 1]."""
    factor = factor.detach().view(-1, *[1] * (tensor.ndim - 1))
    return tensor.detach() + zeros_for(tensor) * factor.to(tensor)


def _scaled(scales: Tensor | None, factor: float) -> Tensor | None:
    """Returns the scales times a factor, in at least fp32."""
    return scales if scales is None or factor == 1 else scales.to(compute_dtype(scales)) * factor


def _depths(positions: Tensor, viewmatrix: Tensor) -> Tensor:
    dtype = compute_dtype(positions, viewmatrix)
    positions, viewmatrix = positions.to(dtype), viewmatrix.to(dtype)
    return (positions * viewmatrix[:3, 2]).sum(-1) + viewmatrix[3, 2]


def compute_relocation(
    opacity_old: Tensor, scale_old: Tensor, N: Tensor, binoms: Tensor, n_max: int
) -> tuple[Tensor, Tensor]:
    """Returns the opacities and scales of N copies for 3dgs-mcmc; see :func:`tsplat.strategies.compute_relocation`."""
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
) -> tuple[Tensor, ...]:
    """Renders an image with :class:`GaussianRasterizer`. Tensors [0] mean None, as in Inria's function."""

    def given(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None or tensor.shape == (0,) else tensor

    rasterizer = GaussianRasterizer(raster_settings)
    return rasterizer.forward(
        means3D, given(means2D), opacities, given(sh), given(colors_precomp), given(scales), given(rotations),
        given(cov3Ds_precomp),
    )  # fmt: skip

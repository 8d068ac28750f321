"""Spinning lidars in the functions for single stages: projection to angles, and compositing of the lidar's own tiles.

A tile of a :class:`LidarTiling` contains nearby elements of the range image, which are not on a grid. Each tile becomes
a square of an intermediate image, the image of squares. The pixels of a square are the tile's elements; remaining
pixels have no ray. Compositing renders this image like any other, and the elements are gathered from it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .... import ArgumentError, fully_fused_projection_with_ut
from ....arguments import INTEGERS, check_devices, check_tensor, check_tile_size
from ....config import CameraSettings
from ....data import Cameras, Rays
from ....functional.compositing import RayInputs, ray_inputs
from ....scalars import check_size, enum_name
from ....stages.eval3d import check_rays
from ....stages.lens_models import check_parameters
from ....stages.lidars import MARGIN, SCALE, LidarLayout, check_lidar, check_no_lens
from ._lidar import tiling_of

MODEL = "equirectangular"
"""The camera model of projection to angles."""


def project_to_angles(arguments: dict[str, Any]) -> tuple[Tensor | None, ...]:
    """Projects Gaussians to azimuths and elevations, given the arguments of :func:`fully_fused_projection_with_ut` by
    name."""
    layout, given = _as_cameras(arguments)
    del given["global_z_order"]
    given |= dict(width=layout.panorama[0], height=layout.panorama[1])
    given["ut_params"] = dataclasses.replace(check_parameters(given["ut_params"]), in_image_margin_factor=MARGIN)
    radii, means2d, depths, conics, compensations = fully_fused_projection_with_ut(**given)
    assert radii is not None and means2d is not None and conics is not None
    # Longitudes increase clockwise and v downwards; azimuths increase counterclockwise and elevations upwards.
    sign = -layout.fx / SCALE
    (u, v), (cu, cv) = means2d.unbind(-1), layout.center
    angles = torch.stack([sign * (u - cu), cv - v], -1)
    angles = torch.where((radii > 0).all(-1, keepdim=True), angles, 0.0)
    return radii, angles, depths, conics * conics.new_tensor([1.0, -sign, 1.0]), compensations


def element_inputs(arguments: dict[str, Any]) -> tuple[ElementTiles, RayInputs]:
    """Checks the arguments of :func:`rasterize_to_pixels_eval3d` for a lidar, given by name.

    Returns the positions of elements in the image of squares, and the inputs of compositing.
    """
    layout, given = _as_cameras(arguments)
    for name, size in (("image_width", layout.n_columns), ("image_height", layout.n_rows)):
        if check_size(name, given[name]) != size:
            raise ArgumentError(f"{name}: expected {size} as in lidar_coeffs, found {given[name]}")
    tiling = tiling_of(arguments["lidar_coeffs"], "lidar_coeffs")
    tiles = ElementTiles.of(layout, tiling, check_tile_size(given["tile_size"]))
    given |= dict(image_width=tiles.width, image_height=tiles.height)
    if given["rays"] is not None and isinstance(given["viewmats"], Tensor):
        rays = check_rays(given["rays"], (*given["viewmats"].shape[:-2], layout.n_rows, layout.n_columns, 6))
        check_devices({"rays": rays, "lidar_coeffs.tiling.tiles_to_elements_map": tiles.pixels})
        given["rays"] = tiles.squares(rays.movedim(-1, -3)).movedim(-3, -1)

    def rays_of(cameras: Cameras, settings: CameraSettings, unit: bool) -> Rays:
        rays = layout.element_rays(cameras, settings, unit=unit)
        return rays._replace(per_pixel=tiles.squares(rays.per_pixel))

    return tiles, ray_inputs(given, rays_of)


def _as_cameras(arguments: dict[str, Any]) -> tuple[LidarLayout, dict[str, Any]]:
    """Checks the lidar in named arguments. Returns its layout, and the arguments with a camera instead of the lidar."""
    given = dict(arguments)
    lidar, readout, sweeps = given.pop("lidar_coeffs"), enum_name(given["rolling_shutter"]), given["viewmats_rs"]
    layout, readout = check_lidar(lidar, given["camera_model"], readout, is_exact=True, sweeps=sweeps is not None)
    check_no_lens(given)
    cameras = layout.cameras(Cameras(given["viewmats"], given["Ks"]))
    given |= dict(viewmats=cameras.viewmats, Ks=cameras.Ks, viewmats_rs=layout.camera_frame(sweeps))
    return layout, given | dict(camera_model=MODEL, rolling_shutter=readout)


class ElementTiles(NamedTuple):
    """Positions of the elements of a range image in the image of squares.

    Attributes:
        n_rows, n_columns: Size of the range image.
        width, height: Size of the image of squares.
        pixels: [H * W] int64 flat index of the pixel of each element, row by row.
    """

    n_rows: int
    n_columns: int
    width: int
    height: int
    pixels: Tensor

    @classmethod
    def of(cls, layout: LidarLayout, tiling: object, tile_size: int) -> ElementTiles:
        """Checks the tiles of a lidar, and assigns their elements to squares of ``tile_size``.

        Raises:
            ArgumentError: The tiling is missing or does not contain each element once, or a tile has more elements than
                a square has pixels.
        """
        across, down = (
            check_size(f"lidar_coeffs.tiling.{name}", getattr(tiling, name, None))
            for name in ("n_bins_azimuth", "n_bins_elevation")
        )
        ranges = check_tensor(
            "lidar_coeffs.tiling.tiles_pack_info", getattr(tiling, "tiles_pack_info", None), [across * down, 2],
            "[tiles, 2]", dtypes=INTEGERS,
        )  # fmt: skip
        n_rows, n_columns = layout.n_rows, layout.n_columns
        elements = check_tensor(
            "lidar_coeffs.tiling.tiles_to_elements_map", getattr(tiling, "tiles_to_elements_map", None),
            [n_rows * n_columns, 2], "[H * W, 2]", dtypes=INTEGERS,
        )  # fmt: skip
        check_devices({"tiles_pack_info": ranges, "tiles_to_elements_map": elements})
        starts, counts = ranges.long().unbind(-1)
        columns, rows = elements.long().unbind(-1)
        inside = (columns >= 0) & (columns < n_columns) & (rows >= 0) & (rows < n_rows)
        own = torch.where(inside, rows * n_columns + columns, 0)
        ends = counts.cumsum(0)
        in_order = bool((counts >= 0).all() & (starts == ends - counts).all() & (ends[-1] == len(own)))
        if not in_order or not bool((own.bincount(minlength=len(own)) == 1).all()):
            raise ArgumentError(
                "lidar_coeffs.tiling: expected every element of the range image in one tile, tile by tile; pass the "
                "tiling that compute_lidar_tiling returns"
            )
        most = int(counts.max())
        if most > tile_size**2:
            raise ArgumentError(
                f"tile_size: expected a square of at least {most}, the number of elements in a tile of lidar_coeffs, "
                f"found {tile_size}; pass a larger one, or a tiling with a smaller max_pts_per_tile"
            )
        tiles = torch.arange(len(counts), device=own.device).repeat_interleave(counts)
        within = torch.arange(len(own), device=own.device) - starts.repeat_interleave(counts)
        y = tiles // across * tile_size + within // tile_size
        x = tiles % across * tile_size + within % tile_size
        width = across * tile_size
        return cls(n_rows, n_columns, width, down * tile_size, torch.empty_like(own).index_copy(0, own, y * width + x))

    def squares(self, values: Tensor) -> Tensor:
        """Scatters values [..., H, W] of elements to the image of squares, with zeros elsewhere. Differentiable."""
        flat = values.new_zeros(*values.shape[:-2], self.height * self.width)
        return flat.index_copy(-1, self.pixels, values.flatten(-2)).view(*values.shape[:-2], self.height, self.width)

    def range_image(self, values: Tensor) -> Tensor:
        """Gathers the elements [..., H, W, D] from an image of squares. Differentiable."""
        chosen = values.flatten(-3, -2).index_select(-2, self.pixels)
        return chosen.view(*values.shape[:-3], self.n_rows, self.n_columns, values.shape[-1])

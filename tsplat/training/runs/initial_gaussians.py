"""The initial Gaussians of a run: at sparse points, in the sky, or from models."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...errors import ArgumentError, FileError
from ...rendering import render_views
from ...runtime.process_group import RankGroup
from ...scene.cameras import centers, project_points
from ...scene.capture.block_plans import BlockPlan
from ...scene.capture.local_frame import LocalFrame
from ...scene.capture.views import Capture, View
from ...scene.dominant_axes import dominant_axes
from ...scene.extents import with_near_planes
from ...scene.formats.checkpoints import is_run, open_model
from ...scene.gaussians import GSPLAT_NAMES, Gaussians, drop_invalid
from ...scene.joining import merge_models, set_sh_degree
from ...scene.rotation import transform_gaussians
from ...strategies.random_numbers import draw_key, row_indices, standard_normal
from ...support.reading import check_possible
from ..configuration import FROZEN_NAMES, RunConfig
from ..gradient_step import visible_share
from ..parameters import rows_of_rank
from ..trainer import scene_extent
from .run_checkpoints import read_newest_settings
from .scenes import Description, find_moved, read_block, relative_path, saved_frame

SKY_RADIUS = 20.0
"""Radius of the sky's sphere, in units of the scene's extent; at least half of this in units of the points' extent."""

SKY_OPACITY = 0.9
"""Initial opacity of the Gaussians of the sky."""

SHOWN_MIN = 0.01
"""Mean fraction of the Gaussians in a view below which a note says that the model may be in another frame."""


def initial_gaussians(
    config: RunConfig, capture: Capture, ranks: RankGroup | None = None, model: Gaussians | None = None
) -> Gaussians:
    """Returns the initial Gaussians of a run; with `ranks`, those that this rank holds.

    They are `model`, the result of :func:`read_initial_model`, or, if it is None, one Gaussian per sparse point and
    those of the sky. If there are more points than `max_gaussians` allows, a random subset is used.
    """
    if model is not None:
        shard = model.select(rows_of_rank(config, ranks or RankGroup())(len(model)))
        return capture.frame.gaussians_to_local(shard.to(capture.points.device))
    points, colors, degree = capture.points, capture.colors, config.sh_degree_of_points
    cap = None if config.strategy is None else config.strategy.cap_max
    n_max = min(config.max_gaussians, cap or config.max_gaussians) - config.sky
    if len(points) > n_max:
        print(f"starting with {n_max:,} of {len(points):,} points, as more than {n_max:,} Gaussians are not allowed")
        generator = torch.Generator().manual_seed(config.seed)
        chosen = torch.randperm(len(points), generator=generator, device="cpu")[:n_max].sort().values.to(points.device)
        points, colors = points[chosen], colors[chosen]
    sky = sky_gaussians(capture.train, points, config.sky, degree) if config.sky else None
    n, n_sky = len(points), 0 if sky is None else len(sky)
    indices = range(n + n_sky)[rows_of_rank(config, ranks or RankGroup())(n + n_sky)]
    gaussians = Gaussians.from_points(
        points, colors, degree, opacity=config.start_opacity, scale=config.start_scale,
        rows=slice(min(indices.start, n), min(indices.stop, n)),
    )  # fmt: skip
    if sky is not None:
        sky_rows = slice(max(indices.start - n, 0), max(indices.stop - n, 0))
        gaussians = merge_models([gaussians, sky.map(operator.itemgetter(sky_rows))])
    if config.primitive == "3dgs":
        # Scales are learned before rotations, along the initial axes, which should follow a rotation of the scene.
        quat = gaussians.quats.new_tensor(dominant_axes(capture.points) or (1.0, 0.0, 0.0, 0.0))
        return dataclasses.replace(gaussians, quats=quat.repeat(len(gaussians), 1))
    key = draw_key(torch.Generator().manual_seed(config.seed))
    rows = row_indices(len(gaussians), indices.start, gaussians.means)
    quats = standard_normal(key, rows, gaussians.means, columns=4)
    return dataclasses.replace(gaussians, quats=torch.nn.functional.normalize(quats, dim=-1)).as_surfels()


@torch.no_grad()
def sky_gaussians(views: Sequence[View], points: torch.Tensor, n: int, sh_degree: int) -> Gaussians:
    """Returns Gaussians on a sphere around sparse points [P, 3], for the sky.

    `n` Gaussians are evenly spaced on the sphere. Those that no training view shows are removed; the others have their
    mean color in these views.
    """
    poses = torch.stack([view.camera.viewmat for view in views]).to(points)
    center = centers(poses).mean(0)
    farthest = float((points - center).norm(dim=-1).quantile(0.9))
    radius = max(SKY_RADIUS * scene_extent(views), SKY_RADIUS / 2 * farthest)
    # A Fibonacci lattice: points of equal areas, rotated by the golden angle from one to the next.
    i = torch.arange(n, device=points.device, dtype=points.dtype)
    height = 1 - (2 * i + 1) / n
    angle = math.pi * (3 - math.sqrt(5)) * i
    width = (1 - height.square()).sqrt()
    directions = torch.stack([width * angle.cos(), height, width * angle.sin()], -1)
    sphere = Gaussians.from_points(
        center + radius * directions, torch.zeros_like(directions), sh_degree, opacity=SKY_OPACITY, scale=0.7
    )
    sums, counts = torch.zeros_like(directions), torch.zeros_like(height)
    for view, camera in zip(views, with_near_planes([view.camera for view in views], points), strict=True):
        meta = render_views(sphere, [camera], sh_degree=0)[2]
        seen = (meta["radii"][0] > 0).all(-1)
        x, y = meta["means2d"][0][seen].long().unbind(-1)
        sums[seen] += view.pixels[y.clamp(0, view.height - 1), x.clamp(0, view.width - 1)]
        counts[seen] += 1
    kept = counts > 0
    colored = Gaussians.from_points(directions[kept], sums[kept] / counts[kept, None], sh_degree)
    return dataclasses.replace(sphere.select(kept), sh0=colored.sh0)


def check_models(config: RunConfig) -> None:
    """Raises FileError if a model to start from does not exist; called before any work."""
    for path in config.init:
        check_possible(path)
        if not os.path.exists(path):
            raise FileError(f"{path}: no such model; --init expects a model file, or the folder of a run")


def read_initial_model(config: RunConfig, capture: Capture) -> Gaussians | None:
    """Reads and merges the models that a run starts from. Prints notes about them.

    Invalid Gaussians are left out. A run on a block also leaves out Gaussians that are outside the block and its
    margin, and not in its views.

    Returns:
        Gaussians on the CPU, in the frame of the model; None for a run that starts from points.

    Raises:
        ArgumentError: There are no Gaussians, or they are 2D although the settings are for 3D, or vice versa.
        FileError: A model cannot be read, or no training view shows it.
        CheckpointError, MissingExtraError, UnsupportedError: See :func:`tsplat.scene.open_model`.
    """
    if not config.init:
        return None
    names = ", ".join(config.init)
    model = merge_models([_read(path, capture.frame) for path in config.init], warn=_print_note)
    model = drop_invalid(model, _print_note)
    if not len(model):
        raise ArgumentError(f"init: expected at least one Gaussian, found none in {names}")
    kind = "2dgs" if model.surfels else "3dgs"
    if kind != config.primitive:
        how = f"use primitive {kind} (--primitive {kind})" if kind == "2dgs" else "train 3D Gaussians, without 2dgs"
        raise ArgumentError(f"primitive: {names} has {kind[0].upper()}D Gaussians, found {config.primitive!r}; {how}")
    if config.antialiased and not model.antialiased:
        _print_note(f"{names} was not trained for antialiased rendering, which the settings enable; it looks softer")
    if config.sh_degree is not None:
        model = set_sh_degree(model, config.sh_degree)
    cameras = [view.camera for view in capture.train]
    local = capture.frame.gaussians_to_local(model)
    share = visible_share(local.means.to(cameras[0].viewmat), cameras, RankGroup())
    if share == 0:
        raise FileError(
            f"{names}: no training view shows it; a model must be in the frame of this run's results, which is that of "
            "the scene's files unless world.json says otherwise; to move it: tsplat edit --transform"
        )
    if share < SHOWN_MIN:
        _print_note(f"{names}: a training view shows {share:.2%} of its Gaussians on average; check its frame")
    block = read_block(config)
    return model if block is None else _select_block(model, local, capture.train, *block)


def _read(path: str, frame: LocalFrame) -> Gaussians:
    """Reads a model. A model of another run is moved to the frame of this run's results."""
    model = open_model(path, warn=_print_note)
    if not is_run(path):
        return model
    checkpoint, _, figures = read_newest_settings(path)
    world = saved_frame(figures, checkpoint).world
    if torch.equal(world, frame.world):
        return model
    _print_note(f"{path}: moved from the frame of its run, world.json, to that of this run")
    return transform_gaussians(model, frame.world @ torch.linalg.inv(world))


def _select_block(model: Gaussians, local: Gaussians, views: Sequence[View], plan: BlockPlan, block: int) -> Gaussians:
    """Returns the Gaussians that lie in a block or its margin, or that project into one of its views."""
    inside = plan.contains(block, model.means, expanded=True)
    for view in views:
        inside |= project_points(view.camera, local.means.to(view.camera.viewmat))[-1].to(inside.device)
    _print_note(f"block {block} of {len(plan.blocks)}: {int(inside.sum()):,} of {len(model):,} Gaussians to start from")
    return model.select(inside)


def keep_frozen(capture: Capture, config: RunConfig, model: Gaussians | None, ranks: RankGroup) -> Capture:
    """Returns the capture with this rank's rows of the frozen tensors, which the run writes unchanged."""
    if model is None or not config.freeze:
        return capture
    frozen = {name for group in config.freeze for name in FROZEN_NAMES[group]}
    shard = model.select(rows_of_rank(config, ranks)(len(model))).to(capture.points.device)
    kept = {name: tensor for name, tensor in shard.tensors().items() if GSPLAT_NAMES[name] in frozen}
    return dataclasses.replace(capture, frame=dataclasses.replace(capture.frame, kept=kept))


def describe_model(model: Gaussians | None) -> Description:
    """Returns ``init``, the number and SHA-256 of the Gaussians of an initial model; empty for a run from points."""
    if model is None:
        return {}
    digest = hashlib.sha256()
    for tensor in model.tensors().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return {"init": {"number": len(model), "sha256": digest.hexdigest()}}


def relative_models(config: RunConfig, folder: Path) -> list[str | None]:
    """Returns the paths of the initial models relative to the folder of the run; None for a path on another drive."""
    return [relative_path(path, folder) for path in config.init]


def locate_models(config: RunConfig, saved: dict[str, Any], folder: Path) -> RunConfig:
    """Returns the configuration of a run with the current paths of its initial models.

    `saved` is the checkpoint's :func:`.scenes.scene_to_save`, empty if there is no checkpoint, and `folder` the run's
    current folder. Raises FileError if a model is neither at its absolute path nor at its path relative to the run.
    """
    relatives = saved.get("init_paths") or [None] * len(config.init)
    located = [
        find_moved(path, relative, folder, "model, from which the run started; put it back there")
        for path, relative in zip(config.init, relatives, strict=False)
    ]
    return dataclasses.replace(config, init=tuple(located))


def _print_note(message: str) -> None:
    print(f"note: {message}")

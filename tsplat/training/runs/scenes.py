"""The scene of a run: its path, photographs, cameras and points, and whether they have changed."""

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, FileError
from ...scene.capture.block_plans import BlockPlan, digest, read_plan, select_block
from ...scene.capture.captures import read_capture
from ...scene.capture.initial_points import replace_points
from ...scene.capture.local_frame import LocalFrame, frame_from_json
from ...scene.capture.normalization import normalize_capture
from ...scene.capture.photographs import OnProgress
from ...scene.capture.views import Capture, View
from ...support.files import size_and_hash
from ...support.interruption import StopRequest
from ...support.progress import reports_to, stage_display
from ...support.suggestions import list_names
from ..configuration import TYPICAL_EXTENT, RunConfig
from ..evaluation import check_sizes
from .priors import read_priors
from .run_checkpoints import read_newest_settings

NAMED_MAX = 5
"""Maximum number of photographs, and of cameras, that a message names."""

WORKERS = 4

LEGACY_FRAME = LocalFrame(near=0.01)
"""Frame of runs of older versions, without a local frame: the frame of the files, with the rasterizer's near plane."""

LARGE_PIXELS = 20_000_000
"""Number of pixels of an image above which a note states the memory of a step."""

STEP_BYTES = 115
"""Memory of a step in bytes per pixel of its image, with the gradients of both losses."""

CAMERA_TOLERANCE = 1e-6
"""Relative and absolute tolerance when cameras are compared."""

Description = dict[str, Any]
"""JSON values of :func:`describe_capture`."""

ReadViews = Callable[[], dict[str, View]]


def with_absolute_scene(config: RunConfig) -> RunConfig:
    """Returns the configuration with absolute paths: of the scene, points, initial models, block plan and priors."""
    names = ("scene", "points", "block", "depth_prior", "depth_confidence", "normal_prior")
    paths = {name: getattr(config, name) for name in names}
    absolute: dict[str, Any] = {name: os.path.abspath(path) for name, path in paths.items() if path}
    return dataclasses.replace(config, **absolute, init=tuple(map(os.path.abspath, config.init)))


def locate_scene(config: RunConfig, saved: dict[str, Any], folder: Path, override: str | None) -> RunConfig:
    """Returns the configuration of a run with the current path of its scene.

    `saved` is the checkpoint's :func:`scene_to_save`, empty for older versions, `folder` the run's current folder, and
    `override` the path that the user gave. Raises FileError if `override` does not exist or, without it, if the scene
    is neither at its absolute path nor at its path relative to the run.
    """
    block = config.plan_and_block
    if block and not os.path.exists(block[0]):  # a block's run lies in the folder of its plan, and moves with it
        config = dataclasses.replace(config, block=f"{folder.absolute().parent}:{block[1]}")
    if override is not None:
        check_scene(override)
        return with_absolute_scene(dataclasses.replace(config, scene=override))
    if not config.scene:
        return config
    moved = find_moved(config.scene, saved.get("relative"), folder, "scene; if it has moved: --scene PATH")
    return with_absolute_scene(dataclasses.replace(config, scene=moved))


def find_moved(path: str, relative: str | None, folder: Path, what: str) -> str:
    """Returns the current path of an input of a run: `path` or, if it does not exist, `relative` to the run's `folder`.

    Raises FileError if neither exists; `what` describes the input in the message.
    """
    paths = [path, *([os.path.normpath(folder.absolute() / relative)] if relative else [])]
    for candidate in paths:
        if os.path.exists(candidate):
            return candidate
    raise FileError(f"{' and '.join(dict.fromkeys(paths))}: no such {what}")


def relative_path(path: str, folder: Path) -> str | None:
    """Returns a path relative to the folder of a run; None if it is empty or on another drive."""
    if path:
        with contextlib.suppress(ValueError):  # another drive
            return Path(os.path.relpath(path, folder)).as_posix()
    return None


def check_scene(scene: str) -> None:
    """Raises :class:`FileError` if the scene's path that the user gave does not exist."""
    if not os.path.exists(scene):
        raise FileError(f"{scene}: no such scene; --scene expects its new folder")


def read_scene(config: RunConfig, on_progress: OnProgress | None = None, frame: LocalFrame | None = None) -> Capture:
    """Reads the scene of a run for training, in a local frame; by default, the frame is chosen for the scene.

    Raises FileError if the scene's frame is not that of the block's plan, and as :func:`tsplat.scene.read_capture`.
    """
    plan = read_block(config)  # fails early, before photographs are read
    capture = read_capture(
        config.scene,
        downscale=config.downscale,
        test_every=config.test_every,
        background=config.background,
        frame=frame or ("normalized" if config.normalize else "local"),
        seed=config.seed,
        strict=config.strict,
        on_progress=on_progress,
        cameras=config.camera,
        max_size=config.max_size,
        keep_far=config.keep_far or frame is LEGACY_FRAME,
    )
    if frame is LEGACY_FRAME and config.normalize:
        capture = normalize_capture(capture)[0]
    if config.points:
        capture = replace_points(capture, config.points)
    return select_block(capture, *plan, seed=config.seed) if plan else capture


def read_run_capture(
    config: RunConfig, device: torch.device, stop: StopRequest | None, frame: LocalFrame | None
) -> Capture:
    """Reads the scene of a run onto a device, shows the progress, and prints notes about its files.

    `frame` is the local frame of a resumed run; None to choose one for the scene.
    """
    with stage_display() as display:

        def show(stage: str, done: int, total: int) -> None:
            if stop is not None:
                stop.check()
            display(stage, done, total)

        with reports_to(show):
            capture = read_scene(config, lambda done, total: show("reading", done, total), frame)
            check_sizes((*capture.train, *capture.test), config.downscale)
            capture = read_priors(capture, config)
    for note in (*capture.notes, *note_large_images(capture.train)):
        print(f"note: {note}")
    return capture.to(device)


def note_large_images(views: Sequence[View]) -> list[str]:
    """Returns a note on the memory of a step if the largest image has many pixels, such as a panorama of 8K."""
    n_pixels, width, height = max((view.width * view.height, view.width, view.height) for view in views)
    if n_pixels < LARGE_PIXELS:
        return []
    return [
        f"a step on the largest image, {width}×{height} pixels, takes about {n_pixels * STEP_BYTES / 2**30:.1f} GiB of "
        f"memory in addition to the Gaussians; with max_size {max(width, height) // 2}, it takes a quarter of it"
    ]


def photograph_reader(run: Path, scene: str | None, warn: Callable[[str], object]) -> ReadViews | None:
    """Returns a function that reads the training and held-out views of a run, by name; None if the scene is missing.

    `scene` is the path of the scene, if it is found neither at its absolute path nor at its path relative to the run.
    `warn` is called if the scene is missing. Raises FileError if `scene` does not exist.
    """
    try:
        path, config, figures = read_newest_settings(run)
        config = locate_scene(config, figures.get("scene", {}), path.parent.parent, scene)
    except ArgumentError as error:
        if scene is not None:
            raise
        warn(f"{run}: shown without its photographs: {error}")
        return None
    if not config.scene:
        return None

    def read() -> dict[str, View]:
        capture = read_scene(config, frame=saved_frame(figures, path))
        return views_of_model(capture.train, capture.test, capture.frame)

    return read


def views_of_model(train: Sequence[View], test: Sequence[View], frame: LocalFrame) -> dict[str, View]:
    """Returns views in a local frame, by name, with their cameras in the frame of the model."""
    return {view.name: view.replaced(camera=frame.camera_of_model(view.camera)) for view in (*train, *test)}


def read_block(config: RunConfig) -> tuple[BlockPlan, int] | None:
    """Returns the plan and the index of the block that a run trains; None for a run on a whole scene.

    Raises:
        ArgumentError: The block is not in the plan.
        FileError: There is no plan.
    """
    if config.plan_and_block is None:
        return None
    folder, block = config.plan_and_block
    plan = read_plan(folder)
    return plan, plan.check_block(block)


def check_block_folder(config: RunConfig, run: Path) -> None:
    """Raises ArgumentError if the folder of a run belongs to another block of its plan."""
    name = re.fullmatch(r"block_([0-9]+)", run.name)
    if name is None or config.plan_and_block is None:
        return
    folder, block = config.plan_and_block
    if int(name[1]) != block and os.path.realpath(folder) == os.path.realpath(run.parent):
        raise ArgumentError(f"block: expected {name[1]}, as the folder is {run}, found {block}")


def describe_block(config: RunConfig) -> Description:
    """Returns ``block``, the index of a run's block and the digest of its plan; empty for a run on a whole scene."""
    block = read_block(config)
    return {} if block is None else {"block": {"index": block[1], "plan": digest(block[0])}}


def saved_frame(figures: dict[str, Any], path: Path) -> LocalFrame:
    """Returns the local frame that a checkpoint's `figures` contain; `path` is its folder, for messages."""
    return frame_from_json(figures["frame"], str(path)) if "frame" in figures else LEGACY_FRAME


def with_relative_lengths(config: RunConfig, extent: float) -> RunConfig:
    """Converts the configuration of a run of :data:`LEGACY_FRAME`, whose scale weight and noise were in world units.

    `extent` is the extent of the scene.
    """
    ratio = extent / TYPICAL_EXTENT
    strategy = config.strategy and config.strategy.with_noise(ratio**2)
    return dataclasses.replace(config, scale_weight=config.scale_weight * ratio, strategy=strategy)


def scene_to_save(config: RunConfig, description: Description, folder: Path) -> dict[str, Any]:
    """Returns the JSON values that checkpoints store about the scene."""
    return {"relative": relative_path(config.scene, folder), **description}


def describe_capture(capture: Capture) -> Description:
    """Describes the files, cameras and points that a capture was read from, to detect changes.

    Returns ``photographs``: size and SHA-256 of the files of each view; ``cameras``: image size, camera model and
    tensors of each view's camera; ``points``: number and SHA-256 of the points and their colors. Empty if the capture
    was not read from files.
    """
    views = [view for view in (*capture.train, *capture.test) if view.files]
    if not views:
        return {}
    with ThreadPoolExecutor(WORKERS) as pool:
        files = pool.map(lambda view: [_describe(path) for path in view.files], views)
        photographs = {view.name: description for view, description in zip(views, files, strict=True)}
    points = torch.cat([capture.points, capture.colors], -1).cpu().numpy()
    return {
        "photographs": photographs,
        "cameras": {
            view.name: {
                "size": [view.width, view.height],
                "model": view.camera.model,
                **{name: _numbers(value) for name, value in vars(view.camera).items() if isinstance(value, Tensor)},
            }
            for view in views
        },
        "points": {"number": len(points), "sha256": hashlib.sha256(points.tobytes()).hexdigest()},
    }


def difference(saved: Description, current: Description, scene: str, *, with_hash: bool = True) -> str:
    """Returns a message about differences between two results of :func:`describe_capture`; empty if there are none.

    Entries that an earlier version did not save are not compared. Without `with_hash`, only the number of points is
    compared, as another version may have transformed them.
    """
    photographs = _photograph_differences(saved.get("photographs"), current.get("photographs", {}))
    cameras, new_cameras = saved.get("cameras", {}), current.get("cameras", {})
    moved = [name for name in cameras if name in new_cameras and _is_other_camera(cameras[name], new_cameras[name])]
    clauses = [
        f"{len(phrases)} {what} have changed since the run started: {list_names(phrases, NAMED_MAX)}"
        for what, phrases in (("photographs", photographs), ("cameras", moved))
        if phrases
    ]
    points, new_points = saved.get("points"), current.get("points")
    if points and new_points and not with_hash:
        points, new_points = ({"number": values["number"]} for values in (points, new_points))
    if points and new_points and points != new_points:
        before, after = points["number"], new_points["number"]
        how = f"{before}, now {after}" if before != after else "their hash differs"
        clauses.append(f"the points have changed since the run started ({how})")
    block, new_block = saved.get("block"), current.get("block")
    if block and new_block and block != new_block:
        clauses.append("the block, or its plan, has changed since the run started")
    init, new_init = saved.get("init"), current.get("init")
    if init and new_init and init != new_init:
        clauses.append("the models in init have changed since the run started")
    return f"{scene}: {'; '.join(clauses)}" if clauses else ""


def _photograph_differences(saved: dict[str, Any] | None, current: dict[str, Any]) -> list[str]:
    """Returns a phrase for each photograph that has changed, is missing or is new; empty if none were saved."""
    if not saved:
        return []
    phrases = []
    for name, files in saved.items():
        if name not in current:
            phrases.append(f"{name} is missing")
        elif files != current[name]:
            phrases.append(f"{name} {_change(files, current[name])}")
    return phrases + [f"{name} is new" for name in current if name not in saved]


def _is_other_camera(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Returns whether two cameras differ by more than rounding on different hardware."""
    is_close = all(
        np.allclose(old.get(name, 0.0), new.get(name, 0.0), rtol=CAMERA_TOLERANCE, atol=CAMERA_TOLERANCE)
        for name in ("viewmat", "K", "distortion")
    )
    return not is_close or (old["size"], old["model"]) != (new["size"], new["model"])


def _numbers(matrix: Tensor) -> list[list[float]]:
    """Returns the values of an fp32 matrix, or of a vector as one row, with enough digits to be exact."""
    return [[float(f"{value:.9g}") for value in row] for row in matrix.view(-1, matrix.shape[-1]).tolist()]


def _change(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    if len(old) != len(new):
        return "has a mask" if len(new) > len(old) else "has no mask"
    what = "has changed" if old[:1] != new[:1] else "has another mask"
    before, after = next((a["bytes"], b["bytes"]) for a, b in zip(old, new, strict=True) if a != b)
    return f"{what} ({before:,} bytes, now {after:,})" if before != after else f"{what} (its hash differs)"


def _describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return size_and_hash(file)

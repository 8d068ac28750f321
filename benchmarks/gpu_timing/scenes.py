"""Scenes whose compositing kernels are executed on an emulated GPU, forward and backward."""

import argparse
import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import tsplat
from benchmarks.cases import GARDEN, KETTLE, Case, dense_tile, load
from emulator.driver import Code
from emulator.package import tsplat_emulated
from emulator.program import Launch
from emulator.timing.trace import Executed, Recorder
from tsplat.data import SplatGradients, Splats

TARGET = "sm_80"
"""Default target, and the only one of the timing model."""
TARGETS = (TARGET, "sm_90", "gfx942", "gfx1100")
KERNELS = "tsplat.kernels.compositing"
"""Prefix of the names of modules whose kernels are counted."""
LEAVES = ("means", "quats", "scales", "opacities", "colors")


@dataclasses.dataclass(frozen=True)
class Data:
    """Files of the scenes."""

    garden: Path = GARDEN
    kettle: Path = KETTLE


@dataclasses.dataclass(frozen=True)
class Composited:
    """Inputs and outputs of the compositing of a scene, for other implementations.

    `splats` have gathered colors [nnz, D]; `v_colors` [I, H, W, D] and `v_alphas` [I, H, W] are the gradients of images
    from which `gradients` are computed. Colors of surfels are normals, colors, depth and distortion. `footprint` is
    "ellipse", or "ray" or "surfel", which have other shapes in place of conics. `cameras` are view matrices [C, 4, 4]
    and intrinsics [C, 3, 3].
    """

    splats: Splats
    radii: Tensor
    depths: Tensor
    backgrounds: Tensor | None
    colors: Tensor
    alphas: Tensor
    v_colors: Tensor
    v_alphas: Tensor
    gradients: SplatGradients
    footprint: str
    cameras: tuple[Tensor, Tensor]

    def results(self) -> dict[str, Tensor]:
        """Returns the images and gradients that other implementations have, too, by name."""
        v = self.gradients
        found = {"v_opacities": v.v_opacities, "alphas": self.alphas}
        if self.footprint == "surfel":
            images = self.colors
            found |= dict(normals=images[..., :3], colors=images[..., 3:-1], distortions=images[..., -1:])
            found |= dict(v_normals=v.v_features[:, :3], v_features=v.v_features[:, 3:])
            return found | dict(v_means2d=v.v_means2d, v_transforms=v.v_shapes)
        found |= dict(colors=self.colors, v_features=v.v_features)
        if self.footprint == "ray":
            shapes = v.v_shapes
            return found | dict(v_means=shapes[:, :3], v_quats=shapes[:, 3:7], v_scales=shapes[:, 7:])
        return found | dict(v_means2d=v.v_means2d, v_conics=v.v_shapes)


@dataclasses.dataclass(frozen=True)
class Run:
    """Executed compositing kernels of an implementation."""

    launches: list[Executed]
    list_lengths: list[int]
    """Number of intersections of each tile."""


@dataclasses.dataclass(frozen=True)
class TsplatRun(Run):
    """Executed compositing kernels of tsplat."""

    kept_bytes: int
    """Bytes of the tensors that the forward pass saves for the backward pass, without its inputs."""
    composited: Composited


def from_case(case: Case, data: Data) -> dict[str, Any]:
    """Returns the arguments of `rasterization` for a scene of the benchmarks."""
    scene = load(case, torch.device("cpu"), garden=data.garden, kettle=data.kettle)
    if scene is None:
        raise FileNotFoundError(data.garden if case.kind.startswith("garden") else data.kettle)
    return scene


def _cloud(channels: int) -> Callable[[Data], dict[str, Any]]:
    return functools.partial(from_case, Case("cloud", 2_000, 96, 64, channels=channels))


SCENES: dict[str, Callable[[Data], dict[str, Any]]] = {
    "cloud": _cloud(3),
    "cloud-d1": _cloud(1),
    "cloud-d16": _cloud(16),
    "cloud-d64": _cloud(64),
    "dense-tile": lambda data: dense_tile(),
    "kettle-400x300": functools.partial(from_case, Case("kettle", 0, 400, 300)),
    "garden-648x420": functools.partial(from_case, Case("garden", width=1)),
    "garden-1296x840": functools.partial(from_case, Case("garden", width=2)),
    "garden-1920x1080": functools.partial(from_case, Case("garden-profile", 0, 1920, 1080)),
    "cloud-eval3d": lambda data: _cloud(3)(data) | {"with_eval3d": True},
    "cloud-2dgs": lambda data: _cloud(3)(data) | {"surfels": True},
    "garden-648x420-eval3d": lambda data: SCENES["garden-648x420"](data) | {"with_eval3d": True},
    "garden-648x420-2dgs": lambda data: SCENES["garden-648x420"](data) | {"surfels": True},
}
"""Scenes by name: 2,000 Gaussians at 96x64 with 3, 1, 16 and 64 channels; one tile with a list of 100 times the median
length; a trained model; gsplat's garden; and two of them evaluated in 3D, or with 2D Gaussians."""


def is_compositing(launch: Launch) -> bool:
    """Returns whether a launch is one of tsplat's compositing kernels."""
    return launch.module.startswith(KERNELS)


@contextlib.contextmanager
def _captured() -> Iterator[dict[str, Any]]:
    """Context manager that records inputs and outputs of compositing, by the names of the fields of `Composited`."""
    found: dict[str, Any] = {}
    kernels = importlib.import_module("tsplat.kernels")
    forward, backward = kernels.composite_fwd, kernels.composite_bwd

    def composite_fwd(splats: Splats, backgrounds: Tensor | None, *more: Any) -> Any:
        if found:
            raise NotImplementedError("scenes that are composited in several bands")
        result = forward(splats, backgrounds, *more)
        _, _, images, settings, *_ = more
        found.update(splats=splats, backgrounds=backgrounds, footprint=settings.footprint)
        found.update(colors=images.colors.clone(), alphas=images.alphas.clone())
        return result

    def composite_bwd(*arguments: Any) -> SplatGradients:
        result: SplatGradients = backward(*arguments)
        found.update(zip(("v_colors", "v_alphas"), arguments[4:6]), gradients=result)
        return result

    with mock.patch.multiple(kernels, composite_fwd=composite_fwd, composite_bwd=composite_bwd):
        yield found


def execute(scene: dict[str, Any], *, traced: bool, target: str = TARGET) -> TsplatRun:
    """Renders a scene forward and backward on an emulated GPU; records the compositing kernels."""
    code: Code = "sass" if target.startswith("sm_") else "amdgcn"
    leaves = {name: scene[name].detach().requires_grad_() for name in LEAVES}
    given = scene | leaves
    render: Callable[..., Any] = tsplat.rasterization
    if given.pop("surfels", False):
        given.pop("sh_degree", None)
        render = functools.partial(tsplat.rasterization_2dgs, render_mode="RGB+D")
    recorder = Recorder(is_compositing, traced=traced)
    options = dict(races=False, uninitialized=False, first_touch=False)
    with _captured() as captured, tsplat_emulated(target, code, **options) as gpu:
        gpu.machine.tracer = recorder
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            colors, alphas, *maps, meta = render(**given, backend="triton")
        for leaf in scene.values():
            if isinstance(leaf, Tensor):
                kept.pop(leaf.untyped_storage().data_ptr(), None)
        recorder.phase = "backward"
        # Channel-major, like the gradient of l1_ssim_loss.
        v_colors = (2 * colors.detach()).movedim(-1, 1).contiguous().movedim(1, -1)
        others = (alphas, *maps[:1], *maps[2:3])  # for surfels, also normals and distortion
        torch.autograd.backward((colors, *others), (v_colors, *(torch.ones_like(t) for t in others)))
    starts = torch.cat([meta["isect_offsets"].flatten(), torch.tensor([meta["flatten_ids"].numel()])])
    composited = Composited(
        **captured,
        radii=meta["radii"].reshape(-1, 2),
        depths=meta["depths"].detach().flatten(),
        cameras=(scene["viewmats"], scene["Ks"]),
    )
    return TsplatRun(recorder.launches, starts.diff().tolist(), sum(kept.values()), composited)


# --- command line


def add_arguments(parser: argparse.ArgumentParser, chosen: tuple[str, ...] = ()) -> None:
    """Adds options that choose scenes, by default all."""
    names = list(chosen or SCENES)
    parser.add_argument("--scene", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--garden", type=Path, default=GARDEN, help="gsplat's test_garden.npz")
    parser.add_argument("--kettle", type=Path, default=KETTLE, help="PLY of a trained model")
    parser.add_argument("--json", type=Path, help="append the records to this file as JSON lines")


def available(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the names and arguments of the chosen scenes. Prints which scenes are skipped for lack of data."""
    data = Data(options.garden, options.kettle)
    for name in options.scene:
        try:
            scene = SCENES[name](data)
        except FileNotFoundError as missing:
            print(f"== {name}: skipped, {missing} does not exist", flush=True)
        else:
            yield name, scene


def chosen(options: argparse.Namespace, *, traced: bool, target: str = TARGET) -> Iterator[tuple[str, TsplatRun]]:
    """Executes the chosen scenes, and prints a description of each. Scenes without data are skipped."""
    for name, scene in available(options):
        run = execute(scene, traced=traced, target=target)
        lengths = np.array(run.list_lengths)
        fullness = f"median {np.median(lengths):,.0f} per tile, at most {lengths.max():,}"
        print(
            f"== {name}: {len(lengths):,} tiles, {lengths.sum():,} intersections, {fullness}; "
            f"{run.kept_bytes / 1e6:.1f} MB kept for the backward pass",
            flush=True,
        )
        yield name, run

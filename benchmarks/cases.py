"""The scenes of the benchmarks.

- clouds: random Gaussians with a given standard deviation in pixels; on a GPU, up to a million Gaussians, and features
  of 1, 16, 64 and 256 channels;
- dense-tile: a cloud, and one tile whose list is about 100 times as long as the median;
- garden: the points of gsplat's garden (test_garden.npz) at 1, 2 and 4 times its image size, with opacities from 0.05
  to 0.95 and scales of exp(N(0, 1/2)) times the mean distance to the three nearest neighbors;
- garden-profile: the scene of gsplat's published profile, the middle of the garden with random shapes at 1920x1080;
- kettle, luma-seal: trained models.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tests.support.paths import DATA, MODELS
from tsplat.config import Backend

GARDEN = DATA / "test_garden.npz"
KETTLE = MODELS / "kettle.from_spz.ply"
LUMA_SEAL = MODELS / "luma-seal.from_splat.ply"


@dataclasses.dataclass(frozen=True)
class Case:
    """A scene, whose `kind` the module describes, and the backends to measure; the first is compared with the others.

    A cloud has n Gaussians, besides those of a dense tile, a standard deviation in pixels, and channels or spherical
    harmonics. For the garden, `width` is a multiple of its image size.
    """

    kind: Literal["cloud", "dense-tile", "garden", "garden-profile", "kettle", "luma-seal"]
    n: int = 0
    width: int = 1
    height: int = 1
    deviation: float = 2.0
    channels: int = 3
    sh_degree: int | None = None
    backends: tuple[Backend, ...] = ("auto",)

    @property
    def name(self) -> str:
        if self.kind == "garden":
            return f"garden {self.width}x"
        if self.kind != "cloud":
            return f"{self.kind} at {self.width}x{self.height}"
        features = f", {self.channels} channels" if self.channels != 3 else ""
        features += f", SH degree {self.sh_degree}" if self.sh_degree is not None else ""
        return f"{self.n} at {self.width}x{self.height}, {self.deviation:g} px{features}"


CPU_CASES = (
    Case("cloud", 2_000, 96, 64, backends=("triton", "torch", "reference")),
    Case("cloud", 10_000, 192, 128, backends=("triton", "torch")),
    Case("cloud", 12_500, 283, 200, backends=("triton", "torch")),
    Case("cloud", 50_000, 400, 300, backends=("triton", "torch")),
    Case("cloud", 100_000, 800, 566, backends=("triton", "torch")),
    Case("kettle", 0, 800, 600, backends=("triton", "torch")),
)
SCENES = (
    Case("garden", width=1),
    Case("garden", width=2),
    Case("garden", width=4),
    Case("cloud", 1_000_000, 1296, 840, 2.5),
    Case("garden-profile", 0, 1920, 1080),
    Case("kettle", 0, 400, 300),
    Case("kettle", 0, 1600, 1200),
    Case("dense-tile", 22_000, 1296, 840),
    Case("cloud", 200_000, 800, 600, channels=1),
    Case("cloud", 200_000, 800, 600, channels=16),
    Case("cloud", 200_000, 800, 600, channels=64),
    Case("cloud", 200_000, 800, 600, channels=256),
)
COMPARED = (
    Case("cloud", 10_000, 192, 128),
    Case("cloud", 100_000, 640, 480, sh_degree=3),
    Case("kettle", 0, 640, 480),
    Case("luma-seal", 0, 640, 480),
)
"""Scenes of `--base`."""

GPU_CASES = (
    Case("cloud", 2_000, 96, 64, backends=("triton", "torch")),
    Case("cloud", 100_000, 800, 600, backends=("triton", "torch")),
    *SCENES,
)
EMULATED_CASES = (Case("cloud", 40, 32, 24, backends=("triton",)), Case("dense-tile", 40, 48, 32, backends=("triton",)))
"""Scenes for trying out the benchmarks on an emulated GPU."""


def load(case: Case, device: torch.device, garden: Path = GARDEN, kettle: Path = KETTLE) -> dict[str, Any] | None:
    """Returns the arguments of `rasterization` for a scene, or None if its file does not exist."""
    if case.kind == "cloud":
        scene = _cloud(case)
    elif case.kind == "dense-tile":
        scene = dense_tile(case.n, width=case.width, height=case.height)
    elif case.kind == "garden" and garden.exists():
        scene = _garden(garden, case.width)
    elif case.kind == "garden-profile" and garden.exists():
        scene = _garden_profile(garden)
    elif case.kind == "kettle" and kettle.exists():
        scene = _model(kettle, case)
    elif case.kind == "luma-seal" and LUMA_SEAL.exists():
        scene = _model(LUMA_SEAL, case)
    else:
        return None
    return on_device(scene, device)


def on_device(scene: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    """Returns the arguments of a scene with its tensors on a device."""
    return {name: t.to(device) if isinstance(t, Tensor) else t for name, t in scene.items()}


def _cloud(case: Case, seed: int = 0) -> dict[str, Any]:
    """Returns a random cloud that fills the image, with opacities from 0.1 to 0.9."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    focal = float(case.width)
    depth = 2 + 2 * uniform(case.n)
    x = (uniform(case.n) - 0.5) * case.width / focal * depth
    y = (uniform(case.n) - 0.5) * case.height / focal * depth
    spread = torch.exp(0.3 * torch.randn(case.n, 3, generator=generator))
    colors = uniform(case.n, case.channels)
    if case.sh_degree is not None:
        colors = 0.3 * torch.randn(case.n, (case.sh_degree + 1) ** 2, 3, generator=generator)
    return dict(
        sh_degree=case.sh_degree,
        means=torch.stack([x, y, depth], -1),
        quats=torch.randn(case.n, 4, generator=generator),
        scales=(case.deviation / focal * depth)[:, None] * spread,
        opacities=0.1 + 0.8 * uniform(case.n),
        colors=colors,
        viewmats=torch.eye(4)[None],
        Ks=torch.tensor([[[focal, 0, case.width / 2], [0, focal, case.height / 2], [0, 0, 1]]]),
        width=case.width,
        height=case.height,
    )


def dense_tile(sparse: int = 1_000, dense: int = 1_500, width: int = 256, height: int = 192) -> dict[str, Any]:
    """Returns a cloud over the whole image, and additional Gaussians in one tile, so faint that all are blended.

    With the default numbers, the list of this tile is about 100 times as long as the median.
    """
    scene = _cloud(Case("cloud", sparse, width, height))
    generator = torch.Generator().manual_seed(1)
    depth = 5 + torch.rand(dense, generator=generator)
    tile = torch.tensor([width // 32 * 16 + 8, height // 32 * 16 + 8])
    center = tile + 10 * (torch.rand(dense, 2, generator=generator) - 0.5)
    offset = (center - torch.tensor([width / 2, height / 2])) / width * depth[:, None]
    added = {
        "means": torch.cat([offset, depth[:, None]], 1),
        "quats": torch.randn(dense, 4, generator=generator),
        "scales": (0.8 / width * depth)[:, None].expand(-1, 3),
        "opacities": 0.02 + 0.02 * torch.rand(dense, generator=generator),
        "colors": torch.rand(dense, 3, generator=generator),
    }
    return scene | {name: torch.cat([scene[name], tensor]) for name, tensor in added.items()}


def _garden(path: Path, scale: int, seed: int = 0) -> dict[str, Any]:
    from scipy.spatial import cKDTree

    stored = np.load(path)
    points = stored["means3d"]
    n = len(points)
    spacing = cKDTree(points).query(points, k=4)[0][:, 1:].mean(1)
    generator = torch.Generator().manual_seed(seed)
    Ks = torch.from_numpy(stored["Ks"])[:1].clone()
    Ks[:, :2] *= scale
    return dict(
        means=torch.from_numpy(points),
        quats=torch.randn(n, 4, generator=generator),
        scales=torch.from_numpy(spacing).float()[:, None] * (0.5 * torch.randn(n, 3, generator=generator)).exp(),
        opacities=0.05 + 0.9 * torch.rand(n, generator=generator),
        colors=torch.from_numpy(stored["colors"]).float() / 255,
        viewmats=torch.from_numpy(stored["viewmats"])[:1],
        Ks=Ks,
        width=int(stored["width"]) * scale,
        height=int(stored["height"]) * scale,
    )


def _garden_profile(path: Path) -> dict[str, Any]:
    stored = np.load(path)
    means, colors = torch.from_numpy(stored["means3d"]), torch.from_numpy(stored["colors"]).float() / 255
    inside = ((means >= -2) & (means <= 2)).all(-1)
    n = int(inside.sum())
    generator = torch.Generator().manual_seed(42)
    width, height = 1920, 1080
    Ks = torch.from_numpy(stored["Ks"])[:1].clone().float()
    Ks[:, 0] *= width / int(stored["width"])
    Ks[:, 1] *= height / int(stored["height"])
    return dict(
        means=means[inside].contiguous(),
        quats=torch.nn.functional.normalize(torch.randn(n, 4, generator=generator), dim=-1),
        scales=0.02 * torch.rand(n, 3, generator=generator),
        opacities=torch.rand(n, generator=generator),
        colors=colors[inside].contiguous(),
        viewmats=torch.from_numpy(stored["viewmats"])[:1].float(),
        Ks=Ks,
        width=width,
        height=height,
        radius_clip=3.0,
    )


def _model(path: Path, case: Case) -> dict[str, Any]:
    from tsplat.scene import intrinsics, read_ply
    from tsplat.viewing.framing import look_at_all

    gaussians = read_ply(path)
    viewmat, _ = look_at_all(gaussians, case.width, case.height, 50.0)
    arguments = gaussians.rasterization_arguments(gaussians.sh_degree)
    arguments.pop("shN", None)  # gsplat does not have this argument
    return dict(
        **arguments | {"colors": gaussians.sh_coeffs(gaussians.sh_degree)},
        viewmats=viewmat[None],
        Ks=intrinsics(case.width, case.height, 50.0)[None],
        width=case.width,
        height=case.height,
    )

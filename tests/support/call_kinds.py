"""Random kinds of rendering calls, and the results of a call that are visible to the caller."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support import scenes
from tsplat import rasterization, rasterization_2dgs

STAGES = {
    rasterization: rasterization.__wrapped__.__wrapped__,
    rasterization_2dgs: rasterization_2dgs.__wrapped__.__wrapped__,
}
"""Function that replays calls -> function that runs the stages."""

GEOMETRY = ("means", "quats", "scales", "covars")


@dataclasses.dataclass
class CallKind:
    """A rendering function, the tensors and options of a call, and the use of its results.

    Attributes:
        weights_seed: Random seed of the weights of images in the loss.
        used: Whether the loss contains an image, by the index of the image modulo the length.
        centers: Whether the loss also contains results of projection.
        twice: Whether the backward pass runs twice.
        enabled: Whether gradients are recorded.
    """

    function: Callable[..., Any]
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    weights_seed: int
    used: tuple[bool, ...]
    centers: bool
    twice: bool
    enabled: bool

    def moved(self, factor: float, grown: float = 1.0) -> "CallKind":
        """Returns a call of the same kind with other Gaussians, which may be larger."""
        factors = {name: factor for name in GEOMETRY} | {"scales": factor * grown, "covars": factor * grown**2}
        tensors = {n: t.detach() * factors[n] if n in factors else t.detach() for n, t in self.tensors.items()}
        own = {n: _laid_out(t, self.tensors[n]) for n, t in tensors.items()}
        return dataclasses.replace(self, tensors=own)

    def outcome(self, function: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Calls the function, or another one, and returns images, gradients and ``meta``, by name."""
        return self.begin(function).finish()

    def begin(self, function: Callable[..., Any] | None = None) -> "Begun":
        """Calls the function, or another one."""
        tensors = {n: _laid_out(t.detach(), t) for n, t in self.tensors.items()}
        with torch.set_grad_enabled(self.enabled):
            *images, meta = (function or self.function)(**tensors, **self.options)
        found = {f"image {i}": image for i, image in enumerate(images) if image is not None}
        size = images[0].shape[:-1]
        found |= {n: meta[n] for n in ("render_extra_signals", "normals") if n in meta and meta[n].shape[:-1] == size}
        return Begun(self, tensors, found, meta)


@dataclasses.dataclass
class Begun:
    """A call whose forward pass has run: its tensors, images by name, and ``meta``."""

    kind: CallKind
    tensors: dict[str, Tensor]
    images: dict[str, Tensor]
    meta: dict[str, Any]

    def finish(self) -> dict[str, Any]:
        """Runs the backward pass, and returns images, gradients and ``meta``, by name."""
        kind, found, meta = self.kind, dict(self.images), self.meta
        roots = [image for image in found.values() if image.requires_grad]
        roots = [root for i, root in enumerate(roots) if kind.used[i % len(kind.used)]] or roots[:1]
        centers = meta["means2d"]
        if roots:
            if centers.requires_grad:
                centers.retain_grad()
            generator = torch.Generator().manual_seed(kind.weights_seed)
            loss = sum((root * torch.rand(root.shape, generator=generator, dtype=root.dtype)).sum() for root in roots)
            if kind.centers and centers.requires_grad:
                rows = [meta[n] for n in ("depths", "conics", "opacities", "ray_transforms") if n in meta]
                loss = loss + sum(1e-3 * row.square().sum() for row in (centers, *rows))
            loss.backward(retain_graph=kind.twice)
            if kind.twice:
                loss.backward()
            found |= {f"v_{name}": tensor.grad for name, tensor in self.tensors.items() if tensor.requires_grad}
            found |= {"v_means2d": centers.grad, "absgrad": getattr(centers, "absgrad", None)}
            if "gradient_2dgs" in meta:
                found["v_gradient_2dgs"] = meta["gradient_2dgs"].grad
        plain = meta.copy()
        return found | {f"meta {name}": value for name, value in plain.items()}


def random_kind(seed: int) -> CallKind:
    """Returns a random kind of call and its tensors."""
    r = random.Random(seed)
    surfels = r.random() < 0.25
    sh_degree = r.choice([None, None, 0, 1, 3])
    structure = scenes.Structure(
        n=r.choice([1, 7, 40, 150]),
        cameras=r.choice([1, 1, 2]),
        batch=r.choice([(), (), (), (2,)]),
        channels=r.choice([3, 3, 1, 4, 20]) if not surfels else r.choice([3, 3, 1]),
        sh_degree=sh_degree,
        spare_bases=r.choice([0, 0, 2]),
        per_camera_colors=r.random() < 0.2,
        covars=not surfels and r.random() < 0.1,
        backgrounds=r.random() < 0.3,
        width=r.choice([16, 33, 48]),
        height=r.choice([16, 21, 32]),
        seed=seed,
        camera_model="pinhole" if surfels else r.choice(["pinhole", "pinhole", "ortho", "fisheye"]),
    )
    scene = scenes.make(structure, r.choice([torch.float32] * 4 + [torch.float64]))
    options: dict[str, Any] = dict(
        packed=r.random() < 0.5,
        render_mode=r.choice(["RGB", "RGB", "RGB+ED", "RGB+D", "D", "ED"]),
        tile_size=r.choice([16, 16, 8]),
        validate=r.choice(["cull", "cull", "off"]),
        capacity=r.choice([None, None, None, 60_000]),
        absgrad=r.random() < 0.3,
        numerics=r.choice(["gsplat-1.5", "gsplat-1.5", "gsplat-1.6", "inria"]),
    )
    if surfels:
        for name in ("covars", "camera_model"):
            scene.pop(name)
        options["depth_mode"] = r.choice(["expected", "median"])
        if seed % 3 == 0:
            options["depth_mode"] = {"expected": "ray", "median": "ray-median"}[options["depth_mode"]]
    else:
        options["rasterize_mode"] = r.choice(["classic", "antialiased"])
        if scene["covars"] is None and (kind := r.choice(["", "", "", "with_ut", "with_eval3d"])):
            options[kind] = True
            options["return_normals"] = kind == "with_eval3d" and r.random() < 0.5
        if r.random() < 0.15 and scene["backgrounds"] is None:
            generator, means = torch.Generator().manual_seed(seed), scene["means"]
            scene["extra_signals"] = torch.rand(*means.shape[:-1], 2, generator=generator, dtype=means.dtype)
    if "RGB" not in options["render_mode"]:
        scene["backgrounds"] = None
    if r.random() < 0.2 and scene["means"].dtype == torch.float32:
        scene["colors"] = scene["colors"].half()
    if sh_degree and not structure.per_camera_colors and seed % 4 == 1:
        scene["colors"], scene["shN"] = scene["colors"].split([1, scene["colors"].shape[-2] - 1], -2)
    tensors = {name: value for name, value in scene.items() if isinstance(value, Tensor)}
    options |= {name: value for name, value in scene.items() if name not in tensors and name != "camera_model"}
    options |= {"camera_model": scene["camera_model"]} if "camera_model" in scene else {}
    for name, tensor in tensors.items():
        if name != "Ks":
            offset, swapped = r.choice([0, 0, 0, 1, 2, 3]), tensor.dim() > 1 and r.random() < 0.15
            tensors[name] = _at_offset(tensor, offset, swapped=swapped).requires_grad_(r.random() < 0.7)
    return CallKind(
        rasterization_2dgs if surfels else rasterization,
        tensors,
        {name: value for name, value in options.items() if value is not None or name in GEOMETRY},
        seed,
        tuple(r.random() < 0.7 for _ in range(3)),
        centers=r.random() < 0.3,
        twice=r.random() < 0.3,
        enabled=r.random() < 0.8,
    )


def _at_offset(tensor: Tensor, offset: int, *, swapped: bool) -> Tensor:
    """Copies values to an offset in their storage, in elements; if `swapped`, with the last two axes swapped in
    memory."""
    source = tensor.mT if swapped else tensor
    storage = torch.empty(source.numel() + offset, dtype=tensor.dtype)
    own = storage[offset:].view(source.shape)
    own.copy_(source)
    return own.mT if swapped else own


def _laid_out(values: Tensor, like: Tensor) -> Tensor:
    """Returns a leaf tensor with the given values, and the offset and strides of another tensor."""
    offset = like.storage_offset()
    swapped = not like.is_contiguous()
    return _at_offset(values, offset, swapped=swapped).requires_grad_(like.requires_grad)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Returns the names of results whose bits differ, or that exist in only one of two outcomes.

    If no used image depends on a tensor, zero gradients and None are equal.
    """
    names = [name for name in expected if not _equal(found.get(name), expected[name])]
    return names + [name for name in found if name not in expected]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        tensor = a if isinstance(a, Tensor) else b
        return (a is None or b is None) and not tensor.any()
    return bool(a == b)

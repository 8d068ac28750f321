"""Properties that hold for every scene. Tests check each with a few random cases, `make fuzz` with any number.

A property takes a case and a backend, raises AssertionError if it does not hold, and returns the largest ratio of error
to bound, or 0 if it compares bits.
"""

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tsplat
from tests.support import scenes
from tests.support.cases import Case
from tests.support.closeness import LAYOUT, assert_exact, assert_run_exact, assert_run_fp32, assert_same_bits, run
from tsplat import reference
from tsplat.config import PRESETS
from tsplat.runtime.backend import triton_is_interpreted

GEOMETRY = ("means", "quats", "scales", "opacities", "colors")


def _scene(structure: scenes.Structure, backend: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Builds the scene of a structure, on the GPU if the backend runs there."""
    on_gpu = backend == "triton" and torch.cuda.is_available()
    return scenes.make(structure, dtype, "cuda" if on_gpu else "cpu")


def _is_interpreted(backend: str) -> bool:
    """Returns whether kernels run in the interpreter or on an emulator, which are slow."""
    return backend == "triton" and triton_is_interpreted()


def random_scene(case: Case, backend: str) -> float:
    """Images and all gradients match the reference, in fp64 and in fp32, within the tolerances."""
    settings = case.mode | case.layout | dict(backend=backend)
    exact = assert_run_exact(_scene(case.structure, backend), case.seed, **settings)
    return max(exact, assert_run_fp32(_scene(case.structure, backend, torch.float32), case.seed, **settings))


VALUES = (0.0, -0.0, 1e-45, 1e-38, 1e-20, 1e-7, 1.0, 1e4, 1e10, 3e38, math.inf, -math.inf, math.nan, -1.0)


def special_values(case: Case, backend: str) -> float:
    """Inputs of 20 Gaussians may contain zeros, subnormals, infinities and NaN.

    All outputs are finite. Invalid Gaussians are culled and counted, have no gradient, and do not change any bit of the
    image or of other Gaussians' gradients.
    """
    r = random.Random(case.seed)
    clean = _scene(dataclasses.replace(case.structure, covars=False, n=20), backend, torch.float32)
    poisoned = {name: t.clone() if isinstance(t, Tensor) else t for name, t in clean.items()}
    for gaussian in range(20):
        tensor = poisoned[r.choice(GEOMETRY)]
        flat = tensor.reshape(-1, 20, math.prod(tensor.shape[_gaussian_dim(case, tensor, clean) + 1 :]))
        entries = range(flat.shape[2]) if r.random() < 0.3 else [r.randrange(flat.shape[2])]
        value = r.choice(VALUES)
        for entry in entries:
            flat[r.randrange(flat.shape[0]), gaussian, entry] = value
    settings = case.mode | case.layout | dict(backend=backend)
    found, meta = run(poisoned, case.seed, **settings)
    for name, tensor in found.items():
        assert tensor is None or tensor.isfinite().all(), f"{name}: {int((~tensor.isfinite()).sum())} are not finite"

    invalid = _invalid_gaussians(poisoned, settings)
    assert int(meta["n_invalid"]) == int(invalid.sum()), "n_invalid: differs from the reference's"
    # The same scene with every invalid Gaussian replaced by a valid, transparent one.
    transparent = dict(poisoned)
    for name in GEOMETRY:
        dim = _gaussian_dim(case, clean[name], clean)
        mask = _spread(invalid, clean[name], dim, len(case.structure.batch))
        transparent[name] = torch.where(mask, clean[name] if name != "opacities" else 0.0, poisoned[name])
        gradient = found[f"v_{name}"]
        assert gradient is None or not (gradient[mask.expand_as(gradient)] != 0).any(), f"v_{name}: invalid, not zero"
    expected, _ = run(transparent, case.seed, **settings)
    for name, tensor in expected.items():
        other = found[name]
        if tensor is None or other is None:
            continue
        if name[2:] in GEOMETRY:
            dim = _gaussian_dim(case, tensor, clean)
            keep = ~_spread(invalid, tensor, dim, len(case.structure.batch)).expand_as(tensor)
            tensor, other = tensor[keep], other[keep]
        assert torch.equal(tensor, other), f"{name}: changed by invalid Gaussians"
    return 0.0


def _invalid_gaussians(scene: dict[str, Any], settings: dict[str, Any]) -> Tensor:
    """Returns a mask [*batch, N] bool of the Gaussians that are invalid according to the reference."""
    plain = {name: value for name, value in settings.items() if name not in (*LAYOUT, "backend")}
    plain["numerics"] = PRESETS[plain.get("numerics", "gsplat-1.5")]
    with torch.no_grad():
        truth = reference.rasterize(**scene, **plain, cull=True)
    assert truth.valid is not None
    return ~truth.valid


def _gaussian_dim(case: Case, tensor: Tensor, scene: dict[str, Any]) -> int:
    """Returns the dimension of a tensor of the scene that indexes Gaussians."""
    n_batch = len(case.structure.batch)
    per_camera = tensor.shape == scene["colors"].shape and case.structure.per_camera_colors
    return n_batch + per_camera


def _spread(mask: Tensor, like: Tensor, dim: int, n_batch: int) -> Tensor:
    """Broadcasts a mask [*batch, N] to the dimensions of a tensor with N at `dim`."""
    if dim > n_batch:
        mask = mask.unsqueeze(n_batch)
    return mask.reshape(*mask.shape, *[1] * (like.dim() - dim - 1))


def permuted(case: Case, backend: str) -> float:
    """Permuting the Gaussians permutes their gradients and changes nothing else."""
    scene = _scene(case.structure, backend)
    settings = case.mode | case.layout | dict(backend=backend)
    order = torch.randperm(case.structure.n, generator=torch.Generator().manual_seed(case.seed))
    order = order.to(scene["means"].device)
    dims = {name: _gaussian_dim(case, scene[name], scene) for name in (*GEOMETRY, "covars") if scene[name] is not None}
    shuffled = scene | {name: scene[name].index_select(dim, order) for name, dim in dims.items()}
    one, _ = run(scene, case.seed, **settings)
    other, _ = run(shuffled, case.seed, **settings)
    for name, dim in dims.items():
        gradient = one[f"v_{name}"]
        one[f"v_{name}"] = None if gradient is None else gradient.index_select(dim, order)
    return _same(one, other)


def _same(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> float:
    return max(assert_exact(name, other[name], one[name]) for name in one)


def scaled(case: Case, backend: str) -> float:
    """Incoming gradients times 2^k give gradients times 2^k, bit by bit."""
    scene = _scene(case.structure, backend, torch.float32)
    factor = 2.0 ** random.Random(case.seed).choice([-6, -1, 1, 5, 12])
    outputs = []
    for by in (1.0, factor):
        inputs = scenes.leaves(scene)
        colors, alphas, _ = tsplat.rasterization(**inputs, **case.mode, **case.layout, backend=backend)
        if not colors.requires_grad:
            return 0.0
        wanted = {k: v for k, v in inputs.items() if isinstance(v, Tensor) and v.requires_grad}
        v = [by * t for t in scenes.random_like((colors, alphas), case.seed)]
        grads = torch.autograd.grad((colors, alphas), tuple(wanted.values()), v, allow_unused=True)
        outputs.append({k: None if g is None else g / by for k, g in zip(wanted, grads)})
    return assert_same_bits(*outputs)


def batch_is_loop(case: Case, backend: str) -> float:
    """A batch of scenes gives the same bits as one call for each."""
    structure = dataclasses.replace(case.structure, batch=(2,))
    scene = _scene(structure, backend, torch.float32)
    settings = case.mode | case.layout | dict(backend=backend)
    whole, _ = run(scene, case.seed, **settings)
    v = scenes.random_like((whole["colors"], whole["alphas"]), case.seed)  # type: ignore[arg-type]
    for i in range(2):
        inputs = scenes.leaves({k: t[i] if isinstance(t, Tensor) else t for k, t in scene.items()})
        colors, alphas, _ = tsplat.rasterization(**inputs, **settings)
        single: dict[str, Tensor | None] = {"colors": colors.detach(), "alphas": alphas.detach()}
        wanted = {k: t for k, t in inputs.items() if isinstance(t, Tensor) and t.requires_grad}
        grads: Any = [None] * len(wanted)
        if colors.requires_grad:
            grads = torch.autograd.grad((colors, alphas), tuple(wanted.values()), [t[i] for t in v], allow_unused=True)
        single |= {f"v_{k}": g for k, g in zip(wanted, grads)}
        assert_same_bits({k: None if t is None else t[i] for k, t in whole.items()}, single)
    return 0.0


def packed_is_unpacked(case: Case, backend: str) -> float:
    """Packed and unpacked projections give the same bits."""
    scene = _scene(case.structure, backend, torch.float32)
    settings = case.mode | case.layout | dict(backend=backend)
    one, _ = run(scene, case.seed, **(settings | dict(packed=True)))
    other, _ = run(scene, case.seed, **(settings | dict(packed=False)))
    return assert_same_bits(one, other)


def tile_sizes(case: Case, backend: str) -> float:
    """Tiles of 4, 8 and 16 pixels give the same images and gradients."""
    scene = _scene(case.structure, backend)
    settings = case.mode | case.layout | dict(backend=backend)
    runs = [run(scene, case.seed, **(settings | dict(tile_size=size)))[0] for size in (4, 8, 16)]
    return max(_same(runs[0], other) for other in runs[1:])


def cameras_split(case: Case, backend: str) -> float:
    """One call per camera gives images with the same bits, and gradients with the same sum."""
    structure = dataclasses.replace(case.structure, batch=(), cameras=3)
    scene = _scene(structure, backend)
    settings = case.mode | case.layout | dict(backend=backend)
    together, _ = run(scene, case.seed, **settings)
    v = scenes.random_like((together["colors"], together["alphas"]), case.seed)  # type: ignore[arg-type]
    inputs = scenes.leaves(scene)
    per_camera = ["viewmats", "Ks", "backgrounds"] + ["colors"] * structure.per_camera_colors
    images = []
    for i in range(3):
        single = {k: t[i : i + 1] if k in per_camera and t is not None else t for k, t in inputs.items()}
        images.append(tsplat.rasterization(**single, **settings)[:2])
    colors, alphas = (torch.cat(parts) for parts in zip(*images))
    assert torch.equal(colors.detach(), together["colors"]) and torch.equal(alphas.detach(), together["alphas"])  # type: ignore[arg-type]
    if not colors.requires_grad:
        return 0.0
    wanted = {k: t for k, t in inputs.items() if isinstance(t, Tensor) and t.requires_grad}
    grads = torch.autograd.grad((colors, alphas), tuple(wanted.values()), v, allow_unused=True)
    return max(assert_exact(k, g, together[f"v_{k}"]) for k, g in zip(wanted, grads))


def banded(case: Case, backend: str) -> float:
    """A memory budget that forces rendering in bands does not change any bit."""
    structure = dataclasses.replace(case.structure, height=max(case.structure.height, 17), n=20)
    scene = _scene(structure, backend, torch.float32)
    settings = case.mode | case.layout | dict(backend=backend, tile_size=4)
    one, meta = run(scene, case.seed, **settings)
    needed = meta["memory"]["peak_bytes"]
    for part in (3,) if _is_interpreted(backend) else (2, 3, 5):
        try:
            other, meta = run(scene, case.seed, **settings, memory_budget=max(needed // part, 1))
        except tsplat.MemoryBudgetError:
            break
        assert meta["memory"]["bands"] > 1 or needed == 0, "memory_budget: was not split into bands"
        assert_same_bits(one, other)
    return 0.0


def mixed_precision(case: Case, backend: str) -> float:
    """Autocast with inputs of mixed dtypes gives the bits of the fp32 call on upcast inputs."""
    r = random.Random(case.seed)
    settings = case.mode | case.layout | dict(backend=backend)
    mixed = _scene(case.structure, backend, torch.float32)
    types = {}
    for name, tensor in mixed.items():
        if isinstance(tensor, Tensor):
            types[name] = r.choice([torch.float32, torch.float16, torch.bfloat16])
            mixed[name] = tensor.to(types[name])
    upcast = {k: t.float() if isinstance(t, Tensor) else t for k, t in mixed.items()}
    device = mixed["means"].device.type
    with torch.autocast(device, dtype=r.choice([torch.float16, torch.bfloat16])):
        found, _ = run(mixed, case.seed, **settings)
    expected, _ = run(upcast, case.seed, **settings)
    for name, tensor in expected.items():
        if name.startswith("v_") and tensor is not None:
            expected[name] = tensor.to(types[name[2:]])
    return assert_same_bits(expected, found)


def repeated(case: Case, backend: str) -> float:
    """Repeated calls give the same bits, forward and backward, whatever the order of threads."""
    n = 20 if _is_interpreted(backend) else max(case.structure.n, 12) * 40
    structure = dataclasses.replace(case.structure, n=n)
    scene = _scene(structure, backend, torch.float32)
    settings = case.mode | case.layout | dict(backend=backend)
    repeats = 2 if _is_interpreted(backend) else 10  # the interpreter has no threads
    threads, deterministic = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    # PyTorch's deterministic mode is off and several threads run, so that only the code itself can ensure the order.
    torch.set_num_threads(4)
    torch.set_deterministic_debug_mode("default")
    try:
        first, _ = run(scene, case.seed, **settings)
        return max(assert_same_bits(first, run(scene, case.seed, **settings)[0]) for _ in range(repeats - 1))
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)


def memory_error(case: Case, backend: str) -> float:
    """Scales that are much too large raise MemoryBudgetError, and do not change the bits of the next call."""
    structure = dataclasses.replace(
        case.structure, n=40, size=1.0, covars=False, width=32, height=32, batch=(), camera_model="pinhole"
    )
    if _is_interpreted(backend):
        structure = dataclasses.replace(structure, cameras=1)
    scene = _scene(structure, backend, torch.float32)
    wrong = scene | dict(scales=scene["scales"].exp().exp() if case.seed % 2 else scene["scales"] * 1e4)
    # Otherwise, the wrong Gaussians might be invisible.
    wrong["opacities"] = wrong["opacities"].clamp_min(0.5)
    settings = {**case.layout, "tile_size": 4, "backend": backend, "memory_budget": 20_000}
    before, _ = run(scene, case.seed, **settings)
    with pytest.raises(tsplat.MemoryBudgetError, match=r"need [\d.]+ [kMG]?B.*budget 20 kB"):
        run(wrong, case.seed, **settings)
    after, _ = run(scene, case.seed, **settings)
    return assert_same_bits(before, after)


@dataclasses.dataclass(frozen=True)
class Property:
    """A check, the number of cases in tests and in the long run, and the number of trials per case."""

    check: Callable[[Case, str], float]
    in_tests: int
    in_long_run: int
    per_case: int = 1


PROPERTIES = {
    "random scenes against fp64": Property(random_scene, 150, 5000),
    "special values": Property(special_values, 100, 1000, per_case=20),
    "permuted Gaussians": Property(permuted, 30, 500),
    "gradients scaled by 2^k": Property(scaled, 30, 500),
    "batch = loop": Property(batch_is_loop, 30, 500),
    "packed = unpacked": Property(packed_is_unpacked, 30, 500),
    "tile sizes": Property(tile_sizes, 30, 500),
    "cameras split": Property(cameras_split, 30, 500),
    "banded = whole": Property(banded, 30, 500),
    "mixed precision": Property(mixed_precision, 20, 600),
    "repeated": Property(repeated, 20, 100),
    "memory errors": Property(memory_error, 20, 200),
}

"""The command ``tsplat``: demo, prepare, render, train, doctor."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import platform
import sys
from pathlib import Path
from typing import NoReturn

import torch

from . import __version__
from .backend import choose, has_triton, triton_is_interpreted
from .checks import ArgumentError, BackendError, UnsupportedError
from .rasterization import rasterization

SIZE_MAX = 16384
BACKENDS = ("auto", "triton", "torch")
PRESETS = ("fixed", "default", "mcmc")
LENSES = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
CORE = ("torch", "triton", "numpy", "einops")
EXTRAS = ("pillow", "rich", "scipy", "matplotlib", "pycolmap")

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong, so that every error ends in the same one line."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message}; see {self.prog} --help")


def main(argv: list[str] | None = None) -> int:
    """Runs a command line, by default the process's own.

    Returns:
        0; 2 after one line ``tsplat: error: ...`` on stderr about bad input; 130 after Ctrl-C outside training.
    """
    try:
        arguments = _parser().parse_args(argv)
        commands = {"demo": _demo, "prepare": _prepare, "render": _render, "train": _train, "doctor": _doctor}
        return commands[arguments.command](arguments)
    except KeyboardInterrupt:
        print("tsplat: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        where = error.filename2 or error.filename
        return _fail(f"{where}: {error.strerror}" if where and error.strerror else str(error))
    except (ArgumentError, UnsupportedError, BackendError, ArithmeticError) as error:
        return _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail("out of memory; ask for smaller pictures")


def _is_out_of_memory(error: Exception) -> bool:
    # On a CPU torch raises a RuntimeError that only its words tell from others.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


def _fail(message: str) -> int:
    print("tsplat: error:", " ".join(message.split()), file=sys.stderr)
    return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tsplat", description="3D Gaussian Splatting in Triton.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tsplat {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{demo,prepare,render,train,doctor}")

    demo = commands.add_parser("demo", help="fit a small scene that needs no data", allow_abbrev=False)
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder to write to (demo)")
    demo.add_argument("--steps", type=_count, metavar="N", help="optimiser steps (by device)")
    _add_common(demo, seed=True)

    prepare = commands.add_parser("prepare", help="a scene from photographs, by COLMAP", allow_abbrev=False)
    prepare.add_argument("photos", type=Path, metavar="PHOTOS", help="folder with overlapping photographs")
    prepare.add_argument("--out", type=Path, required=True, metavar="SCENE", help="folder to make")
    prepare.add_argument(
        "--max-size", type=_size, default=1600, metavar="N", help="longest side at which to find features (1600)"
    )
    prepare.add_argument(
        "--single-camera",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether one camera at one focal length took all photographs (yes)",
    )
    prepare.add_argument("--camera-model", choices=LENSES, default="SIMPLE_RADIAL", help="lens to fit (SIMPLE_RADIAL)")
    prepare.add_argument("--seed", type=_small_seed, default=0, metavar="S", help="of everything that is drawn (0)")

    render = commands.add_parser("render", help="a picture of a model", allow_abbrev=False)
    render.add_argument("model", type=Path, metavar="MODEL.ply", help="Gaussians in Inria's PLY layout")
    render.add_argument("--out", type=_png, required=True, metavar="PICTURE.png", help="file to write")
    render.add_argument("--width", type=_size, default=800, metavar="N", help="pixels (800)")
    render.add_argument("--height", type=_size, default=600, metavar="N", help="pixels (600)")
    render.add_argument("--fov", type=_number, default=50.0, metavar="DEG", help="vertical field of view (50)")
    render.add_argument(
        "--eye",
        type=_number,
        nargs=3,
        metavar=("X", "Y", "Z"),
        help="camera position (where the whole model is in view)",
    )
    render.add_argument(
        "--look-at", type=_number, nargs=3, metavar=("X", "Y", "Z"), help="what is in the middle (the model)"
    )
    render.add_argument(
        "--up",
        type=_number,
        nargs=3,
        metavar=("X", "Y", "Z"),
        help="what points upwards (0 -1 0, or 0 1 0 where the ground is at -y)",
    )
    render.add_argument(
        "--background", type=_channel, nargs=3, default=(0.0, 0.0, 0.0), metavar=("R", "G", "B"), help="0 to 1 (0 0 0)"
    )
    _add_common(render, seed=False)

    train = commands.add_parser("train", help="fit photographs with cameras by COLMAP", allow_abbrev=False)
    train.add_argument("scene", type=Path, metavar="SCENE", help="folder with images/ and sparse/0/")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    train.add_argument("--steps", type=_count, default=7000, metavar="N", help="optimiser steps (7000)")
    train.add_argument("--downscale", type=_count, default=1, metavar="K", help="make photographs K times smaller (1)")
    train.add_argument(
        "--preset",
        choices=PRESETS,
        default="fixed",
        help="how Gaussians come and go: not at all, default, mcmc (fixed)",
    )
    train.add_argument(
        "--max-gaussians", type=_count, default=1_000_000, metavar="N", help="with mcmc, at most (1000000)"
    )
    _add_common(train, seed=True)

    commands.add_parser("doctor", help="what is installed, and what would run", allow_abbrev=False)
    return parser


def _add_common(parser: argparse.ArgumentParser, seed: bool) -> None:
    if seed:
        parser.add_argument("--seed", type=_seed, default=0, metavar="S", help="of everything that is drawn (0)")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="what rasterizes (auto: the fastest)")


def _demo(arguments: argparse.Namespace) -> int:
    from .training import demo

    demo(arguments.out, backend=arguments.backend, steps=arguments.steps, seed=arguments.seed)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from .scene import prepare
    from .scene.extras import require
    from .scene.progress import stage_display

    require("pycolmap", "PIL", "rich")
    with stage_display() as show:
        found = prepare(
            arguments.photos,
            arguments.out,
            max_size=arguments.max_size,
            single_camera=arguments.single_camera,
            camera_model=arguments.camera_model,
            seed=arguments.seed,
            on_progress=show,
        )
    total = len(found.registered) + len(found.left_out)
    print(
        f"registered {len(found.registered)} of {total} photographs; {found.n_points} points, "
        f"mean reprojection error {found.error:.2f} px"
    )
    if found.left_out:
        more = f" and {len(found.left_out) - 5} more" if len(found.left_out) > 5 else ""
        print(f"left out {', '.join(found.left_out[:5])}{more}")
    if found.n_models > 1:
        print(f"{found.n_models} models that do not connect were found; the largest is kept")
    print(f"written to {arguments.out}: images/, sparse/0/")
    return 0


def _train(arguments: argparse.Namespace) -> int:
    from .training import train

    train(
        arguments.scene,
        arguments.out,
        steps=arguments.steps,
        downscale=arguments.downscale,
        seed=arguments.seed,
        backend=arguments.backend,
        preset=arguments.preset,
        max_gaussians=arguments.max_gaussians,
    )
    return 0


def _render(arguments: argparse.Namespace) -> int:
    from .scene import guess_up, intrinsics, look_at, look_at_all, read_ply
    from .scene.extras import require
    from .scene.files import output_folder
    from .scene.images import write_png
    from .training import pick_device, render

    require("PIL")
    device, _ = pick_device(arguments.backend)
    width, height = arguments.width, arguments.height
    K = intrinsics(width, height, arguments.fov)
    gaussians = read_ply(arguments.model)
    unsound = int((~gaussians.sound).sum())
    if unsound:
        print(f"left out {unsound} of {len(gaussians)} Gaussians, whose values are not numbers")
        gaussians = gaussians.map(lambda tensor, sound=gaussians.sound: tensor[sound])  # type: ignore[misc]
    up = arguments.up or guess_up(gaussians)
    eye, target = arguments.eye, arguments.look_at
    if eye is None or target is None:
        found, middle = look_at_all(gaussians, width, height, arguments.fov, up)
        target = target or middle.tolist()
        # Seen from the same side, whatever is in the middle.
        eye = eye or (torch.tensor(target) - middle - found[:3, :3].T @ found[:3, 3]).tolist()
    viewmat = look_at(eye, target, up)
    with output_folder(arguments.out.parent), torch.no_grad():
        picture = render(
            gaussians.to(device),
            viewmat.to(device),
            K.to(device),
            width,
            height,
            background=tuple(arguments.background),
            backend=arguments.backend,
        )
        write_png(arguments.out, picture)
    return 0


def _doctor(_arguments: argparse.Namespace) -> int:
    print(f"tsplat {__version__}, Python {platform.python_version()}, {platform.platform()}")
    missing = []
    for package in (*CORE, *EXTRAS):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
            missing.append(package)
        print(f"  {package:11} {version}")

    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    devices += [torch.device("mps")] if torch.backends.mps.is_available() else []
    works = []
    print("devices")
    for device in devices:
        name, reason = choose(device)
        trouble = _trouble(device)
        works.append(trouble is None)
        title = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
        print(f"  {device}{title}: backend {name}, as {reason}; {'works' if trouble is None else f'FAILS: {trouble}'}")

    advice = []
    if len(devices) == 1:
        built = torch.version.cuda or torch.version.hip
        advice.append(
            "no GPU: torch sees none, check the driver (nvidia-smi or rocminfo)"
            if built
            else "no GPU: this torch is built without CUDA or ROCm; on a GPU machine install one from pytorch.org"
        )
    if not has_triton():
        advice.append("no triton: pip install triton (Linux); without it GPUs run the slow host path")
    elif triton_is_interpreted():
        advice.append("TRITON_INTERPRET is set: kernels run in Python, for tests only; unset it")
    wanted = [package for package in missing if package in EXTRAS]
    if wanted:
        advice.append(f"no {', '.join(wanted)}: demo, render and train need pip install 'tsplat[train]'")
    print("what to do" if advice else "nothing is missing")
    for line in advice:
        print(f"  {line}")
    return 0 if any(works) else 1


def _trouble(device: torch.device) -> str | None:
    """What goes wrong when one Gaussian is rendered on a device; None where it shows."""
    try:
        colors, _, _ = rasterization(
            means=torch.tensor([[0.0, 0.0, 1.0]], device=device),
            quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]], device=device),
            scales=torch.full((1, 3), 0.1, device=device),
            opacities=torch.ones(1, device=device),
            colors=torch.ones(1, 3, device=device),
            viewmats=torch.eye(4, device=device)[None],
            Ks=torch.tensor([[[16.0, 0.0, 8.0], [0.0, 16.0, 8.0], [0.0, 0.0, 1.0]]], device=device),
            width=16,
            height=16,
        )
        shows = float(colors[0, 8, 8, 0]) > 0.5
    except Exception as error:  # whatever it is, the doctor says it
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None if shows else "the picture stays black"


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")
    return value


def _channel(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def _whole(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found {text!r}")
    return int(text)


def _size(text: str) -> int:
    return _whole(text, 1, SIZE_MAX)


def _count(text: str) -> int:
    return _whole(text, 1, 10**9)


def _seed(text: str) -> int:
    return _whole(text, 0, 2**63 - 1)


def _small_seed(text: str) -> int:
    return _whole(text, 0, 2**31 - 1)


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, found {text!r}")
    return path

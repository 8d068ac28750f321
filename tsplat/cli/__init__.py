"""The command ``tsplat``: demo, prepare, render, train, eval, convert, export, info, doctor."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import platform
import sys
from pathlib import Path
from typing import NoReturn

import torch

from .. import PeerError, __version__
from ..errors import ArgumentError, BackendError, UnsupportedError
from ..rasterization import rasterization
from ..stages.backend import choose, has_triton, triton_is_interpreted

SIZE_MAX = 16384
BACKENDS = ("auto", "triton", "torch")
LENSES = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
CORE = ("torch", "triton", "numpy", "einops")
EXTRAS = ("pillow", "rich", "scipy", "matplotlib", "pycolmap", "safetensors", "tyro")

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
        parser = _parser()
        arguments, rest = parser.parse_known_args(argv)
        arguments.line = list(sys.argv[1:] if argv is None else argv)
        if arguments.command == "train":
            return _train(rest, arguments.line)
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        return COMMANDS[arguments.command](arguments)
    except KeyboardInterrupt:
        print("tsplat: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        where = error.filename2 or error.filename
        return _fail(f"{where}: {error.strerror}" if where and error.strerror else str(error))
    except (ArgumentError, UnsupportedError, BackendError, PeerError, ArithmeticError) as error:
        return _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail("out of memory; ask for smaller pictures")


def _is_out_of_memory(error: Exception) -> bool:
    # On a CPU torch raises a RuntimeError that only its words tell from others.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


def _fail(message: str) -> int:
    from ..training.processes.launcher import is_launched

    rank = f" rank {os.environ['RANK']}:" if is_launched() else ""
    # In one piece, as ranks may speak at once.
    sys.stderr.write(f"tsplat: error:{rank} {' '.join(message.split())}\n")
    return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tsplat", description="3D Gaussian Splatting in Triton.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tsplat {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(("train", *COMMANDS)) + "}")

    demo = commands.add_parser("demo", help="fit a small scene that needs no data", allow_abbrev=False)
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder to write to (demo)")
    demo.add_argument("--steps", type=_count, metavar="N", help="optimizer steps (by device)")
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
    _add_model(render)
    render.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PICTURE.png",
        help="file to write; with --trajectory .mp4, .webm, .gif, or a folder for PNGs",
    )
    render.add_argument("--show", choices=("rgb", "depth", "alpha"), default="rgb", help="what to show (rgb)")
    render.add_argument(
        "--trajectory", metavar="orbit|spiral|CAMERAS.json", help="a film: around it, swaying, or by a list of cameras"
    )
    render.add_argument("--frames", type=_count, default=120, metavar="N", help="of an orbit or a spiral (120)")
    render.add_argument("--fps", type=_count, default=30, metavar="N", help="frames a second (30)")
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

    commands.add_parser("train", help="fit photographs with cameras, or go on with it", add_help=False)

    evaluate = commands.add_parser("eval", help="figures and pictures of a run", allow_abbrev=False)
    evaluate.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    evaluate.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (RUN/eval)")
    evaluate.add_argument("--scene", metavar="SCENE", help="photographs, if they are no longer where they were")
    evaluate.add_argument("--lpips", choices=("alex", "vgg", "squeeze"), help="measure LPIPS by this network too")
    evaluate.add_argument("--ranks", type=_count, default=1, metavar="N", help="processes that share the views (1)")
    evaluate.add_argument("--force", action="store_true", help="take parameters that look activated")

    convert = commands.add_parser("convert", help="a model in another format", allow_abbrev=False)
    _add_model(convert)
    convert.add_argument("out", type=Path, metavar="OUT", help="file to write, .ply or .splat")

    export = commands.add_parser("export", help="the scene of a run in another format", allow_abbrev=False)
    _add_model(export)
    export.add_argument("--out", type=Path, required=True, metavar="OUT", help="file to write, .ply or .splat")

    info = commands.add_parser("info", help="what there is in a model", allow_abbrev=False)
    _add_model(info)
    info.add_argument("--json", action="store_true", help="for programs")

    commands.add_parser("doctor", help="what is installed, and what would run", allow_abbrev=False)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="a run, PLY, .splat, .spz, .sog or its folder, a checkpoint of gsplat or Inria",
    )
    parser.add_argument(
        "--force", action="store_true", help="take a checkpoint's values as they are where they look activated already"
    )


def _add_common(parser: argparse.ArgumentParser, seed: bool) -> None:
    if seed:
        parser.add_argument("--seed", type=_seed, default=0, metavar="S", help="of everything that is drawn (0)")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="what rasterizes (auto: the fastest)")


def _demo(arguments: argparse.Namespace) -> int:
    from ..training import demo

    demo(arguments.out, backend=arguments.backend, steps=arguments.steps, seed=arguments.seed)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from ..scene import prepare
    from ..support.extras import require
    from ..support.progress import stage_display

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
    total = len(found.registered) + len(found.unregistered)
    print(
        f"registered {len(found.registered)} of {total} photographs; {found.n_points} points, "
        f"mean reprojection error {found.error:.2f} px"
    )
    if found.unregistered:
        more = f" and {len(found.unregistered) - 5} more" if len(found.unregistered) > 5 else ""
        print(f"left out {', '.join(found.unregistered[:5])}{more}")
    if found.n_models > 1:
        print(f"{found.n_models} models that do not connect were found; the largest is kept")
    print(f"written to {arguments.out}: images/, sparse/0/")
    return 0


def _train(rest: list[str], line: list[str]) -> int:
    from ..training import resume, train
    from ..training.options import Resume, parse, run_config

    options = parse(rest)
    status = _launch(line, options.ranks, options.gpus)
    if status is not None:
        return status
    if isinstance(options, Resume):
        resume(options.run, stop_after=options.stop_after, force=options.force)
    else:
        train(run_config(options), options.out, stop_after=options.stop_after)
    return 0


def _launch(line: list[str], ranks: int, gpus: str) -> int | None:
    """The exit status of so many ranks that run the same line; None where this process is to do it itself."""
    from ..arguments import check_size
    from ..training.processes.launcher import gpus_of, is_launched, launch

    if is_launched():
        return None
    check_size("ranks", ranks)
    chosen = gpus_of(gpus) if gpus else []
    if chosen and ranks not in (1, len(chosen)):
        raise ArgumentError(f"--ranks: expected one for each of {len(chosen)} GPUs, found {ranks}")
    ranks = len(chosen) or ranks
    return launch(line, ranks, chosen) if ranks > 1 else None


def _eval(arguments: argparse.Namespace) -> int:
    from ..training import evaluate_run

    status = _launch(arguments.line, arguments.ranks, "")
    if status is not None:
        return status
    evaluate_run(arguments.run, out=arguments.out, scene=arguments.scene, lpips=arguments.lpips, force=arguments.force)
    return 0


def _render(arguments: argparse.Namespace) -> int:
    from ..scene import intrinsics, look_at
    from ..scene.images import write_png
    from ..support.extras import require
    from ..support.files import output_folder
    from ..training import open_model, pick_device
    from ..training.display import track
    from ..viewing.films import check_film, frames_of, write_frames
    from ..viewing.framing import guess_up, look_at_all
    from ..viewing.trajectories import Camera, orbit_around, read_cameras, spiral_at

    require("PIL")
    trajectory, out = arguments.trajectory, arguments.out
    if trajectory is None and out.suffix.lower() != ".png":
        raise ArgumentError(f"--out: expected a name that ends in .png, found {str(out)!r}; films need --trajectory")
    if trajectory is not None:
        check_film(out)
    device, _ = pick_device(arguments.backend)
    width, height = arguments.width, arguments.height
    gaussians = open_model(arguments.model, force=arguments.force)
    unsound = int((~gaussians.valid).sum())
    if unsound:
        print(f"left out {unsound} of {len(gaussians)} Gaussians, whose values are not numbers")
        gaussians = gaussians.map(lambda tensor, valid=gaussians.valid: tensor[valid])  # type: ignore[misc]
    if trajectory not in (None, "orbit", "spiral"):
        cameras = read_cameras(trajectory)
    else:
        up = arguments.up or guess_up(gaussians)
        eye, target = arguments.eye, arguments.look_at
        if eye is None or target is None:
            found, middle = look_at_all(gaussians, width, height, arguments.fov, up)
            target = target or middle.tolist()
            # Seen from the same side, whatever is in the middle.
            eye = eye or (torch.tensor(target) - middle - found[:3, :3].T @ found[:3, 3]).tolist()
        if trajectory is None:
            viewmats = look_at(eye, target, up)[None]
        else:
            along = orbit_around if trajectory == "orbit" else spiral_at
            viewmats = along(eye, target, up, arguments.frames)
        K = intrinsics(width, height, arguments.fov)
        cameras = [Camera(viewmat, K, width, height) for viewmat in viewmats]
    with output_folder(out.parent):
        frames = frames_of(
            gaussians.to(device),
            cameras,
            show=arguments.show,
            background=tuple(arguments.background),
            backend=arguments.backend,
        )
        if trajectory is None:
            write_png(out, next(frames))
        else:
            write_frames(out, track(frames, len(cameras), "rendering"), arguments.fps)
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from ..scene import lost_on_write, write_model
    from ..training import open_model

    gaussians = open_model(arguments.model, force=arguments.force)
    write_model(arguments.out, gaussians)
    lost = lost_on_write(arguments.out, gaussians)
    print(f"wrote {len(gaussians)} Gaussians to {arguments.out}" + (f"; lost: {', '.join(lost)}" if lost else ""))
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from ..scene import summarize
    from ..training import open_model

    summary = summarize(open_model(arguments.model, force=arguments.force))
    print(summary.json() if arguments.json else "\n".join(summary.lines()))
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


COMMANDS = {
    "demo": _demo,
    "prepare": _prepare,
    "render": _render,
    "eval": _eval,
    "convert": _convert,
    "export": _convert,
    "info": _info,
    "doctor": _doctor,
}


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

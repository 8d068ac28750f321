"""``tsplat mesh``: extracts a triangle mesh from a model."""

import sys
import time
from argparse import Namespace

from ..scene import Camera, Gaussians, read_capture
from ..scene.cameras import choose_evenly, resize_camera
from ..scene.gaussians import drop_invalid
from ..scene.meshes import extract_mesh, write_mesh
from ..scene.meshes.mesh_files import check_mesh_path
from ..scene.option_types import ModelFrame
from ..support.extras import require
from ..support.files import output_folder
from ..support.free_memory import limit_memory
from ..support.progress import ShowStage, stage_display
from ..viewing import read_cameras
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.framing import cameras_around
from ..viewing.run_cameras import find_cameras
from ..viewing.run_files import check_output
from .argument_types import box_of
from .shared_steps import georeference_of, open_model_of, options_of, print_georeference


def mesh(arguments: Namespace) -> int:
    """Runs ``tsplat mesh``."""
    out = arguments.out
    check_mesh_path(out)
    check_output(out, arguments.model)
    require("skimage", *([] if arguments.faces is None else ["fast_simplification"]))
    if sys.stdout.isatty():
        require("rich")
    start = time.perf_counter()
    georeference = georeference_of(arguments)
    device, _ = pick_device(arguments.backend)
    reserve_threads(device, arguments.backend)
    gaussians = drop_invalid(open_model_of(arguments), print)
    with output_folder(out.parent):
        with stage_display() as show:
            cameras, source = _find_cameras(arguments, gaussians, show)
            print(f"cameras: {len(cameras)} {source}", flush=True)
            with limit_memory(None if arguments.memory is None else int(arguments.memory * 1e9)):
                surface = extract_mesh(
                    gaussians.to(device),
                    cameras,
                    bounds=box_of(arguments.bounds),
                    on_progress=show,
                    tell=lambda message: print(message, flush=True),
                    **options_of(
                        arguments, "depth", "voxel", "resolution", "truncation", "components", "faces", "backend"
                    ),
                )
        frame: ModelFrame = "local" if georeference is None else arguments.frame  # both frames are equal without one
        write_mesh(out, surface, georeference=georeference, frame=frame)
    print(
        f"wrote {out}: {len(surface.vertices):,} vertices, {len(surface.faces):,} triangles, "
        f"{out.stat().st_size / 1e6:.2f} MB, in {time.perf_counter() - start:.1f} s"
    )
    print_georeference(out, georeference, is_absolute=frame == "files")
    return 0


def _find_cameras(arguments: Namespace, gaussians: Gaussians, show: ShowStage) -> tuple[list[Camera], str]:
    """Returns the cameras to render, and a phrase that says where they come from."""
    data, size = arguments.data, arguments.size
    if data is not None and data.suffix.lower() == ".json" and not data.name.startswith("transforms"):
        cameras, source = read_cameras(data), f"of {data}"
    elif data is not None:
        capture = read_capture(data, max_size=size, on_progress=lambda done, total: show("reading", done, total))
        cameras, source = [view.camera for view in (*capture.train, *capture.test)], f"of {data}"
    elif cameras := find_cameras(arguments.model):
        source = "of the run"
    elif not len(gaussians):
        return [], "around the model"
    else:
        return cameras_around(gaussians, arguments.views, size), "around the model"
    return [resize_camera(camera, size) for camera in choose_evenly(cameras, arguments.views)], source

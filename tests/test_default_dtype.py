"""The default dtype and device of the program change no result: every public function of scenes, viewing and training.

A tensor that is made without a device would be on ``meta``, which stands for a GPU.
"""

import ast
import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.captures import POINTS, sample_views, write_colmap, write_transforms
from tests.support.ksplat_files import ksplat_bytes
from tests.support.lcc_files import lcc_files, write_lcc2
from tests.support.model_files import skip_without, write_folder
from tests.support.rad_files import COMPACT, rad_files
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import scene, training, viewing
from tsplat.scene import Capture, Gaussians
from tsplat.training import Config, RunConfig

UP = (0.0, -1.0, 0.0)
EYE = (1.0, -1.0, -3.0)
ROTATION = ((0.0, -1.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.5), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))
WARN = dict(warn=lambda message: None)
QUICK = dict(steps=4, backend="torch", capacity="off", device="cpu")


class Inputs:
    """What the cases need, made with the usual defaults."""

    def __init__(self, folder):
        self.folder = folder
        self.gaussians = dataclasses.replace(make_gaussians(sh_degree=1), shN=0.1 * torch.ones(60, 3, 3))
        self.views = make_views(self.gaussians, 5)
        self.cameras = [view.camera for view in self.views]
        colors = torch.rand(60, 3, generator=torch.Generator().manual_seed(1))
        self.capture = Capture(tuple(self.views[:4]), tuple(self.views[4:]), self.gaussians.means, colors)
        self.image, self.other = self.views[0].pixels, self.views[1].pixels
        self.matrix = torch.tensor(ROTATION, dtype=torch.float64)
        self.targets = {}

    def written(self, name, make):
        """The path of files that `make` writes once, with the usual defaults."""
        if name not in self.targets:
            self.targets[name] = make(self.folder / name)
        return self.targets[name]


def written_model(suffix, **options):
    """Prepares a file of the Gaussians."""

    def prepare(inputs):
        path = inputs.folder / f"model{suffix}"
        if not path.exists():
            scene.write_model(path, inputs.gaussians, **options)
        return path

    return prepare


def colmap(camera=None):
    def prepare(inputs):
        name = f"colmap_{(camera or 'none').split()[0]}"
        return inputs.written(name, lambda path: write_colmap(path, sample_views(), POINTS, camera))

    return prepare


def transforms(inputs):
    return inputs.written("transforms", lambda path: write_transforms(path, sample_views(), k1=0.05))


def run_of(inputs):
    def make(path):
        training.train(RunConfig(scene=str(colmap()(inputs)), **QUICK), path)
        return path

    return inputs.written("run", make)


def plan_of(inputs):
    def make(path):
        path.mkdir()
        scene.write_plan(path, scene.plan_blocks(scene.read_capture(colmap()(inputs)), 1, scene=str(colmap()(inputs))))
        return path

    return inputs.written("plan", make)


def checkpoint_of(inputs):
    return sorted((run_of(inputs) / "checkpoints").iterdir())[-1]


def torch_checkpoint(inputs):
    def make(path):
        tensors = dict(inputs.gaussians.tensors())
        splats = {
            "means": tensors["means"], "scales": tensors["log_scales"], "quats": tensors["quats"],
            "opacities": tensors["opacity_logits"], "sh0": tensors["sh0"], "shN": tensors["shN"],
        }  # fmt: skip
        torch.save({"step": 3, "splats": splats}, path)
        return path

    return inputs.written("ckpt_3_rank0.pt", make)


def ksplat(inputs):
    def make(path):
        path.write_bytes(ksplat_bytes(inputs.gaussians, 2, (1,)))
        return path

    return inputs.written("model.ksplat", make)


def lcc(inputs):
    return inputs.written("lcc", lambda path: write_folder(path, lcc_files(inputs.gaussians)))


def rad(inputs):
    return inputs.written("rad", lambda path: write_folder(path, rad_files(inputs.gaussians, COMPACT)))


def annotations(inputs):
    def make(path):
        path.write_text('[{"position": [0.1, 0.2, 0.3], "title": "A place"}]')
        return path

    return inputs.written("annotations.json", make)


def nothing(inputs):
    return None


def reading(function, suffix, **options):
    return written_model(suffix, **options), lambda inputs, path, out: function(path)


def writing(function, name):
    def call(inputs, _, out):
        function(out / name, inputs.gaussians)
        return out

    return nothing, call


def of_gaussians(call):
    return nothing, lambda inputs, _, out: call(inputs.gaussians)


CASES = {
    "crop_gaussians": of_gaussians(lambda g: scene.crop_gaussians(g, ((-1.0, -1.0, -1.0), (0.5, 0.5, 0.5)))),
    "crop_sphere": of_gaussians(lambda g: scene.crop_sphere(g, (0.0, 0.0, 0.0), 0.5)),
    "decimate_gaussians": (
        nothing,
        lambda i, _, out: scene.decimate_gaussians(i.gaussians, 55, i.cameras[:1], finetune=2, backend="torch"),
    ),
    "intrinsics": (nothing, lambda i, _, out: scene.intrinsics(40, 30, 45)),
    "look_at": (nothing, lambda i, _, out: scene.look_at(EYE, (0, 0, 0))),
    "merge_models": of_gaussians(lambda g: scene.merge_models([g, g], **WARN)),
    "morton_order": of_gaussians(lambda g: scene.morton_order(g.means)),
    "normalize_capture": (nothing, lambda i, _, out: scene.normalize_capture(i.capture)),
    "orbit": (nothing, lambda i, _, out: scene.orbit((0, 0, 0), 2.0, [0, 50], [10, 20])),
    "plan_blocks": (colmap(), lambda i, path, out: scene.plan_blocks(scene.read_capture(path), 1)),
    "procedural_capture": (nothing, lambda i, _, out: scene.procedural_capture(12, 9, n_train=2, n_test=1, n_points=9)),
    "prune_gaussians": of_gaussians(
        lambda g: scene.prune_gaussians(g, min_opacity=0.1, max_scale=0.3, max_isolation=4.0, drop_invalid=True)
    ),
    "rasterization_arguments": (nothing, lambda i, _, out: scene.rasterization_arguments(i.cameras)),
    "replace_points": (written_model(".ply"), lambda i, path, out: scene.replace_points(i.capture, path)),
    "read_capture": (colmap(), lambda i, path, out: scene.read_capture(path, normalize=True, downscale=2)),
    "read_colmap": (colmap(), lambda i, path, out: scene.read_colmap(path)),
    "read_transforms": (transforms, lambda i, path, out: scene.read_transforms(path, n_random=30)),
    "rotate_gaussians": of_gaussians(lambda g: scene.rotate_gaussians(g, (0.5, 0.5, -0.5, 0.5))),
    "set_sh_degree": of_gaussians(lambda g: [scene.set_sh_degree(g, degree) for degree in (0, 3)]),
    "summarize": of_gaussians(scene.summarize),
    "transform_gaussians": (nothing, lambda i, _, out: scene.transform_gaussians(i.gaussians, i.matrix)),
    "open_model": reading(scene.open_model, ".ply"),
    "read_model": reading(scene.read_model, ".spz"),
    "read_georeference": reading(
        lambda path: scene.read_georeference(path).world, "_placed.ply", georeference=scene.Georeference()
    ),
    "read_gltf": reading(scene.read_gltf, ".glb"),
    "read_ksplat": (ksplat, lambda inputs, path, out: scene.read_ksplat(path)),
    "read_lcc": (lcc, lambda inputs, path, out: scene.read_lcc(path / "a.lcc", warn=str)),
    "read_rad": (rad, lambda inputs, path, out: scene.read_rad(path / "a.rad", warn=str)),
    "read_lcc2": (
        lambda i: i.written("lcc2", lambda path: write_lcc2(path, i.gaussians).parent),
        lambda inputs, path, out: scene.read_lcc2(path / "a.lcc2", warn=str),
    ),
    "read_ply": reading(scene.read_ply, ".ply"),
    "read_sog": reading(scene.read_sog, ".sog"),
    "read_splat": reading(scene.read_splat, ".splat"),
    "read_spz": reading(scene.read_spz, ".spz"),
    "read_streamed_sog": (
        lambda i: i.written("streamed", lambda path: (scene.write_streamed_sog(path, i.gaussians) and None) or path),
        lambda i, path, out: [scene.read_streamed_sog(path, level=level) for level in (0, 1)],
    ),
    "read_torch_checkpoint": (torch_checkpoint, lambda i, path, out: scene.read_torch_checkpoint(path)),
    "read_usd": reading(scene.read_usd, ".usda"),
    "read_plan": (plan_of, lambda i, path, out: scene.read_plan(path)),
    "write_compressed_ply": writing(scene.write_compressed_ply, "a.compressed.ply"),
    "write_gltf": writing(scene.write_gltf, "a.glb"),
    "write_model": writing(scene.write_model, "a.ply"),
    "write_plan": (plan_of, lambda i, path, out: scene.write_plan(out, scene.read_plan(path)) or out),
    "write_ply": writing(scene.write_ply, "a.ply"),
    "write_sog": writing(scene.write_sog, "a.sog"),
    "write_splat": writing(scene.write_splat, "a.splat"),
    "write_spz": writing(scene.write_spz, "a.spz"),
    "write_streamed_sog": writing(scene.write_streamed_sog, "a"),
    "write_usd": writing(scene.write_usd, "a.usda"),
    "first_view": (nothing, lambda i, _, out: viewing.first_view(i.gaussians, i.cameras)),
    "guess_up": of_gaussians(viewing.guess_up),
    "look_at_all": of_gaussians(lambda g: viewing.look_at_all(g, 40, 30, 45.0)),
    "orbit_around": (nothing, lambda i, _, out: viewing.orbit_around(EYE, (0, 0, 0), UP, 5)),
    "path_along": (nothing, lambda i, _, out: viewing.path_along(i.cameras, 7)),
    "read_annotations": (annotations, lambda i, path, out: viewing.read_annotations(path)[0].position),
    "read_cameras": (run_of, lambda i, path, out: viewing.read_cameras(path / "cameras.json")),
    "render": (nothing, lambda i, _, out: viewing.render(i.gaussians, i.cameras[0], backend="torch")),
    "render_frames": (
        nothing,
        lambda i, _, out: [
            list(viewing.render_frames(i.gaussians, i.cameras, show=show, backend="torch"))
            for show in ("rgb", "depth", "normals", "alpha")
        ],
    ),
    "render_views": (
        nothing,
        lambda i, _, out: viewing.render_views(i.gaussians, i.cameras, backend="torch", render_mode="RGB+ED")[:2],
    ),
    "spiral_at": (nothing, lambda i, _, out: viewing.spiral_at(EYE, (0, 0, 0), UP, 5, inside=i.cameras)),
    "write_frames": (nothing, lambda i, _, out: viewing.write_frames(out / "a", [i.image]) or out),
    "export_page": (written_model(".ply"), lambda i, path, out: viewing.export_page(path, out / "a.html", **WARN)),
    "show": of_gaussians(lambda g: viewing.show(g, width=32, height=24).image),
    "write_page": (nothing, lambda i, _, out: viewing.write_page(out / "a.html", i.gaussians)),
    "evaluate": (nothing, lambda i, _, out: training.evaluate(i.gaussians, i.views, backend="torch").psnr),
    "fit": (nothing, lambda i, _, out: training.fit(i.gaussians, i.views, Config(steps=4, backend="torch"))),
    "loss": (nothing, lambda i, _, out: training.loss(i.image, i.other)),
    "psnr": (nothing, lambda i, _, out: training.psnr(i.image, i.other)),
    "ssim": (nothing, lambda i, _, out: training.ssim(i.image, i.other)),
    "preset": (nothing, lambda i, _, out: training.preset()),
    "read_config": (run_of, lambda i, path, out: training.read_config(path / "config.json")),
    "read_checkpoint": (checkpoint_of, lambda i, path, out: vars(training.read_checkpoint(path))["tensors"]),
    "read_newest": (run_of, lambda i, path, out: training.read_newest(path)[1].tensors),
    "write_checkpoint": (
        checkpoint_of,
        lambda i, path, out: training.write_checkpoint(out, training.read_checkpoint(path)) and out,
    ),
    "scene_extent": (nothing, lambda i, _, out: training.scene_extent(i.views)),
    "train": (
        colmap(),
        lambda i, path, out: (
            training.train(RunConfig(scene=str(path), random_background=True, **QUICK), out / "run")["psnr"],
            scene.open_model(out / "run"),
        ),
    ),
    "evaluate_run": (run_of, lambda i, path, out: training.evaluate_run(path, out=out)["psnr"]),
    "from_points": (nothing, lambda i, _, out: Gaussians.from_points(i.gaussians.means, i.capture.colors, 1)),
}
for name, camera in {
    "opencv": "OPENCV 40 30 50 50 20 15 0.05 0.01 0.001 0.001",
    "fisheye": "OPENCV_FISHEYE 40 30 30 30 20 15 0.01 0.001 0 0",
    "division": "DIVISION 40 30 50 50 20 15 -0.1",
}.items():
    CASES[f"read_colmap {name}"] = (colmap(camera), lambda i, path, out: scene.read_colmap(path))
    if name != "division":
        CASES[f"read_colmap {name} native"] = (
            colmap(camera),
            lambda i, path, out: scene.read_colmap(path, cameras="native"),
        )

SLOW = ("demo", "merge_blocks", "prepare", "resume", "train_blocks")
"""What these call is in other cases."""


FACTORIES = {"arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm"}
FACTORIES |= {"tensor", "zeros"}
INTEGERS = {"arange", "randint", "randperm"}
"""Functions whose tensors are integers, if their arguments are."""


def slow_cases(slow, names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


def content(value):
    """What is compared: dtypes, devices and values of tensors, and the bytes of files."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device.type, tuple(value.shape), value.detach().cpu().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Path):
        files = sorted(path for path in value.rglob("*") if path.is_file()) if value.is_dir() else [value]
        return [(path.name, path.read_bytes()) for path in files]
    if dataclasses.is_dataclass(value):
        return {field.name: content(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: content(one) for key, one in value.items()}
    return [content(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("default", ["float64", "meta"])
@pytest.mark.parametrize("name", slow_cases(("decimate_gaussians", "train", "evaluate_run"), CASES))
def test_results_do_not_depend_on_defaults(inputs, tmp_path, name, default):
    pytest.importorskip("pycolmap")
    if "usd" in name:
        skip_without("usda")
    prepare, call = CASES[name]
    given = prepare(inputs)
    (tmp_path / "expected").mkdir(), (tmp_path / "found").mkdir()
    expected = content(call(inputs, given, tmp_path / "expected"))
    try:
        if default == "float64":
            torch.set_default_dtype(torch.float64)
        else:
            torch.set_default_device("meta")
        found = call(inputs, given, tmp_path / "found")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert content(found) == expected


def test_every_public_function_has_a_case():
    functions = {
        name
        for module in (scene, viewing, training)
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    }
    assert functions - {*CASES} == {*SLOW}


@pytest.mark.parametrize("part", ["scene", "viewing", "training", "strategies", "cli"])
def test_tensors_are_made_with_a_device_and_a_dtype(part):
    missing = []
    for path in sorted((Path(scene.__file__).parents[1] / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.")):
                continue
            name = ast.unparse(node.func).removeprefix("torch.")
            given = {keyword.arg for keyword in node.keywords}
            on_meta = any(ast.unparse(keyword.value) == "'meta'" for keyword in node.keywords)
            needed = {"device"} if name in INTEGERS or on_meta else {"device", "dtype"}
            if name in FACTORIES and not needed <= given:
                missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not missing

"""Small calls of all public functions that compute, for comparison with autocast; and the remaining public names."""

import dataclasses
import functools
import importlib
import inspect

import torch

import tsplat
import tsplat.compat.gsplat.strategy.ops
import tsplat.compat.inria
import tsplat.ops
import tsplat.scene
import tsplat.strategies
import tsplat.training
import tsplat.viewing
from tests.compat.gsplat.signatures import find
from tests.compat.inria.clients import camera_settings
from tests.support import captures, lenses, lidars, model_files, scenes, strategy_models
from tests.support.ksplat_files import ksplat_bytes
from tests.support.lcc_files import lcc_files, write_lcc2
from tests.support.rad_files import COMPACT, rad_files
from tsplat.compat import gsplat, inria
from tsplat.compat.gsplat.scene import GaussianScene
from tsplat.scene.cameras import move_camera, project_points
from tsplat.scene.rotation import axis_rotations, similarity
from tsplat.strategies import operations
from tsplat.strategies.relocation import binomial_table

SIZE, TILE, TILES = (21, 19), 8, (3, 3)
HALVES = (torch.bfloat16, torch.float16)
PASSES = {"forward": (True, False), "backward": (False, True), "both": (True, True)}

PLAIN = set()
"""Names of cases without inputs."""

CASES = {}
"""Name of a public function -> function that returns a call: the function, its arguments, and names without
gradient."""


def case(*names):
    """Registers a function that returns a call for a backend, under public names."""

    def register(make):
        for name in names:
            assert name not in CASES, name
            CASES[name] = make
        return make

    return register


def plain_case(name, run):
    """Registers a function without arguments and without gradients."""
    case(name)(lambda _backend: (run, {}, ()))
    PLAIN.add(name)


def differentiable_case(name, function, arguments, fixed=()):
    """Registers a call without a backend; `arguments` is a function that returns its arguments."""
    case(name)(lambda _backend: (function, arguments(), fixed))


def generated(*shape, seed=0, low=0.05, high=0.95):
    return low + (high - low) * torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@functools.cache
def scene(**structure):
    return scenes.make(scenes.Structure(**{"width": SIZE[0], "height": SIZE[1]} | structure), torch.float32)


@functools.cache
def taken_by(function, **structure):
    """Returns the arguments of a scene that a function takes."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in scene(**structure).items() if name in names}


@functools.cache
def projected(surfels=False):
    """Returns projected Gaussians and their tile lists for compositing functions."""
    given = {name: scene()[name] for name in ("means", "quats", "scales", "viewmats", "Ks")}
    size = dict(width=SIZE[0], height=SIZE[1])
    if surfels:
        radii, means2d, depths, conics, normals = tsplat.fully_fused_projection_2dgs(**given, **size)
    else:
        radii, means2d, depths, conics, _ = tsplat.fully_fused_projection(covars=None, **given, **size)
        normals = None
    _, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, TILE, *TILES)
    return dict(
        means2d=means2d, conics=conics, normals=normals, radii=radii, depths=depths, ids=ids,
        offsets=tsplat.isect_offset_encode(ids, 2, *TILES), flatten_ids=flatten_ids,
        colors=scene()["colors"].expand(2, -1, -1).contiguous(),
        opacities=scene()["opacities"].expand(2, -1).contiguous(),
    )  # fmt: skip


def splats(surfels=False, conics="conics"):
    found = projected(surfels)
    return {"means2d": found["means2d"], conics: found["conics"], "opacities": found["opacities"]}


def lists(names=("isect_offsets", "flatten_ids"), surfels=False, size=("image_width", "image_height")):
    found = projected(surfels)
    return dict(zip(names, (found["offsets"], found["flatten_ids"]))) | dict(zip(size, SIZE)) | {"tile_size": TILE}


GEOMETRY = ("means", "quats", "scales", "viewmats", "Ks")


def geometry(*more):
    return {name: scene()[name] for name in (*GEOMETRY, *more)}


# tsplat


for options in (
    dict(render_mode="RGB+ED", rasterize_mode="antialiased"),
    dict(with_ut=True, with_eval3d=True, render_mode="RGB+ED", return_normals=True),
    dict(with_ut=True, with_eval3d=True, render_mode="RGB-d"),
    dict(packed=False, absgrad=True, extra_signals=generated(12, 4), backgrounds=generated(2, 7)),
):
    name = "tsplat.rasterization" if "rasterize_mode" in options else f"tsplat.rasterization {sorted(options)}"
    case(name)(
        lambda backend, options=options: (tsplat.rasterization, scene() | options | {"backend": backend}, ("Ks",))
    )


@case("tsplat.rasterization harmonics in two tensors")
def _(backend):
    given = scene(sh_degree=2)
    first, higher = given["colors"].split([1, 8], -2)
    return tsplat.rasterization, given | dict(colors=first, shN=higher, backend=backend), ("Ks",)


@case("tsplat.rasterization harmonics of 4 channels")
def _(backend):
    given = scene(sh_degree=2, channels=4, covars=True)
    return tsplat.rasterization, given | dict(camera_model="fisheye", backend=backend), ("Ks",)


@case("tsplat.rasterization lenses")
def _(backend):
    given = lenses.make("distorted pinhole", "ROLLING_TOP_TO_BOTTOM", dtype=torch.float32, n=12)
    return tsplat.rasterization, given | dict(with_eval3d=True, backend=backend), ("Ks", "rays")


@case("tsplat.rasterization reference")
def _(_backend):
    given = lenses.make("distorted pinhole", "ROLLING_TOP_TO_BOTTOM", dtype=torch.float32, n=6, width=9, height=8)
    return tsplat.rasterization, given | dict(with_eval3d=True, backend="reference", render_mode="RGB-d"), ("Ks",)


@case("tsplat.rasterization reference of covariances")
def _(_backend):
    given = scene(covars=True, sh_degree=1, n=6)
    return tsplat.rasterization, given | dict(backend="reference", numerics="inria", render_mode="RGB+ED"), ("Ks",)


for median in (False, True):
    case(f"tsplat.rasterization_2dgs{' of medians' if median else ''}")(
        lambda backend, median=median: (
            tsplat.rasterization_2dgs,
            taken_by(tsplat.rasterization_2dgs)
            | dict(render_mode="RGB+ED", depth_mode="median" if median else "expected", backend=backend),
            ("Ks",),
        )
    )


@case("tsplat.graphed")
def _(_backend):
    return tsplat.graphed(tsplat.rasterization), scene() | dict(packed=False), ("Ks",)


@case("tsplat.fully_fused_projection", "gsplat.fully_fused_projection")
def _(backend):
    given = geometry("opacities") | dict(covars=None, width=21, height=19, calc_compensations=True, backend=backend)
    return tsplat.fully_fused_projection, given, ("Ks", "opacities")


@case("tsplat.fully_fused_projection_2dgs", "gsplat.fully_fused_projection_2dgs")
def _(backend):
    return tsplat.fully_fused_projection_2dgs, geometry() | dict(width=21, height=19, backend=backend), ("Ks",)


@case("tsplat.fully_fused_projection_with_ut", "gsplat.fully_fused_projection_with_ut")
def _(backend):
    given = geometry() | dict(opacities=None, width=21, height=19)
    return tsplat.fully_fused_projection_with_ut, given | dict(backend=backend), ("Ks",)


differentiable_case(
    "tsplat.quat_scale_to_covar_preci",
    tsplat.quat_scale_to_covar_preci,
    lambda: dict(quats=scene()["quats"], scales=scene()["scales"]),
)


@case("tsplat.isect_tiles")
def _(backend):
    given = {name: projected()[name] for name in ("means2d", "radii", "depths")}
    given |= dict(zip(("tile_size", "tile_width", "tile_height"), (TILE, *TILES)))
    return tsplat.isect_tiles, given | dict(backend=backend), given


differentiable_case(
    "tsplat.isect_offset_encode",
    tsplat.isect_offset_encode,
    lambda: dict(isect_ids=projected()["ids"], n_images=2, tile_width=3, tile_height=3),
)


@case("tsplat.rasterize_to_pixels")
def _(backend):
    given = splats() | lists() | dict(colors=projected()["colors"], backgrounds=scene()["backgrounds"])
    return tsplat.rasterize_to_pixels, given | dict(backend=backend), ()


@case("tsplat.rasterize_to_pixels_2dgs")
def _(backend):
    given = splats(True, "ray_transforms") | lists(surfels=True) | dict(colors=projected(True)["colors"])
    given |= dict(normals=projected(True)["normals"], densify=torch.zeros(2, 12, 2), backgrounds=scene()["backgrounds"])
    return tsplat.rasterize_to_pixels_2dgs, given | dict(backend=backend), ()


@case("tsplat.rasterize_to_pixels_eval3d", "gsplat.rasterize_to_pixels_eval3d")
def _(backend):
    given = geometry() | lists() | {name: projected()[name] for name in ("colors", "opacities")}
    return tsplat.rasterize_to_pixels_eval3d, given | dict(backend=backend), ("Ks",)


@case("tsplat.spherical_harmonics")
def _(backend):
    given = dict(degrees_to_use=2, dirs=generated(7, 3, low=-1), coeffs=generated(7, 9, 4, seed=1), backend=backend)
    return tsplat.spherical_harmonics, given, ()


def depth_maps(z_depth):
    poses = torch.linalg.inv(scene()["viewmats"])
    return dict(depths=generated(2, 7, 9, 1, low=2, high=3), camtoworlds=poses, Ks=scene()["Ks"], z_depth=z_depth)


for function in (tsplat.depth_to_points, tsplat.depth_to_normals):
    differentiable_case(f"tsplat.{function.__name__}", function, lambda: dict(**depth_maps(True)))
    differentiable_case(f"tsplat.{function.__name__} of distances", function, lambda: dict(**depth_maps(False)))


def images(channels_first=False):
    shape = (1, 3, 13, 12) if channels_first else (13, 12, 3)
    return generated(*shape), generated(*shape, seed=1)


for function in (tsplat.l1_and_ssim, tsplat.l1_ssim_loss):
    case(f"tsplat.{function.__name__}")(
        lambda backend, function=function: (
            function, dict(zip(("image", "target"), images()), padding="valid", backend=backend), ("target",)
        )
    )  # fmt: skip


# tsplat.ops and strategies


def _step(backend, fused):
    parameters = [generated(7, 3).requires_grad_(), generated(5, 1, seed=1).requires_grad_()]
    optimizers = [tsplat.ops.Adam([p], lr=0.1, backend=backend) for p in parameters]
    for k in range(2):
        for p in parameters:
            p.grad = generated(*p.shape, seed=k)
        if fused:
            tsplat.ops.step_all(optimizers)
        else:
            for optimizer in optimizers:
                optimizer.step()
    return parameters, [optimizer.state_dict()["state"] for optimizer in optimizers]


case("tsplat.ops.Adam")(lambda backend: (lambda: _step(backend, False), {}, ()))
case("tsplat.ops.step_all")(lambda backend: (lambda: _step(backend, True), {}, ()))


def _changed(change):
    params, optimizers = strategy_models.make_model(9)
    state = {"count": torch.arange(9.0)}
    change(params, optimizers, state)
    return list(params.values()), state, [[*o.state.values()] for o in optimizers.values()]


MASK = torch.arange(9) % 3 == 0
BINOMS = binomial_table()


def generator():
    return torch.Generator().manual_seed(1)


for name, change in {
    "duplicate": lambda *model: operations.duplicate(*model, MASK),
    "remove": lambda *model: operations.remove(*model, MASK),
    "split": lambda *model: operations.split(*model, MASK, True, generator=generator()),
    "reset_opa": lambda *model: operations.reset_opa(*model, 0.1),
    "relocate": lambda *model: operations.relocate(*model, MASK, BINOMS, generator=generator()),
    "sample_add": lambda *model: operations.sample_add(*model, 3, BINOMS, generator=generator()),
    "inject_noise_to_position": lambda *model: operations.inject_noise_to_position(*model, 1.0, generator=generator()),
    "_update_param_with_optimizer": lambda params, optimizers, state: gsplat.strategy.ops._update_param_with_optimizer(
        lambda name, p: torch.nn.Parameter(p.flip(0)), lambda name, moment: moment.flip(0), params, optimizers
    ),
}.items():
    plain_case(f"gsplat.strategy.ops.{name}", functools.partial(_changed, change))


def _refined(strategy, steps, **arguments):
    """Runs steps of a strategy that all refine, with further arguments."""

    def change(params, optimizers, state):
        state.clear()
        torch.manual_seed(2)
        state.update(strategy.initialize_state())
        for step in steps:
            n = len(params["means"])
            info = strategy_models.make_info(generated(n, 2, high=0.01), torch.full((n, 2), 5))
            if not isinstance(strategy, tsplat.strategies.MCMCStrategy):
                info["means2d"].requires_grad_()
                strategy.step_pre_backward(params, optimizers, state, step, info)
                info["means2d"].grad = generated(1, n, 2, high=0.01)
                strategy.step_post_backward(params, optimizers, state, step, info)
            else:
                strategy.step_post_backward(params, optimizers, state, step, info, lr=1e-3, **arguments)

    return lambda: _changed(change)


plain_case(
    "tsplat.strategies.DefaultStrategy",
    _refined(tsplat.strategies.DefaultStrategy(refine_start_iter=0, refine_every=1, reset_every=10), range(1, 4)),
)
plain_case(
    "tsplat.strategies.CompactStrategy",
    _refined(
        tsplat.strategies.CompactStrategy(
            refine_start_iter=0, refine_every=1, prune_start_iter=1, prune_stop_iter=1, prunings=1
        ),
        range(1, 4),
        importance=lambda: torch.arange(9.0),
    ),
)
plain_case(
    "tsplat.strategies.LongAxisStrategy",
    _refined(tsplat.strategies.LongAxisStrategy(refine_start_iter=0, refine_every=1), range(1, 4)),
)
plain_case(
    "tsplat.strategies.MCMCStrategy",
    _refined(tsplat.strategies.MCMCStrategy(refine_start_iter=0, refine_every=1, cap_max=12), range(1, 4)),
)


# tsplat.scene


@functools.cache
def model():
    return model_files.random_gaussians(20, degree=2)


@functools.cache
def capture():
    with torch.random.fork_rng():
        return tsplat.scene.procedural_capture(24, 20, n_train=5, n_test=1, n_points=60, supersampling=1)


@functools.cache
def camera():
    return capture().train[0].camera


def of_model(function, **options):
    """Returns a function of the tensors of a model."""

    def run(**tensors):
        return function(tsplat.scene.Gaussians(**tensors), **options)

    return lambda _backend: (run, dict(model().tensors()), ())


MATRIX = torch.eye(4)[[1, 2, 0, 3]].clone().mul_(1.5)
MATRIX[3, 3], MATRIX[0, 3] = 1.0, 0.7
TURNED = torch.linalg.matrix_exp(torch.tensor([[0.0, -0.3, 0.1], [0.3, 0, -0.2], [-0.1, 0.2, 0]]).double())
QUAT = (0.8, 0.36, 0.48, 0.0)
BOX = ((-0.9, -0.8, -1.0), (0.9, 1.1, 1.0))

case("tsplat.scene.transform_gaussians")(of_model(tsplat.scene.transform_gaussians, matrix=MATRIX))
case("tsplat.scene.rotate_gaussians")(of_model(tsplat.scene.rotate_gaussians, quat=QUAT))
case("tsplat.scene.crop_gaussians")(of_model(tsplat.scene.crop_gaussians, box=BOX))
case("tsplat.scene.crop_sphere")(of_model(tsplat.scene.crop_sphere, center=(0.1, 0, 0), radius=1.2))
case("tsplat.scene.set_sh_degree")(of_model(tsplat.scene.set_sh_degree, degree=1))
plain_case(
    "tsplat.scene.prune_gaussians", lambda: tsplat.scene.prune_gaussians(model(), min_opacity=0.4, max_scale=2.0)
)
plain_case("tsplat.scene.merge_models", lambda: tsplat.scene.merge_models([model(), model()]))
plain_case("tsplat.scene.summarize", lambda: tsplat.scene.summarize(model()))
plain_case("tsplat.scene.morton_order", lambda: tsplat.scene.morton_order(generated(40, 3)))
plain_case("tsplat.scene.intrinsics", lambda: tsplat.scene.intrinsics(31, 20, 53.0))
plain_case("tsplat.scene.look_at", lambda: tsplat.scene.look_at((1, 2, 3.3), (0, 0.1, 0)))
plain_case("tsplat.scene.orbit", lambda: tsplat.scene.orbit((0, 0.3, 0), 2.1, [10, 50], [20, -10]))
plain_case("tsplat.scene.rasterization_arguments", lambda: tsplat.scene.rasterization_arguments([camera()]))
plain_case(
    "tsplat.scene.procedural_capture",
    lambda: tsplat.scene.procedural_capture(12, 9, n_train=2, n_test=1, n_points=9, supersampling=1),
)
plain_case("tsplat.scene.normalize_capture", lambda: tsplat.scene.normalize_capture(capture()))
plain_case("tsplat.scene.plan_blocks", lambda: tsplat.scene.plan_blocks(capture(), 2))
plain_case(
    "tsplat.scene.decimate_gaussians",
    lambda: tsplat.scene.decimate_gaussians(capture_model(), 30, [camera()], finetune=2),
)
plain_case(
    "tsplat.scene.Camera",
    lambda: [camera().position, project_points(camera(), capture().points), move_camera(camera(), MATRIX)],
)


@case("tsplat.scene.Camera differentiated")
def _(_backend):
    def run(viewmat, K, points):
        moved = dataclasses.replace(camera(), viewmat=viewmat, K=K)
        return project_points(moved, points)[:3]

    return run, dict(viewmat=camera().viewmat, K=camera().K, points=capture().points), ()


@functools.cache
def capture_model():
    return tsplat.scene.Gaussians.from_points(capture().points, capture().colors, 1)


plain_case("tsplat.scene.Gaussians", lambda: tsplat.scene.Gaussians.from_points(capture().points, capture().colors, 1))

FORMATS = {
    "write_ply": "ply", "write_compressed_ply": "ply", "write_splat": "splat", "write_spz": "spz", "write_sog": "sog",
    "write_gltf": "glb", "write_usd": "usda",
}  # fmt: skip


def _written(name, folder):
    path = folder / f"model.{FORMATS[name]}"
    getattr(tsplat.scene, name)(path, model())
    return path.read_bytes()


def _read(name, folder):
    """Reads a file that the first call, without autocast, writes."""
    path = folder / f"model.{FORMATS[name]}"
    if not path.exists():
        getattr(tsplat.scene, name)(path, model())
    return getattr(tsplat.scene, READERS[name])(path)


READERS = {
    "write_ply": "read_ply", "write_compressed_ply": "read_model", "write_splat": "read_splat", "write_spz": "read_spz",
    "write_sog": "read_sog", "write_gltf": "read_gltf", "write_usd": "read_usd",
}  # fmt: skip

FOLDER_CASES = {}
"""Name -> function that takes an empty folder."""
for name in FORMATS:
    FOLDER_CASES[f"tsplat.scene.{name}"] = functools.partial(_written, name)
    FOLDER_CASES[f"tsplat.scene.{READERS[name]}"] = functools.partial(_read, name)


def folder_case(function):
    FOLDER_CASES[f"tsplat.scene.{function.__name__.strip('_')}"] = function


@folder_case
def _write_model(folder):
    tsplat.scene.write_model(folder / "m.spz", model())
    return (folder / "m.spz").read_bytes()


@folder_case
def _read_georeference(folder):
    turned = similarity(axis_rotations((10, 20, 30)), scale=0.5)
    georeference = tsplat.scene.Georeference(turned @ similarity(translation=(-448211.0, -5411933.0, -312.0)))
    path = folder / "m.ply"
    tsplat.scene.write_model(path, model(), georeference=georeference, frame="files")
    return path.read_bytes(), tsplat.scene.read_georeference(path).world, georeference.moved(turned).origin


@folder_case
def _read_ksplat(folder):
    (folder / "m.ksplat").write_bytes(ksplat_bytes(model(), 1, [1]))
    return tsplat.scene.read_ksplat(folder / "m.ksplat")


@folder_case
def _read_lcc(folder):
    if not (folder / "lcc").exists():
        model_files.write_folder(folder / "lcc", lcc_files(model()))
    return tsplat.scene.read_lcc(folder / "lcc" / "a.lcc", warn=str)


@folder_case
def _read_rad(folder):
    if not (folder / "rad").exists():
        model_files.write_folder(folder / "rad", rad_files(model(), COMPACT))
    return tsplat.scene.read_rad(folder / "rad" / "a.rad")


@folder_case
def _read_lcc2(folder):
    return tsplat.scene.read_lcc2(write_lcc2(folder / "m", model()), warn=str)


@folder_case
def _open_model(folder):
    _read("write_ply", folder)
    return tsplat.scene.open_model(folder / "model.ply")


@folder_case
def _write_streamed_sog(folder):
    tsplat.scene.write_streamed_sog(folder / "streamed", model_files.random_gaussians(300, degree=1))
    return {path.name: path.read_bytes() for path in sorted((folder / "streamed").rglob("*")) if path.is_file()}


@folder_case
def _read_streamed_sog(folder):
    if not (folder / "streamed").exists():
        tsplat.scene.write_streamed_sog(folder / "streamed", model_files.random_gaussians(300, degree=1))
    return tsplat.scene.read_streamed_sog(folder / "streamed" / "lod-meta.json")


@folder_case
def _write_plan(folder):
    tsplat.scene.write_plan(folder, tsplat.scene.plan_blocks(capture(), 2))
    return tsplat.scene.read_plan(folder)


@folder_case
def _read_capture(folder):
    if not (folder / "sparse").exists():
        captures.write_colmap(folder, captures.sample_views(), captures.POINTS)
    return tsplat.scene.read_capture(folder, normalize=True, downscale=2)


@folder_case
def _replace_points(folder):
    tsplat.scene.write_model(folder / "points.ply", model())
    return tsplat.scene.replace_points(capture(), folder / "points.ply")


# tsplat.training and viewing


def _trained(gaussians, **config):
    torch.manual_seed(0)
    config = tsplat.training.Config(steps=9, **config)
    trainer = tsplat.training.Trainer(gaussians, list(capture().train), config)
    for _ in range(2):
        trainer.advance()
    return trainer.gaussians


plain_case("tsplat.training.Trainer", lambda: _trained(capture_model(), pose_refinement=True, pose_rate=1e-3))
plain_case("tsplat.training.Trainer of surfels", lambda: _trained(capture_model().as_surfels(), depth_weight=0.1))

case("tsplat.training.loss")(
    lambda _backend: (tsplat.training.loss, dict(zip(("image", "target"), images())), ("target",))
)
case("tsplat.training.ssim")(
    lambda _backend: (tsplat.training.ssim, dict(zip(("image", "target"), images())), ("target",))
)
differentiable_case(
    "tsplat.training.psnr", tsplat.training.psnr, lambda: dict(**dict(zip(("image", "target"), images())))
)
plain_case("tsplat.training.scene_extent", lambda: tsplat.training.scene_extent(capture().train))
plain_case("tsplat.training.evaluate", lambda: tsplat.training.evaluate(capture_model(), capture().test).psnr)

for function in (tsplat.viewing.render_views, tsplat.viewing.render):
    case(f"tsplat.viewing.{function.__name__}")(
        lambda backend, function=function: of_model(
            lambda gaussians: function(
                gaussians, [camera()] if function is tsplat.viewing.render_views else camera(), backend=backend
            )
        )(backend)
    )
plain_case("tsplat.viewing.guess_up", lambda: tsplat.viewing.guess_up(capture_model()))
plain_case("tsplat.viewing.look_at_all", lambda: tsplat.viewing.look_at_all(capture_model(), 40, 30, 50.0))
plain_case("tsplat.viewing.orbit_around", lambda: tsplat.viewing.orbit_around((1, 0.5, 2), (0, 0, 0), (0, -1, 0), 3))
plain_case(
    "tsplat.viewing.spiral_at",
    lambda: tsplat.viewing.spiral_at((1, 0.5, 2), (0, 0, 0), (0, -1, 0), 3, inside=[v.camera for v in capture().train]),
)
plain_case("tsplat.viewing.path_along", lambda: tsplat.viewing.path_along([v.camera for v in capture().train], 4))
plain_case(
    "tsplat.viewing.render_frames",
    lambda: list(tsplat.viewing.render_frames(capture_model(), [v.camera for v in capture().train[:2]])),
)


# gsplat


def compat_case(path, arguments, fixed=()):
    case(f"gsplat.{path}")(lambda _backend: (find("tsplat.compat.gsplat", path), arguments(), fixed))


def covariances():
    return generated(12, 3, 3) + 2 * torch.eye(3)


def in_camera():
    means = torch.cat([generated(2, 9, 2, low=-1), generated(2, 9, 1, low=2, high=3)], -1)
    return dict(means=means, covars=generated(2, 9, 3, 3) + torch.eye(3), Ks=scene()["Ks"], width=21, height=19)


compat_case("world_to_cam", lambda: dict(means=scene()["means"], covars=covariances(), viewmats=scene()["viewmats"]))
compat_case("proj", lambda: dict(**in_camera()), ("Ks",))
for kind in ("persp", "ortho", "fisheye"):
    compat_case(f"cuda._torch_impl._{kind}_proj", lambda: dict(**in_camera()), ("Ks",))
compat_case("cuda._torch_impl._quat_to_rotmat", lambda: dict(quats=scene()["quats"]))
compat_case("cuda._torch_impl._quat_scale_to_matrix", lambda: dict(quats=scene()["quats"], scales=scene()["scales"]))
compat_case(
    "cuda._torch_impl._fully_fused_projection",
    lambda: dict(
        means=scene()["means"],
        covars=covariances(),
        width=21,
        height=19,
        viewmats=scene()["viewmats"],
        Ks=scene()["Ks"],
    ),
    ("Ks",),
)
compat_case(
    "cuda._torch_impl_2dgs._fully_fused_projection_2dgs", lambda: dict(**geometry(), width=21, height=19), ("Ks",)
)
compat_case(
    "cuda._torch_impl._isect_tiles",
    lambda: dict(
        **{name: projected()[name] for name in ("means2d", "radii", "depths")},
        tile_size=TILE,
        tile_width=3,
        tile_height=3,
    ),
    ("means2d", "depths"),
)
compat_case(
    "cuda._torch_impl._isect_offset_encode",
    lambda: dict(isect_ids=projected()["ids"], I=2, tile_width=3, tile_height=3),
)
compat_case(
    "cuda._torch_impl._rasterize_to_pixels",
    lambda: dict(**splats(), **lists(), colors=projected()["colors"], backgrounds=scene()["backgrounds"]),
)
compat_case("cuda._torch_impl._eval_sh_bases_fast", lambda: dict(basis_dim=9, dirs=generated(7, 3, low=-1)))
compat_case(
    "cuda._torch_impl._spherical_harmonics",
    lambda: dict(degrees_to_use=2, dirs=generated(7, 3, low=-1), coeffs=generated(7, 9, 3)),
)
compat_case("spherical_harmonics_l0", lambda: dict(sh0=generated(7, 1, 3)))
compat_case(
    "spherical_harmonics_l1_plus",
    lambda: dict(degrees_to_use=2, means=scene()["means"], viewmats=scene()["viewmats"], shN=generated(12, 8, 3)),
    ("viewmats",),
)
compat_case(
    "spherical_harmonics",
    lambda: dict(degrees_to_use=2, means=scene()["means"], viewmats=scene()["viewmats"], coeffs=generated(12, 9, 3)),
    ("viewmats",),
)


@functools.cache
def contributors(surfels=False):
    name = "rasterize_to_indices_in_range_2dgs" if surfels else "rasterize_to_indices_in_range"
    return getattr(gsplat, name)(
        0, 99, torch.ones(2, SIZE[1], SIZE[0]), *splats(surfels).values(), *SIZE, TILE,
        projected(surfels)["offsets"], projected(surfels)["flatten_ids"],
    )  # fmt: skip


IDS = ("gaussian_ids", "pixel_ids", "image_ids")
ALL = ("means2d", "conics", "ray_transforms", "opacities", "transmittances")


def in_range(surfels, conics):
    transmittances = torch.ones(2, SIZE[1], SIZE[0])
    given = splats(surfels, conics) | lists(surfels=surfels)
    return dict(range_start=0, range_end=9, transmittances=transmittances) | given


def listed(surfels, conics):
    given = splats(surfels, conics) | dict(zip(IDS, contributors(surfels)))
    given |= dict(zip(("image_width", "image_height"), SIZE)) | dict(colors=projected(surfels)["colors"])
    return given | (dict(normals=projected(True)["normals"]) if surfels else {})


compat_case("rasterize_to_indices_in_range", lambda: in_range(False, "conics"), ALL)
compat_case("rasterize_to_indices_in_range_2dgs", lambda: in_range(True, "ray_transforms"), ALL)
compat_case("accumulate", lambda: listed(False, "conics"))
compat_case("accumulate_2dgs", lambda: listed(True, "ray_transforms"))


def of_tiles():
    return splats() | lists(("tile_offsets", "flatten_ids"))


def counts():
    return gsplat.rasterize_num_contributing_gaussians(**of_tiles())[0]


compat_case("rasterize_num_contributing_gaussians", lambda: dict(**of_tiles()), ALL)
compat_case("rasterize_contributing_gaussian_ids", lambda: dict(**of_tiles(), num_contributing_gaussians=counts()), ALL)
compat_case("rasterize_top_contributing_gaussian_ids", lambda: dict(**of_tiles(), num_depth_samples=2), ALL)

GRID = dict(tile_size=TILE, tile_width=3, tile_height=3)


def chosen():
    return dict(pixels=torch.tensor([[1, 2], [9, 3], [10, 17], [18, 20]]), image_ids=torch.tensor([0, 0, 1, 1]))


@functools.cache
def layout():
    return gsplat.build_sparse_tile_layout(**chosen(), n_images=2, **GRID)


@functools.cache
def on_pixels():
    active, tile_mask, mask, cumsum, pixel_map = layout()
    found = (projected()[name] for name in ("means2d", "radii", "depths"))
    offsets, flatten_ids = gsplat.isect_tiles_sparse(*found, tile_mask, active, 2, TILE, *TILES)
    return dict(
        active_tiles=active, tile_offsets=offsets, flatten_ids=flatten_ids, tile_pixel_mask=mask,
        tile_pixel_cumsum=cumsum, pixel_map=pixel_map, **GRID, **dict(zip(("image_width", "image_height"), SIZE)),
    )  # fmt: skip


def sparse_counts():
    return gsplat.rasterize_num_contributing_gaussians_sparse(**splats(), **on_pixels())[0]


compat_case("build_sparse_tile_layout", lambda: dict(**chosen(), n_images=2, **GRID))
compat_case(
    "isect_tiles_sparse",
    lambda: dict(
        **{name: projected()[name] for name in ("means2d", "radii", "depths")},
        tile_mask=layout()[1],
        active_tiles=layout()[0],
        n_images=2,
        **GRID,
    ),
    ("means2d", "depths"),
)
compat_case("rasterize_num_contributing_gaussians_sparse", lambda: dict(**splats(), **on_pixels()), ALL)
compat_case(
    "rasterize_contributing_gaussian_ids_sparse",
    lambda: dict(**splats(), **on_pixels(), num_contributing_gaussians=sparse_counts()),
    ALL,
)
compat_case(
    "rasterize_top_contributing_gaussian_ids_sparse", lambda: dict(**splats(), **on_pixels(), num_depth_samples=2), ALL
)
compat_case(
    "rasterize_to_pixels_sparse",
    lambda: dict(
        **splats(),
        colors=projected()["colors"],
        image_ids=chosen()["image_ids"],
        backgrounds=scene()["backgrounds"],
        **on_pixels(),
    ),
)

for function in (gsplat.rasterization_inria_wrapper, gsplat.rasterization_2dgs_inria_wrapper):
    compat_case(function.__name__, functools.partial(taken_by, function, cameras=1), ("Ks",))
for name in ("color_correct_affine", "color_correct_quadratic"):
    compat_case(name, lambda: dict(img=generated(9, 8, 3), ref=generated(9, 8, 3, seed=1)))
compat_case("gaussian_density_reg", lambda: dict(densities=generated(9, low=-1), visibility=generated(9)))
compat_case("gaussian_scale_reg", lambda: dict(scales=generated(9, 3), visibility=generated(9)))
compat_case("gaussian_z_scale_reg", lambda: dict(z_scales=generated(9), threshold=0.3))
compat_case("out_of_bound_loss", lambda: dict(positions=generated(9, 3, low=-2), cuboid_dims=generated(9, 3)))
differentiable_case(
    "gsplat.FusedGaussianLosses",
    gsplat.FusedGaussianLosses(0.3),
    lambda: dict(
        scales=generated(9, 3),
        densities=generated(9),
        z_scales=generated(9),
        positions=generated(9, 3, low=-2),
        cuboid_dims=generated(9, 3),
        visibility=generated(9),
    ),
)
for name in ("l1_loss", "mse_loss"):
    compat_case(f"losses.{name}", lambda: dict(**dict(zip(("pred", "target"), images()))))
for name in (
    "huber_loss", "smooth_l1_loss", "bce_loss", "bce_with_logits_loss", "depth_inverse_mse", "log_l1"
):  # fmt: skip
    compat_case(f"losses.{name}", lambda: dict(pred=generated(5, 4), target=generated(5, 4, seed=1)))
compat_case("losses.bce_clipped", lambda: dict(input=generated(5, 4), target=generated(5, 4, seed=1)))
compat_case("losses.cross_entropy_loss", lambda: dict(pred=generated(5, 4), target=torch.tensor([0, 3, 1, 1, 2])))
compat_case("losses.masked_l1", lambda: dict(pred=generated(5, 4), gt=generated(5, 4, seed=1), mask=torch.eye(5, 4)))
compat_case(
    "losses.masked_ssim",
    lambda: dict(**dict(zip(("pred", "gt"), images(True))), mask=torch.ones(1, dtype=torch.bool)),
    ("gt",),
)
for name in ("binocular_disparity_l1", "pearson_depth_loss"):
    compat_case(f"losses.{name}", lambda: dict(pred_depth=generated(5, 4), gt_depth=generated(5, 4, seed=1)))
for name, value in (
    ("relu_sum", dict(eps=0.4)),
    ("reduce_mean", {}),
    ("reduce_quantile", dict(quantile=0.4)),
    ("reduce_sum", {}),
):
    compat_case(f"losses.{name}", lambda value=value: dict(value=generated(5, 4)) | value)
compat_case("losses.normal_cosine_loss", lambda: dict(pred_normal=generated(5, 3), gt_normal=generated(5, 3, seed=1)))
compat_case("losses.weights_reg", lambda: dict(weights_list=[generated(5, 3), generated(2, 3, seed=1)]))
compat_case("losses.identity_distance", lambda: dict(grid=generated(2, 12, 3)))
compat_case("losses.bilateral_grid_drift_loss", lambda: dict(grids=[generated(2, 12, 3)]))
compat_case("losses.total_variation_temporal", lambda: dict(x=generated(2, 3, 1, 2, 2), loss_mask=torch.ones(1)))
compat_case("losses.create_ssim_window", lambda: dict(window_size=11, channel=3))
compat_case(
    "losses.torch_ssim_loss",
    lambda: dict(**dict(zip(("img1", "img2"), images(True))), window=torch.full((3, 1, 11, 11), 1 / 121)),
    ("window",),
)
compat_case("losses.ssim_loss", lambda: dict(**dict(zip(("img1", "img2"), images(True)))), ("img2",))
compat_case("losses.depth_l1_loss", lambda: dict(pred_depth=generated(5, 4, low=-1), gt_depth=generated(5, 4, seed=1)))
for name, other, values in (
    ("distance", "gt_distance", generated(5, 4, seed=1)),
    ("intensity", "gt_intensity", generated(5, 4, seed=1)),
    ("raydrop", "gt_raydrop", (generated(5, 4, seed=1) > 0.5).float()),
    ("background", "background_mask", generated(5, 4, seed=1) > 0.5),
):
    pred = f"pred_{'opacity' if name == 'background' else name}"
    compat_case(
        f"losses.lidar_{name}_loss",
        lambda pred=pred, other=other, values=values: {pred: generated(5, 4), other: values},
        (other,),
    )
compat_case("compute_lidar_angles_to_columns_map", lambda: dict(lidar=lidars.lidar(dtype=torch.float32)))


def tiled_lidar():
    params = lidars.lidar(dtype=torch.float32)
    tiling = find("tsplat.compat.gsplat", "compute_lidar_tiling")(params, max_pts_per_tile=16)
    return gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, torch.zeros(36, 160), tiling)


compat_case("isect_tiles_lidar", lambda: dict(lidar=tiled_lidar(), **lidars.angular_boxes()), ("means2d", "depths"))
case("gsplat.compute_lidar_tiling")(
    lambda _backend: (
        lambda **given: list(vars(find("tsplat.compat.gsplat", "compute_lidar_tiling")(**given)).values()),
        dict(lidar_params=lidars.lidar(dtype=torch.float32), max_pts_per_tile=16),
        (),
    )
)
compat_case("losses.opacity_reg_loss", lambda: dict(opacities=generated(9, low=-2)))
compat_case("losses.scale_reg_loss", lambda: dict(log_scales=generated(9, 3, low=-2)))
compat_case("losses.total_variation_loss", lambda: dict(x=generated(2, 3, 5, 4)))
compat_case(
    "utils.normalized_quat_to_rotmat", lambda: dict(quat=torch.nn.functional.normalize(scene()["quats"], dim=-1))
)
compat_case("utils.log_transform", lambda: dict(x=generated(9, low=-2)))
compat_case("utils.inverse_log_transform", lambda: dict(y=generated(9, low=-2)))
compat_case("utils.get_projection_matrix", lambda: dict(znear=0.1, zfar=9.0, fovX=0.7, fovY=0.6, device="cpu"))
compat_case(
    "relocation.compute_relocation",
    lambda: dict(opacities=generated(5), scales=generated(5, 3), ratios=torch.tensor([1, 2, 3, 4, 5]), binoms=BINOMS),
    ("opacities", "scales", "binoms"),
)
plain_case("gsplat.strategy.ops._multinomial_sample", lambda: _seeded_samples(generated(30)))


def _seeded_samples(weights):
    torch.manual_seed(0)
    return gsplat.strategy.ops._multinomial_sample(weights, 9)


def raw_splats(n=16):
    gaussians = model_files.random_gaussians(n, degree=1)
    return dict(
        means=gaussians.means, scales=gaussians.log_scales, quats=gaussians.quats, opacities=gaussians.opacity_logits,
        sh0=gaussians.sh0, shN=gaussians.shN,
    )  # fmt: skip


plain_case("gsplat.compression.sort.sort_splats", lambda: gsplat.compression.sort.sort_splats(raw_splats(), False))
plain_case("gsplat.export_splats", lambda: gsplat.export_splats(**raw_splats()))


def _compressed(folder):
    compression = gsplat.PngCompression(verbose=False)
    compression.compress(str(folder), raw_splats())
    return compression.decompress(str(folder))


def _saved(folder):
    gsplat.utils.save_ply(raw_splats(), str(folder / "a.ply"))
    return (folder / "a.ply").read_bytes(), gsplat.exporter.load_ply_to_splats(str(folder / "a.ply"))


FOLDER_CASES["gsplat.PngCompression"] = _compressed
FOLDER_CASES["gsplat.utils.save_ply"] = FOLDER_CASES["gsplat.exporter.load_ply_to_splats"] = _saved


def _selective(step):
    parameter = torch.nn.Parameter(generated(7, 3))
    step(parameter, torch.arange(7) % 3 > 0)
    return parameter


def _step_selective(parameter, visible):
    parameter.grad = generated(7, 3, seed=1)
    gsplat.SelectiveAdam([parameter], eps=1e-8, betas=(0.9, 0.99)).step(visible)


def _step_inria(parameter, visible):
    parameter.grad = generated(7, 3, seed=1)
    inria.SparseGaussianAdam([parameter], 0.1, 1e-8).step(visible, 7)


plain_case("gsplat.SelectiveAdam", lambda: _selective(_step_selective))
plain_case("inria.SparseGaussianAdam", lambda: _selective(_step_inria))
plain_case(
    "gsplat.cuda._wrapper.adam",
    lambda: _selective(
        lambda p, visible: gsplat.cuda._wrapper.adam(
            p.data, generated(7, 3), torch.zeros(7, 3), torch.zeros(7, 3), visible, 0.1, 0.9, 0.99, 1e-8
        )
    ),
)


def _followed():
    followed = GaussianScene.from_splats(torch.nn.ParameterDict(raw_splats()), "a", {"s": generated(16, 2)})
    followed.on_duplicate(torch.tensor([1, 2]))
    return followed.signal


plain_case("gsplat.scene.GaussianScene", _followed)


# Inria


@case("inria.rasterize_gaussians")
def _(_backend):
    given = scene(cameras=1, sh_degree=1)
    settings = inria.GaussianRasterizationSettings(
        **camera_settings(given["viewmats"][0], given["Ks"][0], *SIZE), bg=given["backgrounds"][0], scale_modifier=1.0,
        sh_degree=1, prefiltered=False, debug=False, antialiasing=True,
    )  # fmt: skip

    def run(means3D, sh, opacities, scales, rotations):
        return inria.rasterize_gaussians(
            means3D, torch.zeros_like(means3D), sh, None, opacities, scales, rotations, None, settings
        )

    arguments = dict(means3D=given["means"], sh=given["colors"], opacities=given["opacities"][:, None])
    return run, arguments | dict(scales=given["scales"], rotations=given["quats"]), ()


differentiable_case(
    "inria.fused_ssim.fused_ssim",
    importlib.import_module("tsplat.compat.inria.fused_ssim").fused_ssim,
    lambda: dict(**dict(zip(("img1", "img2"), images(True)))),
    ("img2",),
)
differentiable_case(
    "inria.simple_knn._C.distCUDA2",
    importlib.import_module("tsplat.compat.inria.simple_knn._C").distCUDA2,
    lambda: dict(points=generated(30, 3)),
    ("points",),
)


EXEMPT = {
    "settings, results and errors, which hold values": (
        "tsplat.BivariateWindshieldModelParameters", "tsplat.FThetaCameraDistortionParameters",
        "tsplat.RowOffsetStructuredSpinningLidarModelParameters", "gsplat.LidarTiling",
        "gsplat.RowOffsetStructuredSpinningLidarModelParameters",
        "gsplat.RowOffsetStructuredSpinningLidarModelParametersExt",
        "tsplat.UnscentedTransformParameters", "tsplat.scene.Block", "tsplat.scene.BlockPlan", "tsplat.scene.Capture",
        "tsplat.scene.Georeference", "tsplat.scene.Prepared", "tsplat.scene.Summary",
        "tsplat.scene.View",
        "tsplat.training.Checkpoint", "tsplat.training.Config", "tsplat.training.Evaluation", "tsplat.training.History",
        "tsplat.training.LiveView", "tsplat.training.Observer", "tsplat.training.Progress", "tsplat.training.RunConfig",
        "tsplat.training.RunStart", "tsplat.training.Score", "tsplat.training.ViewOptions", "tsplat.viewing.ScenePage",
        "tsplat.viewing.StartView", "tsplat.viewing.Annotation", "tsplat.viewing.PageExtras",
        "gsplat.ExternalDistortionModelParameters", "tsplat.training.preset",
        "tsplat.training.read_config", "inria.GaussianRasterizationSettings", "tsplat.strategies.Strategy",
        "gsplat.scene.Scene", "gsplat.stage.Stage", "gsplat.losses.LinearLambdaScheduler",
        "gsplat.RendererConfig", "gsplat.RendererConfig_MixedBatch", "gsplat.RendererConfig_ParallelBatch",
    ),
    "says what there is, or installs names": (
        "tsplat.check_overflow", "gsplat.has_2dgs", "gsplat.has_3dgs", "gsplat.has_3dgut", "gsplat.has_adam",
        "gsplat.has_camera_wrappers", "gsplat.has_losses", "gsplat.has_reloc", "gsplat.install", "inria.install",
        "gsplat.distributed.cli",
    ),
    "raises an UnsupportedError": (
        "gsplat.experimental.GaussianInferenceRenderer",
        "gsplat.experimental.GaussianInferenceScene",
    ),
    "reads or writes data without arithmetic of PyTorch, or what a case with the same code reads": (
        "tsplat.scene.read_torch_checkpoint", "tsplat.scene.read_plan",
        "tsplat.training.read_checkpoint", "tsplat.training.read_newest", "tsplat.training.write_checkpoint",
        "tsplat.scene.read_colmap", "tsplat.scene.read_transforms", "tsplat.viewing.export_page",
        "tsplat.viewing.write_page", "tsplat.viewing.write_frames", "tsplat.viewing.read_cameras",
        "tsplat.viewing.read_annotations",
        "tsplat.viewing.first_view", "gsplat._helper.load_test_data",
    ),
    "a whole run, of a Trainer": (
        "tsplat.training.demo", "tsplat.training.evaluate_run", "tsplat.training.fit", "tsplat.training.merge_blocks",
        "tsplat.training.resume", "tsplat.training.train", "tsplat.training.train_blocks",
    ),
    "COLMAP, in a process of its own": ("tsplat.scene.prepare",),
    "calls a case": ("inria.GaussianRasterizer", "tsplat.viewing.show"),
}  # fmt: skip

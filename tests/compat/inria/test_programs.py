"""How published programs call Inria's rasterizer and its forks: what they import, pass, and unpack."""

import pytest
import torch

from tests.compat.inria.clients import camera_settings
from tests.support import scenes
from tsplat import ArgumentError, UnsupportedError
from tsplat.compat import inria
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer, variants
from tsplat.compat.inria.returns import RETURNS_VARIABLE

WIDTH, HEIGHT, N = 40, 30, 25
SCENE = scenes.make(
    scenes.Structure(n=N, cameras=1, sh_degree=1, width=WIDTH, height=HEIGHT, size=3.0, seed=11), torch.float32
)
CAMERA = camera_settings(SCENE["viewmats"][0], SCENE["Ks"][0], WIDTH, HEIGHT)


def features(channels, *between):
    return torch.rand(N, *between, channels, generator=torch.Generator().manual_seed(3))


class Program:
    """What a program passes besides the settings and arguments of 2023, and what it expects.

    Attributes:
        unpacked: Shapes of the values that it unpacks: by "image" [3, H, W], "map" [1, H, W], "n" [N], or a list.
        settings, arguments: Those that it passes besides, or in place of others.
        module: What it imports.
        returns: What is chosen by the environment variable, as the program does not show what its fork returns.
    """

    def __init__(self, *unpacked, settings=None, arguments=None, module="diff_gaussian_rasterization", returns=None):
        self.unpacked, self.settings, self.arguments = unpacked, settings or {}, arguments or {}
        self.module, self.returns = module, returns

    def call(self):
        if self.module == "diff_gaussian_rasterization":
            classes = GaussianRasterizationSettings, GaussianRasterizer
        else:
            classes = variants.CLASSES[self.module]
        settings = dict(
            **CAMERA, bg=torch.full((3,), 0.1), scale_modifier=1.0, sh_degree=1, prefiltered=False, debug=False
        )
        self.leaves = {name: SCENE[name].clone().requires_grad_() for name in ("means", "quats", "scales")}
        arguments = dict(
            means3D=self.leaves["means"], means2D=torch.zeros(N, 3), shs=SCENE["colors"], colors_precomp=None,
            opacities=SCENE["opacities"][:, None], scales=self.leaves["scales"], rotations=self.leaves["quats"],
            cov3D_precomp=None,
        )  # fmt: skip
        given = classes[0](**(settings | self.settings))
        return classes[1](raster_settings=given)(**(arguments | self.arguments))


IMAGE, MAP, ROWS = [3, HEIGHT, WIDTH], [1, HEIGHT, WIDTH], [N]
PLAIN, DEPTH, DEPTH_ALPHA = (IMAGE, ROWS), (IMAGE, ROWS, MAP), (IMAGE, ROWS, MAP, MAP)
NAMED_DEPTH, NAMED_ALPHA = "color,radii,depth", "color,radii,depth,alpha"
COVARIANCES = dict(scales=None, rotations=None, cov3D_precomp=torch.tensor([[0.02, 0, 0, 0.02, 0, 0.02]]).repeat(N, 1))
BATCHED = {name: CAMERA[name][None] for name in ("viewmatrix", "projmatrix")}
RGB = dict(shs=None, colors_precomp=features(3))
POSE = dict(theta=torch.zeros(3, requires_grad=True), rho=torch.zeros(3, requires_grad=True))
NONE = dict(
    render_indices=torch.empty(0), parent_indices=torch.empty(0), interpolation_weights=torch.empty(0),
    num_node_kids=torch.empty(0),
)  # fmt: skip
RAW = dict(projmatrix_raw=torch.linalg.solve(CAMERA["viewmatrix"], CAMERA["projmatrix"]))

WORKS = {
    "gaussian-splatting 2023": Program(*PLAIN),
    "gaussian-splatting 2024": Program(*DEPTH, settings=dict(antialiasing=False)),
    "gaussian-splatting 2024, separate_sh": Program(
        *DEPTH, settings=dict(antialiasing=True), arguments=dict(dc=SCENE["colors"][:, :1], shs=SCENE["colors"][:, 1:])
    ),
    "hierarchical-3d-gaussians": Program(*DEPTH, settings=dict(do_depth=True, **NONE)),
    "SuGaR": Program(*PLAIN, arguments=RGB),
    "Mip-Splatting": Program(*PLAIN, settings=dict(kernel_size=0.1, subpixel_offset=torch.zeros(HEIGHT, WIDTH, 2))),
    "Scaffold-GS, Octree-GS, HAC": Program(*PLAIN, arguments=RGB),
    "Splatter Image": Program(*PLAIN, arguments=dict(means2D=torch.zeros(N, 3, requires_grad=True))),
    "Gaussian in the Wild": Program(*PLAIN, arguments=RGB),
    "GaussianPro, depth as a color": Program(*PLAIN, arguments=RGB),
    "InstantSplat": Program(*PLAIN),
    "pixelSplat, MVSplat, DepthSplat": Program(*PLAIN, arguments=COVARIANCES),
    "opacities [N]": Program(*PLAIN, arguments=dict(opacities=SCENE["opacities"])),
    "4DGaussians": Program(*DEPTH, returns=NAMED_DEPTH),
    "Deformable-3D-Gaussians": Program(*DEPTH, arguments=dict(means2D_densify=torch.zeros(N, 3, requires_grad=True))),
    "GaussianEditor": Program(*DEPTH, returns=NAMED_DEPTH),
    "GaussianDreamer": Program(*DEPTH, returns=NAMED_DEPTH, arguments=RGB),
    "LGM": Program(*DEPTH_ALPHA, returns=NAMED_ALPHA, arguments=RGB),
    "DreamGaussian": Program(*DEPTH_ALPHA, returns=NAMED_ALPHA),
    "SC-GS": Program(*DEPTH_ALPHA, returns=NAMED_ALPHA, arguments=RGB),
    "DNGaussian": Program(*DEPTH_ALPHA, returns=NAMED_ALPHA),
    "CF-3DGS": Program(*DEPTH_ALPHA, returns=NAMED_ALPHA),
    "FSGS": Program(*DEPTH_ALPHA, settings=dict(confidence=torch.ones(N, 1))),
    "SplaTAM": Program(*DEPTH, settings=BATCHED, arguments=RGB),
    "Dynamic 3D Gaussians": Program(*DEPTH, settings=BATCHED, arguments=RGB),
    "MonoGS": Program(*DEPTH_ALPHA, ROWS, settings=RAW, arguments=POSE),
    "NoPoSplat": Program(*DEPTH_ALPHA, ROWS, settings=RAW, arguments={**COVARIANCES, "theta": None, "rho": None}),
    "Feature-3DGS": Program(
        IMAGE, [16, HEIGHT, WIDTH], ROWS, MAP, arguments=dict(semantic_feature=features(16, 1))
    ),
    "LangSplat": Program(
        IMAGE, IMAGE, ROWS, settings=dict(include_feature=True), arguments=dict(language_feature_precomp=features(3))
    ),
    "LangSplat, without features": Program(
        IMAGE, IMAGE, ROWS, settings=dict(include_feature=False),
        arguments=dict(language_feature_precomp=torch.zeros(1)),
    ),
    "Gaussian Grouping": Program(IMAGE, ROWS, [16, HEIGHT, WIDTH], arguments=dict(sh_objs=features(16, 1))),
    "Street Gaussians": Program(
        *DEPTH_ALPHA, [4, HEIGHT, WIDTH], arguments=dict(semantics=features(4))
    ),
    "Street Gaussians, without semantics": Program(*DEPTH_ALPHA, [0, HEIGHT, WIDTH], arguments=dict(semantics=None)),
    "SegAnyGAussians, masks": Program(
        IMAGE, MAP, MAP, ROWS, module="diff_gaussian_rasterization_depth", arguments=dict(mask=features(1))
    ),
    "SegAnyGAussians, features": Program(
        [32, HEIGHT, WIDTH], ROWS, module="diff_gaussian_rasterization_contrastive_f",
        settings=dict(bg=torch.zeros(32)), arguments=dict(shs=None, colors_precomp=features(32)),
    ),
    "AbsGS": Program(
        IMAGE, ROWS, ROWS, module="diff_gaussian_rasterization_abs",
        arguments=dict(means2D=torch.zeros(N, 4, requires_grad=True)),
    ),
    "Mini-Splatting": Program(IMAGE, ROWS, ROWS, ROWS, ROWS, module="diff_gaussian_rasterization_ms"),
    "LightGaussian": Program(*PLAIN, settings=dict(f_count=False)),
    "LightGaussian, counts": Program(ROWS, ROWS, *PLAIN, settings=dict(f_count=True)),
    "Spacetime Gaussians": Program(
        [9, HEIGHT, WIDTH], ROWS, MAP, module="diff_gaussian_rasterization_ch9", settings=dict(bg=torch.zeros(9)),
        arguments=dict(shs=None, colors_precomp=features(9)),
    ),
    "PGSR": Program(
        *PLAIN, ROWS, [5, HEIGHT, WIDTH], MAP, module="diff_plane_rasterization", settings=dict(render_geo=True),
        arguments=dict(means2D_abs=torch.zeros(N, 3, requires_grad=True), all_map=features(5)),
    ),
    "2d-gaussian-splatting": Program(
        *PLAIN, [7, HEIGHT, WIDTH], module="diff_surfel_rasterization", arguments=dict(scales=SCENE["scales"][:, :2]),
    ),
}  # fmt: skip

REFUSED = {
    "4D Gaussian Splatting": Program(settings=dict(timestamp=0.5)),
    "Gaussian Opacity Fields": Program(settings=dict(kernel_size=0.0), arguments=dict(view2gaussian_precomp=None)),
    "Gaussian Surfels": Program(settings=dict(patch_bbox=None)),
    "GeoGaussian": Program(arguments=dict(gaussian_type=None)),
    "GS-IR": Program(settings=dict(inference=False)),
    "hierarchical 3DGS": Program(settings=dict(do_depth=False, **NONE | dict(render_indices=torch.ones(2)))),
    "RaDe-GS": Program(settings=dict(require_depth=True)),
    "Speedy-Splat": Program(arguments=dict(scores=torch.zeros(N, 1))),
    "Spacetime Gaussians": Program(arguments=dict(timestamp=0.5, trbfcenter=torch.zeros(N, 1))),
    "StopThePop": Program(settings=dict(inv_viewprojmatrix=torch.eye(4))),
    "Street Gaussians": Program(settings=dict(bg_color=torch.zeros(3))),
    "Taming 3DGS": Program(settings=dict(pixel_weights=None)),
}


@pytest.mark.parametrize("name", WORKS)
def test_program_works(name, monkeypatch):
    program = WORKS[name]
    monkeypatch.setattr(GaussianRasterizer, "default_generation", 2023)
    if program.returns:
        monkeypatch.setenv(RETURNS_VARIABLE, program.returns)
    values = program.call()
    assert [list(value.shape) for value in values] == list(program.unpacked)
    image = max(values, key=lambda value: value.ndim * value.requires_grad)
    if image.requires_grad:
        image.sum().backward()
        assert program.leaves["means"].grad.any()


@pytest.mark.parametrize("name", REFUSED)
def test_program_is_refused_in_words(name):
    with pytest.raises(UnsupportedError, match=r"an argument of the fork \w.*docs/from_inria.md"):
        REFUSED[name].call()


def unpack_three():
    image, radii, depth = WORKS["gaussian-splatting 2023"].call()
    return image, radii, depth


def unpack_four():
    image, radii, depth, alpha = WORKS["gaussian-splatting 2023"].call()
    return image, radii, depth, alpha


@pytest.mark.parametrize(("unpack", "n", "choice"), [(unpack_three, 3, NAMED_DEPTH), (unpack_four, 4, NAMED_ALPHA)])
def test_unpacking_what_is_not_returned_names_the_switch(unpack, n, choice, monkeypatch):
    monkeypatch.setattr(GaussianRasterizer, "default_generation", 2023)
    with pytest.raises(ArgumentError, match=f"unpacks {n} values, but the rasterizer returns 2, color, radii") as error:
        unpack()
    assert f"--returns NAMES SCRIPT: {choice} for " in str(error.value) or f"; {choice} for " in str(error.value)
    assert RETURNS_VARIABLE in str(error.value)
    monkeypatch.setenv(RETURNS_VARIABLE, choice)
    assert len(unpack()) == n
    monkeypatch.setenv(RETURNS_VARIABLE, "color,depht")
    with pytest.raises(ArgumentError, match=f"{RETURNS_VARIABLE}: expected comma-separated names.*found 'depht'"):
        unpack()


def test_values_beyond_the_last_name_the_switch():
    values = GaussianRasterizer(SETTINGS, returns=["color", "radii"])(**MODEL)
    with pytest.raises(IndexError, match="reads value 3, but the rasterizer returns 2"):
        values[2]
    image, *others = values
    assert image is values[0]
    assert len(list(values)) == len(others) + 1 == 2
    assert values[-1] is others[0]


SETTINGS = GaussianRasterizationSettings(**CAMERA, bg=torch.full((3,), 0.1), scale_modifier=1.0, sh_degree=1)
MODEL = dict(
    means3D=SCENE["means"], means2D=None, shs=SCENE["colors"], opacities=SCENE["opacities"][:, None],
    scales=SCENE["scales"], rotations=SCENE["quats"],
)  # fmt: skip


def test_names_and_methods_of_other_forks_are_refused():
    for name, fork in (("ExtendedSettings", "StopThePop"), ("SurfaceAlign", "GeoGaussian"), ("_C", "GS-IR")):
        with pytest.raises(ImportError, match=rf"{name}: .* the forks? {fork}"):
            getattr(inria, name)
    rasterizer = GaussianRasterizer(SETTINGS)
    with pytest.raises(UnsupportedError, match="integrate: a method of the fork Gaussian Opacity Fields"):
        rasterizer.integrate()
    assert not hasattr(rasterizer, "apply_weights")
    with pytest.raises(ImportError, match="_C: the compiled module"):
        _ = variants.MODULES["diff_gaussian_rasterization_abs"]._C


@pytest.mark.slow
def test_compiled_programs_call_and_unpack_as_eager_ones(forks):
    """In a process of its own, as what was compiled before changes what torch.compile traces."""
    code = """
import torch
from tests.compat.inria.test_programs import MODEL, SCENE, SETTINGS, GaussianRasterizer

def program(means):
    image, radii = GaussianRasterizer(SETTINGS, returns=["color", "radii"])(**MODEL | {"means3D": means})
    return 2 * image, radii

for one, other in zip(torch.compile(program, backend="eager")(SCENE["means"]), program(SCENE["means"])):
    assert torch.equal(one, other)
"""
    result = forks.run(code)
    assert result.returncode == 0, result.stderr[-3000:]

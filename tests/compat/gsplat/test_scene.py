"""`gsplat.scene`, `gsplat.stage`, `gsplat.experimental` and `gsplat._helper` of gsplat 1.6."""

import sys

import numpy as np
import pytest
import torch

from tests.support.strategy_models import check_moments, make_model
from tsplat import ArgumentError, UnsupportedError
from tsplat.compat.gsplat import experimental
from tsplat.compat.gsplat._helper import load_test_data
from tsplat.compat.gsplat.scene import GaussianInferenceScene, GaussianScene, Scene
from tsplat.compat.gsplat.stage import Stage
from tsplat.compat.gsplat.strategy import DefaultStrategy, MCMCStrategy, ops
from tsplat.strategies.relocation import binomial_table

N = 30


def make_scene(n=N, seed=0):
    """A scene whose signal is the id of its Gaussians, and optimizers."""
    params, optimizers = make_model(n, seed)
    splats = torch.nn.ParameterDict(params)
    return GaussianScene.from_splats(splats, id="scene", signal={"ids": splats["ids"].detach().clone()}), optimizers


def assert_follows(scene, optimizers):
    scene.validate()
    assert torch.equal(scene.signal["ids"], scene.splats["ids"].detach())
    check_moments(scene.splats, optimizers)


BINOMS = dict(binoms=binomial_table().float())
OPERATIONS = {
    "duplicate": dict(mask=torch.arange(N) % 3 == 0),
    "split": dict(mask=torch.arange(N) % 3 == 0),
    "remove": dict(mask=torch.arange(N) % 3 == 0),
    "relocate": dict(mask=torch.arange(N) % 4 == 0, **BINOMS),
    "sample_add": dict(n=7, **BINOMS),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_scene_follows_operations(name):
    scene, optimizers = make_scene()
    before = scene.splats["ids"].detach().clone()
    getattr(ops, name)(params=scene.splats, optimizers=optimizers, state={}, scene=scene, **OPERATIONS[name])
    assert not torch.equal(scene.splats["ids"].detach(), before)
    assert_follows(scene, optimizers)


def test_hooks_select_by_masks_as_by_indices():
    mask = torch.arange(N) % 3 == 0
    chosen, rest = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
    calls = {
        "on_duplicate": ((mask,), (chosen,)),
        "on_split": ((mask, ~mask), (chosen, rest)),
        "on_relocate": ((mask, chosen + 1), (chosen, chosen + 1)),
        "on_sample_add": ((mask,), (chosen,)),
    }
    for name, (masks, indices) in calls.items():
        ids = []
        for arguments in (masks, indices):
            scene, _ = make_scene()
            getattr(scene, name)(*arguments)
            ids.append(scene.signal["ids"])
            assert len(scene.component_index) == len(ids[-1])
        assert torch.equal(*ids), name


def test_scene_follows_a_permutation():
    scene, _ = make_scene()
    order = torch.arange(N).flip(0)
    scene.on_permute(order)
    assert torch.equal(scene.signal["ids"], order + 1.0)


@pytest.mark.parametrize("strategy", [DefaultStrategy(prune_opa=0.2), MCMCStrategy(min_opacity=0.2, noise_lr=0)])
def test_scene_follows_strategies(strategy, capsys):
    scene, optimizers = make_scene()
    strategy.verbose, strategy.refine_start_iter, strategy.refine_every = True, 0, 2
    state, options = strategy.initialize_state(), dict(info={})
    if isinstance(strategy, DefaultStrategy):
        means2d = torch.zeros(1, N, 2)
        means2d.grad = (torch.arange(N) % 2).float()[None, :, None].expand(1, N, 2)
        options["info"] = dict(
            means2d=means2d, radii=torch.ones(1, N, 2, dtype=torch.int32), width=9, height=9, n_cameras=1
        )  # fmt: skip
    else:
        options["lr"] = 1e-3
    strategy.step_post_backward(scene.splats, optimizers, state, 2, scene=scene, **options)
    assert scene.num_gaussians() != N
    assert_follows(scene, optimizers)
    first, second = capsys.readouterr().out.splitlines()
    assert second.endswith(f"Now having {scene.num_gaussians()} GSs.")
    assert first.startswith("Step 2: Relocated " if isinstance(strategy, MCMCStrategy) else "Step 2: ")


def test_subclasses_without_scene_work():
    """Methods that a subclass written for gsplat 1.5 overrides do not take a scene."""

    class Strategy(MCMCStrategy):
        def _relocate_gs(self, params, optimizers, binoms):
            return 0

        def _add_new_gs(self, params, optimizers, binoms):
            return 0

    scene, optimizers = make_scene()
    strategy = Strategy(refine_start_iter=0, refine_every=1)
    strategy.step_post_backward(scene.splats, optimizers, strategy.initialize_state(), 1, {}, lr=0.0)
    assert scene.num_gaussians() == N


def test_components():
    scene, _ = make_scene()
    splats = scene.splats
    assert splats is GaussianScene.from_splats(splats, id="other").splats
    other, _ = make_model(5, seed=1)
    scene.put("more", torch.nn.ParameterDict(other))
    assert scene.num_gaussians() == N + 5
    assert scene.component_names == ["scene", "more"]
    more = scene.get("more")
    assert more["name"] == "more"
    assert more["index"] == 1
    assert torch.equal(more["mask"], torch.arange(N + 5) >= N)
    assert torch.equal(more["splats"]["means"], other["means"])
    assert not more["signal"]["ids"].any()
    assert torch.equal(scene.get(0)["signal"]["ids"], splats["ids"].detach())
    for unknown in ("nothing", 2, -1):
        with pytest.raises(KeyError, match="expected an index or one of"):
            scene.get(unknown)


def test_state_dict_makes_an_equal_scene(tmp_path):
    scene, _ = make_scene()
    scene.put("more", torch.nn.ParameterDict(make_model(5)[0]))
    scene.splats["ids"].requires_grad_(False)
    torch.save(scene.state_dict(), tmp_path / "scene.pt")
    loaded = GaussianScene.from_state_dict(torch.load(tmp_path / "scene.pt", weights_only=True))
    assert (loaded.id, loaded.component_names) == (scene.id, scene.component_names)
    assert torch.equal(loaded.component_index, scene.component_index)
    assert torch.equal(loaded.signal["ids"], scene.signal["ids"])
    for name, value in scene.splats.items():
        assert torch.equal(loaded.splats[name], value)
        assert loaded.splats[name].requires_grad == (name != "ids")
    small = GaussianScene.from_state_dict({"id": "a", "splats": scene.splats.state_dict()})
    assert torch.equal(small.component_index, torch.zeros(N + 5, dtype=torch.long))
    assert small.component_names == ["a"]
    assert GaussianScene.from_state_dict(GaussianScene("empty").state_dict()).num_gaussians() == 0


def without(name):
    return torch.nn.ParameterDict({key: value for key, value in make_model(4)[0].items() if key != name})


INVALID = {
    "id": (lambda scene: GaussianScene(""), "id: expected a string"),
    "no_means": (lambda scene: GaussianScene.from_splats(without("means"), "a"), "splats: expected means"),
    "no_scales": (lambda scene: GaussianScene.from_splats(without("scales"), "a"), r"splats: expected \['scales'\]"),
    "name": (lambda scene: scene.put("scene", without("")), "name: expected a new one"),
    "component": (lambda scene: scene.put("b", without("sh0")), r"component: expected \['sh0'\]"),
    "signal": (
        lambda scene: GaussianScene.from_splats(scene.splats, "a", {"s": torch.zeros(3)}),
        r"s: expected 30 rows as means, found \[3\]",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_scenes_are_refused(case):
    call, message = INVALID[case]
    with pytest.raises(ArgumentError, match=message):
        call(make_scene()[0])


def test_stage_renders_scenes_by_their_functions():
    scene, _ = make_scene()
    stage = Stage()
    stage.add_scene(scene, lambda splats, width: (splats, width))
    assert stage.render("scene", width=7) == (scene.splats, 7)
    assert stage.scene_ids() == ["scene"]
    assert stage.get_scene("scene") is scene
    with pytest.raises(ArgumentError, match=r"scene: .* is already registered; expected an id beside"):
        stage.add_scene(scene, print)
    with pytest.raises(KeyError, match=r"scene_id: .* is not registered; expected one of"):
        stage.render("nothing")
    assert issubclass(GaussianScene, Scene)


def test_scenes_for_inference_name_what_to_use():
    with pytest.raises(UnsupportedError, match="use GaussianScene, with rasterization"):
        experimental.GaussianInferenceScene.from_gaussian_scene(make_scene()[0], id="a", sh_compression="32b")
    with pytest.raises(UnsupportedError, match="use GaussianScene"):
        GaussianInferenceScene("a")
    with pytest.raises(UnsupportedError, match="use rasterization"):
        experimental.GaussianInferenceRenderer(None)


def test_viewers_find_the_test_scene_beside_their_script(tmp_path, monkeypatch):
    points = np.array([[0.5, 0.0, 0.0], [9.0, 0.0, 0.0]], dtype=np.float32)
    (tmp_path / "assets").mkdir()
    np.savez(
        tmp_path / "assets" / "test_garden.npz", height=4, width=5, viewmats=np.eye(4)[None], Ks=np.eye(3)[None],
        means3d=points, colors=np.full((2, 3), 51, np.uint8),
    )  # fmt: skip
    with pytest.raises(ArgumentError, match=r"data_path: .*test_garden.npz .* pass its path"):
        load_test_data(device="cpu")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "examples"), *sys.path])
    means, quats, scales, opacities, colors, viewmats, Ks, width, height = load_test_data(device="cpu", scene_grid=3)
    assert (width, height) == (5, 4)
    assert viewmats.shape == (1, 4, 4)
    assert Ks.shape == (1, 3, 3)
    expected = [[0.5 + x, float(y), 0.0] for x in (-4, 0, 4) for y in (-4, 0, 4)]
    assert torch.equal(means, torch.tensor(expected))
    assert torch.equal(colors, torch.full((9, 3), 0.2))
    assert torch.allclose(quats.norm(dim=-1), torch.ones(9))
    assert ((scales >= 1e-4) & (scales <= 0.02)).all()
    assert ((opacities >= 0) & (opacities <= 1)).all()
    with pytest.raises(ArgumentError, match="scene_grid: expected an odd number"):
        load_test_data(device="cpu", scene_grid=2)

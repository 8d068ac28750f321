"""Programs written for gsplat 1.5.3 and 1.6: the calls of simple_trainer and splatfacto, through refinements."""

import copy
import dataclasses
import math

import pytest
import torch
import tyro

from tests.compat.gsplat import clients
from tests.compat.gsplat.clients import HEIGHT, REFINE, WIDTH, N, SimpleTrainer, Splatfacto, make_data
from tests.support.graphs import FakeRecorder
from tests.support.slow import slow_after
from tsplat import graphed
from tsplat.compat.gsplat.compression import PngCompression
from tsplat.compat.gsplat.exporter import export_splats
from tsplat.compat.gsplat.strategy import DefaultStrategy, MCMCStrategy
from tsplat.passes import captured_calls, graphed_calls
from tsplat.scene import read_model


def default(**changes):
    return DefaultStrategy(**(REFINE | dict(grow_grad2d=4e-3, grow_scale3d=0.1, verbose=True) | changes))


def mcmc(**changes):
    return MCMCStrategy(**(REFINE | dict(cap_max=N + 8, noise_lr=1e3, verbose=True) | changes))


TRAINER = {
    "default": dict(),
    "mcmc": dict(strategy=mcmc),
    "with_ut_and_eval3d": dict(strategy=mcmc, with_ut=True),
    "packed": dict(packed=True),
    "absgrad": dict(strategy=lambda: default(absgrad=True, grow_grad2d=8e-3)),
    "antialiased": dict(antialiased=True),
    "visible_adam": dict(visible_adam=True),
    "visible_adam_packed": dict(visible_adam=True, packed=True),
    "pose_opt": dict(pose_opt=True),
    "app_opt": dict(app_opt=True),
    "depth_loss": dict(depth_loss=True),
    "batch_of_2": dict(batch_size=2),
    "batch_of_2_packed": dict(batch_size=2, packed=True, pose_opt=True, app_opt=True, random_bkgd=True),
    "sparse_grad": dict(packed=True, sparse_grad=True),
    "with_stage": dict(with_stage=True),
    "with_stage_mcmc": dict(with_stage=True, strategy=mcmc),
    "with_stage_packed_sh_fp16": dict(with_stage=True, packed=True, sh_fp16=True),
    "2dgs": dict(model_type="2dgs", strategy=lambda: default(key_for_gradient="gradient_2dgs")),
    "2dgs_inria": dict(model_type="2dgs-inria", with_stage=True),
    "sparse_grad_mcmc_batch_of_2": dict(packed=True, sparse_grad=True, batch_size=2, strategy=mcmc),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def sparse_invariants_chosen():
    """SparseAdam and the programs make sparse tensors; PyTorch warns of them unless checks are chosen."""
    with torch.sparse.check_sparse_tensor_invariants(True):
        yield


def assert_improved(client, params, before, output):
    assert client.evaluate() > before + 1
    assert output.count("Step 5:") == output.count("Step 10:") == 2
    assert f"Now having {len(params['means'])} GSs." in output
    assert len(params["means"]) != N
    for name, parameter in params.items():
        assert parameter.isfinite().all(), name
        optimizer = client.optimizers[name]
        assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(parameter)]
        assert {id(p) for p in optimizer.state} <= {id(parameter)}


@pytest.mark.parametrize("name", TRAINER)
def test_simple_trainer(name, capsys):
    options = {"strategy": default} | TRAINER[name]
    trainer = SimpleTrainer(**options | {"strategy": options["strategy"]()})
    before = trainer.evaluate()
    trainer.train()
    assert_improved(trainer, trainer.splats, before, capsys.readouterr().out)
    if trainer.with_stage:
        assert len(trainer.scene.signal["ids"]) == trainer.scene.num_gaussians() == len(trainer.splats["means"])
        assert trainer.scene.signal["ids"].unique().numel() > N // 2
        trainer.scene.validate()
    assert all(optimizer.param_groups[0]["name"] == name for name, optimizer in trainer.optimizers.items())
    assert trainer.optimizers["means"].param_groups[0]["lr"] < trainer.optimizers["means"].param_groups[0]["initial_lr"]


def trained(name):
    torch.manual_seed(0)
    options = {"strategy": default} | TRAINER[name]
    trainer = SimpleTrainer(**options | {"strategy": options["strategy"]()})
    trainer.train()
    return trainer.splats


@pytest.mark.triton
@pytest.mark.parametrize(
    "name",
    slow_after(
        4,
        [
            "default",
            "mcmc",
            "with_ut_and_eval3d",
            "2dgs",
            "absgrad",
            "visible_adam",
            "pose_opt",
            "depth_loss",
            "batch_of_2",
        ],
    ),
)
def test_simple_trainer_with_graphed_calls(name, monkeypatch):
    expected = trained(name)
    monkeypatch.setitem(graphed_calls.RECORDERS, "cpu", FakeRecorder)
    replays, forward = [], captured_calls.GraphRunner.forward
    monkeypatch.setattr(captured_calls.GraphRunner, "forward", lambda *given: replays.append(None) or forward(*given))
    for function in ("rasterization", "rasterization_2dgs"):
        monkeypatch.setattr(clients, function, graphed(getattr(clients, function)))
    found = trained(name)
    for key, parameter in expected.items():
        assert torch.equal(found[key], parameter)
    # After refinements, and for another degree of spherical harmonics, calls are captured again.
    assert len(replays) > 5


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (default, dict(rasterize_mode="antialiased", depth_in_training=True)),
        (lambda: default(absgrad=True, grow_grad2d=1.2e-2, grow_scale2d=0.5, refine_scale2d_stop_iter=4000), dict()),
        (mcmc, dict(sh_degree=0)),
    ],
    ids=["antialiased", "absgrad", "mcmc_without_sh"],
)
def test_splatfacto(strategy, options, capsys):
    model = Splatfacto(strategy(), **options)
    before = model.evaluate()
    model.fit()
    assert_improved(model, model.gauss_params, before, capsys.readouterr().out)
    assert model.gauss_params["opacities"].shape == (len(model.gauss_params["means"]), 1)
    assert set(model.optimizers) - set(model.gauss_params) == {"camera_opt"}


def test_splatfacto_resumes():
    """The state of model and optimizers continues with the same bits in another model."""
    model, other = (Splatfacto(default()) for _ in range(2))
    model.fit(7)
    state, moments = model.state_dict(), {k: v.state_dict() for k, v in model.optimizers.items()}
    for name in other.gauss_params:
        other.gauss_params[name] = torch.nn.Parameter(torch.zeros_like(model.gauss_params[name]))
    other.load_state_dict(copy.deepcopy(state))
    for name, optimizer in other.optimizers.items():
        if name in other.gauss_params:
            optimizer.param_groups[0]["params"] = [other.gauss_params[name]]
            optimizer.state.clear()
        optimizer.load_state_dict(copy.deepcopy(moments[name]))
    other.schedulers["means"].load_state_dict(model.schedulers["means"].state_dict())
    other.strategy_state, other.step = copy.deepcopy(model.strategy_state), model.step
    for one in (model, other):
        torch.manual_seed(1)
        one.step += 1
        one.fit(6)
    assert len(model.gauss_params["means"]) != N
    for name, parameter in model.gauss_params.items():
        assert torch.equal(parameter, other.gauss_params[name]), name


@pytest.mark.parametrize("strategy", [default, mcmc])
@pytest.mark.parametrize("before_refinement", [True, False])
def test_splatfacto_loads_checkpoints_as_ns_train(strategy, before_refinement, tmp_path):
    """``ns-train --load-dir``: optimizers are made, then parameters are replaced, then states are loaded."""
    torch.manual_seed(0)
    model, other = (Splatfacto(strategy()) for _ in range(2))
    model.fit(4 if before_refinement else 7)
    checkpoint = {"model": model.state_dict(), "optimizers": {k: v.state_dict() for k, v in model.optimizers.items()}}
    torch.save(checkpoint, tmp_path / "step-000000006.ckpt")
    loaded = torch.load(tmp_path / "step-000000006.ckpt", map_location="cpu")
    for name, parameter in other.gauss_params.items():
        shape = loaded["model"][f"gauss_params.{name}"].shape
        assert (shape == parameter.shape) == before_refinement
        other.gauss_params[name] = torch.nn.Parameter(torch.zeros(shape))
    other.load_state_dict(loaded["model"])
    for name, state in loaded["optimizers"].items():
        other.optimizers[name].load_state_dict(state)
    other.schedulers["means"].load_state_dict(model.schedulers["means"].state_dict())
    other.strategy_state, other.step = copy.deepcopy(model.strategy_state), model.step
    for one in (model, other):
        torch.manual_seed(1)
        one.step += 1
        if one is other:
            with pytest.warns(UserWarning, match=r"means \(its moments kept\), .* had parameters that were replaced"):
                one.fit(1)
            one.step += 1
            one.fit(6)
        else:
            one.fit(7)
    for name, parameter in model.gauss_params.items():
        assert torch.equal(parameter, other.gauss_params[name]), name
        saved = other.optimizers[name].state_dict()
        assert saved["state"].keys() == {0}
        assert saved["state"][0]["exp_avg"].shape == parameter.shape


@torch.no_grad()
def test_splatfacto_renders_crops():
    model = Splatfacto(default()).eval()
    camtoworlds, Ks, _ = make_data()
    viewmat = torch.linalg.inv(camtoworlds[:1])
    kept = (model.gauss_params["means"].abs() < 0.4).all(-1)
    rgb, depth = model.get_outputs(viewmat, Ks[:1], kept)
    for parameter in model.gauss_params.values():
        parameter.data = parameter[kept]
    expected_rgb, expected_depth = model.get_outputs(viewmat, Ks[:1])
    assert torch.equal(rgb, expected_rgb)
    assert torch.equal(depth, expected_depth)


@torch.no_grad()
@pytest.mark.parametrize("render_mode", ["RGB", "D", "ED"])
@pytest.mark.parametrize("packed", [False, True])
def test_simple_trainer_viewer(render_mode, packed):
    trainer = SimpleTrainer(packed=packed)
    camtoworlds, Ks, _ = make_data()
    colors, alphas, info = trainer.rasterize(
        camtoworlds=camtoworlds[:1], Ks=Ks[:1], width=WIDTH, height=HEIGHT, sh_degree=2, near_plane=1e-2,
        far_plane=1e2, radius_clip=0.0, eps2d=0.3, backgrounds=torch.tensor([[0.0, 255.0, 0.0]]) / 255.0,
        render_mode=render_mode, rasterize_mode="antialiased",
    )  # fmt: skip
    assert colors.shape == (1, HEIGHT, WIDTH, 3 if render_mode == "RGB" else 1)
    assert alphas.shape == (1, HEIGHT, WIDTH, 1)
    assert 0 < (info["radii"] > 0).all(-1).sum() <= N
    if render_mode == "RGB":
        assert torch.equal(colors[0, 0, 0], torch.tensor([0.0, 1.0, 0.0]))


def test_simple_trainer_saves_checkpoints_and_ply(tmp_path):
    trainer = SimpleTrainer(strategy=default())
    trainer.train(steps=7)
    torch.save({"step": 6, "splats": trainer.splats.state_dict()}, tmp_path / "ckpt_6_rank0.pt")
    splats = trainer.splats
    export_splats(
        means=splats["means"], scales=splats["scales"], quats=splats["quats"], opacities=splats["opacities"],
        sh0=splats["sh0"], shN=splats["shN"], format="ply", save_to=f"{tmp_path}/point_cloud_6.ply",
    )  # fmt: skip
    loaded = SimpleTrainer()
    saved = torch.load(tmp_path / "ckpt_6_rank0.pt", map_location="cpu", weights_only=True)
    for name in loaded.splats:
        loaded.splats[name].data = torch.cat([saved["splats"][name]])
    assert loaded.evaluate() == trainer.evaluate()
    gaussians = read_model(tmp_path / "point_cloud_6.ply")
    assert torch.equal(gaussians.sh0, splats["sh0"])


def test_simple_trainer_compresses(tmp_path):
    trainer = SimpleTrainer(strategy=default())
    trainer.train(steps=12)
    before, n = trainer.evaluate(), len(trainer.splats["means"])
    folder = tmp_path / "compression" / "rank0"
    folder.mkdir(parents=True)
    method = PngCompression()
    method.compress(f"{folder}", trainer.splats)
    splats = method.decompress(f"{folder}")
    assert splats.keys() == dict(trainer.splats).keys()
    for name in splats:
        trainer.splats[name].data = splats[name].to("cpu")
    assert len(trainer.splats["means"]) == math.isqrt(n) ** 2
    assert trainer.evaluate() > before - 1


@pytest.mark.parametrize("strategy", [DefaultStrategy, MCMCStrategy])
def test_strategies_are_options_of_a_command_line(strategy):
    @dataclasses.dataclass
    class Config:
        strategy: DefaultStrategy | MCMCStrategy = dataclasses.field(default_factory=DefaultStrategy)

    presets = {"preset": ("A preset.", Config(strategy=strategy(verbose=True)))}
    arguments = ["preset", "--strategy.refine-every", "7", "--strategy.refine-start-iter", "20"]
    config = tyro.extras.overridable_config_cli(presets, args=arguments)
    assert config.strategy == strategy(verbose=True, refine_every=7, refine_start_iter=20)
    config.strategy.refine_every = int(config.strategy.refine_every * 2.0)
    assert config.strategy.refine_every == 14

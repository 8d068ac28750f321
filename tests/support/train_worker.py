"""One of several processes that train together: `python -m tests.support.team_worker RANK SIZE FOLDER`."""

import dataclasses
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from tsplat.scene import Gaussians, procedural_capture
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import Checkpoint, RunConfig, Trainer, evaluate, mean_psnr, mean_ssim, read_newest
from tsplat.training import write_checkpoint as write
from tsplat.training.processes.group import Team
from tsplat.training.trainer import scene_state

STEPS = int(os.environ.get("TSPLAT_TEAM_STEPS", "40"))
SAVED_AT = 13
"""In the middle of what the strategy gathers."""


def capture():
    return procedural_capture(40, 30, 8, 5, 203, seed=3)


def configuration(kind, parallel, steps=STEPS):
    schedule = dict(refine_start_iter=steps // 10, refine_every=steps // 8, refine_stop_iter=4 * steps // 5)
    strategies = {
        "default": DefaultStrategy(grow_grad2d=1.2e-3, prune_opa=0.02, reset_every=steps // 2, **schedule),
        "absgrad": DefaultStrategy(grow_grad2d=5e-3, absgrad=True, **schedule),
        "mcmc": MCMCStrategy(cap_max=250, **schedule),
    }
    return RunConfig(
        steps=steps,
        # Three and five are not even shares of two or four ranks, some of which have no view in the last turn.
        views_per_step={"default": 3, "absgrad": 5, "mcmc": 4}[kind],
        seed=5,
        strategy=strategies[kind],
        parallel=parallel,
        means_rate=1e-3,
        sh0_rate=1e-2,
        opacity_weight=0.01,
        scale_weight=0.01,
        pose_refinement=kind == "mcmc",
        exposure=kind == "mcmc",
        clip_gradients=0.5,
        random_background=kind == "absgrad",
        background=(0.2, 0.3, 0.4),
    )


def start(scene):
    # In fp64, as single bits would decide about single Gaussians, and those about all that follow; and not round, as
    # gradients of rotations that change nothing are rounding alone, which Adam makes as large as any.
    gaussians = Gaussians.from_points(scene.points, scene.colors, 1).map(Tensor.double)
    generator = torch.Generator().manual_seed(7)
    log_scales = gaussians.log_scales + 0.3 * torch.randn(gaussians.log_scales.shape, generator=generator)
    quats = torch.randn(gaussians.quats.shape, generator=generator, dtype=torch.float64)
    return dataclasses.replace(gaussians, log_scales=log_scales, quats=quats)


def train(team, folder):
    """Whole runs of every kind."""
    scene = capture()
    found = {}
    for kind in ("default", "absgrad", "mcmc"):
        for parallel in ("shard", "replicate") if team.size > 1 else ("shard",):
            config = configuration(kind, parallel)
            trainer = Trainer(start(scene), scene.train, config, team)
            counts = [trainer.advance().n_gaussians for _ in range(STEPS)]
            whole = trainer.whole()
            psnr = mean_psnr(evaluate(whole, scene.test, background=config.background))
            found[f"{kind} {parallel}"] = {"counts": counts, "psnr": psnr, "own": len(trainer.gaussians)}
    # Of the ranks only one has a view, and nothing but views has gradients.
    config = RunConfig(steps=3, views_per_step=1, precision="fp16", parallel="replicate", strategy=DefaultStrategy())
    trainer = Trainer(start(scene), scene.train, config, team)
    found["fp16"] = [float(trainer.advance().loss) for _ in range(3)]
    return found


def whole_state(trainer, team):
    """Every tensor of all ranks, and what is not a tensor."""
    tensors, figures = trainer.state()
    rows = trainer.row_names
    tensors = {name: team.gather(tensor) if name in rows else tensor for name, tensor in tensors.items()}
    return {name: tensor.double().numpy().tobytes().hex() for name, tensor in tensors.items()}, figures


def save(team, folder):
    """Checkpoints of four ranks, which other numbers of ranks load."""
    scene = capture()
    found = {}
    for kind in ("default", "mcmc"):
        config = configuration(kind, "shard", 40)
        trainer = Trainer(start(scene).map(Tensor.float), scene.train, config, team)
        for _ in range(SAVED_AT):
            trainer.advance()
        tensors, figures = trainer.state()
        raw = scene_state(trainer.gaussians)
        checkpoint = Checkpoint(
            trainer.step,
            trainer.gaussians,
            {name: tensor for name, tensor in tensors.items() if name not in raw},
            {"trainer": figures},
            config,
            trainer.row_names,
        )
        write(folder / kind, checkpoint, None, team, sharded=True)
        state, figures = whole_state(trainer, team)
        if team.leads:
            (folder / f"{kind}.json").write_text(json.dumps([state, figures]))
        found[kind] = team.collect(len(trainer.gaussians))
    return found


def load(team, folder):
    """Whether what four ranks saved is the same, to the bit, on as many as are here; and what it is worth."""
    scene = capture()
    found = {}
    for kind in ("default", "mcmc"):
        checkpoint = read_newest(folder / kind)[1]
        config = configuration(kind, "shard", 40)
        trainer = Trainer(checkpoint.gaussians, scene.train, config, team)
        trainer.restore(checkpoint.tensors | scene_state(checkpoint.gaussians), checkpoint.figures["trainer"])
        state, figures = whole_state(trainer, team)
        expected = json.loads((folder / f"{kind}.json").read_text())
        scores = evaluate(checkpoint.gaussians, scene.test, background=(0.2, 0.3, 0.4), team=team)
        found[kind] = {
            "differ": [name for name in {*state, *expected[0]} if state.get(name) != expected[0].get(name)],
            "figures": json.loads(json.dumps(figures)) == expected[1],
            "own": len(trainer.gaussians),
            "psnr": mean_psnr(scores),
            "ssim": mean_ssim(scores),
            "count": len(scores),
        }
        trainer.advance()
    return found


def main():
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    for job in sys.argv[4:]:
        report = folder / f"{job}_{size}_{rank}.json"
        try:
            if not dist.is_initialized():
                store = f"file://{folder}/{job}_{size}"
                timeout = timedelta(seconds=120)
                dist.init_process_group("gloo", store, timeout=timeout, rank=rank, world_size=size)
            team = Team(dist.group.WORLD) if size > 1 else Team()
            report.write_text(json.dumps({"train": train, "save": save, "load": load}[job](team, folder)))
        except BaseException:
            report.write_text(json.dumps({"error": traceback.format_exc()}))
            raise


if __name__ == "__main__":
    main()

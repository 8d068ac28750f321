"""One of several processes that train together: `python -m tests.team_worker RANK SIZE FOLDER JOB ...`."""

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
from tsplat.training import Config, Trainer, evaluate, mean_psnr
from tsplat.training.teams import Team

STEPS = int(os.environ.get("TSPLAT_TEAM_STEPS", "40"))


def capture():
    return procedural_capture(40, 30, 8, 4, 200, seed=3)


def configuration(kind, parallel, steps=STEPS):
    schedule = dict(refine_start_iter=steps // 10, refine_every=steps // 8, refine_stop_iter=4 * steps // 5)
    strategies = {
        "default": DefaultStrategy(grow_grad2d=1.2e-3, prune_opa=0.02, reset_every=steps // 2, **schedule),
        "absgrad": DefaultStrategy(grow_grad2d=5e-3, absgrad=True, **schedule),
        "mcmc": MCMCStrategy(cap_max=250, **schedule),
    }
    return Config(
        steps=steps,
        views_per_step=4,
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
    # In fp64, as single bits would decide about single Gaussians, and those about all that follow.
    return Gaussians.from_points(scene.points, scene.colors, 1).map(Tensor.double)


def train(team, folder):
    """Whole runs of every kind; what they come to is written by the first rank."""
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
    return found


JOBS = {"train": train}


def main():
    rank, size, folder, job = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    report = folder / f"{job}_{size}_{rank}.json"
    try:
        dist.init_process_group(
            "gloo", f"file://{folder}/{job}_{size}", timeout=timedelta(seconds=60), rank=rank, world_size=size
        )
        team = Team(dist.group.WORLD) if size > 1 else Team()
        report.write_text(json.dumps(JOBS[job](team, folder)))
    except BaseException:
        traceback.print_exc()
        report.write_text(json.dumps({"error": traceback.format_exc()}))
        raise


if __name__ == "__main__":
    main()

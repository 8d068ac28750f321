"""Runs groups of ranks one after another: ``python -m tests.support.train_worker FOLDER WORLD_SIZE:JOB,JOB...``.

Each job is a function of this module; every rank writes its result as ``JOB_WORLDSIZE_RANK.json`` to the folder. Ranks
are forked from one process that has imported PyTorch. If the first group is a single process, it trains before the
forks, so that kernels are loaded for the ranks.
"""

import dataclasses
import functools
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.allocations import RowLimit
from tests.support.plain_results import simplify
from tests.support.training_scenes import make_places
from tsplat.runtime.process_group import RankGroup
from tsplat.scene import Gaussians, model_rows, procedural_capture, read_ply
from tsplat.stages import capacity
from tsplat.strategies import DefaultStrategy, LongAxisStrategy, MCMCStrategy
from tsplat.training import Checkpoint, RunConfig, Trainer, evaluate, read_newest, resume, selection
from tsplat.training import write_checkpoint as write
from tsplat.training.parameters import scene_tensors
from tsplat.training.runs import run_settings as starts
from tsplat.training.runs import train as runs

STEPS = int(os.environ.get("TSPLAT_TRAIN_STEPS", "16"))
SAVED_AT = 8
"""Step of the checkpoint, between refinements, so that strategies have accumulated statistics."""
UMASKS = (0o022, 0o077, 0o002)
KINDS = ("default", "absgrad", "mcmc", "long-axis", "surfels")
"""Kinds of training: strategies, and 2D Gaussians."""


@functools.cache
def capture():
    return procedural_capture(40, 30, 8, 5, 203, seed=3)


def configuration(kind, parallel, steps=STEPS):
    schedule = dict(refine_start_iter=steps // 10, refine_every=steps // 8, refine_stop_iter=4 * steps // 5)
    strategies = {
        "default": DefaultStrategy(grow_grad2d=1.2e-3, prune_opa=0.02, reset_every=steps // 2, **schedule),
        "absgrad": DefaultStrategy(grow_grad2d=5e-3, absgrad=True, **schedule),
        "mcmc": MCMCStrategy(cap_max=250, **schedule),
        "long-axis": LongAxisStrategy(growth=1.3, **schedule),
        "surfels": DefaultStrategy(grow_grad2d=1.2e-3, key_for_gradient="gradient_2dgs", **schedule),
    }
    return RunConfig(
        steps=steps,
        # Not multiples of two or four, so that some ranks have no view in the last round.
        views_per_step={"default": 3, "absgrad": 5, "mcmc": 4, "long-axis": 3, "surfels": 3}[kind],
        seed=5,
        strategy=strategies[kind],
        parallel=parallel,
        means_rate=1e-3,
        sh0_rate=1e-2,
        rates_decay=0.1,
        gains=kind == "long-axis",
        max_elongation=3.0 * (kind == "long-axis"),
        opacity_weight=0.01,
        scale_weight=0.01,
        pose_refinement=kind == "mcmc",
        exposure=kind == "mcmc",
        clip_gradients=0.5,
        random_background=kind == "absgrad",
        background=(0.2, 0.3, 0.4),
        normal_weight=0.05 * (kind == "surfels"),
        distortion_weight=0.1 * (kind == "surfels"),
    )


def start(scene):
    # Use fp64, because a single bit can decide whether a Gaussian is split, and anisotropic Gaussians, because the
    # rotation gradients of spheres are rounding errors, which Adam would amplify.
    gaussians = Gaussians.from_points(scene.points, scene.colors, 1).map(Tensor.double)
    generator = torch.Generator().manual_seed(7)
    log_scales = gaussians.log_scales + 0.3 * torch.randn(gaussians.log_scales.shape, generator=generator)
    quats = torch.randn(gaussians.quats.shape, generator=generator, dtype=torch.float64)
    return dataclasses.replace(gaussians, log_scales=log_scales, quats=quats)


def is_sharded(kind, world_size):
    """Returns whether ranks shard Gaussians: every other kind with four ranks, the remaining kinds with two."""
    return KINDS.index(kind) % 2 == (world_size == 2)


def train(ranks, folder):
    """Trains with every strategy, sharded or replicated."""
    scene = capture()
    results = {}
    for kind in KINDS:
        config = configuration(kind, "shard" if is_sharded(kind, ranks.world_size) else "replicate")
        initial = start(scene).as_surfels() if kind == "surfels" else start(scene)
        trainer = Trainer(initial, scene.train, config, ranks)
        counts = [trainer.advance().n_gaussians for _ in range(STEPS)]
        shared = dict(ranks=ranks, sharded=trainer.sharded)
        psnr = evaluate(trainer.gaussians, scene.test, background=config.background, **shared).psnr
        results[kind] = {"counts": counts, "psnr": psnr, "own": len(trainer.gaussians)}
    # Only one rank has a view, and there is no regularization.
    config = RunConfig(steps=3, views_per_step=1, precision="fp16", parallel="replicate", strategy=DefaultStrategy())
    trainer = Trainer(start(scene), scene.train, config, ranks)
    results["fp16"] = [float(trainer.advance().loss) for _ in range(3)]
    return results


def train_selected(ranks, folder):
    """Trains shards on what views show, and on all Gaussians. Returns whether bits are equal, and the fractions."""
    found = []
    gaussians, views = make_places()
    selection.ROWS_MIN = 8  # shards are small
    for visible_adam, n_views in (("on", 2), ("off", 3)):
        schedule = dict(refine_start_iter=2, refine_every=3, refine_stop_iter=9)
        config = RunConfig(
            steps=10, views_per_step=n_views, strategy=LongAxisStrategy(growth=1.2, **schedule), backend="triton",
            visible_adam=visible_adam, opacity_weight=0.01, scale_weight=0.01, sh_interval=4, gains=True,
        )  # fmt: skip
        results, shares = [], []
        for selects in (True, False):
            trainer = Trainer(gaussians, views[:4] if n_views == 2 else views, config, ranks)
            trainer._view_gradients._selects_rows &= selects
            store = trainer._view_gradients._store_gradients

            def noted(rows, gradients, n, trainer=trainer, store=store, shares=shares):
                shares.append(len(rows) / len(trainer.gaussians))
                store(rows, gradients, n)

            trainer._view_gradients._store_gradients = noted
            losses = [trainer.advance().loss for _ in range(config.steps)]
            results.append([*trainer.state()[0].values(), *losses])
        found.append((all(map(torch.equal, *results)), shares))
    return found


def train_sizes(ranks, folder):
    """Trains a sharded scene on views of three sizes with different backgrounds. Returns counts and losses."""
    scene = capture()

    def cut(i, view):
        camera = dataclasses.replace(view.camera, width=40 - i % 3)
        return view.replaced(camera=camera, image=view.image[:, : 40 - i % 3])

    views = list(itertools.starmap(cut, enumerate(scene.train)))
    found = []
    for views_per_step in (2, 5):
        config = dataclasses.replace(
            configuration("default", "shard"), views_per_step=views_per_step, random_background=True
        )
        trainer = Trainer(start(scene), views, config, ranks)
        steps = [trainer.advance() for _ in range(STEPS)]
        found.append([[step.n_gaussians for step in steps], [float(step.loss) for step in steps]])
    return found


def recorded(capacities, render, gaussians, camera, background, capacity, *arguments, **options):
    capacities.append(capacity)
    return render(gaussians, camera, background, capacity, *arguments, **options)


def train_with_capacity(ranks, folder):
    """Trains a sharded scene with and without a capacity. Returns whether the states are equal, and renderings of
    each."""
    scene, states, capacities = capture(), [], []
    capacity.UNCOUNTED = 2 * ranks.rank  # too small for rank 0
    for choice in ("off", "on"):
        config = dataclasses.replace(configuration("default", "shard"), capacity=choice)
        trainer = Trainer(start(scene), scene.train, config, ranks)
        gradients = trainer._view_gradients
        gradients._render = functools.partial(recorded, capacities, gradients._render)
        for _ in range(STEPS):
            trainer.advance()
        states.append(gathered_state(trainer, ranks))
    return states[0] == states[1], capacities.count(None), capacities.count("auto")


def train_selected_with_capacity(ranks, folder):
    """Trains shards on what views show, with and without a capacity. Returns whether the states are equal, and the
    capacities of the calls."""
    (gaussians, views), states, capacities = make_places(), [], []
    selection.ROWS_MIN = 8  # shards are small
    capacity.UNCOUNTED = 2 * ranks.rank  # too small for rank 0
    capacity._automatic.clear()  # earlier jobs have chosen capacities
    for choice in ("off", "on"):
        config = RunConfig(
            steps=4, views_per_step=2, strategy=None, backend="triton", capacity=choice, visible_adam="on",
            parallel="shard",
        )  # fmt: skip
        trainer = Trainer(gaussians, views[:4], config, ranks)
        gradients = trainer._view_gradients
        gradients._render = functools.partial(recorded, capacities, gradients._render)
        for _ in range(config.steps):
            trainer.advance()
        states.append(gathered_state(trainer, ranks))
    return states[0] == states[1], capacities


def train_degree_zero(ranks, folder):
    """Trains and refines a sharded scene of SH degree 0, whose tensor of higher degrees is empty."""
    scene = capture()
    strategy = MCMCStrategy(cap_max=230, refine_start_iter=1, refine_every=2, refine_stop_iter=10)
    initial = Gaussians.from_points(scene.points, scene.colors, 0)
    trainer = Trainer(initial, scene.train, RunConfig(steps=4, sh_degree=0, strategy=strategy), ranks)
    for _ in range(4):
        trainer.advance()
    return trainer.n_gaussians


def close_capture():
    """Returns views that each show a part of a scene with 2,435 points, in two alternating sizes, so that a call has
    one camera."""
    scene = procedural_capture(40, 30, 4, 3, 4000, seed=3)

    def close(i, view):
        K = view.camera.K * torch.tensor([[4.0], [4], [1]])
        camera = dataclasses.replace(view.camera, K=K, width=40 - i % 2)
        return view.replaced(camera=camera, image=view.image[:, : 40 - i % 2])

    parts = {name: tuple(itertools.starmap(close, enumerate(getattr(scene, name)))) for name in ("train", "test")}
    return dataclasses.replace(scene, **parts)


def run_within_shards(ranks, folder):
    """Trains, resumes and evaluates runs without a tensor that has a row for every Gaussian of all ranks.

    Returns the numbers of Gaussians in checkpoints and models.
    """
    scene, counts = close_capture(), []
    model_rows.CHUNK = 500
    runs.read_run_capture = lambda config, device, *_: scene
    for kind in ("default", "mcmc", "long-axis", "surfels"):
        strategy = configuration(kind, "shard").strategy
        strategy = dataclasses.replace(strategy, cap_max=9000, **({"prune_opa": 1e-4} if kind == "default" else {}))
        config = dataclasses.replace(configuration(kind, "shard"), strategy=strategy, views_per_step=1, sky=2400)
        config = dataclasses.replace(config, primitive="2dgs" if kind == "surfels" else "3dgs", steps=5, sh_degree=1)
        run = folder / f"within_{kind}"
        with RowLimit(len(scene.points) + 1):
            runs.train(config, run, stop_after=4)
            resume(run)
            n = runs.evaluate_run(run)["num_gaussians"]
        model = len(read_ply(run / "point_cloud.ply")) if ranks.is_main else 0
        counts.append((n, max(ranks.all_gather_object(model))))
    return counts


class SlowClock:
    """A clock on which a step takes 10 ms on rank 0, and 10 ms more on each following rank."""

    def __init__(self, rank):
        self.now, self.tick = 0.0, 0.01 * (1 + rank)

    def perf_counter(self):
        self.now += self.tick
        return self.now


def train_timed_and_extended(ranks, folder):
    """Runs for a time limit and for the same number of steps, and extends both, one after an interruption.

    Returns the steps and the differences.
    """
    runs.read_run_capture = lambda config, device, *_: capture()
    starts.time = SlowClock(ranks.rank)
    folders = [folder / f"{name}_{ranks.world_size}" for name in ("timed", "counted")]

    def configure(steps):
        return dataclasses.replace(configuration("long-axis", "shard", 24), steps=steps)

    steps = runs.train(configure, folders[0], minutes=0.16 / 60)["steps"]
    runs.train(configure(steps), folders[1])
    differ = [names_that_differ(*folders)]
    resume(folders[0], steps=24)
    resume(folders[1], steps=24, stop_after=20)
    resume(folders[1])
    return steps, [*differ, names_that_differ(*folders)], read_newest(folders[1])[1].step


def names_that_differ(*folders):
    """Returns the names of tensors whose bits differ in the newest checkpoints of two runs."""
    first, second = (
        checkpoint.gaussians.tensors() | checkpoint.tensors for _, checkpoint, _ in map(read_newest, folders)
    )
    return [name for name in first | second if not torch.equal(first[name], second[name])]


def gathered_state(trainer, ranks):
    """Returns the trainer's state with the rows of all ranks, as JSON values."""
    tensors, figures = trainer.state()
    names = trainer.per_gaussian_names
    tensors = {name: ranks.all_gather(tensor) if name in names else tensor for name, tensor in tensors.items()}
    return {name: tensor.double().numpy().tobytes().hex() for name, tensor in tensors.items()}, figures


def saved_configuration(kind):
    """Returns a configuration for saving states, with moments in fp32 or bf16."""
    precision = "bf16" if kind == "long-axis" else "fp32"
    return dataclasses.replace(configuration(kind, "shard", 24), adam_moments=precision)


def save(ranks, folder):
    """Writes sharded checkpoints, and checkpoints of both kinds with each of `UMASKS`."""
    scene = capture()
    results = {}
    for kind in ("default", "mcmc", "long-axis"):
        config = saved_configuration(kind)
        trainer = Trainer(start(scene).map(Tensor.float), scene.train, config, ranks)
        for _ in range(SAVED_AT):
            trainer.advance()
        tensors, figures = trainer.state()
        raw = scene_tensors(trainer.gaussians)
        checkpoint = Checkpoint(
            trainer.step,
            trainer.gaussians,
            {name: tensor for name, tensor in tensors.items() if name not in raw},
            {"trainer": figures},
            config,
            trainer.per_gaussian_names,
        )
        write(folder / kind, checkpoint, None, ranks, sharded=True)
        state, figures = gathered_state(trainer, ranks)
        if ranks.is_main:
            (folder / f"{kind}.json").write_text(json.dumps([state, figures]))
        results[kind] = ranks.all_gather_object(len(trainer.gaussians))
    for umask in UMASKS:
        previous = os.umask(umask)
        for is_sharded in (True, False):
            write(folder / f"umask_{umask:03o}", checkpoint, None, ranks, sharded=is_sharded)
        os.umask(previous)
    return results


def load(ranks, folder):
    """Restores the checkpoints of :func:`save`, compares the state bit by bit, and evaluates it."""
    scene = capture()
    results = {}
    for kind in ("default", "mcmc", "long-axis"):
        checkpoint = read_newest(folder / kind)[1]
        config = saved_configuration(kind)
        trainer = Trainer(checkpoint.gaussians, scene.train, config, ranks)
        trainer.restore(checkpoint.tensors | scene_tensors(checkpoint.gaussians), checkpoint.figures["trainer"])
        state, figures = gathered_state(trainer, ranks)
        expected = json.loads((folder / f"{kind}.json").read_text())
        scores = evaluate(checkpoint.gaussians, scene.test, background=(0.2, 0.3, 0.4), ranks=ranks)
        results[kind] = {
            "differ": [name for name in {*state, *expected[0]} if state.get(name) != expected[0].get(name)],
            "figures": json.loads(json.dumps(figures)) == expected[1],
            "own": len(trainer.gaussians),
            "psnr": scores.psnr,
            "ssim": scores.ssim,
            "count": len(scores),
        }
        trainer.advance()
    return results


JOBS = {
    job.__name__: job
    for job in (
        train,
        train_with_capacity,
        train_selected_with_capacity,
        train_degree_zero,
        train_sizes,
        train_selected,
        train_timed_and_extended,
        run_within_shards,
        save,
        load,
    )
}


def run_jobs(rank, world_size, folder, jobs):
    torch.set_num_threads(1)
    for job in jobs:
        report = folder / f"{job}_{world_size}_{rank}.json"
        try:
            if world_size > 1 and not dist.is_initialized():
                store = f"file://{folder}/{job}_{world_size}"
                timeout = timedelta(seconds=120)
                dist.init_process_group("gloo", store, timeout=timeout, rank=rank, world_size=world_size)
            ranks = RankGroup(dist.group.WORLD) if world_size > 1 else RankGroup()
            report.write_text(json.dumps(JOBS[job](ranks, folder)))
        except BaseException:
            report.write_text(json.dumps({"error": traceback.format_exc()}))
            raise


def main():
    folder = Path(sys.argv[1])
    # Import the modules that all ranks need before they are forked.
    for module in ("torch._dynamo", "torch.distributed.checkpoint", "tsplat.kernels"):
        importlib.import_module(module)
    start(capture())
    simplify()
    context = multiprocessing.get_context("fork")
    for i, group in enumerate(sys.argv[2:]):
        size, _, jobs = group.partition(":")
        world_size = int(size)
        # PyTorch's threads for GPUs do not survive forks.
        if i == 0 and world_size == 1 and not torch.cuda.is_available():
            run_jobs(0, 1, folder, jobs.split(","))
            gc.freeze()
            continue
        processes = [
            context.Process(target=run_jobs, args=(rank, world_size, folder, jobs.split(",")))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()

"""Times `rasterization` on saved scenes, with the first tsplat in PYTHONPATH; started by `benchmarks.run --base`.

    python benchmarks/timing_worker.py SCENES.pt THREADS REPEATS

Prints a line of JSON per scene: the minimum time of the forward pass, and of forward + backward, in milliseconds. This
is CPU time with one thread, and wall time with several. Imports only tsplat, as it also runs with old commits.
"""

import json
import sys
import time
from typing import Any

import torch

import tsplat

DIFFERENTIABLE = ("means", "quats", "scales", "opacities", "colors")
"""Inputs that get a gradient."""


def forward(scene: dict[str, Any], **options: Any) -> None:
    """Renders a scene without gradients."""
    with torch.no_grad():
        tsplat.rasterization(**scene, **options)


def forward_backward(scene: dict[str, Any], **options: Any) -> None:
    """Renders a scene, and computes the gradients of all differentiable inputs."""
    leaves = {name: scene[name].detach().requires_grad_() for name in DIFFERENTIABLE}
    colors, alphas, _ = tsplat.rasterization(**(scene | leaves), **options)
    torch.autograd.backward(colors.square().sum() + alphas.sum())


def main() -> None:
    path, threads, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    for name, scene in torch.load(path).items():
        record = {"scene": name}
        for what, step in (("forward", forward), ("forward + backward", forward_backward)):
            samples = []
            for _ in range(repeats + 1):
                start = clock()
                step(scene)
                samples.append(1e3 * (clock() - start))
            record[what] = min(samples[1:])
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

"""Times `rasterization` on saved scenes, with the tsplat first in PYTHONPATH; started by `benchmarks.run --base`.

    python benchmarks/timing_worker.py SCENES.pt THREADS REPEATS

Prints a line of JSON per scene: the smallest time in milliseconds of the forward pass, and of forward + backward; CPU
time with one thread, else wall time. Imports nothing else of this repository, as it also runs old revisions.
"""

import json
import sys
import time

import torch

import tsplat

DIFFERENTIABLE = ("means", "quats", "scales", "opacities", "colors")


def main() -> None:
    path, threads, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    for name, scene in torch.load(path).items():

        def forward(scene: dict = scene) -> None:  # type: ignore[type-arg]
            with torch.no_grad():
                tsplat.rasterization(**scene)

        def forward_backward(scene: dict = scene) -> None:  # type: ignore[type-arg]
            leaves = {key: scene[key].detach().requires_grad_() for key in DIFFERENTIABLE}
            colors, alphas, _ = tsplat.rasterization(**(scene | leaves))
            torch.autograd.backward(colors.square().sum() + alphas.sum())

        record = {"scene": name}
        for what, step in (("forward", forward), ("forward + backward", forward_backward)):
            samples = []
            for repeat in range(repeats + 1):
                start = clock()
                step()
                if repeat > 0:
                    samples.append(1e3 * (clock() - start))
            record[what] = min(samples)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

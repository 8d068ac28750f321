"""Runs one stage of COLMAP in a separate process: ``python colmap_process.py``. Does not import tsplat.

COLMAP aborts the process on errors such as a full disk, and its libraries conflict with others: if it is imported
first, Pillow crashes. The request is a line of JSON on standard input with the name of a stage and its arguments. Each
line of standard output is JSON: ``[n]`` with the number of registered photographs so far, and last ``{"result": ...}``
or ``{"error": ..., "type": ...}``. The process ends when its standard input is closed, also because the parent process
dies.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Send = Callable[[Any], object]


def features(
    _send: Send, *, database: str, images: str, masks: str | None, mode: str, model: str, max_size: int,
    peak: float | None, threads: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Extracts the features of photographs that have none yet. Returns the number of features of each readable
    photograph, and their total."""
    import pycolmap

    pycolmap.set_random_seed(seed)
    extraction = pycolmap.FeatureExtractionOptions(max_image_size=max_size, num_threads=threads, use_gpu=False)
    if peak is not None:
        extraction.sift.peak_threshold = peak
    reader = pycolmap.ImageReaderOptions(camera_model=model, **({} if masks is None else {"mask_path": Path(masks)}))
    pycolmap.extract_features(
        Path(database),
        Path(images),
        camera_mode=getattr(pycolmap.CameraMode, mode),
        reader_options=reader,
        extraction_options=extraction,
        device=pycolmap.Device.cpu,
    )
    with contextlib.closing(pycolmap.Database.open(Path(database))) as opened:
        counts = {image.name: opened.num_keypoints_for_image(image.image_id) for image in opened.read_all_images()}
        return {"features": counts, "descriptors": opened.num_descriptors()}


def matches(
    _send: Send, *, database: str, seed: int, threads: int, block: int | None, pairings: list[dict[str, Any]],
    tree: dict[str, int] | None,
) -> dict[str, int]:  # fmt: skip
    """Matches all pairs in blocks of photographs, or the pairs of each pairing.

    Returns the number of photographs that each photograph matches. Each pairing has COLMAP's options and a ``method``,
    sequential or vocabulary-tree. `tree` has the number of words, the number of features and the embedding length of
    the vocabulary tree, which is built first if needed.
    """
    import pycolmap

    pycolmap.set_random_seed(seed)
    path = Path(database)
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = seed
    common: dict[str, Any] = dict(
        matching_options=pycolmap.FeatureMatchingOptions(num_threads=threads, use_gpu=False),
        verification_options=verification,
        device=pycolmap.Device.cpu,
    )
    if block is not None:
        every = pycolmap.ExhaustivePairingOptions(block_size=block)
        pycolmap.match_exhaustive(path, pairing_options=every, **common)
    words = path.with_name("words.bin")
    if tree is not None:
        build_tree(path, words, threads=threads, **tree)
    for pairing in pairings:
        method = pairing.pop("method")
        if method == "vocabulary-tree" or pairing.get("loop_detection"):
            pairing |= {"vocab_tree_path": words, "num_threads": threads}
        if method == "sequential":
            pycolmap.match_sequential(path, pairing_options=pycolmap.SequentialPairingOptions(**pairing), **common)
        else:
            pycolmap.match_vocabtree(path, pairing_options=pycolmap.VocabTreePairingOptions(**pairing), **common)
    words.unlink(missing_ok=True)
    with contextlib.closing(pycolmap.Database.open(path)) as opened:
        names = {image.image_id: image.name for image in opened.read_all_images()}
        counts = dict.fromkeys(names.values(), 0)
        for pair, n_inliers in zip(*opened.read_two_view_geometry_num_inliers(), strict=True):
            for i in pycolmap.pair_id_to_image_pair(pair):
                counts[names[i]] += int(n_inliers > 0)
    return counts


def build_tree(database: Path, path: Path, *, words: int, features: int, embedding: int, threads: int) -> None:
    """Builds and writes a vocabulary tree with `words` words from about equal numbers of features of each
    photograph."""
    import pycolmap

    parts = []
    with contextlib.closing(pycolmap.Database.open(database)) as opened:
        every = opened.num_descriptors() / features
        for image in opened.read_all_images():
            descriptors = opened.read_descriptors(image.image_id)
            parts.append(descriptors.data[np.arange(0, len(descriptors.data), every).astype(int)])
    values = pycolmap.FeatureDescriptorsFloat(descriptors.type, np.concatenate(parts).astype(np.float32))
    options = pycolmap.VisualIndex.BuildOptions(
        num_visual_words=words, num_iterations=10, num_rounds=1, num_threads=threads
    )
    index = pycolmap.VisualIndex.create(values.data.shape[1], embedding)
    index.build(options, values)
    index.write(path)


def cameras(
    send: Send, *, database: str, images: str, models: str, best: str, threads: int, seed: int
) -> list[dict[str, Any]]:
    """Computes models, and writes the one with the most photographs to `best`. Returns descriptions of all, the best
    first."""
    import pycolmap

    options = _seeded_options(threads, seed)
    options.mapper.random_seed = seed
    n_registered = 0

    def on_images(number: int) -> None:
        nonlocal n_registered
        n_registered += number
        send([n_registered])

    reconstructions: dict[int, Any] = pycolmap.incremental_mapping(
        Path(database),
        Path(images),
        Path(models),
        options=options,
        initial_image_pair_callback=lambda: on_images(2 - n_registered),
        next_image_callback=lambda: on_images(1),
    )
    order = sorted(
        reconstructions, key=lambda i: (-reconstructions[i].num_reg_images(), -reconstructions[i].num_points3D(), i)
    )
    if order:
        write(reconstructions[order[0]], best)
    return [describe(reconstructions[i]) for i in order]


def _seeded_options(threads: int, seed: int) -> Any:
    """Returns options of COLMAP's incremental mapping, after seeding all its random number generators."""
    import pycolmap

    pycolmap.set_random_seed(seed)
    options = pycolmap.IncrementalPipelineOptions(num_threads=threads, random_seed=seed)
    options.triangulation.random_seed = seed
    return options


def points(
    _send: Send, *, database: str, images: str, start: str, result: str, threads: int, seed: int
) -> dict[str, Any]:
    """Triangulates a model again, including points that only two photographs show, and writes it to the folder
    `result`."""
    import pycolmap

    options = _seeded_options(threads, seed)
    options.triangulation.ignore_two_view_tracks = False
    os.mkdir(result)
    model = pycolmap.triangulate_points(
        pycolmap.Reconstruction(Path(start)), Path(database), Path(images), Path(result), clear_points=True,
        options=options, refine_intrinsics=False,
    )  # fmt: skip
    write(model, result)
    return describe(model)


def write(model: Any, folder: str) -> None:
    """Writes a model to a folder in binary format."""
    os.makedirs(folder, exist_ok=True)
    model.write_binary(folder)


def describe(model: Any) -> dict[str, Any]:
    """Returns the names of the registered photographs, the number of points, and the mean error in pixels."""
    names = [model.image(i).name for i in model.reg_image_ids()]
    error = model.compute_mean_reprojection_error() if model.num_points3D() else 0.0
    return {"names": names, "points": model.num_points3D(), "error": error}


STAGES: dict[str, Callable[..., Any]] = {
    "features": features, "matches": matches, "cameras": cameras, "points": points,
}  # fmt: skip


def end_with_input() -> None:
    """Ends this process when its standard input is closed."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    """Runs the stage that standard input names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    answers = open(os.dup(1), "wb")  # noqa: SIM115
    os.dup2(2, 1)  # redirect COLMAP's output to stderr, so that stdout contains only answers

    def send(value: Any) -> None:
        answers.write(json.dumps(value).encode() + b"\n")
        answers.flush()

    with open(0, "rb", buffering=0, closefd=False) as requests:
        request = json.loads(requests.readline())
    threading.Thread(target=end_with_input, daemon=True).start()
    try:
        import pycolmap

        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pycolmap's handler prints a stack trace
        pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
        answer = {"result": STAGES[request.pop("stage")](send, **request)}
    # pycolmap raises C++ exceptions of many types.
    except Exception as error:
        answer = {"error": str(error) or type(error).__name__, "type": type(error).__name__}
    send(answer)
    os._exit(0)


if __name__ == "__main__":
    main()

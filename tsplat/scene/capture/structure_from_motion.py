"""From photographs to a scene: where the cameras stood and what they saw, by COLMAP's structure-from-motion.

Features (SIFT), matches between all pairs, then cameras and points one photograph at a time (Schönberger and Frahm,
"Structure-from-Motion Revisited", 2016), all on the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from ...arguments import check_choice, check_size
from ...errors import ArgumentError, FileError
from ...support.extras import require
from ...support.files import output_folder
from ..images import picture_info
from .colmap import CAMERA_MODELS

CameraModel = Literal["SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV"]
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
STAGES = ("features", "matches", "cameras")
THREADS_MAX = 8
SEED_MAX = 2**31 - 1
BLOCK = 5
"""Photographs matched with so many others at a time; matching can be interrupted in between."""

POLL = 0.2
"""Seconds between looks at how far a stage is."""

OnStage = Callable[[str, int, int], None]
"""Told the stage, one of STAGES, and how much of how much of it is done: photographs, pairs, photographs."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What came of :func:`prepare`.

    Attributes:
        registered: Names of the photographs whose cameras were found.
        left_out: Names of those whose were not.
        n_points: Sparse points.
        error: Mean distance in pixels between where points were seen and where they project to.
        n_models: How many models that do not connect were found; the one with the most photographs is kept.
    """

    registered: tuple[str, ...]
    left_out: tuple[str, ...]
    n_points: int
    error: float
    n_models: int


def prepare(
    photos: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_size: int = 1600,
    single_camera: bool = True,
    camera_model: CameraModel = "SIMPLE_RADIAL",
    seed: int = 0,
    on_progress: OnStage | None = None,
) -> Prepared:
    """Makes a scene as :func:`tsplat.scene.read_colmap` reads it: ``images/`` and ``sparse/0/``.

    The work is done in a hidden folder beside ``out``, which gets its name at the end; if that fails, nothing stays.

    Args:
        photos: A folder with at least two photographs; what lies in folders within it is left aside.
        out: The scene's folder; not there yet, or empty. Photographs are hard links where the file system allows.
        max_size: Longest side in pixels at which features are looked for; photographs stay as they are.
        single_camera: Whether one camera with one focal length took all photographs; otherwise each has its own.
        camera_model: The lens that is fitted, by COLMAP's name.
        seed: Of what is drawn at random. Threads may still order sums differently.
        on_progress: Told how far each stage is, from the calling thread.

    Raises:
        FileError: Photographs are missing or cannot be read, or there is something in ``out``.
        ArgumentError: Photographs of several sizes by a single camera, photographs that do not overlap enough, or an
            argument without meaning.
        MissingExtraError: pycolmap or Pillow is not installed.
        OSError: Files cannot be written there.
    """
    require("pycolmap", "PIL")
    check_size("max_size", max_size)
    check_choice("camera_model", camera_model, tuple(CAMERA_MODELS))
    if not 0 <= seed <= SEED_MAX:
        raise ArgumentError(f"seed: expected a whole number from 0 to {SEED_MAX}, found {seed}")
    photos, out = Path(photos), Path(out)
    files = _photographs(photos, single_camera)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileError(f"{out}: is there already; choose another folder, or empty it")

    with output_folder(out.parent), _temporary_folder(out) as folder:
        images, models = folder / "images", folder / "models"
        images.mkdir()
        models.mkdir()
        for file in files:
            _link(file, images / file.name)
        work = _Work(photos, folder, len(files), on_progress or (lambda *_: None))
        found = work.run(max_size, single_camera, camera_model, seed)
        if not found:
            raise ArgumentError(
                f"{photos}: no two of the {len(files)} photographs overlap enough to place their cameras; take them "
                "closer together, with more detail in sight, or raise max_size"
            )
        best = max(found, key=lambda i: (found[i].num_reg_images(), found[i].num_points3D(), -i))
        model = found[best]
        names = tuple(sorted(model.image(i).name for i in model.reg_image_ids()))
        sparse = folder / "sparse" / "0"
        sparse.mkdir(parents=True)
        model.write_binary(str(sparse))
        shutil.rmtree(models)
        for leftover in folder.glob("database.db*"):
            leftover.unlink()
        if out.exists():
            out.rmdir()
        os.replace(folder, out)
    return Prepared(
        registered=names,
        left_out=tuple(file.name for file in files if file.name not in names),
        n_points=model.num_points3D(),
        error=model.compute_mean_reprojection_error(),
        n_models=len(found),
    )


class _Work:
    """The stages, each in a thread of its own while the calling thread watches it and can be interrupted."""

    def __init__(self, photos: Path, folder: Path, n_images: int, on_progress: OnStage) -> None:
        import pycolmap

        self.photos, self.n_images, self.on_progress = photos, n_images, on_progress
        self.database, self.images, self.models = folder / "database.db", folder / "images", folder / "models"
        self.placed = 0
        self.stop = pycolmap.CancellationToken()
        self.threads = min(THREADS_MAX, os.cpu_count() or 1)

    def run(self, max_size: int, single_camera: bool, camera_model: str, seed: int) -> dict[int, Any]:
        """Models by their number, in no order of size."""
        import pycolmap

        reader = pycolmap.ImageReaderOptions(camera_model=camera_model)
        extraction = pycolmap.FeatureExtractionOptions(max_image_size=max_size, num_threads=self.threads, use_gpu=False)
        matching = pycolmap.FeatureMatchingOptions(num_threads=self.threads, use_gpu=False)
        pairing = pycolmap.ExhaustivePairingOptions(block_size=BLOCK)
        verification = pycolmap.TwoViewGeometryOptions()
        verification.ransac.random_seed = seed
        mapping = pycolmap.IncrementalPipelineOptions(num_threads=self.threads, random_seed=seed)
        mapping.mapper.random_seed = seed
        mapping.triangulation.random_seed = seed
        common: dict[str, Any] = dict(device=pycolmap.Device.cpu, cancellation_token=self.stop)
        mode = pycolmap.CameraMode.SINGLE if single_camera else pycolmap.CameraMode.PER_IMAGE

        def extract() -> None:
            pycolmap.extract_features(
                self.database,
                self.images,
                camera_mode=mode,
                reader_options=reader,
                extraction_options=extraction,
                **common,
            )

        def match() -> None:
            pycolmap.match_exhaustive(
                self.database,
                matching_options=matching,
                pairing_options=pairing,
                verification_options=verification,
                **common,
            )

        def map_() -> dict[int, Any]:
            found: dict[int, Any] = pycolmap.incremental_mapping(
                self.database,
                self.images,
                self.models,
                options=mapping,
                initial_image_pair_callback=self._begin,
                next_image_callback=self._place,
                cancellation_token=self.stop,
            )
            return found

        with _quiet(), _counter(self.database) as count:
            pycolmap.set_random_seed(seed)
            n_pairs = self.n_images * (self.n_images - 1) // 2
            self._watch("features", extract, lambda: count("keypoints"), self.n_images)
            self._watch("matches", match, lambda: count("two_view_geometries"), n_pairs)
            result: dict[int, Any] = self._watch("cameras", map_, lambda: self.placed, self.n_images)
            return result

    def _begin(self) -> None:
        self.placed = 2

    def _place(self) -> None:
        self.placed += 1

    def _watch(self, stage: str, function: Callable[[], Any], done: Callable[[], int], total: int) -> Any:
        """The function's result, computed in a thread; an interrupt ends that first."""
        results: list[Any] = []
        errors: list[Exception] = []
        # Not thread.join, which takes a running thread for an ended one when it is interrupted (Python 3.11).
        ended = threading.Event()

        def target() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)
            finally:
                ended.set()

        threading.Thread(target=target, daemon=True).start()
        try:
            while not ended.wait(POLL):
                self.on_progress(stage, min(done(), total), total)
        except BaseException:
            self.stop.cancel()
            ended.wait()
            raise
        if errors and isinstance(errors[0], MemoryError):
            raise errors[0]
        if errors:
            # pycolmap hands on whatever C++ throws.
            raise FileError(f"{self.photos}: COLMAP fails at the {stage}: {str(errors[0])[:200]}") from errors[0]
        self.on_progress(stage, min(done(), total), total)
        return results[0]


def _photographs(photos: Path, single_camera: bool) -> list[Path]:
    if not photos.is_dir():
        raise FileError(f"{photos}: no such folder")
    files = sorted(
        path
        for path in photos.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    if len(files) < 2:
        raise FileError(f"{photos}: expected at least two photographs ({', '.join(SUFFIXES)}), found {len(files)}")
    infos = [picture_info(file) for file in files]
    sizes = Counter((info.width, info.height) for info in infos)
    if single_camera and len(sizes) > 1:
        words = ", ".join(f"{count} of {width}x{height}" for (width, height), count in sizes.most_common(4))
        raise ArgumentError(
            f"{photos}: a single camera takes photographs of one size, found {words}; "
            "pass single_camera=False (--no-single-camera)"
        )
    return files


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


@contextlib.contextmanager
def _temporary_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out`; gone at the end unless it was renamed."""
    folder = out.absolute().with_name(f".{out.name}.{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


COUNT = """
import contextlib, signal, sqlite3, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
for table in sys.stdin:
    rows = 0
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(sys.argv[1], uri=True)) as database:
        rows = database.execute("select count(*) from " + table.strip()).fetchone()[0]
    print(rows, flush=True)
"""
"""A table that is not there yet, or locked, has no rows until the next look."""


@contextlib.contextmanager
def _counter(database: Path) -> Iterator[Callable[[str], int]]:
    """A function that counts the rows of a table that COLMAP is writing to.

    It looks from another process: COLMAP brings an SQLite of its own, and two in one process lose each other's locks.
    """
    command = [sys.executable, "-I", "-c", COUNT, f"{database.absolute().as_uri()}?mode=ro"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def count(table: str) -> int:
            questions.write(f"{table}\n")
            questions.flush()
            return int(answers.readline() or 0)

        try:
            yield count
        finally:
            process.kill()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without COLMAP's log, which says on stderr what is told here as errors and progress."""
    import pycolmap

    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = level

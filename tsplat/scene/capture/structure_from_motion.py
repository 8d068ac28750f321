"""Structure-from-motion: computes camera poses and sparse points from photographs, with COLMAP on the CPU.

SIFT features, exhaustive matching, then incremental mapping (Schönberger and Frahm, "Structure-from-Motion Revisited",
2016).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
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
from ...support.interruption import exit_on_signals
from ..images import read_image_info
from .colmap import PINHOLE_MODELS
from .photographs import UNSUPPORTED_SUFFIXES
from .temporary_folders import OWNER, temporary_folder

CameraModel = Literal["SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV"]
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
THREADS_MAX = 8
SEED_MAX = 2**31 - 1

MATCHING_BLOCK_SIZE = 5
"""Photographs per block of exhaustive matching, which can be interrupted only between blocks."""

POLL_SECONDS = 0.2
"""Interval of progress updates."""

Stage = Literal["features", "matches", "cameras"]

OnStage = Callable[[Stage, int, int], None]
"""Called with the stage, the amount done and the total: photographs, pairs of photographs, photographs."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The result of :func:`prepare`.

    Attributes:
        registered: Names of the photographs with a camera pose.
        unregistered: Names of the photographs without one.
        n_points: Number of sparse points.
        error: Mean reprojection error in pixels.
        n_models: Number of disconnected models found; the one with the most photographs is kept.
        notes: What a user should know, such as skipped photographs, one sentence each.
    """

    registered: tuple[str, ...]
    unregistered: tuple[str, ...]
    n_points: int
    error: float
    n_models: int
    notes: tuple[str, ...] = ()


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
    """Computes a COLMAP scene (``images/`` and ``sparse/0/``) from photographs, for :func:`tsplat.scene.read_colmap`.

    The scene is created in a hidden temporary folder next to ``out`` and renamed at the end, so ``out`` is complete or
    absent. SIGTERM and SIGHUP remove the folder and exit. The next call with the same ``out`` removes what a killed
    process has left.

    COLMAP ignores the EXIF orientation, and so does :func:`tsplat.scene.read_colmap`: both use the pixels as stored.

    Args:
        photos: A folder with at least two photographs. Subfolders are ignored; photographs that COLMAP cannot read,
            such as HEIC, are skipped with a note.
        out: The new folder of the scene; may exist if it is empty. Photographs are hard-linked if possible.
        max_size: Longest side in pixels at which features are extracted. The photographs are not resized.
        single_camera: Whether all photographs share their intrinsics; otherwise each has its own.
        camera_model: COLMAP's name of the camera model to estimate.
        seed: Random seed. Results may still vary slightly with several threads.
        on_progress: Called from the calling thread with the progress of each stage.

    Raises:
        FileError: Photographs are missing or cannot be read, COLMAP fails, or ``out`` is not empty.
        ArgumentError: An invalid argument, photographs of several sizes with `single_camera`, or photographs that do
            not overlap enough.
        MissingExtraError: pycolmap or Pillow is not installed.
        OSError: Files cannot be written.
    """
    require("pycolmap", "PIL")
    check_size("max_size", max_size)
    check_choice("camera_model", camera_model, tuple(PINHOLE_MODELS))
    if not 0 <= seed <= SEED_MAX:
        raise ArgumentError(f"seed: expected an int from 0 to {SEED_MAX}, found {seed}")
    photos, out = Path(photos), Path(out)
    files, notes = _find_photographs(photos, single_camera)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileError(f"{out}: already exists and is not an empty folder; choose another folder")

    with exit_on_signals(), output_folder(out.parent), temporary_folder(out) as folder:
        images, models = folder / "images", folder / "models"
        images.mkdir()
        models.mkdir()
        for file in files:
            _link(file, images / file.name)
        pipeline = _Pipeline(photos, folder, len(files), on_progress or (lambda *_: None))
        found = pipeline.run(max_size, single_camera, camera_model, seed)
        if not found:
            raise ArgumentError(
                f"{photos}: no two of the {len(files)} photographs overlap enough to estimate their cameras; take them "
                "closer together, include more texture, or raise max_size"
            )
        best = max(found, key=lambda i: (found[i].num_reg_images(), found[i].num_points3D(), -i))
        model = found[best]
        names = tuple(sorted(model.image(i).name for i in model.reg_image_ids()))
        sparse = folder / "sparse" / "0"
        sparse.mkdir(parents=True)
        model.write_binary(str(sparse))
        shutil.rmtree(models)
        for leftover in (*folder.glob("database.db*"), folder / OWNER):
            leftover.unlink()
        if out.exists():
            out.rmdir()
        os.replace(folder, out)
    return Prepared(
        registered=names,
        unregistered=tuple(file.name for file in files if file.name not in names),
        n_points=model.num_points3D(),
        error=model.compute_mean_reprojection_error(),
        n_models=len(found),
        notes=tuple(notes),
    )


class _Pipeline:
    """The stages of structure-from-motion. Each runs in a thread, while the calling thread reports its progress."""

    def __init__(self, photos: Path, folder: Path, n_images: int, on_progress: OnStage) -> None:
        import pycolmap

        self.photos, self.n_images, self.on_progress = photos, n_images, on_progress
        self.database, self.images, self.models = folder / "database.db", folder / "images", folder / "models"
        self.n_registered = 0
        self.cancellation = pycolmap.CancellationToken()
        self.threads = min(THREADS_MAX, os.cpu_count() or 1)

    def run(self, max_size: int, single_camera: bool, camera_model: CameraModel, seed: int) -> dict[int, Any]:
        """Runs all stages and returns the models by index, unsorted."""
        import pycolmap

        reader = pycolmap.ImageReaderOptions(camera_model=camera_model)
        extraction = pycolmap.FeatureExtractionOptions(max_image_size=max_size, num_threads=self.threads, use_gpu=False)
        matching = pycolmap.FeatureMatchingOptions(num_threads=self.threads, use_gpu=False)
        pairing = pycolmap.ExhaustivePairingOptions(block_size=MATCHING_BLOCK_SIZE)
        verification = pycolmap.TwoViewGeometryOptions()
        verification.ransac.random_seed = seed
        mapping = pycolmap.IncrementalPipelineOptions(num_threads=self.threads, random_seed=seed)
        mapping.mapper.random_seed = seed
        mapping.triangulation.random_seed = seed
        common: dict[str, Any] = dict(device=pycolmap.Device.cpu, cancellation_token=self.cancellation)
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

        def reconstruct() -> dict[int, Any]:
            found: dict[int, Any] = pycolmap.incremental_mapping(
                self.database,
                self.images,
                self.models,
                options=mapping,
                initial_image_pair_callback=self._on_initial_image_pair,
                next_image_callback=self._on_next_image,
                cancellation_token=self.cancellation,
            )
            return found

        with _silenced_log(), _row_counter(self.database) as count:
            pycolmap.set_random_seed(seed)
            n_pairs = self.n_images * (self.n_images - 1) // 2
            self._run_stage("features", extract, lambda: count("keypoints"), self.n_images)
            self._run_stage("matches", match, lambda: count("two_view_geometries"), n_pairs)
            models: dict[int, Any] = self._run_stage("cameras", reconstruct, lambda: self.n_registered, self.n_images)
            return models

    def _on_initial_image_pair(self) -> None:
        self.n_registered = 2

    def _on_next_image(self) -> None:
        self.n_registered += 1

    def _run_stage(self, stage: Stage, function: Callable[[], Any], done: Callable[[], int], total: int) -> Any:
        """Runs `function` in a thread and returns its result. An interrupt cancels the thread and waits for it."""
        results: list[Any] = []
        errors: list[Exception] = []
        # Not thread.join: an interrupted join marks a running thread as ended (Python 3.11).
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
            while not ended.wait(POLL_SECONDS):
                self.on_progress(stage, min(done(), total), total)
        except BaseException:
            self.cancellation.cancel()
            ended.wait()
            raise
        if errors and isinstance(errors[0], MemoryError):
            raise errors[0]
        if errors:
            # pycolmap passes on C++ exceptions of many types.
            raise FileError(f"{self.photos}: COLMAP failed in stage {stage!r}: {str(errors[0])[:200]}") from errors[0]
        self.on_progress(stage, min(done(), total), total)
        return results[0]


def _find_photographs(photos: Path, single_camera: bool) -> tuple[list[Path], list[str]]:
    """Returns the photographs in a folder, sorted by name, after checking that they can be used; and notes."""
    if not photos.is_dir():
        raise FileError(f"{photos}: no such folder")
    visible = sorted(path for path in photos.iterdir() if not path.name.startswith(".") and path.is_file())
    files = [path for path in visible if path.suffix.lower() in SUFFIXES]
    skipped = [path for path in visible if path.suffix.lower() in UNSUPPORTED_SUFFIXES]
    notes = []
    if skipped:
        notes.append(
            f"skipped {len(skipped)} photographs that COLMAP cannot read (first: {skipped[0]}); convert them to JPEG"
        )
    if len(files) < 2:
        raise FileError(
            f"{photos}: expected at least two photographs ({', '.join(SUFFIXES)}), found {len(files)}"
            + "".join(f"; {note}" for note in notes)
        )
    for path in files:
        if not _is_utf8(path.name):
            raise FileError(f"{path}: expected a name in UTF-8, which COLMAP needs; rename it")
    infos = [read_image_info(file) for file in files]
    sizes = Counter((info.width, info.height) for info in infos)
    if single_camera and len(sizes) > 1:
        found = ", ".join(f"{count} of {width}×{height}" for (width, height), count in sizes.most_common(4))
        raise ArgumentError(
            f"{photos}: expected photographs of one size from a single camera, found {found}; "
            "pass single_camera=False (--no-single-camera)"
        )
    return files, notes


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _link(file: Path, target: Path) -> None:
    """Creates a hard link, or a copy where that is not possible."""
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


ROW_COUNTER = """
import contextlib, signal, sqlite3, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
for table in sys.stdin:
    rows = 0
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(sys.argv[1], uri=True)) as database:
        rows = database.execute("select count(*) from " + table.strip()).fetchone()[0]
    print(rows, flush=True)
"""
"""Program that prints the number of rows of each table named on stdin; 0 if the table is missing or locked."""


@contextlib.contextmanager
def _row_counter(database: Path) -> Iterator[Callable[[str], int]]:
    """Yields a function that counts the rows of a table while COLMAP writes to the database.

    The database is read in another process: COLMAP links its own SQLite, and two copies of SQLite in one process break
    each other's file locks.
    """
    command = [sys.executable, "-I", "-c", ROW_COUNTER, f"{database.absolute().as_uri()}?mode=ro"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def count(table: str) -> int:
            stdin.write(f"{table}\n")
            stdin.flush()
            return int(stdout.readline() or 0)

        try:
            yield count
        finally:
            process.kill()


@contextlib.contextmanager
def _silenced_log() -> Iterator[None]:
    """Suppresses COLMAP's log on stderr, which duplicates the errors and progress reported here."""
    import pycolmap

    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = level

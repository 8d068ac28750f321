"""The stages of structure-from-motion with COLMAP on the CPU: features, matches, and cameras.

SIFT features, then incremental mapping (Schönberger and Frahm, "Structure-from-Motion Revisited", 2016). A vocabulary
tree is built from features of the photographs themselves, as COLMAP's own would have to be downloaded.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import FileError

Matching = Literal["exhaustive", "sequential", "vocabulary-tree"]
Stage = Literal["frames", "features", "matches", "cameras"]

OnStage = Callable[[Stage, int, int], None]
"""Called with the stage, the amount done and the total: frames, photographs, pairs of photographs, photographs."""

THREADS_MAX = 8

MATCHING_BLOCK_SIZE = 5
"""Photographs per block of exhaustive matching, which can be interrupted only between blocks."""

EXHAUSTIVE_PHOTOS, EXHAUSTIVE_FRAMES = 200, 30
"""Most photographs, and frames of a video, of which all pairs are matched without being told to."""

SIMILAR = 40
"""Most similar photographs that each is matched with, found by the vocabulary tree."""

OVERLAP = 6
"""Next frames of a video that each is matched with, besides those 8, 16, 32 frames later and so on."""

LOOP_PERIOD, LOOP_IMAGES = 5, 20
"""Every so many frames of a video, one is also matched with so many that look most similar, wherever they are."""

TREE_WORDS, TREE_EMBEDDING, TREE_FEATURES = 2560, 64, 102_400
"""Words of a vocabulary tree, values of an embedding, and features that it is built from: 40 of each per cluster."""

SMALL_PIXELS, PEAK = 300_000, 0.002
"""Pixels below which a photograph is small, and the contrast of its weakest features, 0.0067 in others. Small ones have
few features, and matching them is fast."""

POINTS_PER_IMAGE = 300
"""Points for each registered photograph below which points that only two photographs show are added."""

POLL_SECONDS = 0.2
"""Interval of progress updates."""


def choose_matching(n_images: int, in_order: bool) -> Matching:
    """Returns which pairs to match: all if there are few photographs; in a video, each frame with those near it."""
    if n_images <= (EXHAUSTIVE_FRAMES if in_order else EXHAUSTIVE_PHOTOS):
        return "exhaustive"
    return "sequential" if in_order else "vocabulary-tree"


class Pipeline:
    """The stages of structure-from-motion. Each runs in a thread, while the calling thread reports its progress."""

    def __init__(self, photos: Path, folder: Path, n_images: int, on_progress: OnStage) -> None:
        import pycolmap

        self.photos, self.n_images, self.on_progress = photos, n_images, on_progress
        self.database, self.images, self.models = folder / "database.db", folder / "images", folder / "models"
        self.n_registered = 0
        self.matching: Matching = "exhaustive"
        self.cancellation = pycolmap.CancellationToken()
        self.threads = min(THREADS_MAX, os.cpu_count() or 1)

    def run(
        self,
        *,
        max_size: int,
        small: bool,
        mode: Literal["SINGLE", "PER_FOLDER", "PER_IMAGE"],
        reader: dict[str, Any],
        matching: Matching,
        seed: int,
    ) -> dict[int, Any]:
        """Runs all stages with COLMAP's options for reading images, and returns the models by index, unsorted.

        `small` says whether photographs have fewer than :data:`SMALL_PIXELS`.
        """
        import pycolmap

        extraction = pycolmap.FeatureExtractionOptions(max_image_size=max_size, num_threads=self.threads, use_gpu=False)
        if small:
            extraction.sift.peak_threshold = PEAK
        mapping = pycolmap.IncrementalPipelineOptions(num_threads=self.threads, random_seed=seed)
        mapping.mapper.random_seed = seed
        mapping.triangulation.random_seed = seed

        def extract() -> None:
            pycolmap.extract_features(
                self.database,
                self.images,
                camera_mode=getattr(pycolmap.CameraMode, mode),
                reader_options=pycolmap.ImageReaderOptions(**reader),
                extraction_options=extraction,
                device=pycolmap.Device.cpu,
                cancellation_token=self.cancellation,
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
            self._run_stage("features", extract, lambda: count("keypoints"), self.n_images)
            self.matching = matching if self._has_features_of_tree() else "exhaustive"
            n_pairs = self._count_pairs()
            self._run_stage("matches", lambda: self._match(seed), lambda: count("two_view_geometries"), n_pairs)
            models: dict[int, Any] = self._run_stage("cameras", reconstruct, lambda: self.n_registered, self.n_images)
            return models

    def add_points(self, model: Any, seed: int) -> Any:
        """Returns a model with the points that COLMAP leaves out, as only two photographs show them, if it has few.

        Training starts from a Gaussian for each point, and cameras stay as they are.
        """
        import pycolmap

        if model.num_points3D() >= POINTS_PER_IMAGE * model.num_reg_images():
            return model
        options = pycolmap.IncrementalPipelineOptions(num_threads=self.threads, random_seed=seed)
        options.triangulation.random_seed = seed
        options.triangulation.ignore_two_view_tracks = False
        folder = self.models / "denser"
        folder.mkdir()

        def triangulate() -> Any:
            return pycolmap.triangulate_points(
                model, self.database, self.images, folder, clear_points=True, options=options, refine_intrinsics=False
            )

        with _silenced_log():
            return self._run_stage("cameras", triangulate, lambda: self.n_registered, self.n_images)

    def count_features(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns, of each photograph by name, the number of its features, and that of photographs that it matches."""
        import pycolmap

        with contextlib.closing(pycolmap.Database.open(self.database)) as database:
            names = {image.image_id: image.name for image in database.read_all_images()}
            features = {name: database.num_keypoints_for_image(i) for i, name in names.items()}
            matches = dict.fromkeys(names.values(), 0)
            for pair, n_inliers in zip(*database.read_two_view_geometry_num_inliers(), strict=True):
                for i in pycolmap.pair_id_to_image_pair(pair):
                    matches[names[i]] += n_inliers > 0
        return features, matches

    def _has_features_of_tree(self) -> bool:
        """Whether there are enough features for a vocabulary tree. With fewer, all pairs are matched in a minute."""
        import pycolmap

        with contextlib.closing(pycolmap.Database.open(self.database)) as database:
            return bool(database.num_descriptors() >= TREE_FEATURES)

    def _count_pairs(self) -> int:
        """Returns the number of pairs that are matched, or one that is not smaller."""
        n = self.n_images
        if self.matching == "vocabulary-tree":
            return min(n * (n - 1) // 2, n * SIMILAR)
        if self.matching == "sequential":
            return n * (OVERLAP + len(self._long_gaps())) + n // LOOP_PERIOD * LOOP_IMAGES
        return n * (n - 1) // 2

    def _long_gaps(self) -> list[int]:
        return [gap for gap in (8, 16, 32, 64, 128, 256, 512, 1024) if gap < self.n_images]

    def _match(self, seed: int) -> None:
        import pycolmap

        verification = pycolmap.TwoViewGeometryOptions()
        verification.ransac.random_seed = seed
        common: dict[str, Any] = dict(
            matching_options=pycolmap.FeatureMatchingOptions(num_threads=self.threads, use_gpu=False),
            verification_options=verification,
            device=pycolmap.Device.cpu,
            cancellation_token=self.cancellation,
        )
        if self.matching == "exhaustive":
            every = pycolmap.ExhaustivePairingOptions(block_size=MATCHING_BLOCK_SIZE)
            pycolmap.match_exhaustive(self.database, pairing_options=every, **common)
            return
        tree = self.database.with_name("words.bin")
        self._build_tree(tree)
        if self.matching == "vocabulary-tree":
            alike = pycolmap.VocabTreePairingOptions(num_images=SIMILAR, vocab_tree_path=tree, num_threads=self.threads)
            pycolmap.match_vocabtree(self.database, pairing_options=alike, **common)
        else:
            near = pycolmap.SequentialPairingOptions(overlap=OVERLAP, quadratic_overlap=False)
            far = pycolmap.SequentialPairingOptions(
                overlap=3 + len(self._long_gaps()),
                loop_detection=True,
                loop_detection_period=LOOP_PERIOD,
                loop_detection_num_images=LOOP_IMAGES,
                vocab_tree_path=tree,
                num_threads=self.threads,
            )
            for pairing in (near, far):
                if not self.cancellation.is_cancelled:
                    pycolmap.match_sequential(self.database, pairing_options=pairing, **common)
        tree.unlink()

    def _build_tree(self, path: Path) -> None:
        """Writes a vocabulary tree of :data:`TREE_WORDS` words, clusters of about as many features of each image."""
        import pycolmap

        parts = []
        with contextlib.closing(pycolmap.Database.open(self.database)) as database:
            every = database.num_descriptors() / TREE_FEATURES
            for image in database.read_all_images():
                found = database.read_descriptors(image.image_id)
                parts.append(found.data[np.arange(0, len(found.data), every).astype(int)])
        features = pycolmap.FeatureDescriptorsFloat(found.type, np.concatenate(parts).astype(np.float32))
        options = pycolmap.VisualIndex.BuildOptions(
            num_visual_words=TREE_WORDS, num_iterations=10, num_rounds=1, num_threads=self.threads
        )
        index = pycolmap.VisualIndex.create(features.data.shape[1], TREE_EMBEDDING)
        index.build(options, features)
        index.write(path)

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
        self.on_progress(stage, total if stage == "matches" else min(done(), total), total)
        return results[0]


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

"""Runs the stages of structure-from-motion with COLMAP on the CPU: features, matches, and cameras.

It uses SIFT features and incremental mapping (Schönberger and Frahm, "Structure-from-Motion Revisited", 2016). The
vocabulary tree is built from features of the photographs, because COLMAP's own would have to be downloaded. Each stage
runs in a separate process, see ``colmap_process.py``.
"""

import collections
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from ...errors import FileError, MissingExtraError
from ...support.output import FULL
from ..option_types import Matching

Mode = Literal["SINGLE", "PER_FOLDER", "PER_IMAGE"]
Stage = Literal["frames", "features", "matches", "cameras"]

OnStage = Callable[[Stage, int, int], None]
"""Called with the stage, the finished amount and the total. The unit depends on the stage: frames, photographs, pairs
of photographs, photographs."""

PROGRAM = Path(__file__).with_name("colmap_process.py")
"""The program that runs a stage."""

THREADS_MAX = 8

MATCHING_BLOCK_SIZE = 5
"""Photographs per block of exhaustive matching; progress advances by blocks."""

EXHAUSTIVE_PHOTOS, EXHAUSTIVE_FRAMES = 200, 30
"""Maximum numbers of photographs, and of video frames, for which exhaustive matching is the default."""

SIMILAR = 40
"""Number of most similar photographs, by the vocabulary tree, that each photograph is matched with."""

OVERLAP = 6
"""Number of following frames that each video frame is matched with, besides the frames 8, 16, 32, ... later."""

LOOP_PERIOD, LOOP_IMAGES = 5, 20
"""Loop closure in videos: every LOOP_PERIOD-th frame is also matched with the LOOP_IMAGES most similar frames."""

TREE_WORDS, TREE_EMBEDDING, TREE_FEATURES = 2560, 64, 102_400
"""Number of words of a vocabulary tree, length of an embedding, and number of features for building it: 40 per word."""

SMALL_PIXELS, PEAK = 300_000, 0.002
"""Number of pixels below which a photograph is small, and the contrast threshold of features in small photographs; it
is 0.0067 in others. Small photographs have few features, and matching them is fast."""

POINTS_PER_IMAGE = 300
"""If a model has fewer points per registered photograph, points that only two photographs show are added."""

POLL_SECONDS = 0.2
"""Interval of progress updates."""

GROWTH_BYTES = 4 << 20
"""After a failure of COLMAP, the disk counts as full if the database cannot grow by this number of bytes."""

LOG_LINES = 200
"""Number of last lines of COLMAP's output that are searched for the reason of a failure."""


def choose_matching(n_images: int, in_order: bool) -> Matching:
    """Chooses the default matching: exhaustive for few photographs, sequential for videos, otherwise the vocabulary
    tree."""
    if n_images <= (EXHAUSTIVE_FRAMES if in_order else EXHAUSTIVE_PHOTOS):
        return "exhaustive"
    return "sequential" if in_order else "vocabulary-tree"


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """Description of a COLMAP model: photograph names, number of points, and mean reprojection error in pixels."""

    names: tuple[str, ...]
    points: int
    error: float


class Pipeline:
    """Runs the stages of structure-from-motion and reports their progress.

    Attributes:
        features: Name of each readable photograph -> number of its features, after :meth:`extract`.
        matches: Name of each photograph -> number of photographs that it matches, after :meth:`match`.
        matching: Method by which pairs were chosen.
    """

    def __init__(self, photos: Path, folder: Path, n_images: int, on_progress: OnStage, seed: int) -> None:
        self.photos, self.n_images, self.on_progress = photos, n_images, on_progress
        self.database, self.images, self.models = folder / "database.db", folder / "images", folder / "models"
        self.common = {
            "database": str(self.database),
            "threads": min(THREADS_MAX, os.cpu_count() or 1),
            "seed": seed,
        }
        self.features: dict[str, int] = {}
        self.matches: dict[str, int] = {}
        self.matching: Matching = "exhaustive"
        self._has_features_of_tree = False

    def extract(self, *, max_size: int, small: bool, mode: Mode, model: str, masks: Path | None) -> None:
        """Extracts the features of photographs that have none yet.

        `small` says whether photographs have fewer than :data:`SMALL_PIXELS` pixels, `mode` which of them share a
        camera, and `model` is COLMAP's camera model.
        """
        request = {"images": str(self.images), "masks": None if masks is None else str(masks), "mode": mode,
                   "model": model, "max_size": max_size, "peak": PEAK if small else None}  # fmt: skip
        counts = self._run("features", request, lambda _: self._count("keypoints"), self.n_images)
        self.features = counts["features"]
        # With fewer features, exhaustive matching takes less than a minute.
        self._has_features_of_tree = counts["descriptors"] >= TREE_FEATURES

    def match(self, matching: Matching) -> None:
        """Matches photographs; exhaustively if there are too few features for a vocabulary tree."""
        self.matching = matching if self._has_features_of_tree else "exhaustive"
        gaps = [gap for gap in (8, 16, 32, 64, 128, 256, 512, 1024) if gap < self.n_images]
        n, block, pairings = self.n_images, None, []
        n_pairs = n * (n - 1) // 2
        if self.matching == "exhaustive":
            block = MATCHING_BLOCK_SIZE
        elif self.matching == "vocabulary-tree":
            pairings = [{"method": "vocabulary-tree", "num_images": SIMILAR}]
            n_pairs = min(n_pairs, n * SIMILAR)
        else:
            loops = {"overlap": 3 + len(gaps), "loop_detection": True, "loop_detection_period": LOOP_PERIOD,
                     "loop_detection_num_images": LOOP_IMAGES}  # fmt: skip
            pairings = [
                {"method": "sequential", "overlap": OVERLAP, "quadratic_overlap": False},
                {"method": "sequential", **loops},
            ]
            n_pairs = n * (OVERLAP + len(gaps)) + n // LOOP_PERIOD * LOOP_IMAGES  # an upper bound
        tree = {"words": TREE_WORDS, "features": TREE_FEATURES, "embedding": TREE_EMBEDDING} if pairings else None
        request = {"block": block, "pairings": pairings, "tree": tree}
        self.matches = self._run("matches", request, lambda _: self._count("two_view_geometries"), n_pairs)

    def reconstruct(self, folder: Path) -> list[Reconstruction]:
        """Computes the models, largest first by the number of photographs, and writes the first one to a folder."""
        request = {"images": str(self.images), "models": str(self.models), "best": str(folder)}
        models = self._run("cameras", request, lambda registered: registered, self.n_images)
        return [_reconstruction(entry) for entry in models]

    def add_points(self, model: Reconstruction, folder: Path) -> tuple[Reconstruction, str]:
        """Adds points that only two photographs show, which COLMAP leaves out, if a model in a folder has few points.

        Training creates a Gaussian for each point. Cameras do not change. Returns the model, and a note if adding
        points failed, in which case the model is unchanged.
        """
        if model.points >= POINTS_PER_IMAGE * len(model.names):
            return model, ""
        denser = self.models / "denser"
        request = {"images": str(self.images), "start": str(folder), "result": str(denser)}
        try:
            extended = _reconstruction(self._run("points", request, lambda _: len(model.names), self.n_images))
        except FileError as error:
            return model, f"added no points of two photographs: {error}"
        # If COLMAP finds no additional points, the first model is kept.
        if extended.points <= model.points or set(extended.names) != set(model.names):
            return model, ""
        shutil.rmtree(folder)
        os.replace(denser, folder)
        return extended, ""

    def _count(self, table: str) -> int:
        """Returns the number of rows of a table of the database; 0 if it is missing or locked."""
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"{self.database.absolute().as_uri()}?mode=ro", uri=True)) as database,
        ):
            return int(database.execute(f"select count(*) from {table}").fetchone()[0])
        return 0

    def _run(self, name: str, request: dict[str, Any], done: Callable[[int], int], total: int) -> Any:
        """Runs a stage and returns its result. `done` converts the number of registered photographs to progress.

        Raises FileError if COLMAP fails or aborts. An interrupt ends the stage's process.
        """
        stage: Any = "cameras" if name == "points" else name
        command = [sys.executable, "-P", str(PROGRAM)]
        with _StageProcess(command, {"stage": name, **self.common, **request}) as answers:
            while not answers.wait(POLL_SECONDS):
                self.on_progress(stage, min(done(answers.registered), total), total)
        answer = answers.answer
        if "result" not in answer:
            raise self._error(stage, answer, answers.returncode, answers.log)
        self.on_progress(stage, total if stage == "matches" else min(done(answers.registered), total), total)
        return answer["result"]

    def _error(self, stage: str, answer: dict[str, Any], returncode: int, log: Sequence[str]) -> Exception:
        """Returns the error to raise for a stage without a result."""
        if answer.get("type") == "MemoryError":
            return MemoryError(answer["error"])
        if answer.get("type") in ("ImportError", "ModuleNotFoundError"):
            return MissingExtraError(
                f"pycolmap cannot be imported ({answer['error']}); run: pip install 'tsplat[train]'"
            )
        reason = answer.get("error") or _reason(log)
        if returncode == -getattr(signal, "SIGKILL", 9):
            reason = "the system killed it, as it does where memory is short; use smaller or fewer photographs"
        elif not reason and returncode < 0:
            reason = f"it crashed ({signal.Signals(-returncode).name})"
        elif not reason:
            reason = f"it ended with status {returncode}"
        problem = f"{self.photos}: COLMAP failed in stage {stage!r}: {reason[:300]}"
        if _is_full(self.database):
            problem += "; the disk of the scene is full or a quota is reached: free some space, or choose another disk"
        return FileError(problem)


class _StageProcess:
    """The process of a stage; a context manager that kills it at the end.

    Attributes:
        registered: Number of registered photographs that the process last sent.
        answer: Last answer of the process; empty if it ended without one.
        log: Last lines that the process printed.
    """

    def __init__(self, command: Sequence[str], request: dict[str, Any]) -> None:
        self.registered = 0
        self.answer: dict[str, Any] = {}
        self.log: collections.deque[str] = collections.deque(maxlen=LOG_LINES)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_log)]
        for reader in self._readers:
            reader.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the exit status explains the failure
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def __enter__(self) -> "_StageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    @property
    def returncode(self) -> int:
        """Exit status, or minus the number of the signal that ended the process."""
        return self._process.wait()

    def wait(self, seconds: float) -> bool:
        """Waits up to a number of seconds, and returns whether the process has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # an incomplete line
                answer = json.loads(line)
                if isinstance(answer, list):
                    self.registered = answer[0]
                else:
                    self.answer = answer

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.decode(errors="replace").strip())


def _reconstruction(entry: dict[str, Any]) -> Reconstruction:
    return Reconstruction(tuple(entry["names"]), entry["points"], entry["error"])


def _reason(log: Sequence[str]) -> str:
    """Returns the reason that COLMAP printed before it aborted: a fatal log message or a C++ exception; else an empty
    string."""
    for pattern in (r"F\d{8} .*?\] (.*)", r"what\(\): +(.*)"):
        for line in log:
            match = re.match(pattern, line)
            if match and match[1]:
                return match[1]
    return ""


def _is_full(database: Path) -> bool:
    """Returns whether a database cannot grow, for example on a full disk, which COLMAP and SQLite do not report."""
    size = database.stat().st_size if database.exists() else 0
    probe = database.with_name("probe")
    try:
        with open(probe, "wb") as file:
            file.truncate(size + GROWTH_BYTES)  # fails if the file size is limited
            file.write(bytes(GROWTH_BYTES))
    except OSError as error:
        return error.errno in FULL
    finally:
        probe.unlink(missing_ok=True)
    return False

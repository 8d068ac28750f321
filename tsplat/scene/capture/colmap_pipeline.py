"""The stages of structure-from-motion with COLMAP on the CPU: features, matches, and cameras.

SIFT features, then incremental mapping (Schönberger and Frahm, "Structure-from-Motion Revisited", 2016). A vocabulary
tree is built from features of the photographs themselves, as COLMAP's own would have to be downloaded. Each stage is a
process, see ``colmap_process.py``.
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

Matching = Literal["exhaustive", "sequential", "vocabulary-tree"]
Mode = Literal["SINGLE", "PER_FOLDER", "PER_IMAGE"]
Stage = Literal["frames", "features", "matches", "cameras"]

OnStage = Callable[[Stage, int, int], None]
"""Called with the stage, the amount done and the total: frames, photographs, pairs of photographs, photographs."""

PROGRAM = Path(__file__).with_name("colmap_process.py")
"""The program that runs a stage."""

THREADS_MAX = 8

MATCHING_BLOCK_SIZE = 5
"""Photographs per block of exhaustive matching, whose progress is that of blocks."""

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

GROWTH_BYTES = 4 << 20
"""Bytes by which the database must be able to grow where COLMAP fails, without which the disk is full."""

LOG_LINES = 200
"""Last lines that COLMAP prints that are searched for a reason."""


def choose_matching(n_images: int, in_order: bool) -> Matching:
    """Returns which pairs to match: all if there are few photographs; in a video, each frame with those near it."""
    if n_images <= (EXHAUSTIVE_FRAMES if in_order else EXHAUSTIVE_PHOTOS):
        return "exhaustive"
    return "sequential" if in_order else "vocabulary-tree"


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """A model that COLMAP found: the names of its photographs, its number of points, and their mean error in pixels."""

    names: tuple[str, ...]
    points: int
    error: float


class Pipeline:
    """The stages of structure-from-motion, whose progress is reported.

    Attributes:
        features: Number of features of each photograph that COLMAP can read, by name, after :meth:`extract`.
        matches: Number of photographs that each matches, by name, after :meth:`match`.
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
        """Extracts features of the photographs that have none yet.

        `small` says whether photographs have fewer than :data:`SMALL_PIXELS`; `mode` which of them share a camera, of
        COLMAP's `model`.
        """
        request = {"images": str(self.images), "masks": None if masks is None else str(masks), "mode": mode,
                   "model": model, "max_size": max_size, "peak": PEAK if small else None}  # fmt: skip
        counts = self._run("features", request, lambda _: self._count("keypoints"), self.n_images)
        self.features = counts["features"]
        # With fewer, all pairs are matched in a minute.
        self._has_features_of_tree = counts["descriptors"] >= TREE_FEATURES

    def match(self, matching: Matching) -> None:
        """Matches photographs; all of them if there are too few features for a vocabulary tree."""
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
            n_pairs = n * (OVERLAP + len(gaps)) + n // LOOP_PERIOD * LOOP_IMAGES  # or fewer
        tree = {"words": TREE_WORDS, "features": TREE_FEATURES, "embedding": TREE_EMBEDDING} if pairings else None
        request = {"block": block, "pairings": pairings, "tree": tree}
        self.matches = self._run("matches", request, lambda _: self._count("two_view_geometries"), n_pairs)

    def reconstruct(self, folder: Path) -> list[Reconstruction]:
        """Returns the models, the one with the most photographs first, which is written to a folder."""
        request = {"images": str(self.images), "models": str(self.models), "best": str(folder)}
        models = self._run("cameras", request, lambda registered: registered, self.n_images)
        return [_reconstruction(entry) for entry in models]

    def add_points(self, model: Reconstruction, folder: Path) -> tuple[Reconstruction, str]:
        """Adds the points to a model in a folder that COLMAP leaves out, as only two photographs show them, if it has
        few. Returns the model, and a note if that fails, which leaves it as it is.

        Training starts from a Gaussian for each point, and cameras stay as they are.
        """
        if model.points >= POINTS_PER_IMAGE * len(model.names):
            return model, ""
        denser = self.models / "denser"
        request = {"images": str(self.images), "start": str(folder), "result": str(denser)}
        try:
            extended = _reconstruction(self._run("points", request, lambda _: len(model.names), self.n_images))
        except FileError as error:
            return model, f"added no points of two photographs: {error}"
        # If COLMAP finds fewer, or none, they were good enough before.
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
        """Runs a stage and returns its result. `done` returns its progress, given the number of registered photographs.

        Raises FileError if COLMAP fails or aborts. An interrupt ends the process.
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
        """Returns the error of a stage that has no result."""
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
    """The process of a stage, which is killed at the end of the block, and its answers.

    Attributes:
        registered: The last number of registered photographs that it sent.
        answer: Its last answer; empty if it ended without one.
        log: The last lines that it printed.
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
        with contextlib.suppress(BrokenPipeError):  # its exit status says more
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
        """Returns whether the process has ended, after waiting for it for some time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # cut off
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
    """Returns what COLMAP printed before it aborted: a fatal error of its log, or an exception of C++; else nothing."""
    for pattern in (r"F\d{8} .*?\] (.*)", r"what\(\): +(.*)"):
        for line in log:
            match = re.match(pattern, line)
            if match and match[1]:
                return match[1]
    return ""


def _is_full(database: Path) -> bool:
    """Returns whether a database cannot grow, as on a full disk, which COLMAP and SQLite do not report."""
    size = database.stat().st_size if database.exists() else 0
    probe = database.with_name("probe")
    try:
        with open(probe, "wb") as file:
            file.truncate(size + GROWTH_BYTES)  # the size of files may be limited
            file.write(bytes(GROWTH_BYTES))
    except OSError as error:
        return error.errno in FULL
    finally:
        probe.unlink(missing_ok=True)
    return False

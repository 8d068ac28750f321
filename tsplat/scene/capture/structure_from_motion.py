"""Structure-from-motion: computes camera poses and sparse points from photographs or a video with COLMAP."""

import dataclasses
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from ...errors import ArgumentError
from ...scalars import check_choice, check_size
from ...support.extras import require, require_ffmpeg, require_installed
from ...support.interruption import exit_on_signals
from ..images import is_marked_panorama, read_image_info
from ..option_types import FITTED_MODELS, MATCHINGS, FittedModel, Matching
from .camera_plot import draw_cameras
from .colmap import PANORAMA
from .colmap_model import read_model
from .colmap_pipeline import SIMILAR, SMALL_PIXELS, Mode, OnStage, Pipeline, Reconstruction, choose_matching
from .source_photographs import (
    Source,
    check_panoramas,
    convert_photographs,
    find_photographs,
    link,
    link_masks,
    mask_panoramas,
)
from .temporary_folders import new_folder
from .video_frames import VIDEO_SUFFIXES, ChosenFrames, extract_frames, is_marked_spherical

SEED_MAX = 2**31 - 1

FEW_FEATURES = 100
"""Number of features below which a photograph probably cannot be registered."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The result of :func:`prepare`.

    Attributes:
        registered: Names of the photographs with a camera pose.
        unregistered: Names of the photographs without one.
        n_points: Number of sparse points.
        error: Mean reprojection error in pixels.
        n_models: Number of disconnected models found; the one with the most photographs is kept.
        notes: Notes for the user, such as skipped photographs, one sentence each.
        reasons: Name of each photograph without a camera pose -> reason and advice.
    """

    registered: tuple[str, ...]
    unregistered: tuple[str, ...]
    n_points: int
    error: float
    n_models: int
    notes: tuple[str, ...] = ()
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)


def prepare(
    photos: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_size: int = 1600,
    single_camera: bool = True,
    camera_model: FittedModel | None = None,
    matching: Matching | Literal["auto"] = "auto",
    frames: int | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_below: float | None = None,
    seed: int = 0,
    on_progress: OnStage | None = None,
) -> Prepared:
    """Computes a COLMAP scene (``images/`` and ``sparse/0/``) from photographs, for :func:`tsplat.scene.read_colmap`.

    ``cameras.png`` in the scene shows the cameras and points from above and from the side. The scene is created in a
    hidden temporary folder and moved at the end, so that ``out`` is complete or absent; a folder that existed before
    stays empty. SIGTERM and SIGHUP remove the temporary folder and exit. The next call with the same ``out`` removes
    leftovers of a killed process.

    All photographs are decoded once before anything is computed. Photographs that cannot be decoded are skipped with a
    note; photographs that COLMAP cannot read, such as WebP, are converted to PNG.

    COLMAP ignores the EXIF orientation, and so does :func:`tsplat.scene.read_colmap`: both use the pixels as stored.

    Args:
        photos: A folder with at least two photographs, or a video whose frames become photographs. Photographs in
            subfolders are used, too, except in folders of other scenes.
        out: The new folder of the scene, or an empty folder, such as a mount point or a link to an empty folder.
            Photographs are hard-linked if possible.
        max_size: Longest side in pixels at which features are extracted. The photographs are not resized.
        single_camera: Whether all photographs in a folder share their intrinsics; otherwise, each photograph has its
            own. Each subfolder is a separate camera.
        camera_model: COLMAP's name of the camera model to estimate; ``"EQUIRECTANGULAR"`` for panoramas of 360 by 180
            degrees, which have no parameters to estimate. None selects it if metadata of the photographs or the video
            mark them as panoramas (GPano or Spherical Video, which 360° cameras and stitching programs write), and
            otherwise ``"SIMPLE_RADIAL"``.
        matching: Photographs that each photograph is matched with. ``"exhaustive"``: all others. ``"sequential"``:
            neighbors in the order of names, some more distant ones, and some that look similar. ``"vocabulary-tree"``:
            the 40 most similar ones. ``"auto"`` is exhaustive for up to 200 photographs or 30 frames of a video; for
            more, it uses the vocabulary tree for photographs, and sequential matching for a video. The tree is built
            from the photographs; if they have fewer features than it needs, 102,400 in total, matching is exhaustive.
        frames: Number of frames to take from a video; fewer if the camera moves little. None for 4 per second, between
            50 and 300. They are selected by sharpness and motion.
        masks: Masks of pixels to ignore, for features and in training: a folder with a mask ``a.png`` or ``a.jpg.png``
            for each ``a.jpg``, or one image for all. White is valid. They become ``masks/`` of the scene.
        mask_below: Angle in degrees below the horizon, the middle row, beyond which panoramas are masked out in
            addition to `masks`, because the operator and the tripod are there.
        seed: Random seed. Results may still vary slightly with several threads.
        on_progress: Called from the calling thread with the progress of each stage.

    Raises:
        FileError: Photographs or masks are missing or cannot be read, COLMAP fails, or ``out`` is not empty, is not
            writable, or is being written by another process.
        ArgumentError: An argument is invalid, photographs in a folder have different sizes with `single_camera`, a mask
            has another size than its photograph, panoramas are not twice as wide as high, or photographs do not overlap
            enough.
        MissingExtraError: pycolmap, Pillow or Matplotlib is not installed, or imageio-ffmpeg for a video.
        OSError: Files cannot be written.
    """
    photos, out = Path(photos), Path(out)
    is_video = photos.is_file() and photos.suffix.lower() in VIDEO_SUFFIXES
    require_installed("pycolmap")  # imported in other processes only
    require("PIL", "matplotlib")
    if is_video:
        require_ffmpeg("videos")
    check_size("max_size", max_size)
    check_choice("camera_model", camera_model, (None, *FITTED_MODELS))
    if mask_below is not None and not 0 <= mask_below < 90:
        raise ArgumentError(f"mask_below: expected degrees under the horizon, from 0 to 90, found {mask_below}")
    check_choice("matching", matching, MATCHINGS)
    if not 0 <= seed <= SEED_MAX:
        raise ArgumentError(f"seed: expected an int from 0 to {SEED_MAX}, found {seed}")
    if frames is not None:
        check_size("frames", frames)
        if not is_video:
            raise ArgumentError(f"frames: only for a video, found {photos}; all photographs of a folder are used")
    masks = None if masks is None else Path(masks)
    report = on_progress or (lambda *_: None)

    with exit_on_signals(), new_folder(out) as folder:
        images, models, sparse = folder / "images", folder / "models", folder / "sparse" / "0"
        if is_video:
            images.mkdir()
            chosen = extract_frames(photos, images, frames, lambda done, total: report("frames", done, total))
            files = {path.name: Source(path, read_image_info(path)) for path in sorted(images.iterdir())}
            notes = _note_frames(photos, chosen)
        else:
            files, notes = find_photographs(
                photos, masks, max_size=max_size, single_camera=single_camera,
                on_decoded=lambda total: report("features", 0, total),
            )  # fmt: skip
            for name, source in files.items():
                link(source.path, images / name)
        if camera_model is None:
            camera_model, model_notes = _choose_model(files.values(), photos if is_video else None)
            notes += model_notes
        if camera_model == PANORAMA:
            check_panoramas(files)
        elif mask_below is not None:
            raise ArgumentError(
                f"mask_below: only for panoramas, camera_model EQUIRECTANGULAR, found {camera_model}; use masks"
            )
        linked_masks = None
        if masks is not None:
            linked_masks = folder / "masks"
            notes += link_masks(masks, linked_masks, files)
        if mask_below is not None:
            linked_masks = folder / "masks"
            mask_panoramas(linked_masks, files, mask_below)
        models.mkdir()
        info = next(iter(files.values())).info
        pipeline = Pipeline(photos, folder, len(files), report, seed)
        for _ in range(2):
            pipeline.extract(
                max_size=max_size,
                small=info.width * info.height < SMALL_PIXELS,
                mode=_camera_mode(files, single_camera),
                model=camera_model,
                masks=linked_masks,
            )
            unread = [name for name in files if name not in pipeline.features]
            if not unread:
                break
            renamed = convert_photographs(unread, images, linked_masks)
            files = {renamed.get(name, name): source for name, source in files.items()}
            notes.append(f"converted {len(unread):,} photographs that COLMAP cannot read to PNG (first: {unread[0]})")
        pipeline.match(choose_matching(len(files), is_video) if matching == "auto" else matching)
        reconstructed = pipeline.reconstruct(sparse)
        if not reconstructed:
            raise ArgumentError(
                f"{photos}: no two of the {len(files):,} photographs overlap enough to estimate their cameras; take "
                "them closer together, include more texture, or raise max_size (--max-size)"
                + "".join(f"; note: {note}" for note in notes)
            )
        best, problem = pipeline.add_points(reconstructed[0], sparse)
        notes += [problem] if problem else []
        if best.points == 0:
            notes.append("there are no points: training starts from random ones")
        reasons = _explain([name for name in files if name not in best.names], pipeline, reconstructed[1:])
        model = read_model(sparse)  # detects truncated files before training does
        try:
            draw_cameras(folder / "cameras.png", model, len(files))
        except Exception as error:  # the plot is optional
            notes.append(f"there is no cameras.png: {error}")
        shutil.rmtree(models)
        for leftover in folder.glob("database.db*"):
            leftover.unlink()
    if matching == "auto" and pipeline.matching == "vocabulary-tree":
        notes.append(
            f"matched each photograph with the {SIMILAR} most similar; matching exhaustive takes all, and longer"
        )
    return Prepared(
        registered=tuple(sorted(best.names)),
        unregistered=tuple(reasons),
        n_points=best.points,
        error=best.error,
        n_models=len(reconstructed),
        notes=tuple(notes),
        reasons=reasons,
    )


def _choose_model(sources: Iterable[Source], video: Path | None) -> tuple[FittedModel, list[str]]:
    """Chooses the camera model from the metadata of photographs or a video; also returns notes about it."""
    if is_marked_spherical(video) if video else all(is_marked_panorama(source.path) for source in sources):
        what = "video says that its frames" if video else "photographs says that they"
        return PANORAMA, [f"the metadata of the {what} are panoramas"]
    is_like_one = all(source.info.width == 2 * source.info.height for source in sources)
    note = "all images are twice as wide as high: if they show 360 degrees, use camera_model EQUIRECTANGULAR"
    return "SIMPLE_RADIAL", [note] if is_like_one else []


def _explain(names: Iterable[str], pipeline: Pipeline, others: Sequence[Reconstruction]) -> dict[str, str]:
    """Returns the name of each unregistered photograph -> reason and advice."""
    reasons = {}
    for name in names:
        n_features = pipeline.features.get(name, 0)
        group = next((model.names for model in others if name in model.names), None)
        if n_features < FEW_FEATURES:
            reason = "few features: blurred, dark, plain or masked; retake it, or raise max_size (--max-size)"
        elif group is not None:
            reason = f"of a group of {len(group)} that does not connect with the rest; take photographs that show both"
        elif not pipeline.matches.get(name):
            reason = "overlaps no other photograph; take more photographs on the way to it"
        else:
            reason = "shares too few points with the others; take more photographs near it"
        if pipeline.matching != "exhaustive" and n_features >= FEW_FEATURES:
            reason += ", or use matching exhaustive"
        reasons[name] = reason
    return reasons


def _note_frames(video: Path, chosen: ChosenFrames) -> list[str]:
    """Returns notes about the frames of a video, after checking that there are enough."""
    damage = f"the video is damaged or ends early ({chosen.damage}); {chosen.n_frames:,} frames of it can be read"
    if len(chosen.frames) < 2:
        raise ArgumentError(
            f"{video}: expected a camera that moves, found {len(chosen.frames)} different frame of {chosen.n_frames}; "
            + (damage if chosen.damage else "walk around the object")
        )
    notes = [damage] if chosen.damage else []
    notes.append(f"chose {len(chosen.frames)} of {chosen.n_frames:,} frames by sharpness and motion")
    if chosen.cuts:
        others = f" and {len(chosen.cuts) - 1} more" if len(chosen.cuts) > 1 else ""
        notes.append(f"the video has a cut at frame {chosen.cuts[0]}{others}; parts that share nothing do not connect")
    return notes


def _camera_mode(names: Iterable[str], single_camera: bool) -> Mode:
    if not single_camera:
        return "PER_IMAGE"
    return "SINGLE" if len({Path(name).parent for name in names}) == 1 else "PER_FOLDER"

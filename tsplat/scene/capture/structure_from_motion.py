"""Structure-from-motion: computes camera poses and sparse points from photographs or a video, with COLMAP."""

import dataclasses
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from ...arguments import check_choice, check_size
from ...errors import ArgumentError, FileError
from ...support.extras import require, require_ffmpeg
from ...support.files import output_folder
from ...support.interruption import exit_on_signals
from ..images import read_image_info
from .camera_plot import draw_cameras
from .colmap import PINHOLE_MODELS, find_mask
from .colmap_pipeline import SIMILAR, SMALL_PIXELS, Matching, OnStage, Pipeline, choose_matching
from .photographs import UNSUPPORTED_SUFFIXES
from .temporary_folders import OWNER, temporary_folder
from .video_frames import VIDEO_SUFFIXES, Chosen, extract_frames

CameraModel = Literal["SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV"]
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
SEED_MAX = 2**31 - 1
MATCHINGS = ("auto", *get_args(Matching))

FEW_FEATURES = 100
"""Features below which a photograph shows too little to be registered."""


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
        reasons: Name of each photograph without a camera pose -> why, and what to do.
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
    camera_model: CameraModel = "SIMPLE_RADIAL",
    matching: Matching | Literal["auto"] = "auto",
    frames: int | None = None,
    masks: str | os.PathLike[str] | None = None,
    seed: int = 0,
    on_progress: OnStage | None = None,
) -> Prepared:
    """Computes a COLMAP scene (``images/`` and ``sparse/0/``) from photographs, for :func:`tsplat.scene.read_colmap`.

    ``cameras.png`` in the scene shows the cameras and points from above and from the side. The scene is created in a
    hidden temporary folder next to ``out`` and renamed at the end, so ``out`` is complete or absent. SIGTERM and SIGHUP
    remove the folder and exit. The next call with the same ``out`` removes what a killed process has left.

    COLMAP ignores the EXIF orientation, and so does :func:`tsplat.scene.read_colmap`: both use the pixels as stored.

    Args:
        photos: A folder with at least two photographs, or a video, of which frames become photographs. Photographs in
            subfolders are used, too, but not those in other scenes; those that COLMAP cannot read, such as HEIC, are
            skipped with a note.
        out: The new folder of the scene; may exist if it is empty. Photographs are hard-linked if possible.
        max_size: Longest side in pixels at which features are extracted. The photographs are not resized.
        single_camera: Whether all photographs of a folder share their intrinsics; otherwise each has its own. Each
            subfolder is a camera of its own.
        camera_model: COLMAP's name of the camera model to estimate.
        matching: What each photograph is matched with: ``"exhaustive"``, all others; ``"sequential"``, those near in
            the order of names, some at a distance, and some that look alike; ``"vocabulary-tree"``, the 40 that look
            most alike. ``"auto"`` is exhaustive for up to 200 photographs or 30 frames of a video; above, it is the
            vocabulary tree for photographs, and sequential for a video. The tree is built from the photographs. If
            these have fewer features than it needs, 102,400 altogether, matching is exhaustive.
        frames: Number of frames of a video, fewer if it does not move as much; None for 4 per second, 50 to 300. They
            are chosen by sharpness and motion.
        masks: Where no features are extracted and nothing is trained: a folder with a mask ``a.png`` or ``a.jpg.png``
            of each ``a.jpg``, or one image for all. White is valid. They become ``masks/`` of the scene.
        seed: Random seed. Results may still vary slightly with several threads.
        on_progress: Called from the calling thread with the progress of each stage.

    Raises:
        FileError: Photographs or masks are missing or cannot be read, COLMAP fails, or ``out`` is not empty.
        ArgumentError: An invalid argument, photographs of several sizes in a folder with `single_camera`, a mask of
            another size than its photograph, or photographs that do not overlap enough.
        MissingExtraError: pycolmap, Pillow or Matplotlib is not installed, or imageio-ffmpeg for a video.
        OSError: Files cannot be written.
    """
    photos, out = Path(photos), Path(out)
    is_video = photos.is_file() and photos.suffix.lower() in VIDEO_SUFFIXES
    require("pycolmap", "PIL", "matplotlib")
    if is_video:
        require_ffmpeg("videos")
    check_size("max_size", max_size)
    check_choice("camera_model", camera_model, tuple(PINHOLE_MODELS))
    check_choice("matching", matching, MATCHINGS)
    if not 0 <= seed <= SEED_MAX:
        raise ArgumentError(f"seed: expected an int from 0 to {SEED_MAX}, found {seed}")
    if frames is not None:
        check_size("frames", frames)
        if not is_video:
            raise ArgumentError(f"frames: only for a video, found {photos}; all photographs of a folder are used")
    files, notes = ({}, []) if is_video else _find_photographs(photos, single_camera, masks)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileError(f"{out}: already exists and is not an empty folder; choose another folder")
    report = on_progress or (lambda *_: None)

    with exit_on_signals(), output_folder(out.parent), temporary_folder(out) as folder:
        images, models = folder / "images", folder / "models"
        images.mkdir()
        models.mkdir()
        if is_video:
            chosen = extract_frames(photos, images, frames, lambda done, total: report("frames", done, total))
            files = {path.name: path for path in sorted(images.iterdir())}
            notes = _note_frames(photos, chosen)
        else:
            for name, file in files.items():
                _link(file, images / name)
        if masks is not None:
            notes += _link_masks(Path(masks), folder / "masks", files)
        info = read_image_info(next(iter(files.values())))
        pipeline = Pipeline(photos, folder, len(files), report)
        found = pipeline.run(
            max_size=max_size,
            small=info.width * info.height < SMALL_PIXELS,
            mode=_camera_mode(files, single_camera),
            reader={"camera_model": camera_model, **({} if masks is None else {"mask_path": folder / "masks"})},
            matching=choose_matching(len(files), is_video) if matching == "auto" else matching,
            seed=seed,
        )
        if not found:
            raise ArgumentError(
                f"{photos}: no two of the {len(files)} photographs overlap enough to estimate their cameras; take them "
                "closer together, include more texture, or raise max_size"
            )
        best = max(found, key=lambda i: (found[i].num_reg_images(), found[i].num_points3D(), -i))
        model, groups = found.pop(best), [_names(group) for group in found.values()]
        names = _names(model)
        model = pipeline.add_points(model, seed)
        reasons = _explain([name for name in files if name not in names], pipeline, groups)
        sparse = folder / "sparse" / "0"
        sparse.mkdir(parents=True)
        model.write_binary(str(sparse))
        draw_cameras(folder / "cameras.png", model, len(files))
        shutil.rmtree(models)
        for leftover in (*folder.glob("database.db*"), folder / OWNER):
            leftover.unlink()
        if out.exists():
            out.rmdir()
        os.replace(folder, out)
    if matching == "auto" and pipeline.matching == "vocabulary-tree":
        notes.append(
            f"matched each photograph with the {SIMILAR} most similar; matching exhaustive takes all, and longer"
        )
    return Prepared(
        registered=tuple(sorted(names)),
        unregistered=tuple(reasons),
        n_points=model.num_points3D(),
        error=model.compute_mean_reprojection_error(),
        n_models=len(groups) + 1,
        notes=tuple(notes),
        reasons=reasons,
    )


def _names(model: Any) -> set[str]:
    """Returns the names of the photographs that are registered in a model of COLMAP."""
    return {model.image(i).name for i in model.reg_image_ids()}


def _explain(names: Iterable[str], pipeline: Pipeline, groups: Sequence[set[str]]) -> dict[str, str]:
    """Returns why photographs are not registered and what to do, by name."""
    features, matches = pipeline.count_features()
    reasons = {}
    for name in names:
        group = next((group for group in groups if name in group), None)
        if features.get(name, 0) < FEW_FEATURES:
            reason = "few features: blurred, dark, plain or masked; take it again, or raise max_size"
        elif group is not None:
            reason = f"of a group of {len(group)} that does not connect with the rest; take photographs that show both"
        elif matches[name] == 0:
            reason = "overlaps no other photograph; take more photographs on the way to it"
        else:
            reason = "shares too few points with the others; take more photographs near it"
        if pipeline.matching != "exhaustive" and features.get(name, 0) >= FEW_FEATURES:
            reason += ", or use matching exhaustive"
        reasons[name] = reason
    return reasons


def _note_frames(video: Path, chosen: Chosen) -> list[str]:
    """Returns notes on the frames of a video, after checking that there are enough."""
    if len(chosen.frames) < 2:
        raise ArgumentError(
            f"{video}: expected a camera that moves, found {len(chosen.frames)} different frame of {chosen.n_frames}; "
            "walk around what is to be shown"
        )
    notes = [f"chose {len(chosen.frames)} of {chosen.n_frames} frames by sharpness and motion"]
    if chosen.cuts:
        others = f" and {len(chosen.cuts) - 1} more" if len(chosen.cuts) > 1 else ""
        notes.append(f"the video has a cut at frame {chosen.cuts[0]}{others}; parts that share nothing do not connect")
    return notes


def _camera_mode(names: Iterable[str], single_camera: bool) -> Literal["SINGLE", "PER_FOLDER", "PER_IMAGE"]:
    if not single_camera:
        return "PER_IMAGE"
    return "SINGLE" if len({Path(name).parent for name in names}) == 1 else "PER_FOLDER"


def _link_masks(masks: Path, folder: Path, files: dict[str, Path]) -> list[str]:
    """Links the masks of photographs to where COLMAP and training find them: ``a.jpg.png`` in a folder.

    COLMAP needs one of each photograph: those that have none get a white one, of which a note is returned.
    """
    from PIL import Image

    if not masks.exists():
        raise FileError(f"{masks}: no such file or folder; expected masks")
    lacking = []
    for name, file in files.items():
        mask, target = masks if masks.is_file() else find_mask(masks, name), folder / f"{name}.png"
        info = read_image_info(file)
        if mask is None:
            lacking.append(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (info.width, info.height), 255).save(target)
            continue
        found = read_image_info(mask)
        if (found.width, found.height) != (info.width, info.height):
            raise ArgumentError(
                f"{mask}: expected a mask of the size of {name}, {info.width}×{info.height}, found "
                f"{found.width}×{found.height}"
            )
        _link(mask, target)
    if len(lacking) == len(files):
        raise FileError(f"{masks}: expected masks such as {lacking[0]}.png, found none")
    return [f"{len(lacking)} photographs have no mask: all their pixels count (first: {lacking[0]})"] if lacking else []


def _find_photographs(
    photos: Path, single_camera: bool, masks: str | os.PathLike[str] | None
) -> tuple[dict[str, Path], list[str]]:
    """Returns the photographs in a folder by name, in order, after checking that they can be used; and notes.
    Subfolders are searched, but not those of masks, of scenes, and hidden ones."""
    if not photos.is_dir():
        raise FileError(f"{photos}: no such folder; videos end in {', '.join(VIDEO_SUFFIXES)}")
    visible: list[Path] = []
    for parent, folders, names in os.walk(photos):
        folders[:] = [name for name in folders if _has_photographs(Path(parent, name), masks)]
        visible += [Path(parent, name) for name in names if not name.startswith(".")]
    visible.sort(key=lambda path: path.relative_to(photos).as_posix())
    files = {path.relative_to(photos).as_posix(): path for path in visible if path.suffix.lower() in SUFFIXES}
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
    cameras: defaultdict[str, list[Path]] = defaultdict(list)
    for name, path in files.items():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise FileError(f"{path}: expected a name in UTF-8, which COLMAP needs; rename it") from error
        cameras[Path(name).parent.as_posix()].append(path)
    infos = {path: read_image_info(path) for path in files.values()}
    for camera, paths in cameras.items():
        sizes = Counter((infos[path].width, infos[path].height) for path in paths)
        if single_camera and len(sizes) > 1:
            found = ", ".join(f"{count} of {width}×{height}" for (width, height), count in sizes.most_common(4))
            raise ArgumentError(
                f"{photos / camera}: expected photographs of one size from a single camera, found {found}; put those "
                "of each camera into a subfolder, or pass single_camera=False (--no-single-camera)"
            )
    if single_camera and len(cameras) > 1:
        shown = ", ".join(f"{name} ({len(paths)})" for name, paths in list(cameras.items())[:5])
        notes.append(f"{len(cameras)} cameras, one of each folder: {shown}{', …' if len(cameras) > 5 else ''}")
    return files, notes


def _has_photographs(folder: Path, masks: str | os.PathLike[str] | None) -> bool:
    """Whether a subfolder may have photographs: it is not hidden, and holds neither masks nor a scene."""
    if folder.name.startswith(".") or (folder / "sparse").is_dir():
        return False
    return masks is None or folder.resolve() != Path(masks).resolve()


def _link(file: Path, target: Path) -> None:
    """Creates a hard link, or a copy where that is not possible, and the folder that it is in."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)

"""Handles properties beyond 3D Gaussians: rejects those of other methods by name, and notes others that are ignored."""

import re
from collections.abc import Callable, Iterable, Sequence

from ...errors import UnsupportedError
from ...support.suggestions import list_names

Warn = Callable[[str], object]
"""Called with a note of one line, without a newline."""

NAMES_MAX = 5
"""Maximum number of names in a message."""

NAME_MAX = 40
"""Maximum number of characters of a name in a message."""

HARMLESS = re.compile(r"n[xyz]|normal_[xyz]|[stuv]|[rgba]|red|green|blue|alpha|diffuse_(red|green|blue)")
"""Vertex properties that other programs copy and that do not affect the rendering of 3D Gaussians."""

METHODS = (
    (
        re.compile(
            r"t|mu_t|t_center|t_scale|(scale|scaling)_t(_\d+)?|time|duration|_?opacity_time|(rot|rotation)_[lr]_\d+"
            r"|rot_([4-9]|[1-9]\d+)|delta_\w+_t\d+|xyz_t_\d+|vel_[xyz]|(xyz|rot)_motion_\w+"
            r"|(motion|omega|velocity|acceleration|trbf|f_t)_\w+"
        ),
        "4D Gaussians, which change over time,",
        "export one frame as 3D Gaussians",
    ),
    (
        re.compile(r"f_anchor_feat_\d+|f_offset_\d+"),
        "anchors of neural Gaussians (Scaffold-GS)",
        "export explicit 3D Gaussians",
    ),
    (re.compile(r"beta|sb_params_\d+"), "Beta kernels (Deformable Beta Splatting)", "train 3D Gaussians"),
    (re.compile(r"shape"), "generalized exponential functions (GES)", "train 3D Gaussians"),
    (re.compile(r"textures?_(\w+_)?\d+"), "textured Gaussians", "train 3D Gaussians"),
    (re.compile(r"scale_([3-9]|[1-9]\d+)"), "Gaussians with more than three scales", "export 3D Gaussians"),
)
"""Pattern of property names, the method that uses them, and advice."""


def check_method(path: str, names: Sequence[str]) -> None:
    """Raises UnsupportedError if the vertices of a PLY have properties of a method other than 3D Gaussians."""
    if "s" in names:  # s and t are texture coordinates
        names = [name for name in names if name != "t"]
    for pattern, method, advice in METHODS:
        if unsupported := [name for name in names if pattern.fullmatch(name)]:
            raise UnsupportedError(
                f"{path}: its vertices have {listed(unsupported)}: reading {method} is not implemented; {advice}"
            )


def note_ignored(path: object, what: str, names: Iterable[str], warn: Warn) -> None:
    """Calls `warn` with a note about data in a file that 3D Gaussians do not have, if there are any names."""
    if ignored := list(names):
        warn(f"{path}: ignored {what} {listed(ignored)}; only 3D Gaussians are read")


def listed(names: Sequence[str]) -> str:
    """Lists the first few names for a message. Names from damaged files may be long or unprintable."""
    return list_names([(n if n.isprintable() and n else ascii(n))[:NAME_MAX] for n in names], NAMES_MAX)

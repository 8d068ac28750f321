"""Random cases for properties of rasterization.

A case is plain data, so that failed cases can be saved as small files and replayed by tests.
"""

import dataclasses
import random
from collections.abc import Collection
from typing import Any

from tests.support import scenes

NUMERICS = ("gsplat-1.5", "gsplat-1.6", "inria")

BEHIND = -10.0
"""A near plane behind the camera and all Gaussians."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A scene's structure and the settings of the call. Properties derive everything else from the seed."""

    structure: scenes.Structure
    mode: dict[str, Any]
    layout: dict[str, Any]

    @property
    def seed(self) -> int:
        return self.structure.seed

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Case":
        structure = dict(values["structure"], batch=tuple(values["structure"]["batch"]))
        return Case(scenes.Structure(**structure), values["mode"], values["layout"])

    def simpler(self) -> list["Case"]:
        """Returns cases with one simplification each."""
        s = self.structure
        changes: list[dict[str, Any]] = [
            dict(n=s.n // 2), dict(n=s.n - 1), dict(cameras=1), dict(batch=()), dict(channels=1), dict(sh_degree=None),
            dict(per_camera_colors=False), dict(covars=False), dict(backgrounds=False), dict(spare_bases=0),
            dict(camera_model="pinhole"),
            dict(width=max(s.width // 2, 1)), dict(height=max(s.height // 2, 1)),
        ]  # fmt: skip
        structures = [dataclasses.replace(s, **change) for change in changes if change.get("n", 1) >= 1]
        modes = [{k: v for k, v in self.mode.items() if k != name} for name in self.mode]
        return [dataclasses.replace(self, structure=new) for new in structures if new != s] + [
            dataclasses.replace(self, mode=mode) for mode in modes
        ]


def draw(seed: int, *, max_n: int = 20, max_pixels: int = 24) -> Case:
    """Draws a random case; the same seed gives the same case."""
    r = random.Random(seed)
    sh_degree = r.choice([None, 0, 1, 2, 3, 4])
    structure = scenes.Structure(
        n=r.randint(1, max_n),
        cameras=r.randint(1, 3),
        batch=r.choice([(), (), (1,), (2,), (2, 1)]),
        channels=3 if sh_degree is not None else r.choice([1, 2, 3, 5, 7, 9]),
        sh_degree=sh_degree,
        spare_bases=r.randint(0, 2),
        per_camera_colors=r.random() < 0.4,
        covars=r.random() < 0.3,
        backgrounds=r.random() < 0.5,
        width=r.randint(1, max_pixels),
        height=r.randint(1, max_pixels),
        size=r.choice([0.3, 1.0, 3.0, 8.0]),
        seed=seed,
    )
    mode = dict(
        render_mode=r.choice(["RGB", "D", "ED", "RGB+D", "RGB+ED"]),
        rasterize_mode=r.choice(["classic", "antialiased"]),
        numerics=r.choice(NUMERICS),
        eps2d=r.choice([0.1, 0.3, 1.0]),
        radius_clip=r.choice([0.0, 0.0, 3.0]),
        near_plane=r.choice([0.01, 0.01, 2.5]),
        far_plane=r.choice([5.0, 1e10, 1e10]),
    )
    layout = dict(
        packed=r.random() < 0.5, tile_size=r.choice([4, 8, 16]), channel_chunk=r.choice([1, 2, 32]),
        absgrad=r.random() < 0.3,
    )  # fmt: skip
    if r.random() > 0.7:
        structure = dataclasses.replace(structure, camera_model=r.choice(["ortho", "fisheye"]))
        mode["near_plane"] = r.choice([mode["near_plane"], BEHIND])
    return Case(structure, mode, layout)


def _sets(count: int, **options: list[Any]) -> list[dict[str, Any]]:
    """Draws sets of options in which all values of an option are about equally frequent."""
    r = random.Random(count)
    columns = {name: (values * count)[:count] for name, values in options.items()}
    for column in columns.values():
        r.shuffle(column)
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


COMPOSITING_IN_TESTS = _sets(
    12,
    render_mode=["RGB", "RGB+D", "D", "ED", "RGB+ED"],
    tile_size=[4, 8, 16],
    channel_chunk=[32, 32, 1, 2],
    absgrad=[True, False, False],
    backgrounds=[True, False],
    channels=[3, 3, 3, 3, 3, 3, 3, 3, 1, 2, 5, 9],
)
PROJECTION_IN_TESTS = _sets(
    9,
    rasterize_mode=["classic", "antialiased"],
    camera_model=["pinhole", "pinhole", "pinhole", "ortho", "fisheye"],
    covars=[False, False, True],
    packed=[True, False],
)
SHADING_IN_TESTS = _sets(5, sh_degree=[0, 1, 2, 3, 4], spare_bases=[0, 1, 2], per_camera_colors=[True, False])
"""Sets of options for which kernels are compiled, by stage; the first two cycle through the values of `numerics`."""


def draw_for_tests(seed: int) -> Case:
    """Draws a random case, with few sets of the options for which kernels are compiled.

    Compiling takes most of the tests' time. Each stage has its own sets, and cases combine the sets of all stages.
    `make fuzz` draws the options of each case independently.
    """
    case, numerics = draw(seed), seed % 3
    options = SHADING_IN_TESTS[seed % 5] | dict(numerics=NUMERICS[numerics])
    options |= (
        COMPOSITING_IN_TESTS[3 * (seed // 3 % 4) + numerics] | PROJECTION_IN_TESTS[3 * (seed // 3 % 3) + numerics]
    )
    if options["channels"] != 3:
        options["sh_degree"] = None
    structure = dataclasses.replace(case.structure, **_known(options, dataclasses.asdict(case.structure)))
    mode, layout = case.mode | _known(options, case.mode), case.layout | _known(options, case.layout)
    if structure.camera_model == "pinhole":
        mode["near_plane"] = max(mode["near_plane"], 0.01)
    elif seed // 9 % 2:
        mode["near_plane"] = BEHIND
    return Case(structure, mode, layout)


def _known(options: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}

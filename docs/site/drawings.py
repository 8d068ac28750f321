"""Draws the figures of the documentation when the site is built, each in a light and a dark version.

The figures are computed where possible: tsplat renders the projected Gaussian, and the arrows between packages are the
imports in the source code.
"""

import ast
import itertools
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, FancyArrowPatch, FancyBboxPatch, Rectangle

from tsplat import fully_fused_projection, quat_scale_to_covar_preci, rasterization

PACKAGE = Path(__file__).parents[2] / "tsplat"
THEMES = {
    "light": {"line": "#2b2f36", "faint": "#b9bec7", "fill": "#f1f3f6", "blue": "#1f6feb", "red": "#d1343f",
              "green": "#1a8a3c", "orange": "#c2620a", "back": (1.0, 1.0, 1.0)},
    "dark": {"line": "#d7dbe0", "faint": "#555b66", "fill": "#24282f", "blue": "#6cb0ff", "red": "#ff7b82",
             "green": "#5fd07f", "orange": "#f5a55a", "back": (0.075, 0.086, 0.094)},
}  # fmt: skip


def draw_all(folder):
    """Writes all figures as `NAME-THEME.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 10, "svg.hashsalt": "tsplat"}):
        for theme, colors in THEMES.items():
            for draw in (draw_frames, draw_pixels, draw_units, draw_rotation, draw_packages, draw_pipeline):
                figure = draw(colors)
                name = draw.__name__.removeprefix("draw_")
                figure.savefig(folder / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})


def canvas(width, height, xlim, ylim, *, y_down=False):
    """Returns a figure of a size in inches and its axes, without ticks, with equal units on both axes."""
    figure = Figure((width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=xlim, ylim=ylim[::-1] if y_down else ylim, aspect="equal")
    axes.axis("off")
    return figure, axes


def arrow(axes, start, end, color, **options):
    settings = {"arrowstyle": "-|>", "mutation_scale": 14, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0} | options
    axes.add_patch(FancyArrowPatch(start, end, color=color, **settings))


def covariance_ellipse(mean, covariance, n_sigma=1.0, **options):
    """Returns the ellipse of points at `n_sigma` standard deviations from the mean of a 2D Gaussian."""
    values, vectors = np.linalg.eigh(covariance)
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    return Ellipse(mean, 2 * n_sigma * values[1] ** 0.5, 2 * n_sigma * values[0] ** 0.5, angle=angle, **options)


def draw_frames(colors):
    """Draws the world frame and the camera frame, which `viewmats` and `Ks` relate."""
    figure, axes = canvas(7.6, 4.6, (-1.5, 8.3), (-2.9, 3.1))
    # An oblique view of space: x right, y down, z into the page, up and to the right.
    basis = np.array([[1.0, 0.0], [0.0, -1.0], [0.95, 0.28]])

    def at(x, y, z):
        return tuple(np.array([x, y, z], float) @ basis)

    focal, half = 3.4, (1.6, 1.2)
    corners = [at(sx * half[0], sy * half[1], focal) for sx, sy in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    for corner in corners:
        axes.plot(*zip(at(0, 0, 0), corner), color=colors["faint"], linewidth=1)
    axes.add_patch(matplotlib.patches.Polygon(corners, facecolor=colors["fill"], edgecolor=colors["line"], alpha=0.85))
    axes.text(corners[2][0] - 0.1, corners[2][1] + 0.12, "image", ha="right", color=colors["line"])

    for end, label, color, offset in (
        ((1.7, 0, 0), "x right", "red", (-0.75, -0.3)),
        ((0, 1.7, 0), "y down", "green", (0.1, -0.1)),
        ((0, 0, 5.6), "z forward", "blue", (0.12, -0.1)),
    ):
        arrow(axes, at(0, 0, 0), at(*end), colors[color], zorder=4)
        x, y = at(*end)
        axes.text(x + offset[0], y + offset[1], label, color=colors[color], fontweight="bold")
    axes.text(-0.12, 0.12, "camera", ha="right", color=colors["line"], fontweight="bold")

    mean = (0.8, -1.0, 5.0)
    pixel = tuple(focal * c / mean[2] for c in mean[:2])
    axes.plot(*zip(at(0, 0, 0), at(*mean)), color=colors["orange"], linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    axes.add_patch(Ellipse(at(*mean), 1.2, 0.65, angle=25, color=colors["orange"], alpha=0.55, zorder=4))
    axes.plot(*at(*mean), "o", color=colors["orange"], markersize=4, zorder=5)
    axes.plot(*at(*pixel, focal), "o", color=colors["orange"], markersize=5, zorder=5)
    axes.annotate("means2d", at(*pixel, focal), (-66, 14), textcoords="offset points", color=colors["orange"],
                  arrowprops={"arrowstyle": "-", "color": colors["orange"], "lw": 0.8})  # fmt: skip
    axes.annotate("means", at(*mean), (34, 6), textcoords="offset points", color=colors["orange"])

    origin = np.array([6.9, -2.1])
    for end, label in (((0.9, 0.0), "x"), ((0.35, 0.5), "y"), ((0.0, 0.95), "z")):
        arrow(axes, origin, origin + end, colors["line"])
        axes.text(*(origin + np.array(end) * 1.18 - (0.05, 0.08)), label, color=colors["line"])
    axes.text(origin[0] - 0.1, origin[1] - 0.45, "world (any)", color=colors["line"], fontweight="bold")
    arrow(axes, (6.5, -2.0), (0.35, -2.0), colors["faint"], connectionstyle="arc3,rad=-0.15", linewidth=1.4)
    axes.text(3.4, -2.85, "viewmats: world to camera", ha="center", color=colors["line"])
    return figure


def draw_pixels(colors):
    """Draws the pixel coordinates of an image."""
    width, height = 8, 5
    figure, axes = canvas(7.2, 3.7, (-0.9, 14.2), (-0.9, 6.2), y_down=True)
    for x in range(width + 1):
        axes.plot([x, x], [0, height], color=colors["faint"], linewidth=1)
    for y in range(height + 1):
        axes.plot([0, width], [y, y], color=colors["faint"], linewidth=1)
    axes.add_patch(Rectangle((0, 0), 1, 1, facecolor=colors["orange"], alpha=0.35))
    axes.add_patch(Rectangle((6, 3), 1, 1, facecolor=colors["blue"], alpha=0.3))
    for x, y in itertools.product(range(width), range(height)):
        axes.plot(x + 0.5, y + 0.5, "o", color=colors["faint"], markersize=2.5)
    arrow(axes, (0, 0), (9.2, 0), colors["red"])
    arrow(axes, (0, 0), (0, 5.9), colors["green"])
    axes.text(9.35, 0.12, "x", color=colors["red"], fontweight="bold")
    axes.text(0.2, 5.9, "y", color=colors["green"], fontweight="bold")
    notes = {
        (0.5, 0.5): ("center of the first pixel\n(0.5, 0.5)", "orange"),
        (4.0, 2.5): ("principal point of a centered\ncamera: (width / 2, height / 2)", "line"),
        (6.5, 3.5): ("center of image[..., 3, 6, :]\n(6.5, 3.5)", "blue"),
    }
    for row, (point, (text, color)) in enumerate(notes.items()):
        y = 0.9 + 1.6 * row
        axes.plot(*point, "o", color=colors[color], markersize=5)
        axes.plot([point[0], 8.7], [point[1], y], color=colors[color], linewidth=0.8)
        axes.text(8.85, y, text, color=colors[color], va="center", fontsize=9)
    axes.text(-0.1, -0.3, "(0, 0)", ha="center", color=colors["line"], fontsize=9)
    axes.text(width + 0.1, height + 0.3, "(width, height)", color=colors["line"], fontsize=9)
    return figure


def draw_units(colors):
    """Draws a rendered Gaussian with the values that the stages return for it."""
    width, height, focal, depth = 64, 48, 80.0, 4.0
    quats = torch.tensor([[0.9, 0.1, 0.2, 0.35]])
    scene = dict(means=torch.tensor([[0.2, 0.1, depth]]), quats=quats, scales=torch.tensor([[0.32, 0.13, 0.1]]))
    camera = dict(
        viewmats=torch.eye(4)[None], Ks=torch.tensor([[[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]])
    )
    size = dict(width=width, height=height)
    opacities = torch.tensor([0.9])
    color = torch.tensor([matplotlib.colors.to_rgb(colors["orange"])])
    image, _, meta = rasterization(
        **scene, **camera, **size, opacities=opacities, colors=color, backgrounds=torch.tensor([colors["back"]])
    )
    radii, means2d, _, conics, _ = fully_fused_projection(
        **scene, covars=None, **camera, **size, opacities=opacities, eps2d=0.3
    )
    (x, y), (rx, ry) = means2d[0, 0].tolist(), radii[0, 0].tolist()
    a, b, c = conics[0, 0].tolist()
    covariance = np.linalg.inv([[a, b], [b, c]])

    figure, axes = canvas(6.8, 4.4, (-3, width + 22), (-4, height + 4), y_down=True)
    axes.imshow(image[0].clamp(0, 1), extent=(0, width, height, 0), interpolation="nearest")
    tile = meta["tile_size"]
    for column in range(0, width + 1, tile):
        axes.plot([column, column], [0, height], color=colors["green"], linewidth=0.6)
    for row in range(0, height + 1, tile):
        axes.plot([0, width], [row, row], color=colors["green"], linewidth=0.6)
    axes.add_patch(Rectangle((x - rx, y - ry), 2 * rx, 2 * ry, fill=False, edgecolor=colors["blue"], linewidth=1.6))
    axes.add_patch(covariance_ellipse((x, y), covariance, edgecolor=colors["red"], fill=False, linewidth=1.6))
    axes.plot(x, y, "o", color=colors["line"], markersize=4)
    right = width + 2
    for row, (text, name) in enumerate(
        (
            (f"means2d\n({x:.1f}, {y:.1f}) pixels", "line"),
            (f"radii\n({rx}, {ry}) pixels", "blue"),
            ("conics: inverse of the\ncovariance, 1 / pixels²\n(ellipse: 1 std. dev.)", "red"),
            (f"tiles_per_gauss\n{int(meta['tiles_per_gauss'][0])} tiles of {tile}×{tile} pixels", "green"),
            (f"depths\n{meta['depths'][0]:.1f} world units", "line"),
        )
    ):
        axes.text(right, 4 + row * 10, text, color=colors[name], fontsize=9, va="center")
    return figure


def draw_rotation(colors):
    """Draws a Gaussian before and after its rotation, to explain quaternions and scales."""
    degrees, scales = 30.0, torch.tensor([[1.6, 0.7, 0.4]])
    half = np.radians(degrees) / 2
    figure, axes = canvas(7.4, 2.9, (-2.6, 9.0), (-2.0, 2.3))
    quaternions = {"quats = (1, 0, 0, 0)": (1.0, 0.0, 0.0, 0.0),
                   "quats = (cos 15°, 0, 0, sin 15°)": (np.cos(half), 0.0, 0.0, np.sin(half))}  # fmt: skip
    for x, (title, quaternion), angle in zip((0.0, 6.0), quaternions.items(), (0.0, degrees)):
        covars, _ = quat_scale_to_covar_preci(torch.tensor([quaternion], dtype=torch.float32), scales)
        covariance = covars[0, :2, :2].numpy()
        for n_sigma, alpha in ((1.0, 0.45), (2.0, 0.18)):
            axes.add_patch(covariance_ellipse((x, 0), covariance, n_sigma=n_sigma * 0.75, color=colors["orange"],
                                              alpha=alpha, linewidth=0))  # fmt: skip
        directions = np.array([[np.cos(np.radians(angle)), np.sin(np.radians(angle))]])
        directions = np.concatenate([directions, [[-directions[0, 1], directions[0, 0]]]])
        for direction, length, name in zip(directions, scales[0, :2].tolist(), ("red", "green")):
            end = np.array([x, 0]) + 0.75 * length * direction
            arrow(axes, (x, 0), end, colors[name])
            index = 0 if name == "red" else 1
            axes.text(*(end + 0.32 * direction - (0.25, 0.1)), f"s{index}", color=colors[name], fontsize=9)
        axes.text(x, -1.9, title, ha="center", color=colors["line"])
    arrow(axes, (2.7, 0), (3.5, 0), colors["line"])
    axes.text(3.1, 0.25, "30° about z", ha="center", fontsize=9, color=colors["line"])
    return figure


LAYERS = (
    ("cli", "compat"),
    ("training",),
    ("viewing",),
    ("rendering",),
    ("scene", "strategies", "ops"),
    ("rasterization", "reference"),
    ("passes", "functional"),
    ("stages",),
    ("runtime",),
    ("kernels", "kernels_torch"),
    ("triton_cpu", "gpu_driver", "data"),
    ("arguments", "support", "formulas"),
    ("scalars",),
    ("config", "output_maps", "errors", "precision"),
)
PURPOSES = {
    "cli": "commands", "compat": "gsplat's and Inria's names", "training": "trainer, checkpoints",
    "viewing": "images, videos, viewer", "scene": "Gaussians, cameras, files", "strategies": "densification",
    "ops": "losses, Adam, depth", "rendering": "models with cameras", "rasterization": "a call",
    "reference": "dense oracle", "passes": "calls replayed", "functional": "single stages",
    "stages": "checks, the pipeline", "runtime": "autograd, memory", "kernels": "Triton", "kernels_torch": "PyTorch",
    "triton_cpu": "Triton on CPUs", "gpu_driver": "Triton on GPUs", "data": "tensors, settings",
    "arguments": "checks of tensors", "scalars": "checks of numbers", "support": "files, progress",
    "formulas": "in PyTorch",
    "config": "constants", "errors": "typed errors", "precision": "no autocast",
    "output_maps": "normals, distortion",
}  # fmt: skip


def read_imports():
    """Returns the imports between the modules of the package, as a set of imported modules for each module."""
    modules = {name for layer in LAYERS for name in layer}
    found = {path.stem for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    found |= {path.stem for path in PACKAGE.glob("[!_]*.py")}
    if found != modules:
        raise ValueError(f"docs/site/drawings.py: LAYERS differs from the package in {sorted(found ^ modules)}")
    imports = {name: set() for name in modules}
    # Kernel modules are selected by name at run time, which no import statement shows.
    imports["runtime"] = {"kernels", "kernels_torch"}
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).with_suffix("").parts
        if here[0] not in modules:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == len(here):
                names = [node.module] if node.module else [alias.name for alias in node.names]
                imports[here[0]] |= {name.split(".")[0] for name in names} & modules - {here[0]}
    return imports


def reduce_transitively(imports):
    """Removes imports that follow transitively from others."""

    def reachable(name):
        return set().union(*({other} | reachable(other) for other in imports[name])) if imports[name] else set()

    return {
        name: {other for other in others if not any(other in reachable(third) for third in others - {other})}
        for name, others in imports.items()
    }


def draw_packages(colors):
    """Draws the packages in layers, with an arrow for each import that does not follow from others."""
    width, box = 12.0, (2.75, 0.78)
    figure, axes = canvas(7.6, 6.6, (-0.2, width + 0.2), (-0.3, 1.35 * len(LAYERS)))
    centers = {}
    for level, layer in enumerate(reversed(LAYERS)):
        for column, name in enumerate(layer):
            centers[name] = (width * (column + 0.5) / len(layer), 1.35 * level + 0.5)
    for name, others in reduce_transitively(read_imports()).items():
        for other in others:
            (x0, y0), (x1, y1) = centers[name], centers[other]
            arrow(axes, (x0, y0 - box[1] / 2), (x1, y1 + box[1] / 2), colors["faint"], linewidth=1.1, mutation_scale=10)
    for name, (x, y) in centers.items():
        patch = FancyBboxPatch(
            (x - box[0] / 2, y - box[1] / 2), *box, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colors["fill"], edgecolor=colors["blue"], linewidth=1.2, zorder=3,
        )  # fmt: skip
        axes.add_patch(patch)
        axes.text(x, y + 0.15, name, ha="center", va="center", fontweight="bold", fontsize=9.5, color=colors["line"],
                  zorder=4)  # fmt: skip
        axes.text(x, y - 0.18, PURPOSES[name], ha="center", va="center", fontsize=7.2, color=colors["line"], zorder=4)
    return figure


PIPELINE = (
    ("check", "shapes, dtypes,\ndevices, values", "Gaussians,\ncameras"),
    ("project", "means, covariances,\nculling", "means2d, conics,\ndepths, radii [nnz]"),
    ("shade", "spherical\nharmonics", "features\n[nnz, D]"),
    ("exchange", "between ranks,\nif there are several", "rows of this\nrank's cameras"),
    ("intersect", "Gaussians and tiles,\nsorted by depth", "isect_offsets,\nflatten_ids [M]"),
    ("composite", "front to back,\nuntil opaque", "render_colors,\nrender_alphas"),
)


def draw_pipeline(colors):
    """Draws the stages of `rasterization()` and the tensors that each passes on."""
    figure, axes = canvas(9.0, 2.0, (-1.4, 17.0), (-2.2, 1.4))
    for i, (name, what, result) in enumerate(PIPELINE):
        x = 3.1 * i
        patch = FancyBboxPatch((x - 1.2, -0.55), 2.5, 1.75, boxstyle="round,pad=0,rounding_size=0.2",
                               facecolor=colors["fill"], edgecolor=colors["blue"], linewidth=1.2,
                               linestyle="--" if name == "exchange" else "-")  # fmt: skip
        axes.add_patch(patch)
        axes.text(x + 0.05, 0.8, name, ha="center", va="center", fontweight="bold", fontsize=9, color=colors["line"])
        axes.text(x + 0.05, 0.08, what, ha="center", va="center", fontsize=7, color=colors["line"])
        if i + 1 < len(PIPELINE):
            arrow(axes, (x + 1.3, 0.35), (x + 1.88, 0.35), colors["blue"], mutation_scale=10)
        arrow(axes, (x + 0.05, -0.6), (x + 0.05, -1.1), colors["faint"], mutation_scale=8, linewidth=1.1)
        axes.text(x + 0.05, -1.65, result, ha="center", va="center", fontsize=7, color=colors["orange"])
    return figure

"""A wall of lines through five cameras: lens distortion, a fisheye lens, and a rolling shutter."""

import math

import matplotlib.pyplot as plt
import torch

from tsplat import RollingShutterType, rasterization

SIZE, SPACING = 240, 0.02


def wall() -> dict[str, torch.Tensor]:
    """Lines on a wall at z = 2, red across and blue upright, as small round Gaussians."""
    along = torch.arange(-3, 3, SPACING)
    means, colors = [], []
    for place in torch.linspace(-2.4, 2.4, 13):
        fixed, two = torch.full_like(along, place), torch.full_like(along, 2.0)
        means += [torch.stack([along, fixed, two], -1), torch.stack([fixed, along, two], -1)]
        colors += [
            torch.tensor([0.8, 0.2, 0.1]).expand(len(along), 3),
            torch.tensor([0.1, 0.3, 0.8]).expand(len(along), 3),
        ]
    n = sum(map(len, means))
    return dict(
        means=torch.cat(means),
        quats=torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4),
        scales=torch.full((n, 3), 0.015),
        opacities=torch.full((n,), 0.9),
        colors=torch.cat(colors),
    )


def turned(degrees: float) -> torch.Tensor:
    """The pose of a camera at the origin that is turned about the vertical axis."""
    pose = torch.eye(4)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    pose[0, 0], pose[0, 2], pose[2, 0], pose[2, 2] = c, s, -s, c
    return pose[None]


CAMERAS = {
    "without distortion": {},
    "barrel distortion": dict(radial_coeffs=torch.tensor([[-0.2, 0, 0, 0, 0, 0]])),
    "tangential and thin prism": dict(
        tangential_coeffs=torch.tensor([[0.0, 0.05]]), thin_prism_coeffs=torch.tensor([[0.0, 0, 0.1, 0]])
    ),
    "fisheye": dict(camera_model="fisheye", radial_coeffs=torch.tensor([[-0.02, 0.0, 0, 0]])),
    "rolling shutter": dict(rolling_shutter=RollingShutterType.ROLLING_TOP_TO_BOTTOM, viewmats_rs=turned(12.0)),
}


def main() -> None:
    scene = wall()
    figure, axes = plt.subplots(1, len(CAMERAS), figsize=(2.4 * len(CAMERAS), 2.7))
    for axis, (name, options) in zip(axes, CAMERAS.items()):
        focal = 0.45 * SIZE if name == "fisheye" else 0.7 * SIZE
        Ks = torch.tensor([[[focal, 0, SIZE / 2], [0, focal, SIZE / 2], [0, 0, 1]]])
        image, alpha, _ = rasterization(
            **scene, viewmats=torch.eye(4)[None], Ks=Ks, width=SIZE, height=SIZE, with_ut=True,
            backgrounds=torch.ones(1, 3), **options,
        )  # fmt: skip
        print(f"{name}: {float((alpha > 0.5).float().mean()):.0%} of the image is covered by lines")
        axis.imshow(image[0].clamp(0, 1))
        axis.set_title(name, fontsize=9)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig("lenses.png", dpi=100)


if __name__ == "__main__":
    main()

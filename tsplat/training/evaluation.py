"""Evaluation: renders views and measures PSNR, SSIM and LPIPS."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from torch import Tensor

from ..config import SSIM_TAPS, Backend
from ..errors import ShapeError
from ..precision import fp32
from ..runtime.backend import choose
from ..runtime.process_group import RankGroup
from ..scalars import check_choice, to_float
from ..scene.cameras import Camera
from ..scene.capture.views import View
from ..scene.gaussians import Gaussians
from ..scene.option_types import Color
from ..scene.rendered_views import kind_of_call, render_views
from ..stages.meta import released_rows
from ..support.extras import require
from ..support.free_memory import trim_heap
from .configuration import Config
from .losses import loss, psnr, ssim
from .near_planes import views_with_near_planes
from .sampling import calls_of_ranks
from .selection import shown_by
from .view_corrections import identity_motions, move_poses

WARM_UP_CALLS = 3
"""Number of calls before times are measured: the first runs the stages, the second and the third are traced, and later
ones are replayed; see ``passes``."""


@dataclasses.dataclass(frozen=True)
class Score:
    """Metrics of a rendered view.

    Attributes:
        view: The view, with its photograph.
        image: [H, W, 3] the rendered image, clamped to [0, 1], with the photograph's pixels where the view is masked
            out. Empty if another rank rendered it.
        psnr: Peak signal-to-noise ratio in dB.
        ssim: Structural similarity, over windows inside the image.
        seconds: Time to render the image.
        lpips: Perceptual distance, if requested.
    """

    view: View
    image: Tensor
    psnr: float
    ssim: float
    seconds: float = 0.0
    lpips: float | None = None


class Evaluation(tuple[Score, ...]):
    """The scores of views, in order, and their means."""

    @property
    def psnr(self) -> float:
        """Mean PSNR of the views in dB; not the PSNR of their mean squared error."""
        return sum(score.psnr for score in self) / len(self)

    @property
    def ssim(self) -> float:
        """Mean SSIM of the views."""
        return sum(score.ssim for score in self) / len(self)

    def complete(self, ranks: RankGroup, indices: Sequence[int]) -> Evaluation:
        """Returns the scores of the views with these indices, including images of other ranks. A collective call."""
        scores = [self[i] for i in indices]
        images_of_ranks = ranks.all_gather_object([score.image.cpu() for score in scores])
        images = [next(filter(Tensor.numel, candidates)) for candidates in zip(*images_of_ranks, strict=True)]
        return Evaluation(
            dataclasses.replace(score, image=image.to(score.view.image.device)) for score, image in zip(scores, images)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns metrics as JSON values: means over the views, and the metrics of each view.

        Means are None if there are no views. An infinite PSNR, of equal images, is None too, as JSON has no infinity.
        """
        views = [
            {
                "name": score.view.name,
                "psnr": to_float(score.psnr),
                "ssim": score.ssim,
                "seconds": round(score.seconds, 6),
                **({} if score.lpips is None else {"lpips": score.lpips}),
            }
            for score in self
        ]
        if not views:
            return {"psnr": None, "ssim": None, "seconds_per_image": None, "views": []}
        means = {"psnr": to_float(self.psnr), "ssim": self.ssim}
        distances = [score.lpips for score in self if score.lpips is not None]
        if distances:
            means["lpips"] = sum(distances) / len(distances)
        return {**means, "seconds_per_image": sum(score.seconds for score in self) / len(self), "views": views}


POSE_STEPS, POSE_RATE, POSE_DECAY = 60, 10.0, 0.95
"""Settings of :func:`fit_poses`: number of steps, ratio of the initial learning rate to that of training, and decay of
the learning rate per step."""

Network = Literal["alex", "vgg", "squeeze"]
"""Networks of LPIPS."""

OnView = Callable[[int, int], None]
"""Called with the number of views done and the number of all views."""


def check_sizes(views: Sequence[View], downscale: int) -> None:
    """Raises ShapeError if a view is smaller than the window of SSIM; the message names the `downscale` factor."""
    for view in views:
        if min(view.width, view.height) < len(SSIM_TAPS):
            raise ShapeError(
                f"downscale: SSIM needs at least {len(SSIM_TAPS)} pixels along each edge, found "
                f"{view.width}×{view.height} in view {view.name!r} with a factor of {downscale}; use "
                f"{'a smaller factor' if downscale > 1 else 'larger images'}"
            )


@torch.no_grad()
def evaluate(
    gaussians: Gaussians,
    views: Sequence[View],
    *,
    background: Color = (0.0, 0.0, 0.0),
    lpips: Network | None = None,
    backend: Backend = "auto",
    ranks: RankGroup | None = None,
    on_view: OnView | None = None,
    warm_up: bool = False,
    sharded: bool = False,
    gains: Tensor | None = None,
) -> Evaluation:
    """Renders views with all degrees of spherical harmonics and compares them with their photographs.

    Args:
        gaussians: All Gaussians or, if `sharded`, the shard of this rank.
        views: All views, on the Gaussians' device.
        background: RGB from 0 to 1.
        lpips: Network of the perceptual distance LPIPS (Zhang et al., 2018); None to leave it out.
        backend: As in :func:`tsplat.rasterization`.
        ranks: The ranks that call this together with equal arguments. Each renders its shard of the views.
        on_view: Called on every rank, equally often, with the number of views done and the number of all views.
        warm_up: Render the first view three times before times are measured, so that they exclude the compilation of
            kernels and, for views of the same size and lens, the tracing of passes.
        sharded: Whether the Gaussians are sharded over the ranks, which then render together.
        gains: [V, 3] factors of the color channels of each rendered image; None for 1.

    Returns:
        The scores of all views, on every rank. Scores of views that another rank rendered have no image.

    Raises:
        ArgumentError: An image is smaller than the window of SSIM; see also :func:`tsplat.rasterization`.
        MissingExtraError: torchmetrics or torchvision, which LPIPS needs, is not installed.
    """
    distance = None if lpips is None else _lpips_metric(lpips, gaussians.means.device)
    ranks = ranks or RankGroup()
    trim_heap()
    cameras = [view.camera for view in views_with_near_planes(views, gaussians, ranks)]
    options: dict[str, Any] = dict(background=background, backend=backend, **_distribution(ranks, sharded))
    shown = shown_by if _can_select(gaussians, backend, sharded=sharded) else lambda gaussians, _: gaussians
    scores = []
    for index, is_own in _calls(views, ranks, sharded) if warm_up else ():
        if index >= ranks.world_size:
            break
        for _ in range(WARM_UP_CALLS):
            _render(shown(gaussians, cameras[index]), cameras[index], is_own, options)
    for index, is_own in _calls(views, ranks, sharded, on_view):
        view = views[index]
        _synchronize(gaussians.means.device)
        start = time.perf_counter()
        image = _render(shown(gaussians, cameras[index]), cameras[index], is_own, options)
        image = (image if gains is None else image * gains[index]).clamp(0, 1)
        _synchronize(gaussians.means.device)
        seconds = time.perf_counter() - start
        if not is_own:
            continue
        image = view.masked(image)
        scores.append(
            Score(
                view,
                image,
                float(psnr(image, view.pixels)),
                float(ssim(image, view.pixels)),
                seconds,
                None if distance is None else distance(image, view.pixels),
            )
        )
    if on_view is not None:
        on_view(len(views), len(views))
    metrics = ranks.all_gather_object([(score.psnr, score.ssim, score.seconds, score.lpips) for score in scores])
    no_image = torch.empty(0, dtype=torch.float32, device="cpu")
    n = ranks.world_size
    return Evaluation(
        scores[i // n] if i % n == ranks.rank else Score(view, no_image, *metrics[i % n][i // n])
        for i, view in enumerate(views)
    )


def fit_poses(
    gaussians: Gaussians,
    views: Sequence[View],
    config: Config,
    extent: float,
    ranks: RankGroup,
    *,
    sharded: bool = False,
) -> list[View]:
    """Fits the poses of held-out views to their photographs; Gaussians and lenses do not change.

    With :attr:`Config.pose_refinement`, a model fits the learned poses of the training views, but poses of held-out
    views are not learned. Adam takes POSE_STEPS steps from each pose, with POSE_RATE times the learning rate of
    training; translations are in units of the scene's extent. Each rank fits its shard of the views.
    """
    fitted = list(views)
    views = views_with_near_planes(views, gaussians, ranks)
    options: dict[str, Any] = dict(background=config.backdrop, backend=config.backend, **_distribution(ranks, sharded))
    for i, is_own in _calls(views, ranks, sharded):
        view = views[i]
        motions = identity_motions(1, view.camera.viewmat, rolls=view.camera.viewmat_end is not None).view(-1, 6)
        unit = fp32([1.0, 1, 1, extent, extent, extent]).to(motions)
        motions.requires_grad_()
        optimizer = torch.optim.Adam([motions], lr=POSE_RATE * config.pose_rate)
        for _ in range(POSE_STEPS):
            camera = move_poses(view.camera, unit * motions)
            image = _render(gaussians, camera, is_own, options)
            if not is_own:
                image.sum().backward()  # type: ignore[no-untyped-call]
                continue
            optimizer.zero_grad()
            loss(view.masked(image), view.pixels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= POSE_DECAY
        if is_own:
            fitted[i] = view.replaced(camera=move_poses(view.camera, unit * motions.detach()))
    return fitted


def _distribution(ranks: RankGroup, sharded: bool) -> dict[str, Any]:
    """Returns the options of :func:`render_views` for Gaussians that may be sharded."""
    # Each rank projects its Gaussians on the cameras of all ranks, of which a packed call only keeps what they show.
    return dict(group=ranks.group if sharded else None, packed=sharded)


def _calls(
    views: Sequence[View], ranks: RankGroup, sharded: bool, on_view: OnView | None = None
) -> Iterator[tuple[int, bool]]:
    """Yields as :func:`calls_of_ranks`; if Gaussians are not sharded, only for the views of this rank."""
    kinds = [kind_of_call(view.camera) if sharded else None for view in views]
    for index, is_own in calls_of_ranks(kinds, ranks):
        if on_view is not None:
            on_view(index - index % ranks.world_size, len(views))
        if is_own or sharded:
            yield index, is_own


def _render(gaussians: Gaussians, camera: Camera, is_own: bool, options: dict[str, Any]) -> Tensor:
    """Renders a view, [H, W, 3], or joins a collective call without one, [0, H, W, 3]."""
    with released_rows():
        images = render_views(gaussians, [camera], n_cameras=None if is_own else 0, **options)[0]
    return images[0] if is_own else images


def _can_select(gaussians: Gaussians, backend: Backend, *, sharded: bool) -> bool:
    """Returns whether images may be rendered with the Gaussians that a camera may see, with the same bits as with all.

    A GPU would wait for their number. Ranks with shards render for the cameras of all ranks. The rounding of PyTorch's
    operators may depend on the number of rows.
    """
    device = gaussians.means.device
    return device.type == "cpu" and not sharded and not gaussians.surfels and choose(device, backend)[0] == "triton"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _lpips_metric(network: Network, device: torch.device) -> Callable[[Tensor, Tensor], float]:
    """Returns a function that measures LPIPS between two images [H, W, 3] in [0, 1]."""
    check_choice("lpips", network, get_args(Network))
    require("torchmetrics", "torchvision")
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    metric = LearnedPerceptualImagePatchSimilarity(network, normalize=True).to(device)

    def distance(image: Tensor, target: Tensor) -> float:
        return float(metric(*(rearrange(x, "h w c -> 1 c h w") for x in (image, target))))

    return distance

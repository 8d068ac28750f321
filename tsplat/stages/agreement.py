"""Agreement between the ranks of a distributed call: all ranks raise an error, or none does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..data import Cameras, Gaussians3D
from ..errors import ArgumentError, DeviceError, DisagreementError, PeerError, UnsupportedError
from ..runtime.process_group import RankGroup

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

DESCRIPTION_BYTES = 4096
"""Size of the message in which a rank describes its call. It is fixed, as ranks know nothing about each other yet."""

MESSAGE_LENGTH_MAX = 1200
"""Maximum length of an error in a description, in characters."""


class RankNumbers(NamedTuple):
    """Properties of a rank's call that may differ between ranks."""

    n_gaussians: int = 0
    n_cameras: int = 0
    requires_grad: bool = False
    cameras_require_grad: bool = False
    has_capacity: bool = False


NUMBERS_FORMAT = f"{len(RankNumbers._fields)}q"
"""Format of :class:`RankNumbers` for `struct`."""


@dataclasses.dataclass
class CallDescription:
    """Describes a rank's call to the other ranks: settings, which must be equal, and numbers, which may differ."""

    settings: dict[str, Any]
    numbers: RankNumbers = dataclasses.field(default_factory=RankNumbers)

    def add_tensors(
        self,
        gaussians: Gaussians3D,
        signals: dict[str, Tensor | None],
        cameras: Cameras,
        n_cameras: int,
        dtype: torch.dtype,
        has_capacity: bool,
    ) -> None:
        """Adds the dtypes, shapes and sizes of tensors that were checked.

        Args:
            signals: Colors, shN and extra_signals [N, ...] by name, or None.
            dtype: The compute dtype.
        """
        self.settings |= {
            "device": gaussians.means.device.type,
            "compute dtype": dtype,
            "grad mode": torch.is_grad_enabled(),
        }
        for name, values in signals.items():
            self.settings |= {
                f"{name} dtype": None if values is None else values.dtype,
                f"{name} per Gaussian": None if values is None else list(values.shape[1:]),
            }
        for name, values in cameras._asdict().items():
            self.settings[f"{name} per camera"] = None if values is None else list(values.shape[1:])
        cameras_require_grad = _require_grad(*cameras)
        requires_grad = cameras_require_grad or _require_grad(*gaussians, *signals.values())
        self.numbers = RankNumbers(len(gaussians.means), n_cameras, requires_grad, cameras_require_grad, has_capacity)


class Ranks(RankGroup):
    """The ranks that render together. :func:`checks_on_all_ranks` fills in the attributes.

    Attributes:
        n_gaussians, n_cameras: The number of Gaussians and cameras of each rank.
        any_requires_grad, any_cameras_require_grad: Whether any rank requires gradients, or gradients of cameras.
        any_capacity: Whether any rank has a capacity.
    """

    def __init__(self, group: ProcessGroup, means: object) -> None:
        super().__init__(group)
        self.n_gaussians = [0] * self.world_size
        self.n_cameras = [0] * self.world_size
        self.any_requires_grad = False
        self.any_cameras_require_grad = False
        self.any_capacity = False
        self._device_types = sorted(device.type for device in group._device_types)
        # All ranks must use the same device type, also if their tensors are on different ones.
        self._description_device = torch.device("cpu" if "cpu" in self._device_types else self._device_types[0])
        # Use the GPU of the means, even if these are not checked yet: the current GPU may be that of another rank.
        if isinstance(means, Tensor) and means.device.type == self._description_device.type:
            self._description_device = means.device

    def check_device(self, means: Tensor) -> None:
        """Raises :class:`DeviceError` if the group's backend cannot send from the tensor's device."""
        if means.device.type not in self._device_types:
            raise DeviceError(
                f"means: is on {means.device}, but the process group sends from {' and '.join(self._device_types)} "
                "only; move the tensors, or create the group with a backend for that device"
            )

    def exchange_descriptions(
        self, numbers: RankNumbers, settings: dict[str, str]
    ) -> tuple[list[RankNumbers], list[dict[str, str]]]:
        """Gathers numbers and settings from all ranks. Equal settings are returned as the same object."""
        n = struct.calcsize(NUMBERS_FORMAT)
        content = bytearray(struct.pack(NUMBERS_FORMAT, *numbers))
        content += json.dumps(settings).encode().ljust(DESCRIPTION_BYTES - n)
        assert len(content) == DESCRIPTION_BYTES
        own = torch.frombuffer(content, dtype=torch.uint8).to(self._description_device)
        received = [description.tobytes() for description in self.all_gather_stacked(own).cpu().numpy()]
        decoded = {text: json.loads(text) for text in {description[n:] for description in received}}
        all_numbers = [RankNumbers(*struct.unpack(NUMBERS_FORMAT, description[:n])) for description in received]
        return all_numbers, [decoded[description[n:]] for description in received]

    def agree(self, numbers: list[RankNumbers], settings: list[dict[str, str]]) -> None:
        """Stores the numbers of all ranks.

        Raises:
            PeerError: A rank sent an error instead of its settings.
            DisagreementError: The settings differ.
        """
        _raise_peer_errors(settings)
        differences = []
        for name in settings[0] if any(one is not settings[0] for one in settings) else ():
            holders: dict[str, list[int]] = {}
            for rank, of_rank in enumerate(settings):
                holders.setdefault(of_rank[name], []).append(rank)
            if len(holders) > 1:
                found = ", ".join(
                    f"{value} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
                    for value, ranks in holders.items()
                )
                differences.append(f"{name}: {found}")
        if differences:
            raise DisagreementError(f"{'; '.join(differences)}; pass the same settings on all ranks")
        self.n_gaussians, self.n_cameras, *flags = (list(column) for column in zip(*numbers))
        self.any_requires_grad, self.any_cameras_require_grad, self.any_capacity = map(any, flags)

    def share_error(self, error: Exception | None) -> None:
        """Tells the other ranks whether this rank failed. Raises PeerError if only other ranks did."""
        own = {}
        if error is not None:
            text = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH_MAX]
            own = {"error": "".join(c if " " <= c <= "~" else "?" for c in text)}
        try:
            _, received = self.exchange_descriptions(RankNumbers(), own)
        except RuntimeError:
            if error is None:
                raise
            return  # this rank's own error matters more than a failure to send it
        if error is None:
            _raise_peer_errors(received)

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Gathers a list of integers from each rank. All lists have the same length."""
        gathered: list[list[int]] = self.all_gather_stacked(
            torch.tensor(numbers, device=self._description_device)
        ).tolist()
        return gathered

    def exchange_counts(self, counts: list[int]) -> list[int]:
        """Sends the number of rows for each rank to that rank. Returns the number of rows to receive from each."""
        sent = torch.tensor(counts, device=self._description_device)
        ones = [1] * self.world_size
        received: list[int] = self.all_to_all(sent, ones, ones).tolist()
        return received


def _raise_peer_errors(received: list[dict[str, str]]) -> None:
    """Raises PeerError if any rank sent an error instead of its settings."""
    errors = [f"rank {rank} stopped with {sent['error']}" for rank, sent in enumerate(received) if "error" in sent]
    if errors:
        raise PeerError("; ".join(errors))


def join_ranks(group: ProcessGroup | None, means: object) -> Ranks | None:
    """Returns the ranks of a process group (default: of all processes), or None if it has a single rank."""
    if not dist.is_available():
        raise ArgumentError("distributed: this PyTorch was built without torch.distributed; pass distributed=False")
    if not dist.is_initialized():
        raise ArgumentError(
            "distributed: no process group is initialized; start the ranks with torchrun and call "
            "torch.distributed.init_process_group() in each, or pass distributed=False"
        )
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise ArgumentError(
            f"group: expected a torch.distributed.ProcessGroup that contains this process, found {group!r}"
        )
    return None if dist.get_world_size(group) == 1 else Ranks(group, means)


def check_distributed(batch: torch.Size, per_camera: Sequence[str]) -> None:
    """Raises if a distributed call has batch dimensions, or signals per camera, whose names are `per_camera`."""
    if batch:
        raise UnsupportedError(
            f"distributed: leading batch dimensions, here {list(batch)}, are not implemented; pass means [N, 3]"
        )
    for name in per_camera:
        raise UnsupportedError(f"distributed: {name} per camera are not implemented; pass per-Gaussian {name} [N, ...]")


@contextlib.contextmanager
def checks_on_all_ranks(ranks: Ranks, settings: dict[str, Any]) -> Iterator[CallDescription]:
    """Runs the argument checks of all ranks, so that all ranks raise if any check fails.

    Yields the description of the call, to which the caller adds tensors by :meth:`CallDescription.add_tensors`. Raises
    DisagreementError on all ranks if settings differ, and PeerError if the checks of another rank raised.
    """
    description = CallDescription(dict(settings))
    try:
        yield description
    except Exception as error:
        ranks.share_error(error)
        raise
    encoded = {name: _encode(value) for name, value in description.settings.items()}
    ranks.agree(*ranks.exchange_descriptions(description.numbers, encoded))


def _encode(value: object) -> str:
    """Encodes a setting as text, with equal numbers alike: 1.0 as 1."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)[:60]


def _require_grad(*tensors: Tensor | None) -> bool:
    """Returns whether grad mode is on and any tensor requires a gradient."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)

"""Agreement between the ranks of a distributed call: every rank checks its arguments, then all raise or none does."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..data import Cameras, Gaussians3D
from ..errors import ArgumentError, DeviceError, DisagreementError, PeerError, UnsupportedError
from ..runtime.process_group import RankGroup

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

RECORD_BYTES = 4096
"""Size of the description of its call that a rank sends before anything depends on it."""

N_COUNTS = 5
COUNTS = f"{N_COUNTS}q"

MESSAGE_LENGTH_MAX = 1200
"""Of an error message in that record, in characters."""


class Ranks(RankGroup):
    """The ranks that render together, and whether any needs gradients or has a capacity, as :func:`agreement` fills in.

    This rank's GPU is that of `means`, which were not checked: the current one may be that of another rank.
    """

    def __init__(self, group: ProcessGroup, means: object) -> None:
        super().__init__(group)
        self.n_gaussians = [0] * self.world_size
        self.n_cameras = [0] * self.world_size
        self.differentiable = False
        self.differentiable_cameras = False
        self.any_capacity = False
        self._device_types = sorted(device.type for device in group._device_types)
        # Of the same type on every rank, wherever its tensors are.
        self._record_device = torch.device("cpu" if "cpu" in self._device_types else self._device_types[0])
        if isinstance(means, Tensor) and means.device.type == self._record_device.type:
            self._record_device = means.device

    def check_device(self, means: Tensor) -> None:
        """Raises :class:`DeviceError` if the group's backend cannot send from the tensor's device."""
        if means.device.type not in self._device_types:
            raise DeviceError(
                f"means: is on {means.device}, but the process group sends from {' and '.join(self._device_types)} "
                "only; move the tensors, or make the group with a backend for that device"
            )

    def exchange_records(
        self, counts: list[int], settings: dict[str, str]
    ) -> tuple[list[list[int]], list[dict[str, str]]]:
        """Gathers counts and settings from every rank; equal settings are one object."""
        text = json.dumps(settings).encode().ljust(RECORD_BYTES - struct.calcsize(COUNTS))
        content = bytearray(struct.pack(COUNTS, *counts) + text)
        assert len(content) == RECORD_BYTES
        record = torch.frombuffer(content, dtype=torch.uint8).to(self._record_device)
        records = [received.tobytes() for received in self.all_gather_stacked(record).cpu().numpy()]
        n = struct.calcsize(COUNTS)
        decoded = {text: json.loads(text) for text in {record[n:] for record in records}}
        return [list(struct.unpack(COUNTS, r[:n])) for r in records], [decoded[r[n:]] for r in records]

    def agree(self, counts: list[list[int]], settings: list[dict[str, str]]) -> None:
        """Takes over the counts of all ranks, whose settings must be equal; raises what a rank sent instead."""
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
            raise DisagreementError(f"{'; '.join(differences)}; ranks that render together need the same settings")
        self.n_gaussians, self.n_cameras, *flags = (list(column) for column in zip(*counts))
        self.differentiable, self.differentiable_cameras, self.any_capacity = map(any, flags)

    def share_error(self, error: Exception | None) -> None:
        """Shares an error of this rank, or that it has none. Raises PeerError if only other ranks have one."""
        record = {}
        if error is not None:
            text = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH_MAX]
            record = {"error": "".join(c if " " <= c <= "~" else "?" for c in text)}
        try:
            _, records = self.exchange_records([0] * N_COUNTS, record)
        except RuntimeError:
            if error is None:
                raise
            return  # this rank's own error matters more than a failure to send it
        if error is None:
            _raise_peer_errors(records)

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Gathers integers from every rank, as many from each."""
        gathered: list[list[int]] = self.all_gather_stacked(torch.tensor(numbers, device=self._record_device)).tolist()
        return gathered

    def exchange_counts(self, counts: list[int]) -> list[int]:
        """Tells each rank how many rows it will receive. Returns how many come from each."""
        sent = torch.tensor(counts, device=self._record_device)
        ones = [1] * self.world_size
        received: list[int] = self.all_to_all(sent, ones, ones).tolist()
        return received


def _raise_peer_errors(records: list[dict[str, str]]) -> None:
    errors = [f"rank {rank} stopped with {record['error']}" for rank, record in enumerate(records) if "error" in record]
    if errors:
        raise PeerError("; ".join(errors))


def join(group: ProcessGroup | None, means: object) -> Ranks | None:
    """Returns the ranks of a process group, by default of all processes; None for a single one. See :class:`Ranks`."""
    if not dist.is_available():
        raise ArgumentError("distributed: this PyTorch was built without torch.distributed; pass distributed=False")
    if not dist.is_initialized():
        raise ArgumentError(
            "distributed: there is no process group; start the ranks with torchrun and call "
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
    """Raises for what is not implemented with ``distributed=True``, as are some arguments that are per camera."""
    if batch:
        raise UnsupportedError(
            f"distributed: leading batch dimensions, here {list(batch)}, are not implemented with it; pass means [N, 3]"
        )
    for name in per_camera:
        raise UnsupportedError(f"distributed: {name} per camera are not implemented with it; pass {name} [N, ...]")


@contextlib.contextmanager
def agreement(ranks: Ranks | None, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs argument checks so that they end alike on every rank; without ranks only the checks run.

    Yields a record to which :func:`describe`, the last check, adds what depends on tensors. Raises DisagreementError on
    every rank if settings differ, and PeerError if the checks of another rank raised.
    """
    record: dict[str, Any] = {"settings": dict(settings), "counts": [0] * N_COUNTS}
    try:
        yield record
    except Exception as error:
        if ranks is not None:
            ranks.share_error(error)
        raise
    if ranks is not None:
        settings = {name: _encode(value) for name, value in record["settings"].items()}
        ranks.agree(*ranks.exchange_records(record["counts"], settings))


def _encode(value: object) -> str:
    """Encodes equal numbers alike: 1 and 1.0 are the same setting."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)[:60]


def describe(
    record: dict[str, Any],
    ranks: Ranks,
    gaussians: Gaussians3D,
    signals: dict[str, Tensor | None],
    cameras: Cameras,
    n_cameras: int,
    dtype: torch.dtype,
    has_capacity: bool,
) -> None:
    """Adds to the record of :func:`agreement` what ranks need to know of tensors whose shapes were checked.

    `signals` are colors and extra_signals [N, ...] by name, or None. Raises DeviceError if the group's backend cannot
    send from their device.
    """
    ranks.check_device(gaussians.means)
    record["settings"] |= {
        "device": gaussians.means.device.type,
        "compute dtype": dtype,
        "grad mode": torch.is_grad_enabled(),
    }
    for name, values in signals.items():
        record["settings"] |= {
            f"{name} dtype": None if values is None else values.dtype,
            f"{name} per Gaussian": None if values is None else list(values.shape[1:]),
        }
    for name, values in cameras._asdict().items():
        record["settings"][f"{name} per camera"] = None if values is None else list(values.shape[1:])
    differentiable_cameras = _require_grad(*cameras)
    differentiable = differentiable_cameras or _require_grad(*gaussians, *signals.values())
    flags = differentiable, differentiable_cameras, has_capacity
    record["counts"] = [len(gaussians.means), n_cameras, *map(int, flags)]


def _require_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)

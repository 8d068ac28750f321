"""Distributed rasterization: results of four ranks match one process, and errors and timeouts reach all ranks."""

import datetime
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import tsplat
from tests.support import lidars, scenes
from tsplat.stages.agreement import check_distributed

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

RANKS = 4
JOBS = (
    "equality",
    "surfels",
    "disagreements",
    "rejections",
    "memory",
    "release",
    "destruction",
    "volume",
    "timeout",
    "death",
)
CASES = int(os.environ.get("TSPLAT_DISTRIBUTED_CASES", "25"))
SEED = int(os.environ.get("TSPLAT_DISTRIBUTED_SEED", "0"))
LIMIT = 300


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The report and the log of each of four processes that run all jobs. Processes that hang are killed."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.support.distributed_worker", str(RANKS), str(folder), str(CASES), str(SEED)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    found = []
    for rank in range(RANKS):
        report = folder / f"{rank}.json"
        log = (folder / f"{rank}.log").read_text()[-2000:]
        found.append((json.loads(report.read_text()) if report.exists() else {}, log))
    return found


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_four_ranks(reports, job):
    errors = []
    for rank, (report, log) in enumerate(reports):
        if job not in report:
            errors.append(f"rank {rank} did not finish within {LIMIT} s; {log}")
        elif report[job]["error"]:
            errors.append(f"rank {rank}: {report[job]['error']}")
    assert not errors, "\n".join(errors)
    figures = [report[job]["figures"] for report, _ in reports]
    print(job, figures, [round(report[job]["took"], 2) for report, _ in reports])
    if job == "equality":
        assert sum(f["tried"] for f in figures) >= 2 * CASES
        assert max(f["worst"] for f in figures) <= 1
    if job in ("timeout", "death"):
        assert all(f["seconds"] < 90 for f in figures if f)


def test_missing_process_group_raises():
    scene = scenes.make(scenes.Structure(), torch.float32)
    with pytest.raises(
        tsplat.ArgumentError, match=r"distributed: no process group is initialized; start .* with torchrun"
    ):
        tsplat.rasterization(**scene, distributed=True)
    with pytest.raises(tsplat.ArgumentError, match="group: passed, but distributed is False"):
        tsplat.rasterization(**scene, group=object())


def test_what_ranks_cannot_share_is_refused():
    with pytest.raises(tsplat.UnsupportedError, match=r"here \[2\], are not implemented; pass means \[N, 3\]"):
        check_distributed(torch.Size([2]), [])
    with pytest.raises(
        tsplat.UnsupportedError, match=r"colors per camera are .*; pass per-Gaussian colors \[N, \.\.\.\]"
    ):
        check_distributed(torch.Size([]), ["colors"])


@pytest.mark.long
def test_without_torch_distributed(forks):
    code = """
import sys, types
import torch
sys.modules["torch.distributed"] = torch.distributed = types.SimpleNamespace(is_available=lambda: False)
import tsplat
scene = [
    torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 0.1), torch.ones(1),
    torch.ones(1, 3), torch.eye(4)[None], torch.tensor([[[10.0, 0, 4], [0, 10, 4], [0, 0, 1]]]), 8, 8,
]
assert float(tsplat.rasterization(*scene)[0].max()) > 0.5
try:
    tsplat.rasterization(*scene, distributed=True)
except tsplat.ArgumentError as error:
    assert "built without torch.distributed" in str(error)
else:
    raise AssertionError("no error")
"""
    found = forks.run(code)
    assert found.returncode == 0, found.stderr


def test_one_rank_exchanges_nothing(tmp_path, monkeypatch):
    scene = scenes.make(scenes.Structure(n=15, cameras=2), torch.float32)
    expected, _, plain = tsplat.rasterization(**scene)
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=datetime.timedelta(seconds=20)
    )
    try:
        for name in ("all_gather", "all_to_all_single"):
            monkeypatch.setattr(dist, name, None)
        colors, _, meta = tsplat.rasterization(**scene, distributed=True, group=dist.group.WORLD)
        with pytest.raises(tsplat.UnsupportedError, match="distributed: leading batch dimensions"):
            tsplat.rasterization(**scenes.make(scenes.Structure(batch=(2,)), torch.float32), distributed=True)
        with pytest.raises(tsplat.ArgumentError, match=r"group: expected a torch\.distributed\.ProcessGroup"):
            tsplat.rasterization(**scene, distributed=True, group=dist.GroupMember.NON_GROUP_MEMBER)
        with pytest.raises(tsplat.UnsupportedError, match=r"distributed: lidar_coeffs is not .*; use None, as"):
            tsplat.rasterization(**lidars.make(dtype=torch.float32), distributed=True)
        with pytest.raises(tsplat.UnsupportedError, match=r"distributed: backend='reference' is .*; use 'auto'"):
            tsplat.rasterization(**scene, distributed=True, backend="reference")
    finally:
        dist.destroy_process_group()
    assert torch.equal(colors, expected)
    assert torch.equal(meta["received"]["gaussian_ids"], plain["gaussian_ids"])
    assert meta["received"]["means2d"] is meta["means2d"]

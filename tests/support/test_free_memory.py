"""Tests of free memory: limits of containers and the process."""

import subprocess
import sys

import pytest

from tests.support.paths import WITHOUT_TORCH
from tsplat.support.free_memory import available_bytes

MEMINFO = "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"
V1 = "/sys/fs/cgroup/memory"


def system(root, groups, mounts, **files):
    """Writes the files of a system; `files` are the files of control groups by path."""
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(folder, version, limit, used, cached):
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit_name, used_name, cached_name = names if version == 1 else ("memory.max", "memory.current", "inactive_file")
    stat = f"anon 1\n{cached_name} {cached}\n"
    return {f"{folder}/{limit_name}": limit, f"{folder}/{used_name}": used, f"{folder}/memory.stat": stat}


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        ("", "", {}, 8000 * 1024),
        # Version 2: the parent has the smaller limit, and cached files do not count as used memory.
        (
            "0::/a/b\n",
            "30 24 0:26 / /cg rw - cgroup2 cgroup2 rw\n",
            {**group("cg/a", 2, "5000", "1500", 500), **group("cg/a/b", 2, "max", "10", 0)},
            4000,
        ),
        # A container sees its own group as the root of the mount, or is named from outside of it.
        ("0::/\n", "30 24 0:26 / /cg rw - cgroup2 cgroup2 rw\n", group("cg", 2, "900", "100", 0), 800),
        ("0::/../x\n", "30 24 0:26 / /cg rw - cgroup2 cgroup2 rw\n", group("cg", 2, "900", "100", 0), 800),
        # Version 1: the path is that of the machine, and the mount is a part of it.
        (
            "4:cpu:/z\n3:memory:/docker/1\n",
            f"31 24 0:27 /docker/1 {V1} rw shared:1 - cgroup cgroup rw,memory\n",
            group(V1[1:], 1, "7000", "6000", 2000),
            3000,
        ),
        ("3:memory:/a\n", f"31 24 0:27 / {V1} rw - cgroup cgroup rw,memory\n", group(f"{V1[1:]}/a", 1, "5", "9", 0), 0),
        ("damaged\n", "30 24\n", {}, 8000 * 1024),
    ],
)
def test_the_least_limit_counts(tmp_path, groups, mounts, files, expected):
    assert available_bytes(system(tmp_path, groups, mounts, **files)) == expected


def test_no_information(tmp_path):
    assert available_bytes(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process(name):
    code = f"""{WITHOUT_TORCH}
import resource
from tsplat.support.free_memory import available_bytes
resource.setrlimit(resource.{name}, (1 << 30, -1))
print((1 << 29) < available_bytes() < (1 << 30))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"

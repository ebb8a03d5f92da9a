"""The number of threads is that of the physical performance cores one may use, on machines made of files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edgespec.system import cores


def machine(folder: Path, siblings: list[str], **files: str) -> Path:
    """Writes a /sys/devices: siblings[i] is the list of threads that share the core of cpu i."""
    for cpu, text in enumerate(siblings):
        path = folder / f"system/cpu/cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


HYPERTHREADED = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    system = machine(tmp_path, HYPERTHREADED)
    assert cores.linux_cores(set(range(8)), system) == 4
    assert cores.linux_cores({0, 4, 5}, system) == 2


def test_only_cores_one_may_run_on_count(tmp_path: Path) -> None:
    system = machine(tmp_path, HYPERTHREADED)
    assert cores.linux_cores({2}, system) == 1
    assert cores.linux_cores({2, 3}, system) == 2


def test_efficiency_cores_are_left_out_where_the_kernel_names_them(tmp_path: Path) -> None:
    """Two fast cores of two threads, four slow ones of one."""
    siblings = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]
    system = machine(tmp_path, siblings, **{"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-7"})
    assert cores.linux_cores(set(range(8)), system) == 2
    assert cores.linux_cores({3, 4, 5}, system) == 1
    assert cores.linux_cores({4, 5, 6}, system) == 3, "with nothing else, slow cores are what there is"


def test_little_cores_are_left_out_by_their_capacity(tmp_path: Path) -> None:
    capacity = {f"system/cpu/cpu{i}/cpu_capacity": "1024" if i >= 4 else "446" for i in range(6)}
    system = machine(tmp_path, [str(i) for i in range(6)], **capacity)
    assert cores.linux_cores(set(range(6)), system) == 2
    assert cores.linux_cores({0, 1, 2}, system) == 3


def test_a_machine_that_tells_nothing_counts_its_cpus(tmp_path: Path) -> None:
    assert cores.linux_cores({0, 1, 2}, tmp_path) == 3


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", set()),
        ("\n", set()),
        ("0,2-3\n", {0, 2, 3}),
        ("x-y", set()),
    ],
)
def test_the_kernels_lists_are_read(tmp_path: Path, text: str, cpus: set[int]) -> None:
    (tmp_path / "list").write_text(text)
    assert cores.cpu_list(tmp_path / "list") == cpus
    assert cores.cpu_list(tmp_path / "absent") == set()


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    machine(tmp_path, [], **files)
    assert cores.cgroup_quota(tmp_path) == quota


@pytest.mark.skipif(sys.platform != "linux", reason="affinity and quotas are Linux's")
@pytest.mark.parametrize(("quota", "most"), [("max", 512), ("190000", 1), ("50000", 1), ("4000000", 40)])
def test_a_quota_bounds_the_threads_and_one_is_the_least(tmp_path: Path, quota: str, most: int) -> None:
    machine(tmp_path, [], **{"cpu.max": f"{quota} 100000"})
    here = cores.linux_cores(os.sched_getaffinity(0))
    assert cores.performance_cores(tmp_path) == min(here, most)


@pytest.mark.parametrize(
    ("fast", "physical", "logical", "wanted"),
    [(4, 8, 8, 4), (0, 8, 8, 8), (0, 6, 12, 6), (0, None, 12, 12), (0, None, None, 1)],
)
def test_a_mac_counts_its_fast_cores_others_physical_ones_and_one_is_the_least(
    fast: int, physical: int | None, logical: int | None, wanted: int
) -> None:
    assert cores.first_known(fast, physical, logical) == wanted


def test_this_machine_has_at_least_one_and_no_more_than_it_shows() -> None:
    assert 1 <= cores.performance_cores() <= (os.cpu_count() or 1)

"""Kernel, limits and governor, in folders that look like /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.doctor.realtime import governor, kernel, limits

SYS_NICE = "0000000000800000"
"""`CapEff` with bit 23 alone."""


def with_capabilities(proc: Path, mask: str) -> Path:
    (proc / "self").mkdir()
    (proc / "self" / "status").write_text(f"Name:\tpython\nCapEff:\t{mask}\nThreads:\t1\n")
    return proc


def test_a_kernel_that_sysfs_marks_as_real_time_is_ok(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "realtime").write_text("1\n")
    assert kernel(arm=True, system=tmp_path, stated="#1 SMP PREEMPT_RT").status == "ok"


@pytest.mark.parametrize(("arm", "status"), [(True, "failed"), (False, "warning")])
def test_another_kernel_fails_beside_an_arm_only(arm: bool, status: str, tmp_path: Path) -> None:
    check = kernel(arm, tmp_path, "#1 SMP PREEMPT_DYNAMIC")
    assert check.status == status
    assert "is no PREEMPT_RT kernel" in check.found


def test_a_real_time_kernel_without_the_file_that_libfranka_reads_fails(tmp_path: Path) -> None:
    check = kernel(True, tmp_path, "#1 SMP PREEMPT_RT Debian 6.12")
    assert check.status == "failed"
    assert "has no /sys/kernel/realtime" in check.found


@pytest.mark.parametrize(
    ("rtprio", "memlock", "status"),
    [
        (99, 102_400 * 1024, "ok"),
        (-1, -1, "ok"),
        (98, -1, "failed"),
        (0, -1, "failed"),
        (99, 102_399 * 1024, "warning"),
    ],
)
def test_limits_have_to_permit_the_highest_priority_and_locked_memory(
    rtprio: int, memlock: int, status: str, tmp_path: Path
) -> None:
    check = limits(True, rtprio, memlock, tmp_path)
    assert check.status == status
    assert ("limits.conf" in check.advice) == (status != "ok")


def test_limits_are_a_warning_without_an_arm(tmp_path: Path) -> None:
    assert limits(False, 0, -1, tmp_path).status == "warning"


def test_a_capability_stands_for_the_limit_of_the_priority(tmp_path: Path) -> None:
    check = limits(True, 0, -1, with_capabilities(tmp_path, SYS_NICE))
    assert check.status == "ok"
    assert check.found == "rtprio 0 (CAP_SYS_NICE), memlock unlimited"


def test_a_capability_of_the_priority_does_not_lock_memory(tmp_path: Path) -> None:
    check = limits(True, 0, 64 * 1024, with_capabilities(tmp_path, SYS_NICE))
    assert check.status == "warning"
    assert "memlock 64 kB" in check.found


def with_governors(system: Path, *names: str) -> Path:
    for index, name in enumerate(names):
        folder = system / "devices" / "system" / "cpu" / f"cpu{index}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    return system


def test_the_governor_has_to_be_performance_on_every_processor(tmp_path: Path) -> None:
    system = with_governors(tmp_path, "performance", "powersave")
    check = governor(system)
    assert (check.status, check.found) == ("warning", "performance, powersave")
    assert "cpupower" in check.advice


def test_the_governor_performance_is_ok(tmp_path: Path) -> None:
    assert governor(with_governors(tmp_path, "performance", "performance")).status == "ok"


def test_a_machine_without_cpufreq_is_not_checked(tmp_path: Path) -> None:
    assert governor(tmp_path).status == "not checked"

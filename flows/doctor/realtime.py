"""Checks what the 1 kHz loop of an arm needs from this computer: a real-time kernel, limits that
permit its priority, and processors at full speed.

libfranka reads `/sys/kernel/realtime` and asks for the highest priority of SCHED_FIFO
(`franka::hasRealtimeKernel`, `franka::setCurrentThreadToHighestSchedulerPriority`); it ends the
connection where either is refused and real time is enforced, as it is for an arm. The limits are
those of the Franka documentation, "Setting up the real-time kernel". The simulated arm needs none
of them.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from flows.doctor.check import Check, Status

HIGHEST_PRIORITY = 99
"""Priority that libfranka asks for, and limit `rtprio` that permits it."""
LOCKED_BYTES = 102_400 * 1024
"""Limit `memlock` in the Franka documentation [bytes]."""
CAP_IPC_LOCK = 14
CAP_SYS_NICE = 23
"""Capabilities that stand for the limits, as bits of `CapEff`, see capabilities(7)."""
LIMITS = "/etc/security/limits.conf"


def kernel(arm: bool, system: Path = Path("/sys"), stated: str | None = None) -> Check:
    """Checks whether the kernel is a PREEMPT_RT one.

    Args:
        arm: whether this computer controls an arm, which fails without one.
        system: folder of sysfs.
        stated: version of the kernel as `uname -v` prints it; None asks the kernel.
    """
    stated = os.uname().version if stated is None else stated
    marked = system / "kernel" / "realtime"
    realtime = marked.is_file() and marked.read_text().strip() == "1"
    if realtime:
        return Check("kernel", "ok", f"{os.uname().release}, PREEMPT_RT")
    if "PREEMPT_RT" in stated.split():
        found = f"{os.uname().release} is PREEMPT_RT, but has no /sys/kernel/realtime"
        advice = "libfranka reads that file and refuses an arm: use a kernel that has it."
    else:
        found = f"{os.uname().release} is no PREEMPT_RT kernel"
        advice = "A real arm needs one: `pro enable realtime-kernel` or `linux-image-rt-amd64`."
    return Check("kernel", _severity(arm), found, advice)


def limits(
    arm: bool,
    rtprio: int | None = None,
    memlock: int | None = None,
    proc: Path = Path("/proc"),
) -> Check:
    """Checks whether a process of this user may take real-time priority and lock its memory.

    Args:
        arm: whether this computer controls an arm, which fails without the priority.
        rtprio: highest real-time priority, -1 without a limit; None asks the kernel.
        memlock: memory that may be locked [bytes], -1 without a limit; None asks the kernel.
        proc: folder of procfs, which has the capabilities of this process.
    """
    if not hasattr(resource, "RLIMIT_RTPRIO"):
        return Check("limits", "not checked", "this system has no limit rtprio")
    rtprio = resource.getrlimit(resource.RLIMIT_RTPRIO)[0] if rtprio is None else rtprio
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if memlock is None else memlock
    capabilities = _capabilities(proc)
    nice, lock = (capabilities >> CAP_SYS_NICE & 1, capabilities >> CAP_IPC_LOCK & 1)
    priority = bool(nice) or rtprio == resource.RLIM_INFINITY or rtprio >= HIGHEST_PRIORITY
    memory = bool(lock) or memlock == resource.RLIM_INFINITY or memlock >= LOCKED_BYTES
    shown = "unlimited" if memlock == resource.RLIM_INFINITY else f"{memlock // 1024} kB"
    found = f"rtprio {'unlimited' if rtprio == resource.RLIM_INFINITY else rtprio}"
    found += f"{' (CAP_SYS_NICE)' if nice else ''}, memlock {shown}"
    found += " (CAP_IPC_LOCK)" if lock else ""
    if priority and memory:
        return Check("limits", "ok", found)
    advice = (
        f"A real arm needs rtprio {HIGHEST_PRIORITY} and memlock {LOCKED_BYTES // 1024}: add both "
        f"for your user to {LIMITS} and log in again."
    )
    return Check("limits", "warning" if priority else _severity(arm), found, advice)


def governor(system: Path = Path("/sys")) -> Check:
    """Checks whether the processors stay at full speed.

    Args:
        system: folder of sysfs.
    """
    files = sorted(system.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    found = sorted({file.read_text().strip() for file in files})
    if not found:
        return Check("CPU governor", "not checked", "no cpufreq, as in a virtual machine")
    if found == ["performance"]:
        return Check("CPU governor", "ok", "performance")
    advice = "For a real arm give `cpupower frequency-set --governor performance`."
    return Check("CPU governor", "warning", ", ".join(found), advice)


def _severity(arm: bool) -> Status:
    return "failed" if arm else "warning"


def _capabilities(proc: Path) -> int:
    """Effective capabilities of this process, as a bit mask; 0 if they are not stated."""
    status = proc / "self" / "status"
    for line in status.read_text().splitlines() if status.is_file() else ():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0

"""Makes all checks of this machine in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from flows.doctor import (
    capacity,
    clock,
    franka,
    graphics,
    latency,
    packages,
    ports,
    prefect_server,
    realtime,
    recipes,
    variables,
)
from flows.doctor.check import Check
from robots.errors import describe

Examination = Callable[[], Check | Sequence[Check]]
"""Makes one check, or several of one source."""


def examine(robot: str | None, seconds: float) -> Iterator[Check]:
    """Yields every check as soon as it is made.

    Args:
        robot: address of the arm that this computer controls; None for a computer without one.
        seconds: duration of the measurement of latency [s].
    """
    for name, examination in examinations(robot, seconds).items():
        yield from made(name, examination)


def made(name: str, examination: Examination) -> Sequence[Check]:
    """Returns the checks of one source; an error of the source is one of them.

    Args:
        name: name of the check that stands for an error.
        examination: makes the checks.
    """
    try:
        checks = examination()
    except Exception as error:  # noqa: BLE001  a broken source must not hide the other checks
        return [Check(name, "not checked", f"the check itself failed: {describe(error)}")]
    return [checks] if isinstance(checks, Check) else checks


def examinations(robot: str | None, seconds: float) -> dict[str, Examination]:
    """Returns what makes the checks, in their order, by a name; see `examine`."""
    arm = robot is not None
    found: dict[str, Examination] = {
        "Python": packages.python_version,
        "packages": packages.pinned_versions,
        "requirements": lambda: packages.required_packages(packages.declared_packages()),
        "extras": lambda: packages.extras(packages.declared_packages()),
        "torch": lambda: graphics.torch(graphics.torch_build(), graphics.nvidia_driver()),
        "OpenGL": graphics.opengl,
        "Vulkan": graphics.vulkan,
        "disk: runs": partial(capacity.disk, "disk: runs", Path("runs")),
        "disk: temporary": capacity.temporary_disk,
        "memory": capacity.memory,
        "cache folder": capacity.cache,
        **{f"port {number}": partial(ports.port, number) for number in ports.PORTS},
        "clock": lambda: clock.clock(clock.kernel_clock()),
        "Prefect": prefect_server.prefect,
        "variables": variables.variables,
        "recipes": recipes.check_recipes,
        "kernel": partial(realtime.kernel, arm),
        "limits": partial(realtime.limits, arm),
        "CPU governor": realtime.governor,
        # Nothing else runs while it measures.
        "wake-ups": partial(latency.wake_up_latency, seconds),
        "franky": partial(franka.franky, arm),
    }
    if robot is not None:
        found[f"arm {robot}"] = partial(franka.arm_connection, robot)
    return found

"""Describes the computer of a run: processor, GPUs, threads, and the variables that it reads."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from flows.config.resources import Resources
from flows.reports.run_records.places import written_path

SETTINGS = (
    "HANDOFF_DATA",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "MUJOCO_GL",
    "PYOPENGL_PLATFORM",
    "RAY_ADDRESS",
)
"""Variables of the environment that a record holds; none of them is a secret."""
PLACES = ("HANDOFF_DATA",)
"""Those that are paths."""
GPU_SECONDS = 10.0
"""Longest time for the answer of the GPU's driver [s]."""


def computer() -> dict[str, Any]:
    """Returns the host, the system, the processor with its cores, and the models of the GPUs."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "python": platform.python_version(),
    }


def resources() -> Resources:
    """Returns what this computer has for stages: the cores that this process may use, the memory,
    and the GPUs."""
    import psutil

    return Resources(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=psutil.virtual_memory().total / 1e9,
        gpus=len(_gpus()),
    )


def threads() -> dict[str, Any]:
    """Returns the number of threads that the environment asks for, and that of torch if it is
    loaded; None where there is none."""
    torch = sys.modules.get("torch")
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "torch": None if torch is None else torch.get_num_threads(),
    }


def settings(base: Path) -> dict[str, str]:
    """Returns the variables of the environment that a run reads, paths as `written_path` does.

    Args:
        base: the working directory.
    """
    found = {name: os.environ[name] for name in SETTINGS if os.environ.get(name)}
    places = {name: written_path(Path(found[name]), base) for name in PLACES if name in found}
    return {**found, **places}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), "") or platform.processor() or "unknown"


def _gpus() -> list[str]:
    """Models of the NVIDIA GPUs with the version of their driver; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=GPU_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ["unknown (nvidia-smi does not answer)"]
    # Without a GPU the program prints a sentence and fails.
    lines = result.stdout.splitlines() if result.returncode == 0 else []
    return [line.strip() for line in lines if line.strip()]

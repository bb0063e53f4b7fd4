"""The computer of a run: GPUs as the driver names them, threads, and the variables that count."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.reports.run_records.computer import computer, settings, threads


def driver(folder: Path, script: str) -> None:
    """A stand-in for the program of the GPU's driver."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_gpus_have_the_names_that_the_driver_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(tmp_path, "echo 'NVIDIA H100, 570.1'; echo 'NVIDIA T4, 570.1'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert computer()["gpus"] == ["NVIDIA H100, 570.1", "NVIDIA T4, 570.1"]


@pytest.mark.parametrize(
    ("script", "gpus"),
    [("echo 'no devices were found'; exit 6", []), (None, [])],
    ids=["no GPU", "no driver"],
)
def test_a_computer_without_gpus_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, gpus: list[str]
) -> None:
    if script is not None:
        driver(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert computer()["gpus"] == gpus


def test_threads_are_those_of_the_environment_and_of_a_loaded_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert threads() == {"OMP_NUM_THREADS": "3", "torch": None}
    loaded = SimpleNamespace(get_num_threads=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", loaded)  # type: ignore[arg-type]
    assert threads() == {"OMP_NUM_THREADS": "3", "torch": 2}


def test_settings_are_known_variables_with_paths_relative_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HANDOFF_TOKEN", "secret")
    monkeypatch.setenv("HANDOFF_DATA", str(tmp_path / "lab" / "data"))
    assert settings(tmp_path / "lab") == {"HANDOFF_DATA": "data"}

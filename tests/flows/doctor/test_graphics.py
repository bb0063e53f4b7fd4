"""Torch with CUDA, OpenGL and Vulkan, on machines that have them and machines that do not."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from flows.doctor import graphics
from flows.doctor.graphics import NvidiaDriver, TorchBuild

NO_GPU = NvidiaDriver(None, [], 0, 0)
H100 = NvidiaDriver("570.86.15", ["NVIDIA H100 80GB HBM3"], 1, 12)
CPU_BUILD = TorchBuild("2.13.0+cpu", None)
CUDA_BUILD = TorchBuild("2.13.0", "12.8")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Modules that are installed."""
    names: set[str] = set()
    monkeypatch.setattr(graphics, "find_spec", lambda name: object() if name in names else None)
    return names


def having_libraries(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(graphics, "loads", lambda library: library in names)


@pytest.mark.parametrize(
    ("build", "driver", "status"),
    [
        (None, NO_GPU, "not checked"),
        (CPU_BUILD, NO_GPU, "ok"),
        (CUDA_BUILD, NO_GPU, "ok"),
        (CUDA_BUILD, H100, "ok"),
        (CPU_BUILD, H100, "warning"),
        (CUDA_BUILD, H100._replace(usable=0, cuda=0), "warning"),
        (TorchBuild("2.13.0", "13.0"), H100, "warning"),
    ],
)
def test_torch_is_rated_with_the_gpu(
    build: TorchBuild | None, driver: NvidiaDriver, status: str
) -> None:
    check = graphics.torch(build, driver)
    assert check.status == status
    assert bool(check.advice) == (status == "warning")


def test_models_and_driver_of_the_gpus_are_named() -> None:
    two = H100._replace(models=[*H100.models, *H100.models], usable=2)
    assert graphics.torch(CUDA_BUILD, two).found == (
        "2.13.0, with CUDA 12.8; 2 x NVIDIA H100 80GB HBM3, driver 570.86.15"
    )


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n",
    ],
)
def test_driver_and_models_are_read_from_proc(tmp_path: Path, line: str) -> None:
    gpu = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text(f"{line}GCC version: 12.3.0\n")
    (gpu / "information").write_text("Model: \t\t NVIDIA RTX A4000\nIRQ:   \t\t 139\n")
    driver = graphics.nvidia_driver(tmp_path)
    assert (driver.version, driver.models) == ("550.54.15", ["NVIDIA RTX A4000"])


def test_without_an_nvidia_driver_proc_has_none(tmp_path: Path) -> None:
    driver = graphics.nvidia_driver(tmp_path)
    assert (driver.version, driver.models) == (None, [])


@pytest.mark.parametrize(
    ("line", "cuda"), [("cuda: Optional[str] = '12.8'", "12.8"), ("cuda = None", None)]
)
def test_the_build_of_torch_is_read_from_its_files(
    line: str, cuda: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text(f"debug = False\n{line}\nhip = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    assert graphics.torch_build() == TorchBuild(version("torch"), cuda)


def test_opengl_is_not_checked_without_mujoco(installed: set[str]) -> None:
    assert graphics.opengl().status == "not checked"


def test_opengl_without_a_library_is_a_warning(
    installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.add("mujoco")
    having_libraries(monkeypatch)
    assert graphics.opengl().status == "warning"
    assert "apt install libegl1" in graphics.opengl().advice
    having_libraries(monkeypatch, "libOSMesa.so.8")
    assert graphics.opengl().status == "ok"


def test_vulkan_needs_a_loader_and_a_driver(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert graphics.vulkan([tmp_path]).status == "not checked"
    installed.add("mani_skill")
    having_libraries(monkeypatch, graphics.VULKAN)
    assert graphics.vulkan([tmp_path]).found.startswith("no driver")
    (tmp_path / "lvp_icd.json").write_text("{}")
    assert graphics.vulkan([tmp_path]).status == "ok"
    having_libraries(monkeypatch)
    assert graphics.vulkan([tmp_path]).found.startswith("no libvulkan.so.1")

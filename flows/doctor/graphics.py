"""Checks torch with CUDA, and libraries that draw: OpenGL without a screen, and Vulkan.

Drivers are asked by ctypes and packages by their files, because importing torch takes seconds.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from flows.doctor.check import Check

OPENGL = ("libEGL.so.1", "libOSMesa.so.8", "libOSMesa.so.6")
"""Libraries of which one renders without a screen."""
VULKAN = "libvulkan.so.1"
"""Library that loads the drivers of Vulkan."""
VULKAN_DRIVERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
"""Folders in which drivers of Vulkan are announced, one JSON file each."""
INSTALL_OPENGL = "apt install libegl1 libgl1-mesa-dri"
INSTALL_VULKAN = "apt install libvulkan1 mesa-vulkan-drivers"


class TorchBuild(NamedTuple):
    """The installed torch."""

    version: str
    cuda: str | None
    """Version of CUDA that it was built with, None without CUDA."""


class NvidiaDriver(NamedTuple):
    """The kernel's NVIDIA driver and what CUDA finds by it."""

    version: str | None
    """Version of the kernel module, None without one."""
    models: Sequence[str]
    """Models of the GPUs that the kernel module drives."""
    usable: int
    """Number of GPUs that CUDA finds."""
    cuda: int
    """Newest major version of CUDA that the driver serves; 0 without a driver."""


def lacking_opengl() -> str | None:
    """Returns a sentence if no library renders without a screen."""
    if any(map(loads, OPENGL)):
        return None
    return f"no OpenGL without a screen: {INSTALL_OPENGL}."


def lacking_vulkan() -> str | None:
    """Returns a sentence if Vulkan cannot be loaded."""
    return None if loads(VULKAN) else f"no Vulkan: {INSTALL_VULKAN}."


def lacking_cuda() -> str | None:
    """Returns a sentence if torch is installed and `device: cuda` would be refused."""
    try:
        build = version("torch")
    except PackageNotFoundError:
        return None
    if build.endswith("+cpu"):
        return f"device cuda: torch {build} is built without CUDA."
    return "device cuda: no NVIDIA GPU was found." if gpus() == 0 else None


@cache
def loads(library: str) -> bool:
    """Whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@cache
def gpus() -> int:
    """Number of GPUs that the driver of CUDA finds."""
    if not loads("libcuda.so.1"):
        return 0
    driver, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(number)) != 0:
        return 0
    return number.value


def opengl() -> Check:
    """Checks whether MuJoCo can render without a screen."""
    if find_spec("mujoco") is None:
        return Check("OpenGL", "not checked", "mujoco is not installed, which would render")
    found = [library for library in OPENGL if loads(library)]
    if found:
        return Check("OpenGL", "ok", f"without a screen by {', '.join(found)}")
    return Check(
        "OpenGL",
        "warning",
        "none without a screen: no pictures of observations, and videos are plan views",
        f"Give `{INSTALL_OPENGL}`.",
    )


def vulkan(folders: Sequence[str | Path] = VULKAN_DRIVERS) -> Check:
    """Checks whether ManiSkill finds a driver of Vulkan.

    Args:
        folders: folders in which drivers are announced.
    """
    if find_spec("mani_skill") is None:
        return Check("Vulkan", "not checked", "mani_skill is not installed, which would need it")
    drivers = sorted(file.stem for folder in folders for file in Path(folder).glob("*.json"))
    if loads(VULKAN) and drivers:
        return Check("Vulkan", "ok", f"{VULKAN} with the drivers {', '.join(drivers)}")
    lacking = "no driver" if loads(VULKAN) else f"no {VULKAN}"
    advice = f"Give `{INSTALL_VULKAN}`; ManiSkill needs Mesa 25 or later."
    return Check("Vulkan", "warning", f"{lacking}, without which ManiSkill does not start", advice)


def torch(build: TorchBuild | None, driver: NvidiaDriver) -> Check:
    """Checks whether torch can use the GPUs of this machine.

    Args:
        build: the installed torch; None without one.
        driver: the NVIDIA driver.
    """
    gpu = _described(driver)
    if build is None:
        return Check("torch", "not checked", f"torch is not installed; {gpu}")
    cuda = f"with CUDA {build.cuda}" if build.cuda else "without CUDA"
    found = f"{build.version}, {cuda}; {gpu}"
    if not driver.models and not driver.usable:
        return Check("torch", "ok", found)
    if build.cuda is None:
        advice = "Install the build of this version with CUDA, from pytorch.org, to use the GPU."
        return Check("torch", "warning", found, advice)
    if driver.usable == 0:
        advice = "CUDA finds no GPU: install the driver's libcuda.so.1, or restart the machine."
        return Check("torch", "warning", found, advice)
    if int(build.cuda.partition(".")[0]) > driver.cuda:
        found = f"{found}, whose driver serves CUDA {driver.cuda}"
        return Check("torch", "warning", found, "Install a newer NVIDIA driver.")
    return Check("torch", "ok", found)


def torch_build() -> TorchBuild | None:
    """Returns the build of the installed torch; None without one."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text()
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return TorchBuild(version("torch"), cuda[1] if cuda else None)


def nvidia_driver(proc: Path = Path("/proc")) -> NvidiaDriver:
    """Returns the NVIDIA driver, as far as there is one.

    Args:
        proc: folder that the kernel describes itself in.
    """
    folder = proc / "driver" / "nvidia"
    stated = folder / "version"
    module = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", stated.read_text() if stated.is_file() else "")
    texts = [file.read_text() for file in sorted(folder.glob("gpus/*/information"))]
    models = [
        found[1] for text in texts if (found := re.search(r"^Model:\s*(.+?)\s*$", text, re.M))
    ]
    return NvidiaDriver(module[1] if module else None, models, gpus(), _cuda_of_driver())


def _cuda_of_driver() -> int:
    number = ctypes.c_int(0)
    if loads("libcuda.so.1"):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000


def _described(driver: NvidiaDriver) -> str:
    if not driver.models and not driver.usable:
        return "no NVIDIA GPU"
    counts = {model: list(driver.models).count(model) for model in driver.models}
    names = [f"{number} x {model}" if number > 1 else model for model, number in counts.items()]
    gpu = ", ".join(names) or f"{driver.usable} NVIDIA GPU"
    return f"{gpu}, driver {driver.version or 'unknown'}"

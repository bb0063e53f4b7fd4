"""Installs LeRobot 0.6.1 in an environment of its own, without the 3 GB of CUDA.

The package index has torch for Linux only with CUDA. Its libraries are left out here, and empty
ones take their place, so that torch can be imported; nothing calls them without a GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "lerobot[dataset]==0.6.1"
LEFT_OUT = (
    "cuda-bindings",
    "cuda-toolkit",
    "nvidia-cublas",
    "nvidia-cuda-cupti",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-cufile",
    "nvidia-curand",
    "nvidia-cusolver",
    "nvidia-cusparse",
    "nvidia-cusparselt-cu13",
    "nvidia-nccl-cu13",
    "nvidia-nvjitlink",
    "nvidia-nvshmem-cu13",
    "nvidia-nvtx",
    "triton",
)
"""Packages of torch 2.11 that no processor needs."""


def lacking() -> str | None:
    """Reason why LeRobot cannot be installed on this machine; None if it can."""
    if sys.platform != "linux":
        return "the stand-ins for CUDA are made for Linux"
    if python312() is None:
        return "LeRobot 0.6.1 needs Python 3.12: none found on the PATH or under pyenv"
    if not (shutil.which("cc") and shutil.which("objdump")):
        return "the stand-ins for CUDA need a C compiler and objdump: apt install gcc"
    return None


def python312() -> Path | None:
    """A Python 3.12: the running one, one on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [Path(sys.executable), *sorted(pyenv.glob("versions/3.12*/bin/python"))]
    if found := shutil.which("python3.12"):
        candidates.insert(1, Path(found))
    for python in candidates:
        asked = [python, "-c", "import sys; print(sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == "(3, 12)":
            return python
    return None


def install(folder: Path, package: str = PACKAGE) -> Path:
    """Creates the environment with `package`; returns its Python."""
    subprocess.run([python312() or sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "uv"], check=True)
    override = folder / "override.txt"
    override.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in LEFT_OUT))
    uv = [folder / "bin" / "uv", "pip", "install", "--quiet", "--python", python]
    subprocess.run([*uv, "--override", override, package], check=True)
    (libraries,) = folder.glob("lib/python3.12/site-packages/torch/lib")
    replace_missing(libraries, folder)
    return python


def replace_missing(libraries: Path, scratch: Path) -> None:
    """Adds an empty library for each that those in a folder ask for and the machine lacks, with the
    functions and the versions of functions that they ask for."""
    files = list(libraries.glob("*.so*"))
    needed: set[str] = set()
    versions: dict[str, set[str]] = {}
    functions: dict[str, set[str]] = {}
    defined: set[str] = set()
    for file in files:
        head = _output("objdump", "-p", str(file))
        needed |= set(re.findall(r"NEEDED\s+(\S+)", head))
        for name, lines in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", head):
            versions.setdefault(name, set()).update(line.split()[-1] for line in lines.splitlines())
        for line in _output("objdump", "-T", str(file)).splitlines():
            parts = line.split()
            if "*UND*" not in parts or " w " in line[:24]:
                defined.update(parts[-1:])
                continue
            version = parts[-2].strip("()") if len(parts) > 5 else "Base"
            functions.setdefault(version, set()).add(parts[-1])
    known = _output("ldconfig", "-p")
    missing = [n for n in sorted(needed) if n not in known and not (libraries / n).exists()]
    for name in needed - set(missing):
        if found := re.search(rf"\s{re.escape(name)} .*=> (\S+)", known):
            symbols = _output("objdump", "-T", found[1]).splitlines()
            defined |= {
                line.split()[-1] for line in symbols if line.split() and "*UND*" not in line
            }
    # Those without versions get the functions of all that have none.
    plain = functions.get("Base", set()) - defined
    for name in missing:
        tags = sorted(versions.get(name, ()))
        by_tag = {tag: sorted(functions.get(tag, ())) for tag in tags}
        names = {n for found in by_tag.values() for n in found} if tags else plain
        source, script = scratch / "empty.c", scratch / "empty.map"
        source.write_text("".join(f"void {n}(void) {{}}\n" for n in sorted(names)))
        lines = [
            f"{tag} {{ global: {' '.join(f'{n};' for n in n_)} }};" for tag, n_ in by_tag.items()
        ]
        script.write_text("\n".join(lines))
        options = [f"-Wl,-soname,{name}", *([f"-Wl,--version-script={script}"] if tags else [])]
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", *options]
        subprocess.run([*command, "-o", libraries / name, source], check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout

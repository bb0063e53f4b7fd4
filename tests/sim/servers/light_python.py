"""A Python that has NumPy and msgpack and no other package, as the other side of a server needs."""

from __future__ import annotations

import atexit
import shutil
import sys
import venv
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp


@cache
def light_python() -> str:
    """Path of the Python of a virtual environment that is made without the package index: NumPy and
    msgpack are links to those of this process."""
    folder = Path(mkdtemp(prefix="handoff-light-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "msgpack"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent
        for part in (source, source.with_name(f"{name}.libs")):
            if part.is_dir():
                (packages / part.name).symlink_to(part)
    assert sys.executable != str(folder / "bin" / "python")
    return str(folder / "bin" / "python")

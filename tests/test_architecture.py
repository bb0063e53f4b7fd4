"""The house: layers, what an import may cost, and who owns the top-level names."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "robots", "policies", "sim", "real")
HEAVY = (
    "torch",
    "diffusers",
    "mujoco",
    "zarr",
    "onnxruntime",
    "franky",
    "gymnasium",
    "gym_pusht",
    "prefect",
)
OPTIONAL = ("isaaclab", "mani_skill", "franky", "pyspacemouse")


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def loaded_after(*command: str) -> set[str]:
    """Top-level modules that are loaded after a command-line call."""
    code = (
        "import sys; from flows.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=ROOT, check=True
    )
    line = next(line for line in result.stdout.splitlines() if line.startswith("LOADED"))
    return set(line.split()[1:])


@pytest.mark.parametrize(
    "command", [("--help",), ("plan", "demo"), ("run", "demo", "pretrain.stepz=3")]
)
def test_light_commands_import_nothing_heavy(command: tuple[str, ...], tmp_path: Path) -> None:
    overrides = [f"runs={tmp_path}"] if command[0] != "--help" else []
    assert loaded_after(*command, *overrides).isdisjoint(HEAVY)


def test_vendor_packages_are_imported_inside_functions_only() -> None:
    offenders = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        if name and name.split(".")[0] in OPTIONAL
    ]
    assert offenders == []


def test_no_installed_wheel_squats_on_our_names() -> None:
    owners = importlib.metadata.packages_distributions()
    assert {name: owners.get(name, ["handoff"]) for name in (*PACKAGES, "configs")} == {
        name: ["handoff"] for name in (*PACKAGES, "configs")
    }


def test_our_packages_are_imported_from_this_checkout() -> None:
    import flows
    import robots

    assert [Path(package.__file__ or "").parent.parent for package in (flows, robots)] == [
        ROOT,
        ROOT,
    ]


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in sources()
        if file.read_text().strip() and ast.get_docstring(ast.parse(file.read_text())) is None
    ]
    assert silent == []


def test_no_folder_is_a_stub() -> None:
    empty = [
        str(folder.parent.relative_to(ROOT))
        for package in PACKAGES
        for folder in (ROOT / package).rglob("__init__.py")
        if not any(file.name != "__init__.py" for file in folder.parent.rglob("*.py"))
    ]
    assert empty == []

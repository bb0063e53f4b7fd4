"""The structure of the packages: layers, cost of imports, sizes, names and docstrings."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.runner.signature import shipped_kinds
from tests import house

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
MOST_MODULES = 15
BY_A_PAGE = {
    "robots.episodes.write_episodes": "docs/guides/data.md",
    "robots.specifications.robustness": "docs/guides/evaluation.md",
}
"""Modules for programs of one's own, with the page that shows them."""
BY_A_PROTOCOL = {"sim.engines.meta_world": "configs/protocol/metaworld_pick_place.yaml"}
"""Engines that run on an environment server, with a protocol that names them."""
ELLIPSES = (
    "Of",
    "By",
    "Per",
    "In",
    "On",
    "At",
    "To",
    "From",
    "With",
    "For",
    "Likewise",
    "See",
    "As",
)
RETIRED = {
    "worlds": "envs, num_envs or env_ids",
    "practice": "finetuning",
    "practise": "finetune",
    "practises": "finetunes",
    "practised": "visited or finetuned",
    "dream": "imagination",
    "dreams": "imagined rollouts",
    "dreamt": "imagined",
    "told": "the name of the thing",
    "seen": "obs",
    "met": "visited",
    "taught": "distilled",
    "lesson": "TrainingSetup",
    "lessons": "DistillationLoss",
    "led": "result",
    "paid": "reward",
    "chance": "rng",
    "ledger": "SequenceTracker",
    "inbox": "MessageLog",
    "sentinel": "TrainingHealth",
    "tally": "EpisodeStatistics",
}
RIDDLES = ("What", "Who", "Where", "Whose", "How", "Which")
OPTIONAL = (
    "accelerate",
    "cv2",
    "diffusers",
    "franky",
    "gym_pusht",
    "gymnasium",
    "gymnasium_robotics",
    "isaaclab",
    "mani_skill",
    "matplotlib",
    "mujoco",
    "mujoco_warp",
    "obstore",
    "onnx",
    "onnxscript",
    "peft",
    "prefect",
    "pyspacemouse",
    "ray",
    "tensorboard",
    "tensordict",
    "timm",
    "tokenizers",
    "transformers",
    "trimesh",
    "viser",
    "trackio",
    "wandb",
    "warp",
)
"""Packages that are missing in some installs; torch is not listed, because learner modules import
it."""


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
    "command",
    [
        ("--help",),
        ("deploy", "--help"),
        ("deploy", "no_such_gate"),
        ("sign", "no_such_gate"),
        ("verify", "no_such_release"),
        ("keys", "list"),
        ("console", "--help"),
        ("hil", "--help"),
        ("hil", "no_such_task"),
        ("evaluate", "--help"),
        ("doctor", "--help"),
        ("plan", "demo"),
        ("run", "demo", "teacher.stepz=3"),
    ],
)
def test_light_commands_import_nothing_heavy(command: tuple[str, ...], tmp_path: Path) -> None:
    overrides = [f"runs={tmp_path}"] if command[0] in ("plan", "run") else []
    assert loaded_after(*command, *overrides).isdisjoint(HEAVY)


@pytest.mark.parametrize("module", ["flows.deployment.session", "flows.attended", "flows.console"])
def test_sessions_with_a_person_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert {name.split(".")[0] for name in loaded.split()}.isdisjoint(HEAVY)


def test_scripted_demonstrations_depend_on_no_policy() -> None:
    # What a stage imports is part of its artifact's identity: they would be recorded again.
    modules = "flows.stages.data.scripted", "sim.recording.demonstrations", "sim.make"
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert [name for name in loaded.split() if name.split(".")[0] == "policies"] == []


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
        if name
        and name.split(".")[0] in OPTIONAL
        # These are imported by the Python of an environment server only, which has the packages.
        and file.parent != ROOT / "sim" / "isaac"
    ]
    assert offenders == []


def test_no_installed_wheel_owns_our_package_names() -> None:
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


def test_every_module_has_a_docstring() -> None:
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


def test_packages_are_small() -> None:
    large = {
        name: len(names) for name, names in house.packages().items() if len(names) > MOST_MODULES
    }
    assert large == {}


def test_no_module_imports_itself_through_others() -> None:
    assert house.circles() == []


def test_no_module_is_named_as_one_of_the_standard_library() -> None:
    # By file, an entry point's folder comes first on the import path.
    shadows = [name for name in house.modules() if name.split(".")[-1] in sys.stdlib_module_names]
    assert shadows == []


def test_no_two_public_classes_have_one_name() -> None:
    shared = {name: where for name, where in house.public_classes().items() if len(where) > 1}
    assert shared == {}


def test_every_option_has_a_docstring_that_stands_alone() -> None:
    incomplete = [
        f"{where}.{name}: {text}"
        for where, name, text in house.options()
        if name != "kind" and (text is None or text.split(" ")[0].rstrip(".,:") in ELLIPSES)
    ]
    assert incomplete == []


def test_module_docstrings_say_what_the_module_does() -> None:
    riddles = [
        f"{name}: {text.splitlines()[0]}"
        for name in house.modules()
        if (text := ast.get_docstring(house.tree(name)) or "").split(" ")[0] in RIDDLES
    ]
    assert riddles == []


def test_lines_end_at_100_columns() -> None:
    wide = [f"{name}:{line}" for name in house.modules() for line in house.wide_lines(name, 100)]
    assert wide == []


def test_attributes_are_assigned_one_per_line() -> None:
    packed = {name: lines for name in house.modules() if (lines := house.packed_assignments(name))}
    assert packed == {}, "lines that assign an attribute, or three names and more, from a tuple"


def test_retired_words_are_in_no_name() -> None:
    """The field's words, each for one of ours that nobody else uses."""
    found = {
        f"{module}: {name}": RETIRED[word]
        for module in house.modules()
        for name in house.identifiers(module)
        for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        if word in RETIRED
    }
    assert found == {}


def test_readme_names_every_package_and_each_package_its_modules() -> None:
    readme = (ROOT / "README.md").read_text()
    found = house.packages()
    unnamed = [name for name in found if f"{name.rpartition('.')[2]}/" not in readme]
    silent = [
        f"{package}.{module}"
        for package, inside in found.items()
        for module in inside
        if f"`{module}`" not in (ast.get_docstring(house.tree(package)) or "")
    ]
    assert unnamed == []
    assert silent == []


def test_every_module_is_reached_by_a_command_or_a_page() -> None:
    entrances = ("flows.__main__", "flows.deployments", *shipped_kinds().values())
    for name, protocol in BY_A_PROTOCOL.items():
        assert f"engine: {name}" in (ROOT / protocol).read_text()
    reached = {*house.reachable(entrances), *BY_A_PAGE, *BY_A_PROTOCOL}
    assert [name for name in house.modules() if name not in reached] == []

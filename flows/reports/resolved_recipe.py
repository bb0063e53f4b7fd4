"""Writes the resolved recipe of a run: every stage with its final inputs and all of its options, so
that it depends on no other file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.runner.artifact import read_manifest
from robots.storage.durable import write_atomically

RECIPE = "recipe.yaml"
"""Name of the file in the folder of a run."""


def resolved_recipe(name: str, artifacts: Mapping[str, Path]) -> dict[str, Any]:
    """Returns the recipe that made the artifacts, as plain values.

    The copies of a matrix are stages of their own, and seeds of the recipe are in the options.

    Args:
        name: name of the recipe.
        artifacts: folder of the artifact of every stage, by name, inputs before the stages that
            need them.
    """
    names = {path.resolve(): stage for stage, path in artifacts.items()}
    # A cached artifact may have been made from another artifact with the same content.
    contents = {read_manifest(path)["digest"]: stage for stage, path in artifacts.items()}
    stages: dict[str, Any] = {}
    for stage, path in artifacts.items():
        manifest = read_manifest(path)
        entry: dict[str, Any] = {"uses": manifest.get("uses", "")}
        inputs: dict[str, Any] = {}
        for label, link in manifest["input_paths"].items():
            made_from = (path.resolve() / link).resolve()
            source = names.get(made_from) or contents[manifest["inputs"][label]]
            base, numbered, _ = label.partition(".")
            inputs[base] = [*inputs.get(base, []), source] if numbered else source
        if inputs:
            entry["inputs"] = inputs
        entry["with"] = manifest["config"]
        stages[stage] = entry
    return {"name": name, "stages": stages}


def write_resolved_recipe(file: Path, name: str, artifacts: Mapping[str, Path]) -> None:
    """Writes the resolved recipe as YAML; arguments as those of `resolved_recipe`."""
    import yaml

    text = yaml.safe_dump(resolved_recipe(name, artifacts), sort_keys=False, width=100)
    header = (
        "# Every stage of the run with all of its options; the run's folder has their results.\n"
    )
    write_atomically(file, (header + text).encode())

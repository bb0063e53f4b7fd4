"""Repeats a finished run from its manifests, and compares every artifact with the original."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.config.options import build
from flows.reports.lineage import computation_differences
from flows.reports.reproduction import (
    Reproduction,
    StageComparison,
    compare_artifacts,
    write_comparison,
)
from flows.reports.resolved_recipe import RECIPE, read_resolved_recipe
from flows.runner.artifact import (
    Artifact,
    check_fetched,
    json_digest,
    load_artifact,
    read_manifest,
)
from flows.runner.display import Display
from flows.runner.provenance import environment, package_lock
from flows.runner.signature import find_kind
from flows.runner.stage import Stage, artifact_path, identity, run_stage
from flows.runner.stage_code import changed_modules
from robots.errors import HandoffError
from robots.outside import add_place
from robots.storage.durable import explain_write_errors

TOLERANCE = 0.05
"""Largest relative difference of a metric, if the digests differ."""
INFORMATIVE = ("commit", "dirty", "system", "host")
"""Entries of the environment that decide no numbers."""


@dataclass(frozen=True)
class _Repeated:
    """One stage of the run."""

    stage: Stage
    artifact: Path
    """Folder of the run's artifact."""
    person: bool
    """Whether a person took part."""


def reproduce(
    run: Path | str,
    out: Path | None = None,
    *,
    runs: Path = Path("runs"),
    tolerance: float = TOLERANCE,
    anyway: bool = False,
    isolate: bool = True,
) -> Reproduction:
    """Runs all stages of a finished run again and compares them with their artifacts.

    A stage in which a person took part cannot be repeated; its artifact is used as it is.

    Args:
        run: name of the run (a folder in `runs`), or the path of its folder.
        out: folder of the repetition, which resumes what an interrupted one left there; None takes
            a new one, `reproduced/` and the time, in the run's folder.
        runs: folder in which a run is looked for by name.
        tolerance: largest relative difference of a metric, if the digests differ.
        anyway: repeats the run although code or environment differ.
        isolate: runs every stage in a process of its own.

    Returns:
        The comparison, which is also written to `out` as `reproduction.json` and
        `reproduction.html`.

    Raises:
        HandoffError: no such run, code or environment differ and `anyway` is not set, or a stage
            failed.
    """
    folder = find_run(run, runs)
    repeated = _stages(folder)
    differences = changes(repeated)
    if differences and not anyway:
        raise HandoffError(
            f"run {folder}: this installation is not the one that made it: "
            f"{'; '.join(differences)}. Install what it had, or repeat it anyway."
        )
    root = out or folder / "reproduced" / time.strftime("%Y%m%d-%H%M%S")
    with explain_write_errors(root, "the repetition cannot be written; --out FOLDER names another"):
        root.mkdir(parents=True, exist_ok=True)
    compared = _repeat(repeated, root, tolerance, isolate)
    result = Reproduction(str(folder), str(root), tolerance, differences, compared)
    write_comparison(result, root)
    return result


def find_run(run: Path | str, runs: Path = Path("runs")) -> Path:
    """Returns the folder of a run.

    Args:
        run: name of the run, or the path of its folder or of its `summary.json`.
        runs: folder in which it is looked for by name.

    Raises:
        HandoffError: no such run.
    """
    given = Path(run)
    for folder in (given, given.parent if given.is_file() else given, runs / given):
        if (folder / "summary.json").is_file():
            return folder
    finished = sorted(path.parent.name for path in runs.glob("*/summary.json"))
    raise HandoffError(
        f"run '{run}' does not exist; finished runs in {runs}: {', '.join(finished) or 'none'}."
    )


def _stages(folder: Path) -> list[_Repeated]:
    """The stages of the run, inputs before the stages that need them."""
    entries = read_resolved_recipe(folder / RECIPE)
    recipes = json.loads((folder / "summary.json").read_text()).get("request", {}).get("folder")
    if recipes:
        # Stages and tasks of one's own may lie beside the recipe.
        add_place(Path(recipes))
    stages: dict[str, Stage] = {}
    repeated = []
    for name, entry in entries.items():
        kind = find_kind(entry["uses"])
        config = build(kind.config, entry["with"], name)
        stages[name] = Stage(
            name=name,
            kind=kind.makes,
            module=kind.module,
            config=config,
            inputs=_inputs(entry["inputs"], stages),
            external=kind.external(config, True),
            exclusive=kind.exclusive,
            telemetry=kind.telemetry,
            function=kind.function,
            uses=kind.name,
        )
        path = (folder / name).resolve()
        check_fetched(path)
        load_artifact(path)
        repeated.append(_Repeated(stages[name], path, _needs_person(entry["with"])))
    return repeated


def _inputs(given: Mapping[str, Any], stages: Mapping[str, Stage]) -> dict[str, Stage]:
    inputs: dict[str, Stage] = {}
    for label, source in given.items():
        if isinstance(source, str):
            inputs[label] = stages[source]
        else:
            inputs |= {f"{label}.{i}": stages[name] for i, name in enumerate(source)}
    return inputs


def _needs_person(options: Mapping[str, Any]) -> bool:
    operator = options.get("operator")
    return isinstance(operator, Mapping) and operator.get("kind", "simulated") != "simulated"


def changes(repeated: Sequence[_Repeated]) -> list[str]:
    """Lists what decides numbers and is different now: code, data, packages, Python, computer."""
    present = {"environment": environment(), "lock": package_lock()}
    phrases: dict[str, list[str]] = {}
    for entry in repeated:
        manifest = read_manifest(entry.artifact)
        found = [f"code of {name} changed" for name in changed_modules(manifest)]
        found += [
            f"data '{label}' {str(manifest['inputs'].get(label))[:12]} → {digest[:12]}"
            for label, digest in entry.stage.external.items()
            if manifest["inputs"].get(label) != digest
        ]
        found += [
            phrase
            for phrase in computation_differences(manifest, present)
            if not _is_informative(phrase)
        ]
        for phrase in found:
            phrases.setdefault(phrase, []).append(entry.stage.name)
    return [
        phrase if len(names) == len(repeated) else f"{phrase} ({', '.join(names)})"
        for phrase, names in phrases.items()
    ]


def _is_informative(phrase: str) -> bool:
    return phrase.partition(" ")[0] in INFORMATIVE


def _repeat(
    repeated: Sequence[_Repeated], root: Path, tolerance: float, isolate: bool
) -> list[StageComparison]:
    artifacts: dict[str, Artifact] = {}
    compared = []
    with Display() as display:
        for entry in repeated:
            stage = entry.stage
            inputs = {label: artifacts[source.name] for label, source in stage.inputs.items()}
            if entry.person:
                _keep(stage, inputs, root, entry.artifact)
            progress = display.started(stage.name)
            outcome = run_stage(stage, inputs, root, progress, isolate=isolate)
            artifacts[stage.name] = outcome.artifact
            comparison = compare_artifacts(
                stage.name, entry.artifact, outcome.artifact.path, tolerance, kept=entry.person
            )
            display.finished(stage.name, comparison.status)
            compared.append(comparison)
    return compared


def _keep(stage: Stage, inputs: Mapping[str, Artifact], root: Path, artifact: Path) -> None:
    """Links the run's artifact to where a repetition finds it."""
    digests = {label: source.digest for label, source in inputs.items()}
    path = artifact_path(root, stage, json_digest(identity(stage, digests)))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        os.symlink(artifact, path)

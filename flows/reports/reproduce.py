"""Repeats a finished run from its record and manifests, and compares every artifact with the
original."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
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
from flows.reports.resolved_recipe import resolved_recipe
from flows.reports.run_records.places import read_path
from flows.reports.run_records.reading import RecordedRun, read_run
from flows.runner.artifact import (
    Artifact,
    check_fetched,
    json_digest,
    load_artifact,
    read_manifest,
)
from flows.runner.display import Display
from flows.runner.provenance import by_person, environment, package_lock
from flows.runner.signature import StageKind, find_kind
from flows.runner.stage import Stage, artifact_path, identity, run_stage
from flows.runner.stage_code import changed_modules
from robots.errors import HandoffError
from robots.outside import add_place
from robots.storage.durable import explain_write_errors

TOLERANCE = 0.05
"""Largest relative difference of a metric, if the digests differ."""
INFORMATIVE = ("commit", "dirty", "system", "host")
"""Entries of the environment that decide no numbers."""

BY_PERSON = ("approve",)
"""Kinds of stages that a person always takes part in."""
DATA = "HANDOFF_DATA"
"""Variable that names the place of demonstrations."""


@dataclass(frozen=True)
class _Repeated:
    """One stage of the run."""

    stage: Stage
    artifact: Path
    """Folder of the run's artifact."""
    person: bool
    """Whether a person took part."""
    sources: str
    """Where the run found its data from outside the recipe; empty if it read none."""


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

    A stage in which a person took part cannot be repeated; its artifact is used as it is. Data from
    outside the recipe is looked for from the folder in which the run was started, and by its
    `$HANDOFF_DATA`, unless the folder is gone or the variable is set now.

    Args:
        run: name of the run (a folder in `runs`), the path of its folder, or of a record in its
            history.
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
        HandoffError: no such run, its data cannot be found, code or environment differ and `anyway`
            is not set, or a stage failed.
    """
    recorded = read_run(run, runs)
    _check_finished(recorded)
    folder = recorded.folder
    root = out or folder / "reproduced" / time.strftime("%Y%m%d-%H%M%S")
    written = root.resolve()
    with _as_started(recorded):
        repeated = _stages(recorded)
        differences = changes(repeated)
        if differences and not anyway:
            raise HandoffError(
                f"run {folder}: this installation is not the one that made it: "
                f"{'; '.join(differences)}. Install what it had, or repeat it anyway."
            )
        with explain_write_errors(
            root, "the repetition cannot be written; --out FOLDER names another"
        ):
            written.mkdir(parents=True, exist_ok=True)
        compared = _repeat(repeated, written, tolerance, isolate)
    unfinished = [
        name for name in recorded.record.get("stages", {}) if name not in recorded.artifacts
    ]
    result = Reproduction(str(folder), str(root), tolerance, differences, compared, unfinished)
    write_comparison(result, root)
    return result


def _check_finished(recorded: RecordedRun) -> None:
    if not recorded.artifacts:
        earlier = f"; earlier runs: {recorded.earlier[0].parent}" if recorded.earlier else ""
        raise HandoffError(f"run {recorded.folder}: no stage has finished{earlier}.")


@contextmanager
def _as_started(recorded: RecordedRun) -> Iterator[None]:
    """Context in the folder in which the run was started, unless that is gone, and with its
    `$HANDOFF_DATA`, unless the variable is set now."""
    started = recorded.working_directory
    data = recorded.record.get("settings", {}).get(DATA)
    borrowed: dict[str, str] = {}
    if started is not None and data is not None and DATA not in os.environ:
        borrowed[DATA] = str(read_path(data, started))
    os.environ |= borrowed
    try:
        with nullcontext() if started is None or not started.is_dir() else chdir(started):
            yield
    finally:
        for name in borrowed:
            del os.environ[name]


def _stages(recorded: RecordedRun) -> list[_Repeated]:
    """The stages of the run, inputs before the stages that need them."""
    for path in recorded.artifacts.values():
        check_fetched(path)
        load_artifact(path)
    if recorded.recipe_folder is not None:
        # Stages and tasks of one's own may lie beside the recipe.
        add_place(recorded.recipe_folder)
    entries = resolved_recipe(recorded.name, recorded.artifacts)["stages"]
    stages: dict[str, Stage] = {}
    repeated = []
    for name, entry in entries.items():
        kind = find_kind(entry["uses"])
        config = build(kind.config, entry["with"], name)
        path = recorded.artifacts[name].resolve()
        sources = sources_text(recorded, name, read_manifest(path))
        stages[name] = Stage(
            name=name,
            kind=kind.makes,
            module=kind.module,
            config=config,
            inputs=_inputs(entry.get("inputs", {}), stages),
            external=_external(kind, config, sources),
            exclusive=kind.exclusive,
            telemetry=kind.telemetry,
            function=kind.function,
            uses=kind.name,
        )
        person = kind.name in BY_PERSON or by_person(entry["with"])
        repeated.append(_Repeated(stages[name], path, person, sources))
    return repeated


def _external(kind: StageKind, config: Any, sources: str) -> dict[str, str]:
    try:
        return kind.external(config, True)
    except HandoffError as error:
        raise HandoffError(f"{error} {sources}".rstrip()) from None


def sources_text(recorded: RecordedRun, stage: str, manifest: Mapping[str, Any]) -> str:
    """Says where a run found the data of a stage from outside the recipe, and which setting names
    it; empty if the stage read none.

    Args:
        recorded: the run.
        stage: name of the stage.
        manifest: manifest of its artifact.
    """
    if not manifest.get("data"):
        return ""
    line = manifest["metrics"].get("source_line")
    found = f"found it by '{line}'" if line else f"found it by the options of {stage}"
    place = recorded.record.get("working_directory")
    if place is not None:
        found += f" from the folder {recorded.working_directory}"
    given = recorded.record.get("settings", {}).get(DATA)
    if given is not None:
        found += f" with {DATA}={given}"
    if manifest.get("uses") == "ingest":
        named = f"{stage}.data = {manifest['config'].get('data')}, else ${DATA}, names it"
    else:
        named = f"options of {stage} name it: {', '.join(_paths(manifest['config'])) or 'none'}"
    return f"The run {found}; {named}."


def _paths(options: Any, path: str = "") -> list[str]:
    """Options that may be paths, `KEY = VALUE` with dotted keys."""
    if isinstance(options, Mapping):
        inner = [(f"{path}.{key}" if path else str(key), value) for key, value in options.items()]
    elif isinstance(options, list):
        inner = [(f"{path}.{i}", value) for i, value in enumerate(options)]
    else:
        found = isinstance(options, str) and "/" in options
        return [f"{path} = {options}"] if found else []
    return [text for key, value in inner for text in _paths(value, key)]


def _inputs(given: Mapping[str, Any], stages: Mapping[str, Stage]) -> dict[str, Stage]:
    inputs: dict[str, Stage] = {}
    for label, source in given.items():
        if isinstance(source, str):
            inputs[label] = stages[source]
        else:
            inputs |= {f"{label}.{i}": stages[name] for i, name in enumerate(source)}
    return inputs


def changes(repeated: Sequence[_Repeated]) -> list[str]:
    """Lists what decides numbers and is different now: code, data, packages, Python, computer."""
    present = {"environment": environment(), "lock": package_lock()}
    phrases: dict[str, list[str]] = {}
    for entry in repeated:
        manifest = read_manifest(entry.artifact)
        found = [f"code of {name} changed" for name in changed_modules(manifest)]
        other = [
            f"data '{label}' {str(manifest['inputs'].get(label))[:12]} → {digest[:12]}"
            for label, digest in entry.stage.external.items()
            if manifest["inputs"].get(label) != digest
        ]
        found += [f"{', '.join(other)} ({entry.sources.removesuffix('.')})"] if other else []
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

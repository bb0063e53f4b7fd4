"""`handoff evaluate` and `handoff compare`: agents under one protocol file, set side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config.protocols import read_protocol
from flows.stages.evaluate import checkpoint_agent
from robots.config import to_plain
from robots.errors import HandoffError
from sim.evaluation.agent import (
    AgentFor,
    ChunkAgent,
    Chunking,
    ExpertAgent,
    RandomAgent,
    chunking_under,
)
from sim.evaluation.evaluate import EvaluateConfig, evaluate, make_env, run_episodes, write_result
from sim.evaluation.protocol import Protocol, Sampling, agreed, check_protocol

if TYPE_CHECKING:
    from argparse import Namespace

    from flows.runner.display import Display
    from sim.evaluation.adastop import AdaStop, AdaStopConfig, Decision
    from sim.evaluation.comparison import Comparison, Result
    from sim.evaluation.report import Table
    from sim.evaluation.rollout import Episode


TABLE_WIDTH = 120
"""Columns of a table, at least."""
EXPERT_ENGINES = ("mujoco", "warp")
"""Engines that run the FR3 tasks, and so their experts."""


def evaluate_command(options: Namespace) -> None:
    """`handoff evaluate`: options `protocol`, `policy`, `out`, `batch`, `workers`, `videos`,
    `adastop`, `stages`."""
    from sim.evaluation.adastop import AdaStopConfig
    from sim.evaluation.report import comparison_tables, decision_table, summary_table

    protocol = read_protocol(options.protocol)
    config = EvaluateConfig(
        batch=options.batch, workers=options.workers, videos=options.videos, device=options.device
    )
    told = options.instruction
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.adastop:
        results, comparisons = evaluate_agents(protocol, options.policy, options.out, config, told)
        tables = [summary_table(results), *comparison_tables(comparisons)]
    else:
        test = AdaStopConfig(
            n=protocol.episodes // max(1, options.stages), stages=options.stages, permute="pairs"
        )
        results, outcome, decisions = evaluate_until_decided(
            protocol, options.policy, options.out, config, test, told
        )
        tables = [summary_table(results), decision_table(outcome, decisions)]
    _print(tables)
    _say(f"report  {options.out / 'report.html'}")


def compare_command(options: Namespace) -> None:
    """`handoff compare`: options `results`, folders of which the first is the reference, and `out`,
    a page or None."""
    from sim.evaluation.comparison import compare_all, read_result
    from sim.evaluation.report import comparison_tables, summary_table, write_report

    results = [read_result(folder) for folder in options.results]
    names = [result.name for result in results]
    if len(set(names)) < len(names):
        results = [replace(result, name=str(result.folder)) for result in results]
    comparisons = compare_all(results)
    _print([summary_table(results), *comparison_tables(comparisons)])
    if options.out is not None:
        write_report(options.out, results, comparisons)
        _say(f"report  {options.out}")


@dataclass(frozen=True)
class Entrant:
    """An agent that takes part in an evaluation."""

    name: str
    load: Callable[[], AgentFor]
    """Called once in each process."""
    execution: Mapping[str, Any]
    """How it answers, plain; told beside the result."""
    step: int | None = None
    """Training steps, where they are known."""


def make_agent(
    spec: str, protocol: Protocol, instruction: str | None = None, device: str = "cpu"
) -> Entrant:
    """The agent that `--policy` names.

    Args:
        spec: directory of a saved policy, ONNX file with a contract, `random` or `expert`.
        protocol: under which it will act.
        instruction: what a policy that reads language is told; None takes the worlds' words, else
            its own.
        device: where a saved policy computes: `cpu`, `cuda`, or `auto`.

    Raises:
        HandoffError: no such agent, or one that cannot do what the protocol rules.
    """
    path = Path(spec)
    match spec:
        case "random":
            return Entrant(
                "random", load_random, {"agent": "uniform within the bounds of the actions"}
            )
        case "expert":
            from sim.make import TASKS

            if protocol.engine not in EXPERT_ENGINES or protocol.task not in TASKS:
                raise HandoffError(
                    f"--policy expert: task {protocol.task} of engine {protocol.engine} has none; these have, on "
                    f"{' and '.join(EXPERT_ENGINES)}: {', '.join(TASKS)}."
                )
            return Entrant(
                "expert", load_expert, {"agent": "the task's scripted expert, which sees the state"}
            )
        case _ if path.suffix == ".onnx":
            name = path.parent.resolve().name if path.stem == "policy" else path.stem
            return Entrant(name, *_onnx_agent(path, protocol, instruction))
        case _ if path.is_dir():
            load, execution = checkpoint_agent(path, protocol, None, instruction, device)
            return Entrant(path.name or path.resolve().name, load, execution, _training_steps(path))
        case _:
            raise HandoffError(
                f"--policy {spec}: neither a directory nor an .onnx file, and not 'random' or 'expert'. "
                "Is the path right?"
            )


def evaluate_agents(
    protocol: Protocol,
    specs: Sequence[str],
    out: Path,
    config: EvaluateConfig,
    instruction: str | None = None,
) -> tuple[list[Result], list[Comparison]]:
    """Evaluates agents one after another: results in `out`, or in a folder each when several, and
    `out/report.html`.

    Raises:
        HandoffError: what `make_agent` and `sim.evaluation.evaluate.evaluate` find.
    """
    from flows.runner.display import Display
    from sim.evaluation.comparison import compare_all, read_result
    from sim.evaluation.report import write_report

    check_protocol(protocol)
    entrants = _entrants(specs, protocol, instruction, config.device)
    results = []
    with Display() as display:
        for entrant in entrants:
            folder = _folder(out, entrant, entrants)
            progress = display.started(entrant.name)
            metrics = evaluate(
                protocol,
                config,
                entrant.load,
                partial(make_env, protocol),
                folder,
                progress,
                entrant.execution,
            )
            display.finished(entrant.name, f"score {metrics['score']:.3f}")
            results.append(read_result(folder, entrant.name))
    comparisons = compare_all(results, config.confidence)
    write_report(out / "report.html", results, comparisons, steps=_steps(entrants))
    return results, comparisons


def evaluate_until_decided(
    protocol: Protocol,
    specs: Sequence[str],
    out: Path,
    config: EvaluateConfig,
    test: AdaStopConfig,
    instruction: str | None = None,
) -> tuple[list[Result], AdaStop, tuple[Decision, ...]]:
    """Compares agents with early stopping; the protocol's episodes are the most that any of them
    runs.

    Stage k runs the seeds `first_seed + k n` to `first_seed + (k + 1) n - 1`, for all agents the
    same. An agent that left early has a result of fewer episodes, and so of another protocol.

    Raises:
        HandoffError: as of `evaluate_agents`, or episodes that are not the stages' together.
    """
    from flows.runner.display import Display
    from sim.evaluation.adastop import adastop
    from sim.evaluation.comparison import read_result
    from sim.evaluation.report import write_report

    check_protocol(protocol)
    if test.n * test.stages != protocol.episodes:
        raise HandoffError(
            f"adastop: {test.stages} stages of {test.n} episodes are not the {protocol.episodes} of protocol "
            f"{protocol.name}. Choose --stages so that it divides them."
        )
    entrants = {
        entrant.name: entrant for entrant in _entrants(specs, protocol, instruction, config.device)
    }
    ran: dict[str, list[Episode]] = {name: [] for name in entrants}
    with Display() as display:

        def run_stage(stage: int, names: Sequence[str]) -> dict[str, list[float]]:
            return {
                name: _run_stage(
                    protocol, config, test.n, stage, entrants[name], ran[name], display
                )
                for name in names
            }

        outcome, decisions = adastop(list(entrants), run_stage, test)
    results = []
    for name, entrant in entrants.items():
        folder = _folder(out, entrant, list(entrants.values()))
        asked = replace(protocol, episodes=len(ran[name]))
        write_result(asked, config, ran[name], partial(make_env, asked), folder, entrant.execution)
        results.append(read_result(folder, name))
    write_report(out / "report.html", results, adastop=(outcome, decisions))
    return results, outcome, decisions


def _run_stage(
    protocol: Protocol,
    config: EvaluateConfig,
    n: int,
    stage: int,
    entrant: Entrant,
    ran: list[Episode],
    display: Display,
) -> list[float]:
    label = f"{entrant.name} {stage + 1}"
    first = protocol.first_seed + stage * n
    episodes = run_episodes(
        protocol,
        entrant.load,
        partial(make_env, protocol),
        config.batch,
        config.workers,
        display.started(label),
        seeds=range(first, first + n),
    )
    ran += episodes
    scores = [episode.score for episode in episodes]
    display.finished(label, f"score {sum(scores) / n:.3f}")
    return scores


def load_random() -> AgentFor:
    """An agent that acts at random in whatever worlds it is given."""
    return lambda env: RandomAgent(env.action_spec)


def load_expert() -> AgentFor:
    """The scripted expert of whatever worlds it is given."""
    return ExpertAgent


def load_onnx(path: Path, chunking: Chunking, sampling: Sampling) -> AgentFor:
    """The exported policy, on one thread of ONNX Runtime."""
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path)
    return lambda env: ChunkAgent(policy, chunking, sampling)


def _onnx_agent(
    path: Path, protocol: Protocol, instruction: str | None = None
) -> tuple[partial[AgentFor], dict[str, Any]]:
    from math import prod

    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path)
    contract = policy.contract
    if policy.reader is None and instruction is not None:
        raise HandoffError(f"{path}: told '{instruction}', but the policy reads no instructions.")
    own = (
        None
        if policy.reader is None
        else policy.reader.reading.said or contract.task.replace("_", " ")
    )
    # To a protocol tokens are no steps: `flows.stages.evaluate.sampler_steps`.
    kind, _, number = contract.sampler.rpartition("-")
    steps = 1 if contract.sampler == "one-step" or kind == "tokens" else int(number)
    agreed("sampling.denoising_steps", protocol.sampling.denoising_steps, steps)
    chunking = chunking_under(
        protocol,
        Chunking(
            fields=tuple(contract.observation),
            action_size=prod(contract.action.shape),
            n_obs_steps=contract.n_obs_steps,
            horizon=contract.horizon,
            n_action_steps=contract.n_action_steps,
            instruction=instruction or own,
            listens=policy.reader is not None and instruction is None,
        ),
    )
    execution = {**to_plain(chunking), "denoising_steps": steps, "policy": contract.policy}
    return partial(load_onnx, path, chunking, protocol.sampling), execution


def _entrants(
    specs: Sequence[str], protocol: Protocol, instruction: str | None, device: str
) -> list[Entrant]:
    """One per spec, with names made different."""
    entrants: list[Entrant] = []
    for spec in specs:
        entrant = make_agent(spec, protocol, instruction, device)
        taken = sum(
            re.fullmatch(rf"{re.escape(entrant.name)}(-\d+)?", other.name) is not None
            for other in entrants
        )
        entrants.append(replace(entrant, name=f"{entrant.name}-{taken + 1}") if taken else entrant)
    return entrants


def _folder(out: Path, entrant: Entrant, entrants: Sequence[Entrant]) -> Path:
    folder = out / entrant.name if len(entrants) > 1 else out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _training_steps(path: Path) -> int | None:
    """Of a checkpoint whose folder ends in them, such as `step-2000`."""
    digits = re.search(r"step[-_]?(\d+)$", path.name)
    return int(digits[1]) if digits else None


def _steps(entrants: Sequence[Entrant]) -> dict[str, int]:
    return {entrant.name: entrant.step for entrant in entrants if entrant.step is not None}


def _print(tables: Sequence[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # A table in a file or a pipe is not to be cut to the width that such a place pretends to have.
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    for headings, rows in tables:
        grid = Grid(box=None, header_style="bold", pad_edge=False)
        for heading in headings:
            grid.add_column(heading)
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        console.print(grid)


def _say(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)

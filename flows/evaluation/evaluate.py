"""Implements `handoff evaluate` and `handoff compare`: agents evaluated and compared under one
protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.evaluation.agents import Entrant, make_agent
from robots.errors import HandoffError
from sim.evaluation.evaluate import EvaluateConfig, evaluate, make_env, run_episodes, write_result
from sim.evaluation.protocol import Protocol, check_protocol, check_specifications

if TYPE_CHECKING:
    from flows.runner.display import Display
    from sim.evaluation.adastop import AdaStop, AdaStopConfig, PairDecision
    from sim.evaluation.comparison import Comparison, Result
    from sim.evaluation.report import Table
    from sim.evaluation.rollout import EpisodeResult


TABLE_WIDTH = 120
"""Minimum width of a table [characters]."""


def evaluate_command(
    protocol: Protocol,
    policies: Sequence[str],
    out: Path,
    config: EvaluateConfig,
    instruction: str | None = None,
    stages: int | None = None,
) -> None:
    """Runs `handoff evaluate`, writes results to `out` and prints them.

    Args:
        protocol: task, start states and rules of the episodes.
        policies: see `flows.evaluation.agents.make_agent`.
        out: folder of the results.
        config: how the episodes are run.
        instruction: instruction for language-conditioned policies; None takes the environment's.
        stages: stages of AdaStop, into which the episodes are divided; None runs all episodes.

    Raises:
        HandoffError: see `evaluate_agents`.
    """
    from sim.evaluation.adastop import AdaStopConfig
    from sim.evaluation.report import (
        comparison_tables,
        decision_table,
        specification_tables,
        summary_table,
    )

    out.mkdir(parents=True, exist_ok=True)
    if stages is None:
        results, comparisons = evaluate_agents(protocol, policies, out, config, instruction)
        decided = comparison_tables(comparisons)
    else:
        test = AdaStopConfig(n=protocol.episodes // stages, stages=stages, permute="pairs")
        results, outcome, decisions = evaluate_until_decided(
            protocol, policies, out, config, test, instruction
        )
        decided = [decision_table(outcome, decisions)]
    print_tables([summary_table(results), *specification_tables(results), *decided])
    print_line(f"report  {out / 'report.html'}")


def named_formulas(given: Sequence[str]) -> dict[str, str]:
    """Reads specifications of a command line.

    Args:
        given: NAME=FORMULA each.

    Raises:
        HandoffError: one has no name, or two have the same.
    """
    formulas: dict[str, str] = {}
    for text in given:
        name, equals, formula = text.partition("=")
        if not equals or re.fullmatch(r"\w+", name.strip()) is None:
            raise HandoffError(
                f"--specification '{text}': expected NAME=FORMULA, such as 'near=always (goal_offset.norm < 0.3)'."
            )
        if name.strip() in formulas:
            raise HandoffError(
                f"--specification: there are two called '{name.strip()}'. Rename one."
            )
        formulas[name.strip()] = formula
    return formulas


def compare_command(folders: Sequence[Path], out: Path | None) -> None:
    """Runs `handoff compare`: compares results in folders, of which the first is the reference;
    `out` is the path of a page or None."""
    from sim.evaluation.comparison import compare_all, read_result
    from sim.evaluation.report import comparison_tables, summary_table, write_report

    results = [read_result(folder) for folder in folders]
    names = [result.name for result in results]
    if len(set(names)) < len(names):
        results = [replace(result, name=str(result.folder)) for result in results]
    comparisons = compare_all(results)
    print_tables([summary_table(results), *comparison_tables(comparisons)])
    if out is not None:
        write_report(out, results, comparisons)
        print_line(f"report  {out}")


def evaluate_agents(
    protocol: Protocol,
    specs: Sequence[str],
    out: Path,
    config: EvaluateConfig,
    instruction: str | None = None,
) -> tuple[list[Result], list[Comparison]]:
    """Evaluates agents one after another; writes results to `out`, or to one subfolder per agent,
    and `out/report.html`.

    Raises:
        HandoffError: see `make_agent` and `sim.evaluation.evaluate.evaluate`.
    """
    from flows.runner.display import Display
    from sim.evaluation.comparison import compare_all, read_result
    from sim.evaluation.report import write_report

    check_protocol(protocol)
    check_specifications(config.specifications, protocol)
    entrants = make_entrants(specs, protocol, instruction, config.device)
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
) -> tuple[list[Result], AdaStop, tuple[PairDecision, ...]]:
    """Compares agents with early stopping; no agent runs more than the protocol's episodes.

    Stage k runs the seeds `first_seed + k n` to `first_seed + (k + 1) n - 1`, the same for all
    agents. An agent that was ranked early has a result with fewer episodes, which counts as another
    protocol.

    Raises:
        HandoffError: see `evaluate_agents`; or stages whose episodes do not add up to the
            protocol's.
    """
    from flows.runner.display import Display
    from sim.evaluation.adastop import adastop
    from sim.evaluation.comparison import read_result
    from sim.evaluation.report import write_report

    check_protocol(protocol)
    check_specifications(config.specifications, protocol)
    if test.n * test.stages != protocol.episodes:
        raise HandoffError(
            f"adastop: {test.stages} stages of {test.n} episodes do not add up to the {protocol.episodes} episodes of "
            f"protocol {protocol.name}. Choose --stages so that it divides them."
        )
    # Run the stages until the test has ranked all agents.
    entrants = {
        entrant.name: entrant
        for entrant in make_entrants(specs, protocol, instruction, config.device)
    }
    episodes: dict[str, list[EpisodeResult]] = {name: [] for name in entrants}
    with Display() as display:

        def run_stage(stage: int, names: Sequence[str]) -> dict[str, list[float]]:
            return {
                name: _run_stage(
                    protocol, config, test.n, stage, entrants[name], episodes[name], display
                )
                for name in names
            }

        outcome, decisions = adastop(list(entrants), run_stage, test)
    # Write the results.
    results = []
    for name, entrant in entrants.items():
        folder = _folder(out, entrant, list(entrants.values()))
        shortened = replace(protocol, episodes=len(episodes[name]))
        write_result(
            shortened,
            config,
            episodes[name],
            partial(make_env, shortened),
            folder,
            entrant.execution,
        )
        results.append(read_result(folder, name))
    write_report(out / "report.html", results, adastop=(outcome, decisions))
    return results, outcome, decisions


def _run_stage(
    protocol: Protocol,
    config: EvaluateConfig,
    n: int,
    stage: int,
    entrant: Entrant,
    results: list[EpisodeResult],
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
        specifications=config.specifications,
    )
    results += episodes
    scores = [episode.score for episode in episodes]
    display.finished(label, f"score {sum(scores) / n:.3f}")
    return scores


def make_entrants(
    specs: Sequence[str], protocol: Protocol, instruction: str | None, device: str
) -> list[Entrant]:
    """Creates one agent per spec and makes their names unique.

    Raises:
        HandoffError: see `flows.evaluation.agents.make_agent`.
    """
    entrants: list[Entrant] = []
    for spec in specs:
        entrant = make_agent(spec, protocol, instruction, device)
        duplicates = sum(
            re.fullmatch(rf"{re.escape(entrant.name)}(-\d+)?", other.name) is not None
            for other in entrants
        )
        entrants.append(
            replace(entrant, name=f"{entrant.name}-{duplicates + 1}") if duplicates else entrant
        )
    return entrants


def _folder(out: Path, entrant: Entrant, entrants: Sequence[Entrant]) -> Path:
    folder = out / entrant.name if len(entrants) > 1 else out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _steps(entrants: Sequence[Entrant]) -> dict[str, int]:
    return {entrant.name: entrant.step for entrant in entrants if entrant.step is not None}


def print_tables(tables: Sequence[Table]) -> None:
    """Prints tables of results."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # Do not truncate tables in files and pipes, which report a narrow width.
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    for headings, rows in tables:
        grid = Grid(box=None, header_style="bold", pad_edge=False)
        for heading in headings:
            grid.add_column(heading)
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        console.print(grid)


def print_line(text: str) -> None:
    """Prints a line as it is, without wrapping."""
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)

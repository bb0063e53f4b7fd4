"""Prints the plan of a recipe: graph, action, reason, expected cost, the data sets that its stages
read, and what is missing here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from flows.commands.parameters import NARROWEST
from flows.recipes.graph import stages
from flows.recipes.pictures import crop_lines
from flows.recipes.recipe import read_recipe
from flows.reports.dataset_text import counted
from flows.runner.estimates import Cost, earlier_records, estimate
from flows.runner.plan import Planned, plan, up_to
from flows.runner.stage import Stage
from flows.storage.shared_runs import open_runs
from robots.errors import HandoffError

if TYPE_CHECKING:
    from robots.episodes.ingest import IngestConfig

INGEST = "ingest"
"""Kind of the stage that reads a data set."""
MOST_FIELDS = 12
"""Largest number of fields of a data set that are listed."""
WITHOUT_INDEX = ("hil_serl", "rosbag")
"""Formats whose fields are known only after all samples of a file were read."""
_NOT_READ = "whose fields are not read for a plan: handoff episodes info"
LARGEST_READ = 32_000_000
"""Largest size of a data set without an index that is read for its fields [bytes]."""
STYLES = {"cached": "dim", "run": "green", "resume": "yellow", "wait": ""}
"""Styles of the actions."""


def print_plan(recipe_name: str, overrides: Sequence[str], until: str | None) -> None:
    """Prints the plan of a recipe.

    Args:
        recipe_name: a recipe, or the path of a YAML file.
        overrides: see `flows.recipes.recipe.read_recipe`.
        until: plans only this stage and what it needs; None plans all stages.

    Raises:
        HandoffError: see `flows.recipes.graph.stages`.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from flows.commands.requirements import missing

    recipe = read_recipe(recipe_name, overrides)
    declared = up_to(stages(recipe, fetch=False), until)
    opened = open_runs(recipe.runs, recipe.stages)
    runs = opened.folder
    # A storage has the artifacts of other computers' runs, whose folders of results stay there.
    planned = plan(declared, runs, None if opened.store is not None else recipe.name)
    expected = expected_costs(declared, planned, runs, recipe.name)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column("stage", no_wrap=True)
    grid.add_column("kind", no_wrap=True)
    # The end of a long name says which copy of a stage it is.
    grid.add_column("inputs", overflow="fold")
    grid.add_column("action", no_wrap=True)
    for heading in ("time", "memory", "disk"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("reason", overflow="fold")
    for stage, entry in zip(declared, planned, strict=True):
        sources = dict.fromkeys(source.name for source in stage.inputs.values())
        grid.add_row(
            stage.name,
            stage.uses,
            Text(", ".join(sources)),
            Text(entry.action, style=STYLES.get(entry.action, "")),
            *_cost_cells(expected.get(stage.name)),
            Text(entry.reason),
        )
    console.print(grid)
    for line in chain(data_lines(declared), crop_lines(declared)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    pending = [entry.stage for entry in planned if entry.action != "cached"]
    console.print(
        f"\n{total_line(pending, expected)}", highlight=False, markup=False, soft_wrap=True
    )
    for sentence, names in missing(declared).items():
        line = f"missing  {sentence} ({', '.join(names)})"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def data_lines(declared: Sequence[Stage]) -> Iterator[str]:
    """Yields the format and the fields of every data set that a stage names by `data`, or why it
    cannot be read. Only metadata are read, and nothing in a bucket."""
    for stage in declared:
        if stage.uses != INGEST or stage.config.data is None:
            continue
        yield ""
        try:
            yield from _data_lines(stage.name, stage.config)
        except HandoffError as error:
            yield f"{stage.name}: {error}"


def _data_lines(name: str, config: IngestConfig) -> Iterator[str]:
    from flows.datasets import field_lines
    from robots.episodes.demonstrations import open_any_source
    from robots.episodes.field_map import MappedEpisodes
    from robots.episodes.sources import find_demonstrations
    from robots.storage.location import bucket_of

    if bucket_of(config.data or "") is not None:
        yield f"{name}: {config.data}, {_NOT_READ} {config.data}"
        return
    place = find_demonstrations(
        data=Path(config.data or ""), download=False, shipped=Path(), form=config.format
    ).path
    if not _has_index(place, config.format):
        yield f"{name}: {place}, {_NOT_READ} {place}"
        return
    with open_any_source(place, config.images, config.format) as source:
        number, notes = source.num_episodes, len(source.schema.notes)
        opening = f"{name}: {source.schema.form}, {counted(number, 'episode')}"
        try:
            episodes = MappedEpisodes(source, config.map)
        except HandoffError as error:
            yield f"{opening}. {error}"
            return
    mapped = episodes.schema
    (stream,) = mapped.streams.values()
    robot = mapped.robot or source.schema.robot
    taken = min(number, config.max_episodes or number)
    opening += f" ({taken} taken)" if taken < number else ""
    opening += f", {mapped.name}, {stream.rate_hz:g} Hz{f', {robot}' if robot else ''}"
    yield opening
    yield from field_lines(dict(islice(stream.fields.items(), MOST_FIELDS)))
    yield from (f"  note: {note}" for note in episodes.notes)
    rest = [f"{len(stream.fields) - MOST_FIELDS} more fields"] * (len(stream.fields) > MOST_FIELDS)
    rest += [f"{notes} notes of the format"] * (notes > 0)
    if rest:
        yield f"  and {' and '.join(rest)}: handoff episodes info {place}"


def _has_index(place: Path, form: str | None) -> bool:
    """Whether the fields of a data set can be found without reading all of it."""
    from robots.episodes.demonstrations import identify

    form = form or identify(place)
    if form not in WITHOUT_INDEX and not (form == "episode_store" and place.is_file()):
        return True
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) <= LARGEST_READ


def expected_costs(
    declared: Sequence[Stage], planned: Sequence[Planned], runs: Path, run: str
) -> dict[str, Cost]:
    """Returns the expected cost of every stage that is not cached, as far as earlier runs state it.

    Args:
        declared: stages of the recipe.
        planned: what a run would do with each.
        runs: the runs folder.
        run: name of the run.
    """
    if all(entry.action == "cached" for entry in planned):
        return {}
    records = earlier_records(runs, run)
    costs: dict[str, Cost] = {}
    for stage, entry in zip(declared, planned, strict=True):
        cost = None if entry.action == "cached" else estimate(stage, records)
        if cost is not None:
            costs[stage.name] = cost
    return costs


def total_line(pending: Sequence[str], expected: Mapping[str, Cost]) -> str:
    """Returns the expected cost of the stages that would run, in one sentence."""
    if not pending:
        return "All stages are cached."
    number = f"{counted(len(pending), 'stage')} to run"
    costs = [expected[name] for name in pending if name in expected]
    if not costs:
        return f"{number}; no earlier run of these kinds on this machine tells how long."
    parts = [f"about {duration(sum(cost.seconds for cost in costs))}"]
    memory = [cost.memory_bytes for cost in costs if cost.memory_bytes is not None]
    parts += [f"{size(max(memory))} of memory for the largest stage"] if memory else []
    parts += [f"{size(sum(cost.disk_bytes for cost in costs))} of disk"]
    unknown = [name for name in pending if name not in expected]
    other = [name for name in pending if name in expected and not expected[name].same_data]
    rest = f"; from runs on other data: {', '.join(other)}" if other else ""
    scaled = [name for name in pending if name in expected and not expected[name].same_length]
    rest += f"; scaled from another number of updates: {', '.join(scaled)}" if scaled else ""
    rest += f"; unknown for {', '.join(unknown)}" if unknown else ""
    return f"{number}: {', '.join(parts)}, as in earlier runs on this machine{rest}."


def duration(seconds: float) -> str:
    """Returns a duration in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(number: float) -> str:
    """Returns a number of bytes in kB, MB or GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number / 1e3:.0f} kB"


def _cost_cells(cost: Cost | None) -> tuple[str, str, str]:
    if cost is None:
        return "", "", ""
    # A tilde marks figures of other stages of the kind, or from other data, and scaled times.
    mark = "" if cost.same_stage and cost.same_data else "~"
    time = ("~" if mark or not cost.same_length else "") + duration(cost.seconds)
    memory = "" if cost.memory_bytes is None else mark + size(cost.memory_bytes)
    return time, memory, mark + size(cost.disk_bytes)

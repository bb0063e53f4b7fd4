"""Implements `handoff profile NAME`: predicts the speed of a recipe's placements or numbers of
environments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

if TYPE_CHECKING:
    from rich.table import Table

    from flows.runner.stage import Stage


def profile(
    name: str,
    overrides: Sequence[str] = (),
    seconds: float = 60.0,
    progress: Progress = no_progress,
    check: Callable[[Sequence[Stage]], None] = lambda measured: None,
) -> dict[str, Any]:
    """Measures the first training of a recipe that can be placed or scaled.

    Args:
        name: see `flows.recipes.recipe.read_recipe`.
        overrides: see `flows.recipes.recipe.read_recipe`.
        seconds: duration of the measurements [s].
        progress: called with the seconds spent.
        check: called with the stages whose options are measured, before anything else is done.

    Returns:
        See `flows.profiling.placement.profile_placements` for the fine-tuning of a
        vision-language-action policy, and `flows.profiling.num_envs.profile_num_envs` for PPO from
        scratch.

    Raises:
        HandoffError: the recipe has neither, its environments cannot be made, or `check` refuses
            it.
    """
    from flows.profiling.num_envs import profile_num_envs
    from flows.profiling.placement import profile_placements
    from flows.recipes.graph import stages
    from flows.recipes.recipe import read_recipe

    for stage in stages(read_recipe(name, overrides), fetch=False):
        config = stage.config
        if stage.uses == "finetune" and config.algorithm.kind == "vla":
            pretraining = stage.inputs["policy"]
            check([stage, pretraining])
            return profile_placements(config, pretraining.config, seconds, progress)
        if stage.uses == "reinforce" and config.algorithm.kind in ("ppo", "ppo_lagrangian"):
            check([stage])
            return profile_num_envs(config, seconds, progress)
    raise HandoffError(
        f"profile: {name} has neither a fine-tuning of a VLA (algorithm: {{kind: vla}}), whose environments can be "
        "placed, nor RL from scratch by ppo, whose environments can be more or fewer."
    )


def profile_command(
    name: str,
    overrides: Sequence[str],
    seconds: float,
    as_json: bool = False,
    check: Callable[[Sequence[Stage]], None] = lambda measured: None,
) -> None:
    """Runs `handoff profile`; see `profile`. `as_json` prints one JSON object."""
    from rich.console import Console

    console, said = Console(), Console(stderr=True)
    measured: list[str] = []
    with said.status("measuring") as status:

        def show(done: int, total: int, note: str = "") -> None:
            status.update(f"{note}, {done} of about {total} s")
            # Where nothing turns and is replaced, every measurement is a line.
            if not said.is_terminal and [note] != measured[-1:]:
                measured.append(note)
                said.print(f"{note}, {done} of about {total} s")

        result = profile(name, overrides, seconds, show, check)
    if as_json:
        console.print_json(json.dumps(result))
        return
    by_number = "transfer" not in result
    console.print(_numbers(result) if by_number else _components(result))
    console.print(_rates(result, "environments" if by_number else "placement"))


def _components(result: dict[str, Any]) -> Table:
    """Median times of the components of a fine-tuning."""
    table = _table("component", "milliseconds")
    for component, median in (*result["seconds"].items(), ("transfer", result["transfer"])):
        table.add_row(component.replace("_", " "), f"{1e3 * median:.2f}")
    return table


def _numbers(result: dict[str, Any]) -> Table:
    """Median times of a rollout and an update by the number of environments."""
    table = _table("environments", "rollout [s]", "update [s]")
    for count, times in result["seconds"].items():
        table.add_row(count, f"{times['collect']:.3f}", f"{times['update']:.3f}")
    return table


def _rates(result: dict[str, Any], what: str) -> Table:
    """Environment steps per second, with the recommendation."""
    table = _table(what, "steps/s", "95 %", "")
    for kind, rate in result["rates"].items():
        table.add_row(
            kind,
            f"{rate['steps_per_s']:,.0f}",
            f"{rate['low']:,.0f} to {rate['high']:,.0f}",
            "recommended" if kind == result["recommended"] else "",
        )
    return table


def _table(first: str, *others: str) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for heading in others:
        # Otherwise a unit such as [s] is taken for a style.
        table.add_column(escape(heading), justify="right" if heading else "left")
    return table

"""Defines the commands about recorded episodes: `episodes info`, `ls`, `view`, `review`, `doctor`,
`stats`, `import`, `delete`, `trim`, `relabel`, `merge`, `split`, `weights`, `export`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands.parameters import (
    LOOPBACK,
    By,
    DataPath,
    Debug,
    Flag,
    Format,
    Host,
    NewStore,
    Numbers,
    Port,
    Reason,
    ReviewList,
    StorePath,
    StorePaths,
)
from robots.errors import HandoffError

if TYPE_CHECKING:
    from robots.interfaces import Progress


def show_info(data: DataPath, /, *, format: Format = None, debug: Debug = False) -> None:
    """Print what a data set holds: format, task, rate, fields with units, and what is left out.

    Examples:
        handoff episodes info ~/data/my_lerobot_set
        handoff episodes info runs/demo/demos
    """
    from flows.datasets import info

    _print("\n".join(info(data, format)))


def list_episodes(
    data: DataPath, /, *, format: Format = None, all: Flag = False, debug: Debug = False
) -> None:
    """List the episodes of a data set: steps, success, instruction, when, by whom, how it ended.

    Args:
        all: List all episodes, not only the first 50.

    Examples:
        handoff episodes ls runs/demo/demos
    """
    from flows.datasets import list_episodes as rows

    table = list(rows(data, format, all))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        _print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip())


def view(
    data: DataPath,
    episode: Annotated[int, Parameter(name="EPISODE", validator=Number(gte=0))] = 0,
    /,
    *,
    page: Annotated[Path | None, Parameter(help="HTML page; default: episode.html.")] = None,
    rrd: Annotated[Path | None, Parameter(help="Rerun recording instead of the page.")] = None,
    format: Format = None,
    debug: Debug = False,
) -> None:
    """Write one episode as a page with a slider: cameras, plots of all fields, events.

    Args:
        episode: Number of the episode.

    Examples:
        handoff episodes view ~/data/my_lerobot_set 0 --page first.html
        handoff episodes view runs/demo/demos 3 --rrd third.rrd
    """
    from flows.datasets import view as viewed

    page = Path("episode.html") if page is None and rrd is None else page
    for kind, file in viewed(data, format, episode, page, rrd):
        _print(f"{kind:<8} {file}")


def review(
    data: DataPath,
    /,
    *,
    show: ReviewList = "all",
    out: Annotated[
        Path | None, Parameter(help="Folder of the review; default: NAME_review.")
    ] = None,
    format: Format = None,
    host: Host = LOOPBACK,
    port: Port = 8720,
    debug: Debug = False,
) -> None:
    """Go through episodes in a browser: look, label, shorten, write notes, undo.

    The data set is not changed; the page writes an edited copy into the folder of the review.

    Args:
        show: Episodes that the page lists at first.

    Examples:
        handoff episodes review runs/record/reach/demos.zarr
        handoff episodes review runs/record/reach/dropped.zarr --show unlabelled
        handoff episodes review ~/data/my_lerobot_set --port 0
    """
    from flows.review.command import review_command

    review_command(data, out=out, form=format, shown=show, host=host, port=port, say=_print)


def examine(
    data: DataPath,
    /,
    *,
    page: Annotated[Path | None, Parameter(help="HTML page to write.")] = None,
    robot: Annotated[
        str | None,
        Parameter(help="Robot whose joint limits hold; default: that of the store."),
    ] = None,
    repair: Annotated[
        Flag, Parameter(help="First make episodes of recordings that a kill cut off.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Look for faults: stuck cameras, lag, swapped joints, duplicates, units, jumps and more.

    The exit code is 1 if an error was found; warnings do not fail.

    Examples:
        handoff episodes doctor runs/demo/demos
        handoff episodes doctor towel.zarr --page faults.html --robot fr3
        handoff episodes doctor towel.zarr --repair
    """
    from flows.datasets import examine as examined

    _print_lines(lambda progress: examined(data, page, robot, progress, repair=repair))


def stats(data: DataPath, /, *, debug: Debug = False) -> None:
    """Print statistics: lengths, values of every field, trajectory quality and coverage.

    Examples:
        handoff episodes stats runs/demo/demos
    """
    from flows.datasets import describe

    _print_lines(lambda progress: describe(data, progress))


def import_data(
    data: DataPath,
    out: Annotated[Path, Parameter(name="OUT", help="Folder of the new store.")],
    /,
    *,
    map: Annotated[Path | None, Parameter(name="--map")] = None,
    format: Format = None,
    video: Flag = False,
    debug: Debug = False,
) -> None:
    """Import a data set of any known format into a new episode store.

    Args:
        map: YAML file that maps arrays to fields: task, rate_hz, fields, rename, drop.
        video: Keep pictures as H.264 video, instead of without loss.

    Examples:
        handoff episodes import ~/data/my_lerobot_set towel.zarr
        handoff episodes import ~/data/my_lerobot_set towel.zarr --video
        handoff episodes import demos.hdf5 demos.zarr --map map.yaml
    """
    from flows.datasets import import_data as imported

    _report(lambda progress: imported(data, out, format, map, progress, video=video), out)


def delete(
    store: StorePath,
    /,
    *episodes: Numbers,
    out: NewStore,
    by: By = "",
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Copy a store without some episodes.

    Examples:
        handoff episodes delete towel.zarr 3 17 --out clean.zarr --reason blurred
    """
    from flows.datasets import edit
    from robots.episodes.curation.edit import Edits

    edits = Edits(delete=episodes, by=by, reason=reason)
    _report(lambda progress: edit(store, out, edits, progress=progress), out)


def trim(
    store: StorePath,
    episode: Annotated[int, Parameter(name="EPISODE", validator=Number(gte=0))],
    /,
    *,
    first: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    stop: Annotated[int, Parameter(validator=Number(gte=1))],
    out: NewStore,
    by: By = "",
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Copy a store with one episode shortened.

    Args:
        episode: Number of the episode.
        first: First step that is kept.
        stop: Step before which the kept steps end.

    Examples:
        handoff episodes trim towel.zarr 4 --first 20 --stop 180 --out trimmed.zarr
    """
    from flows.datasets import edit
    from robots.episodes.curation.edit import Edits

    edits = Edits(trim={episode: (first, stop)}, by=by, reason=reason)
    _report(lambda progress: edit(store, out, edits, progress=progress), out)


def relabel(
    store: StorePath,
    /,
    *episodes: Numbers,
    set: Annotated[tuple[str, ...], Parameter(name="--set", required=True)],
    new: Flag = False,
    out: NewStore,
    by: By = "",
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Copy a store with other labels of some episodes, such as success or instruction.

    Args:
        set: KEY=VALUE: an entry of the episodes' metadata; KEY=null removes it; may be repeated.
        new: Accept labels of your own that no episode has yet.

    Examples:
        handoff episodes relabel towel.zarr 2 5 --set success=false --out new.zarr
        handoff episodes relabel towel.zarr 0 --set "instruction=fold it" --out new.zarr
        handoff episodes relabel towel.zarr 1 --set quality=3 --new --out new.zarr
    """
    from flows.datasets import edit
    from robots.episodes.curation.edit import Edits
    from robots.episodes.metadata.labels import parse_labels

    labels = dict.fromkeys(episodes, parse_labels(set))
    edits = Edits(labels=labels, new_labels=new, by=by, reason=reason)
    _report(lambda progress: edit(store, out, edits, progress=progress), out)


def merge(
    *stores: StorePaths,
    out: NewStore,
    task: str | None = None,
    field: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    missing: Literal["refuse", "drop", "pad"] = "refuse",
    debug: Debug = False,
) -> None:
    """Write the episodes of several stores to a new one.

    Args:
        task: Name of the task; default: that of the stores.
        field: Field that is kept, repeatable; default: all.
        missing: Treatment of fields that not every store has.

    Examples:
        handoff episodes merge monday.zarr tuesday.zarr --out week.zarr
        handoff episodes merge fold.zarr wipe.zarr --task both --out both.zarr
    """
    from flows.datasets import merge as merged

    _report(lambda progress: merged(stores, out, task, field, missing, progress), out)


def split(
    store: StorePath,
    /,
    *,
    out: NewStore,
    part: Literal["train", "held_out"] = "train",
    fraction: Annotated[float, Parameter(validator=Number(gt=0.0, lt=1.0))] = 0.1,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 0,
    group: str = "",
    debug: Debug = False,
) -> None:
    """Write one part of a store, split at random, to a new one.

    Args:
        part: Part that is written.
        fraction: Fraction of the episodes that is held out.
        seed: Seed of the choice; the same seed gives both parts.
        group: Entry of the metadata whose episodes stay together, such as session.

    Examples:
        handoff episodes split towel.zarr --out train.zarr
        handoff episodes split towel.zarr --part held_out --out held_out.zarr
    """
    from flows.datasets import split as written
    from robots.episodes.curation.choose import SplitConfig

    config = SplitConfig(part=part, fraction=fraction, seed=seed, group=group)
    _report(lambda progress: written(store, out, config, progress), out)


def weights(
    *stores: StorePaths,
    balance: str = "",
    exponent: Annotated[float | None, Parameter(validator=Number(gte=0.0, lte=1.0))] = None,
    quality: Flag = False,
    reward: str | None = None,
    returns: tuple[float, float] | None = None,
    set: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    out: Annotated[Path | None, Parameter(help="Folder of the copy with the weights.")] = None,
    by: By = "",
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Weight episodes, or the stores of a mixture, and print their shares of a training.

    Of several stores it prints the options of a stage `pretrain`, whose input is the first one.

    Args:
        balance: Entry of the metadata, such as instruction, whose groups are balanced.
        exponent: Exponent of the steps of a group or store in its share: 0 equal, 1 natural.
        quality: Weight by the return, 0 for the worst episode and 1 for the best one.
        reward: Field of the reward; default: the only one.
        returns: Returns of weight 0 and 1, such as those of a random and the best policy.
        set: KEY=VALUE:WEIGHT: weight of the episodes with this metadata; may be repeated.

    Examples:
        handoff episodes weights towel.zarr --balance instruction --out w.zarr
        handoff episodes weights towel.zarr --set operator=ada:2
        handoff episodes weights towel.zarr cups.zarr --exponent 0.43
    """
    from flows.episode_weights import mixture_lines, weight_lines, weights_config

    first, *others = stores
    if others and any((balance, quality, reward, returns, set, out, by, reason)):
        raise HandoffError("weights: of several stores, only --exponent is taken.")
    if others:
        _print_lines(lambda progress: mixture_lines(stores, exponent or 0.0))
        return
    if exponent is not None and not balance:
        raise HandoffError("--exponent: is that of --balance, which is missing.")
    config = weights_config(balance, exponent, quality, reward, returns, set)
    edited = (by, reason)
    _print_lines(lambda progress: weight_lines(first, config, out, edited, progress))


def export(
    store: StorePath,
    /,
    *,
    to: Literal["lerobot", "lerobot-v2.1", "robomimic", "isaaclab", "zarr", "mcap", "rrd"],
    out: Annotated[Path, Parameter(help="File or folder that is written; must not exist.")],
    debug: Debug = False,
) -> None:
    """Write a store in a published format.

    Args:
        to: LeRobot v3.0 or v2.1, robomimic or Isaac Lab HDF5, the Zarr of diffusion_policy, MCAP
            with messages of ROS 2, or recordings of Rerun.

    Examples:
        handoff episodes export runs/demo/demos --to lerobot --out push_t_lerobot
        handoff episodes export towel.zarr --to robomimic --out towel.hdf5
    """
    from flows.datasets import export as exported

    _report(lambda progress: exported(store, out, to, progress), out)


def _print_lines(work: Callable[[Progress], Iterable[str]]) -> None:
    """Runs work with a progress bar, and prints its lines."""
    from flows.runner.display import Display

    lines: list[str] = []
    try:
        with Display() as display:
            for line in work(display.started("episodes")):
                lines.append(line)
    finally:
        for line in lines:
            _print(line)


def _report(work: Callable[[Progress], Mapping[str, Any]], out: Path) -> None:
    """Runs work with a progress bar, and prints its figures."""
    from flows.reports.dataset_text import figure_lines
    from flows.runner.display import Display

    with Display() as display:
        metrics = work(display.started("episodes"))
    for line in figure_lines(metrics):
        _print(line)
    _print(f"{'written to':<16} {out}")


def _print(line: str) -> None:
    print(line)  # noqa: T201  the command's output

"""Lists the files of a data set's folder in the order of the numbers in their names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from robots.episodes.formats.source import explain_damage
from robots.errors import HandoffError

LARGEST_JSON = 2**24
"""Largest size of a JSON file beside the arrays [bytes]; DROID's has 0.1 MB."""


def data_files(folder: Path, *patterns: str) -> list[Path]:
    """Files right inside `folder` that match one of the patterns, such as `*.npz`.

    Returns:
        Files sorted by name, where `episode_10` follows `episode_9`.

    Raises:
        HandoffError: one of them is a link that leaves the folder.
    """
    with explain_damage(folder, "the folder"):
        found = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    for file in found:
        check_inside(folder, file)
    return sorted(found, key=number_order)


def number_order(path: Path) -> tuple[tuple[int, str], ...]:
    """Key that sorts names by the numbers in them."""
    parts = re.split(r"(\d+)", path.name)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def check_inside(folder: Path, file: Path) -> None:
    """Checks that a file of a data set lies in its folder once links are followed.

    Raises:
        HandoffError: it does not.
    """
    with explain_damage(folder, file.name):
        inside = file.resolve().is_relative_to(folder.resolve())
    if not inside:
        raise HandoffError(
            f"{file}: is a link to {file.resolve()}, outside the data set. Copy the data set with its links followed "
            "(cp -rL) if you trust it."
        )


def check_name(path: Path, name: str) -> None:
    """Checks that a name in a file can be printed on one line.

    Raises:
        HandoffError: it has other characters.
    """
    if not name.isprintable():
        raise HandoffError(
            f"{path}: holds the name {name[:60]!r}, expected printable characters. Was the file damaged?"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        HandoffError: the file is missing, too large, or holds no JSON object.
    """
    with explain_damage(path, "the file"):
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise HandoffError(
                f"{path}: has {size / 1e6:.0f} MB, the limit is {LARGEST_JSON / 1e6:.0f} MB. Is it metadata?"
            )
        content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise HandoffError(
            f"{path}: holds {type(content).__name__}, expected a JSON object. Was it damaged?"
        )
    return content

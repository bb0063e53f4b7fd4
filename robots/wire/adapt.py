"""Adapts requests of programs that were written for another policy server: nested maps, other
names, images of other sizes, a prompt for a policy that reads none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from robots.contract import Contract
from robots.errors import HandoffError, suggest
from robots.wire.policy import PROMPT

PREFIX = "observation/"
"""Beginning of names in openpi's programs, which is left out where that gives a field."""
DEEPEST = 4
"""Deepest nesting of a request."""
LARGEST_IMAGE = 1920 * 1080
"""Most pixels of an image that is made smaller."""
NO_PROMPT = "the policy reads no instruction: the prompt was ignored"


class RequestAdapter:
    """Turns a request into one with the contract's names and sizes.

    Args:
        contract: contract of the policy.
        names: names in requests and the fields that they mean; an empty field ignores the name.

    Raises:
        HandoffError: a name for a field that the contract does not have.
    """

    def __init__(self, contract: Contract, names: Mapping[str, str]) -> None:
        fields = [*contract.observation, *contract.sensors]
        for name, meant in names.items():
            if meant and meant not in fields:
                raise HandoffError(
                    f"serve: '{name}' is to mean '{meant}', {suggest(meant, fields, 'the policy has')}"
                )
        self._contract = contract
        self._names = dict(names)
        self._fields = frozenset(fields)

    def adapt(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns the request under the contract's names, and notes about what was ignored.

        Raises:
            HandoffError: two names mean one field, or nesting that is too deep.
        """
        adapted: dict[str, Any] = {}
        notes = []
        for name, value in _flat("", request, DEEPEST):
            field = self._field(name)
            if field == PROMPT and not self._contract.instruction:
                notes.append(NO_PROMPT)
                continue
            if not field:
                continue
            if field in adapted:
                raise HandoffError(f"{name}: means {field}, which another name in the request is.")
            adapted[field] = self._resized(field, value)
        return adapted, notes

    def _field(self, name: str) -> str:
        if name in self._names:
            return self._names[name]
        short = name.removeprefix(PREFIX)
        return short if short in self._fields else name

    def _resized(self, field: str, value: Any) -> Any:
        spec = self._contract.sensors.get(field)
        if spec is None or spec.unit != "u8" or not isinstance(value, np.ndarray):
            return value
        height, width = spec.shape[:2]
        if value.dtype != np.uint8 or value.ndim not in (3, 4) or value.shape[-1] != spec.shape[-1]:
            return value
        if value.shape[-3:-1] == (height, width):
            return value
        if not 0 < value.shape[-3] * value.shape[-2] <= LARGEST_IMAGE:
            raise HandoffError(
                f"{field}: an image of {value.shape[-3]} x {value.shape[-2]} pixels, expected at most {LARGEST_IMAGE}."
            )
        images = value.reshape(-1, *value.shape[-3:])
        resized = np.stack([resize_with_pad(image, height, width) for image in images])
        return resized.reshape(*value.shape[:-3], height, width, spec.shape[-1])


def resize_with_pad(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image of another size with the same aspect ratio, in the middle of black.

    Args:
        image: (H, W, 3) uint8.
        height: height of the result [px].
        width: width of the result [px].

    Returns:
        (height, width, 3) uint8; bilinear, as openpi's client resizes.
    """
    from PIL import Image

    share = max(image.shape[1] / width, image.shape[0] / height)
    rows = max(1, int(image.shape[0] / share))
    columns = max(1, int(image.shape[1] / share))
    small = Image.fromarray(image).resize((columns, rows), resample=Image.Resampling.BILINEAR)
    padded = np.zeros((height, width, image.shape[2]), np.uint8)
    top = (height - rows) // 2
    left = (width - columns) // 2
    padded[top : top + rows, left : left + columns] = np.asarray(small)
    return padded


def _flat(prefix: str, request: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Entries of nested maps under names with slashes."""
    if depth == 0:
        raise HandoffError(f"message: maps are nested more than {DEEPEST} deep at {prefix[:40]!r}.")
    for name, value in request.items():
        if not isinstance(name, str):
            raise HandoffError(f"message: the name {str(name)[:40]} is no text.")
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}/", value, depth - 1)
        else:
            yield f"{prefix}{name}", value

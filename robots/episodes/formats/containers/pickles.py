"""Reads pickles of NumPy arrays and plain containers without running any code of theirs.

A pickle names functions and calls them, so that `pickle.load` runs what its author wants. Here the
few names that NumPy writes stand for functions of this module, which accept nothing but arrays of
numbers; any other name is refused. NumPy's own functions are not called, because they would
allocate what a pickle asks for. The operations are counted before they run.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from collections.abc import Callable
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.source import LARGEST_EPISODE, explain_damage
from robots.errors import HandoffError

MOST_OPERATIONS = 2**23
"""Largest number of operations of a pickle; 100,000 transitions of hil-serl have 5 million."""
_DTYPE = re.compile(r"[<>|=]?([fiu][1248]|b1|\?)")
_ORDERS = ("<", ">", "|", "=")
_DEEPEST = 16


class ArrayStandIn:
    """An array that is being read; `value` has it in the end."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        order = "F" if fortran else "C"
        self.value = _from_bytes(content, dtype, shape, order)


class DtypeStandIn:
    """A number type that is being read."""

    __slots__ = ("value",)

    def __init__(self, text: str) -> None:
        self.value = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in _ORDERS or state[2] is not None or state[3] is not None:
            raise pickle.UnpicklingError("a number type with fields")
        self.value = self.value.newbyteorder(order)


class _Allowed:
    """A function that a pickle may call, and cannot change.

    Args:
        function: the function.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *values: Any) -> Any:
        return self._function(*values)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function whose state is set")


def read_pickle(path: Path) -> Any:
    """The content of a pickle: containers, numbers, strings and arrays of numbers.

    Raises:
        HandoffError: it names anything else, is damaged or too large.
    """
    with explain_damage(path, "the file"):
        size = path.stat().st_size
        if size > LARGEST_EPISODE:
            raise HandoffError(
                f"{path}: has {size / 1e9:.0f} GB, the limit is {LARGEST_EPISODE / 1e9:.0f} GB."
            )
        content = path.read_bytes()
        try:
            _check_operations(path, content)
            return _without_stand_ins(_Unpickler(path, content).load())
        except pickle.PickleError as error:
            raise HandoffError(
                f"{path}: cannot be read as a pickle ({error}). Was the file damaged or cut short?"
            ) from None


class _Unpickler(pickle.Unpickler):
    """Finds only the names that `_allowed` lists.

    Args:
        path: the file, for messages.
        content: the pickle.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(BytesIO(content))
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """The function of this module that stands for a name."""
        function = _allowed().get((module, name))
        if function is None:
            raise HandoffError(
                f"{self._path}: needs {module}.{name}, which is not allowed: reading it could run code. Expected "
                "arrays of NumPy, numbers, words and containers of them; convert other objects first."
            )
        return _Allowed(function)


def _allowed() -> dict[tuple[str, str], Callable[..., Any]]:
    """Functions by the module and the name in the pickle."""
    names: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): _no_call,
        ("numpy", "dtype"): _dtype,
        ("collections", "OrderedDict"): dict,
    }
    for core in ("numpy.core", "numpy._core"):
        names[f"{core}.multiarray", "_reconstruct"] = _reconstruct
        names[f"{core}.multiarray", "scalar"] = _scalar
        # Protocol 5 stores an array as its bytes.
        names[f"{core}.numeric", "_frombuffer"] = _from_bytes
    return names


def _check_operations(path: Path, content: bytes) -> None:
    """Counts the operations, and checks that memory for the memo grows with their number."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(content), start=1):
        if count > MOST_OPERATIONS:
            raise HandoffError(
                f"{path}: has more than {MOST_OPERATIONS} operations. Was it made for this purpose?"
            )
        if (
            operation.name in ("PUT", "BINPUT", "LONG_BINPUT")
            and not 0 <= int(argument or 0) <= count
        ):
            raise HandoffError(
                f"{path}: stores object {argument} after {count} operations. Was it damaged, or made for this purpose?"
            )


def _no_call(*_: Any) -> Any:
    raise pickle.UnpicklingError("an array without bytes")


def _reconstruct(kind: Any, shape: Any, code: Any) -> ArrayStandIn:
    return ArrayStandIn()


def _dtype(text: Any, *_: Any) -> DtypeStandIn:
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise pickle.UnpicklingError(f"the number type {text!r:.40}")
    return DtypeStandIn(text)


def _scalar(dtype: Any, content: Any) -> Any:
    return _from_bytes(content, dtype, (1,), "C")[0]


def _from_bytes(content: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    """An array from its bytes, which are copied only if they could change."""
    if not isinstance(dtype, DtypeStandIn) or not isinstance(content, (bytes, bytearray)):
        raise pickle.UnpicklingError("an array of something else than numbers")
    lengths = tuple(shape) if isinstance(shape, tuple) else (shape,)
    valid = len(lengths) <= 16 and all(type(n) is int and n >= 0 for n in lengths)
    if not valid or prod(lengths) * dtype.value.itemsize != len(content) or order not in ("C", "F"):
        raise pickle.UnpicklingError(f"{len(content)} bytes for an array {lengths!r:.60}")
    array = np.frombuffer(content, dtype.value).reshape(lengths, order=order)
    return array.astype(dtype.value.newbyteorder("="), copy=False)


def _without_stand_ins(
    value: Any, done: dict[int, tuple[Any, Any]] | None = None, depth: int = 0
) -> Any:
    """The value with arrays in place of stand-ins; lists and mappings are changed in place.

    Args:
        value: a part of the pickle.
        done: results by the identity of the part, and the part, which keeps its identity; a pickle
            may name one part many times, or inside itself.
        depth: number of containers around the part.
    """
    done = {} if done is None else done
    if isinstance(value, ArrayStandIn):
        if value.value is None:
            raise pickle.UnpicklingError("an array without bytes")
        return value.value
    if not isinstance(value, (dict, list, tuple)):
        return value
    if id(value) in done:
        return done[id(value)][1]
    if depth > _DEEPEST:
        raise pickle.UnpicklingError(f"containers nested more than {_DEEPEST} deep")
    done[id(value)] = (value, value)
    if isinstance(value, tuple):
        made = tuple(_without_stand_ins(inner, done, depth + 1) for inner in value)
        done[id(value)] = (value, made)
        return made
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        value[key] = _without_stand_ins(inner, done, depth + 1)
    return value

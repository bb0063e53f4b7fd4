"""Encodes the messages between a policy server and its clients.

The encoding is that of openpi's client (github.com/Physical-Intelligence/openpi,
packages/openpi-client): an array is a map with byte keys `__ndarray__`, `data`, `dtype`, `shape`; a
NumPy scalar has `__npgeneric__`, `data`, `dtype`. Only booleans, integers and floats are accepted;
openpi also accepts arrays of text, which no policy needs. For any bytes, `unpack` returns plain
values and numeric arrays or raises a `HandoffError`; in the worst case, a frame full of short
texts, it needs about 25 times the memory of the frame.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from robots.contract import PREFIX_INPUT, Contract
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec, check_field, check_fields

TOKEN_VARIABLE = "HANDOFF_TOKEN"
"""Environment variable of a server's token, for server and client; a command-line argument would
be visible in process lists."""
PROTOCOL = "handoff-policy/1"
"""Name and version of the protocol, part of a server's metadata."""
NOISE = "noise"
SEED = "seed"
CHUNK = "chunk"
"""Entries of a request that are no observation: the noise, or the seed and the index of the chunk
from which it is drawn."""
PROMPT = "prompt"
"""Entry of a request with the instruction, as in openpi."""
LONGEST_PROMPT = 2000
"""Largest number of characters of an instruction."""
SHORTEST_TOKEN = 16
"""Smallest number of characters of a token; shorter ones can be guessed."""
MAX_ENTRIES = 4096
"""Largest number of entries of a list or map."""
MAX_CONTAINERS = 4096
"""Largest number of lists and maps in a message, which bounds the memory of a frame of
containers."""
MAX_DIMENSIONS = 32
"""Largest number of dimensions of an array."""
LARGEST_SIZE = 2**31
"""Bound on the size of a dimension of an array, and on its number of entries."""

_ARRAY = b"__ndarray__"
_SCALAR = b"__npgeneric__"
_DATA = b"data"
_DTYPE = b"dtype"
_SHAPE = b"shape"
_DTYPES = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")


def pack(value: Any) -> bytes:
    """Encodes a value as one frame: None, bool, int, float, str, bytes, numeric arrays and scalars,
    and lists, tuples and maps of these.

    Raises:
        HandoffError: the value contains another type.
    """
    try:
        return msgpack.packb(value, default=_encode)  # type: ignore[return-value]
    except (ValueError, OverflowError) as error:
        raise HandoffError(
            f"message: cannot be packed ({error}). Does it contain an integer beyond 64 bits?"
        ) from None


def unpack(frame: bytes) -> Any:
    """Decodes the value in one frame; arrays are read-only views of its bytes.

    Raises:
        HandoffError: the frame is not msgpack, is truncated, or has more than one value or too many
            entries, or an array is not numeric or not of the declared size.
    """
    containers = 0

    def counted(value: Any) -> Any:
        nonlocal containers
        containers += 1
        if containers > MAX_CONTAINERS:
            raise HandoffError(
                f"message: more than {MAX_CONTAINERS} lists and maps. Should the data be arrays?"
            )
        return _decode(value) if isinstance(value, dict) else value

    try:
        return msgpack.unpackb(
            frame,
            object_hook=counted,
            list_hook=counted,
            max_array_len=MAX_ENTRIES,
            max_map_len=MAX_ENTRIES,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise HandoffError(
            f"message: not a msgpack value ({reason}). Was the frame truncated?"
        ) from None


def check_token(token: str) -> None:
    """Checks that a token is valid in an HTTP header and long enough.

    Raises:
        HandoffError: the token is invalid or too short.
    """
    if (
        len(token) < SHORTEST_TOKEN
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise HandoffError(
            f"token: {len(token)} characters, expected at least {SHORTEST_TOKEN}, printable ASCII without spaces "
            f"(${TOKEN_VARIABLE})."
        )


def contract_digest(contract: Contract) -> str:
    """Digest (hex sha256) of a contract, by which two peers check that they have the same
    policy."""
    return hashlib.sha256(contract.to_json().encode()).hexdigest()


def stack_fields(contract: Contract, observation: Mapping[str, Any]) -> np.ndarray:
    """The observation vector of one request.

    Args:
        contract: contract of the policy.
        observation: per field `(n_obs_steps, *shape)`, newest step last; `shape` alone is accepted
            if `n_obs_steps` is 1.

    Returns:
        `(1, n_obs_steps, O)` float32.

    Raises:
        HandoffError: a missing or unknown field, an entry that is no array or has another shape or
            kind than declared, or a non-finite value.
    """
    arrays = {}
    for name, value in observation.items():
        if not isinstance(value, np.ndarray | np.generic):
            raise HandoffError(
                f"{name}: is {_type_name(value)}, expected an array. Send NumPy arrays."
            )
        spec = contract.observation.get(name)
        single = (
            spec is not None and contract.n_obs_steps == 1 and np.ndim(value) == len(spec.shape)
        )
        arrays[name] = np.asarray(value)[None] if single else np.asarray(value)
        if spec is not None:
            _check_steps(name, spec, arrays[name], contract)
    check_fields(contract.observation, arrays)
    steps = contract.n_obs_steps
    rows = [_float32(name, arrays[name]).reshape(steps, -1) for name in contract.observation]
    return np.concatenate(rows, axis=1)[None]


def read_observation(contract: Contract, request: Mapping[str, Any]) -> np.ndarray | PolicyInput:
    """The policy's input in one request: `(1, n_obs_steps, O)`, or a `PolicyInput` if the policy
    has sensors or is language-conditioned.

    Args:
        contract: contract of the policy.
        request: per field and sensor `(n_obs_steps, *shape)`, newest step last, `prompt` for a
            language-conditioned policy, and `prefix` for one that takes decided actions; `shape`
            alone is accepted if `n_obs_steps` is 1.

    Raises:
        HandoffError: see `stack_fields`; an image that is not uint8, or a prompt that is no text.
    """
    vectors = dict(request)
    sensors = {name: vectors.pop(name) for name in contract.sensors if name in vectors}
    prompt = vectors.pop(PROMPT, None) if contract.instruction else None
    prefix = vectors.pop(PREFIX_INPUT, None) if contract.prefix else None
    missing = sorted(contract.sensors.keys() - sensors.keys())
    unknown = sorted(vectors.keys() - contract.observation.keys())
    if missing or (unknown and contract.sensors):
        raise HandoffError(
            f"fields: missing {missing}, unknown {unknown}; the policy observes {sorted(contract.observation)} and the "
            f"sensors {sorted(contract.sensors)}."
        )
    if prompt is not None and not (isinstance(prompt, str) and len(prompt) <= LONGEST_PROMPT):
        raise HandoffError(
            f"{PROMPT}: is {_type_name(prompt)}, expected text of at most {LONGEST_PROMPT} characters."
        )
    if contract.observation or vectors:
        vector = stack_fields(contract, vectors)
    else:
        vector = np.zeros((1, contract.n_obs_steps, 0), np.float32)
    decided = None if prefix is None else check_prefix(contract, prefix)[None]
    if not contract.sensors and not contract.instruction and decided is None:
        return vector
    images = {name: _sensor(contract, name, value) for name, value in sensors.items()}
    return PolicyInput(vector, images, () if prompt is None else (prompt,), prefix=decided)


def split_fields(contract: Contract, observation: np.ndarray) -> dict[str, np.ndarray]:
    """Splits an observation vector `(n_obs_steps, O)` into its fields `(n_obs_steps, *shape)` with
    their declared dtypes; the inverse of `stack_fields`."""
    fields, begin = {}, 0
    for name, spec in contract.observation.items():
        end = begin + math.prod(spec.shape)
        fields[name] = observation[:, begin:end].reshape(-1, *spec.shape).astype(spec.dtype)
        begin = end
    return fields


def action_size(contract: Contract) -> int:
    """Number of entries of one action, A."""
    return math.prod(contract.action.shape)


def check_noise(contract: Contract, noise: Any) -> np.ndarray:
    """Checks the noise of one chunk and returns it as `(horizon, A)` float32.

    Raises:
        HandoffError: the noise is no array, has another shape or kind, or is not finite.
    """
    if not isinstance(noise, np.ndarray):
        raise HandoffError(
            f"{NOISE}: is {_type_name(noise)}, expected an array. Send NumPy arrays."
        )
    spec = FieldSpec(shape=(contract.horizon, action_size(contract)))
    check_fields({NOISE: spec}, {NOISE: noise}, leading=0)
    return _float32(NOISE, noise)


def check_prefix(contract: Contract, prefix: Any) -> np.ndarray:
    """Checks the decided actions of one chunk and returns them as `(P, A + 1)` float32.

    Raises:
        HandoffError: they are no array, have another shape or kind, or are not finite.
    """
    if not isinstance(prefix, np.ndarray):
        raise HandoffError(
            f"{PREFIX_INPUT}: is {_type_name(prefix)}, expected an array. Send NumPy arrays."
        )
    spec = FieldSpec(shape=(contract.prefix, action_size(contract) + 1))
    check_fields({PREFIX_INPUT: spec}, {PREFIX_INPUT: prefix}, leading=0)
    return _float32(PREFIX_INPUT, prefix)


def _sensor(contract: Contract, name: str, value: Any) -> np.ndarray:
    """`(1, n_obs_steps, *shape)` values of a sensor with its declared dtype."""
    spec, steps = contract.sensors[name], contract.n_obs_steps
    if not isinstance(value, np.ndarray):
        raise HandoffError(f"{name}: is {_type_name(value)}, expected an array. Send NumPy arrays.")
    array = value[None] if steps == 1 and value.ndim == len(spec.shape) else value
    if spec.unit == "u8" and array.dtype != np.uint8:
        raise HandoffError(
            f"{name}: images are {array.dtype}, expected uint8 from 0 to 255. Were they scaled?"
        )
    _check_steps(name, spec, array, contract)
    check_field(name, spec, array)
    return array.astype(spec.dtype)[None]


def _check_steps(name: str, spec: FieldSpec, array: np.ndarray, contract: Contract) -> None:
    """Refuses a single observation, and another number of observed steps than the policy's."""
    steps, stride = contract.n_obs_steps, contract.observation_stride
    if steps == 1:
        return
    single = array.shape == tuple(spec.shape)
    if single or (array.shape[1:] == tuple(spec.shape) and len(array) != steps):
        found = "one step" if single else f"{len(array)} steps"
        raise HandoffError(
            f"{name}: {found}, expected {(steps, *spec.shape)}, {steps} observed steps at a stride of {stride}, "
            "newest last. The server keeps no history; the client does."
        )


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = np.array(array, dtype=np.float32)
    if not np.isfinite(narrow).all():
        raise HandoffError(
            f"{name}: has the value {np.abs(array).max()}, which exceeds float32. Is its unit correct?"
        )
    return narrow


def _encode(value: Any) -> dict[bytes, Any]:
    if not isinstance(value, np.ndarray | np.generic):
        raise HandoffError(
            f"message: {_type_name(value)} cannot be sent. Send plain values and NumPy arrays."
        )
    if not _DTYPES.fullmatch(value.dtype.str):
        raise HandoffError(
            f"message: arrays of dtype {value.dtype} cannot be sent, only numbers and booleans."
        )
    if isinstance(value, np.ndarray):
        return {_ARRAY: True, _DATA: value.tobytes(), _DTYPE: value.dtype.str, _SHAPE: value.shape}
    return {_SCALAR: True, _DATA: value.item(), _DTYPE: value.dtype.str}


def _decode(value: dict[Any, Any]) -> Any:
    if _ARRAY in value:
        return _array(value)
    return _scalar(value) if _SCALAR in value else value


def _array(value: dict[Any, Any]) -> np.ndarray:
    if value.keys() != {_ARRAY, _DATA, _DTYPE, _SHAPE}:
        raise HandoffError(
            f"array: entries {list(value)[:8]}, expected __ndarray__, data, dtype and shape as bytes."
        )
    dtype = _dtype(value[_DTYPE])
    data = value[_DATA]
    shape = value[_SHAPE]
    if not isinstance(data, bytes) or not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise HandoffError(
            f"array: data is {_type_name(data)} and shape {_type_name(shape)}, expected bytes and a list of at most "
            f"{MAX_DIMENSIONS} sizes."
        )
    if not all(type(size) is int and 0 <= size < LARGEST_SIZE for size in shape):
        raise HandoffError(
            f"array: a size in its shape is no integer from 0 to {LARGEST_SIZE - 1}."
        )
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(data):
        raise HandoffError(
            f"array: shape {tuple(shape)} of {dtype} takes {needed} bytes, it has {len(data)}. Was the frame truncated?"
        )
    # If one size is 0, the others may still be too large for NumPy.
    if math.prod(size for size in shape if size) >= LARGEST_SIZE:
        raise HandoffError(f"array: shape {tuple(shape)} is beyond {LARGEST_SIZE - 1} entries.")
    return np.ndarray(shape, dtype, data)


def _scalar(value: dict[Any, Any]) -> np.generic:
    if value.keys() != {_SCALAR, _DATA, _DTYPE}:
        raise HandoffError(
            f"scalar: entries {list(value)[:8]}, expected __npgeneric__, data and dtype as bytes."
        )
    dtype, data = _dtype(value[_DTYPE]), value[_DATA]
    expected = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}[dtype.kind]
    if type(data) not in expected:
        raise HandoffError(f"scalar: data is {_type_name(data)}, expected one of dtype {dtype}.")
    with np.errstate(over="ignore"):
        return dtype.type(data)


def _dtype(name: Any) -> np.dtype:
    if not isinstance(name, str) or not _DTYPES.fullmatch(name):
        shown_name = name[:32] if isinstance(name, str) else type(name).__name__
        raise HandoffError(
            f"array: dtype {shown_name!r} is not accepted, only numbers and booleans such as '<f4' or '|u1'."
        )
    return np.dtype(name)


def _type_name(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"of type {type(value).__name__}"

import struct
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robots.contract import Contract
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec
from robots.wire.policy import (
    check_noise,
    check_token,
    contract_digest,
    pack,
    read_observation,
    split_fields,
    stack_fields,
    unpack,
)

CONTRACT = Contract(
    task="point",
    observation={
        "picture": FieldSpec(shape=(2, 2), dtype="uint8", unit="u8"),
        "agent": FieldSpec(shape=(2,), unit="m"),
    },
    action=FieldSpec(shape=(2,), unit="m"),
    rate_hz=10.0,
    n_obs_steps=2,
    horizon=4,
    n_action_steps=2,
    action_interface="pd_target",
    sampler="one-step",
    training_data="d",
    policy="p",
)

# {"state": np.array([1.0, -2.0], float32)} as openpi's encoder writes it: a map of one text key;
# then a map of four byte keys, the data as bytes, the dtype as text, the shape as a list.
FRAME = (
    b"\x81\xa5state"
    b"\x84\xc4\x0b__ndarray__\xc3"
    b"\xc4\x04data\xc4\x08\x00\x00\x80\x3f\x00\x00\x00\xc0"
    b"\xc4\x05dtype\xa3<f4"
    b"\xc4\x05shape\x91\x02"
)
# np.float32(0.5) in the same form: a map of three byte keys, the value as a float64.
SCALAR = b"\x83\xc4\x0d__npgeneric__\xc3\xc4\x04data\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00\xc4\x05dtype\xa3<f4"


def observation():
    return {
        "picture": np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        "agent": np.array([[0.5, 1.5], [2.5, 3.5]], np.float32),
    }


def test_array_as_openpi_writes_it_is_read():
    state = unpack(FRAME)["state"]
    assert state.dtype == np.float32
    np.testing.assert_array_equal(state, [1.0, -2.0])


def test_array_is_written_byte_for_byte_as_openpi_does():
    assert pack({"state": np.array([1.0, -2.0], np.float32)}) == FRAME


def test_scalar_is_read_and_written_as_openpi_does():
    assert pack(np.float32(0.5)) == SCALAR
    assert unpack(SCALAR) == np.float32(0.5)
    assert unpack(SCALAR).dtype == np.float32


NUMBERS = st.sampled_from(
    ["|b1", "|i1", "<i2", "<i4", ">i8", "|u1", "<u2", "<u4", "<u8", "<f2", ">f4", "<f8"]
)


@given(
    NUMBERS.flatmap(
        lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, min_side=0))
    )
)
def test_any_numeric_array_comes_back_bit_for_bit(array):
    back = unpack(pack([array]))[0]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_array_in_fortran_order_keeps_its_entries():
    array = np.arange(6.0).reshape(2, 3, order="F")
    np.testing.assert_array_equal(unpack(pack(array)), array)


def test_plain_values_pass():
    value = {"prompt": "push the T", "n": 3, "list": [1.5, None, True], "raw": b"\x00"}
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        np.array([object()]),
        np.array(["text"]),
        np.zeros(2, complex),
        np.zeros(1, "f4,i4"),
        {1, 2},
        2**70,
    ],
    ids=["object", "objects", "text", "complex", "record", "set", "long"],
)
def test_other_values_are_not_sent(value):
    with pytest.raises(HandoffError, match="message:"):
        pack({"value": value})


def packed(value) -> bytes:
    frame = msgpack.packb(value)
    assert frame is not None
    return frame


def array_frame(**changes):
    entries = {"__ndarray__": True, "data": b"\x00" * 8, "dtype": "<f4", "shape": [2], **changes}
    return packed({name.encode(): value for name, value in entries.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "|O"}, "dtype '|O' is not accepted"),
        ({"dtype": "f4,O"}, "not accepted"),
        ({"dtype": "(2,)<f4"}, "not accepted"),
        ({"dtype": "|V1000000000"}, "not accepted"),
        ({"dtype": "<M8[s]"}, "not accepted"),
        ({"dtype": 4}, "dtype 'int' is not accepted"),
        ({"shape": [3]}, "takes 12 bytes, it has 8"),
        ({"shape": [1]}, "takes 4 bytes, it has 8"),
        ({"shape": [2**31]}, "no integer from 0"),
        ({"shape": [-2]}, "no integer from 0"),
        ({"shape": [True, 2]}, "no integer from 0"),
        ({"shape": [2.0]}, "no integer from 0"),
        ({"shape": [1] * 40}, "at most 32 sizes"),
        ({"shape": 2}, "at most 32 sizes"),
        ({"shape": [2**30, 2**30, 0], "data": b""}, "beyond 2147483647 entries"),
        ({"data": "00000000"}, "data is of type str"),
        ({"data": None}, "expected __ndarray__, data, dtype and shape"),
        ({"more": 1}, "expected __ndarray__, data, dtype and shape"),
    ],
)
def test_array_that_is_not_numeric_or_not_of_its_size_is_refused(changes, message):
    with pytest.raises(HandoffError) as caught:
        unpack(array_frame(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "data"), [("<f4", "0.5"), ("|u1", 0.5), ("|b1", 1), ("<i4", [1]), ("|u1", 256)]
)
def test_scalar_of_another_type_or_beyond_its_range_is_refused(dtype, data):
    with pytest.raises(HandoffError):
        unpack(packed({b"__npgeneric__": True, b"data": data, b"dtype": dtype}))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        FRAME[:-1],
        FRAME + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff\x00",
        b"\x91" * 100_000,
        b"\xa1\xff",
        b"\x81\x01\x02",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\xc7\x04\x05abcd",
        b"\xdd" + struct.pack(">I", 5000) + b"\x00" * 5000,
        b"\xdc\x0f\x00" + (b"\x92\x90\x90" * 0x0F00),
    ],
    ids=[
        "empty",
        "never used byte",
        "cut short",
        "trailing byte",
        "huge list",
        "huge map",
        "huge bytes",
        "deep",
        "not utf-8",
        "integer key",
        "timestamp",
        "extension",
        "list beyond the limit",
        "too many lists",
    ],
)
def test_malformed_frame_is_a_clear_error(frame):
    with pytest.raises(HandoffError, match="message:"):
        unpack(frame)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_clear_error(frame):
    try:
        value = unpack(frame)
    except HandoffError:
        return
    assert not isinstance(value, np.ndarray) or value.dtype.kind in "biuf"


@given(st.integers(0, len(FRAME) - 1), st.integers(0, 255))
def test_array_with_one_byte_changed_gives_a_value_or_a_clear_error(at, byte):
    try:
        value = unpack(FRAME[:at] + bytes([byte]) + FRAME[at + 1 :])
    except HandoffError:
        return
    assert value is not None


def test_fields_are_stacked_in_the_order_of_the_contract():
    reversed_order = dict(reversed(observation().items()))
    stacked = stack_fields(CONTRACT, reversed_order)
    assert stacked.dtype == np.float32
    np.testing.assert_array_equal(stacked, [[[0, 1, 2, 3, 0.5, 1.5], [4, 5, 6, 7, 2.5, 3.5]]])


def test_splitting_undoes_stacking():
    fields = split_fields(CONTRACT, stack_fields(CONTRACT, observation())[0])
    for name, expected in observation().items():
        assert fields[name].dtype == expected.dtype
        np.testing.assert_array_equal(fields[name], expected)


def test_one_step_needs_no_leading_dimension_where_only_one_is_seen():
    contract = replace(CONTRACT, n_obs_steps=1)
    newest = {name: array[1] for name, array in observation().items()}
    np.testing.assert_array_equal(stack_fields(contract, newest), [[[4, 5, 6, 7, 2.5, 3.5]]])
    with pytest.raises(HandoffError, match=r"one step, expected .*newest last.*keeps no history"):
        stack_fields(CONTRACT, newest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": None}, r"missing \['agent'\]"),
        ({"wrist": np.zeros((2, 2))}, r"unknown \['wrist'\]"),
        ({"agent": np.zeros((2, 3), np.float32)}, r"agent: shape \(2, 3\)"),
        ({"agent": np.zeros((3, 2), np.float32)}, "agent: 3 steps, expected"),
        (
            {"picture": np.zeros((2, 2, 2), np.float32)},
            "picture: dtype float32 cannot become uint8",
        ),
        ({"agent": np.array([[0.0, np.nan], [0.0, 0.0]])}, "agent: value at index .* is nan"),
        ({"agent": np.full((2, 2), 1e300)}, r"agent: has the value 1e\+300, which exceeds float32"),
        ({"agent": [[0.0, 0.0], [0.0, 0.0]]}, "agent: is a list, expected an array"),
    ],
)
def test_observation_that_does_not_fit_is_refused_by_field(changes, message):
    fields = {
        name: value for name, value in {**observation(), **changes}.items() if value is not None
    }
    with pytest.raises(HandoffError, match=message):
        stack_fields(CONTRACT, fields)


def test_noise_must_be_one_finite_chunk():
    assert check_noise(CONTRACT, np.zeros((4, 2))).dtype == np.float32
    for noise in (np.zeros((1, 4, 2)), np.full((4, 2), np.inf), [[0.0] * 2] * 4):
        with pytest.raises(HandoffError, match="noise"):
            check_noise(CONTRACT, noise)


def test_digest_tells_contracts_apart_by_the_order_of_their_fields():
    turned = replace(CONTRACT, observation=dict(reversed(CONTRACT.observation.items())))
    assert contract_digest(CONTRACT) == contract_digest(replace(CONTRACT))
    assert contract_digest(CONTRACT) != contract_digest(turned)


@pytest.mark.parametrize(
    "token", ["short", "with a space in it", "line\nbreak-line-break", "not-ascii-à-la-carte"]
)
def test_token_unfit_for_a_header_is_refused(token):
    with pytest.raises(HandoffError, match="token"):
        check_token(token)


SENSORS = replace(
    CONTRACT,
    observation={"agent": FieldSpec(shape=(2,), unit="m")},
    sensors={
        "camera": FieldSpec(shape=(1, 2, 3), dtype="uint8", unit="u8"),
        "cloud": FieldSpec(shape=(4, 3), unit="m"),
    },
    instruction=True,
)


def request_fields(steps=2):
    return {
        "agent": np.zeros((steps, 2), np.float32),
        "camera": np.arange(6 * steps, dtype=np.uint8).reshape(steps, 1, 2, 3),
        "cloud": np.ones((steps, 4, 3)),
    }


def row_of(contract, request):
    row = read_observation(contract, request)
    assert isinstance(row, PolicyInput)
    return row


def test_pictures_points_and_words_become_one_row():
    row = row_of(SENSORS, request_fields() | {"prompt": "push"})
    assert row.vector.shape == (1, 2, 2)
    assert row.sensors["camera"].tolist() == [np.arange(12).reshape(2, 1, 2, 3).tolist()]
    assert (row.sensors["camera"].dtype, row.sensors["cloud"].dtype) == (np.uint8, np.float32)
    assert row.instructions == ("push",)
    assert row_of(SENSORS, request_fields()).instructions == ()


def test_a_contract_without_sensors_gives_the_plain_vector():
    np.testing.assert_array_equal(
        read_observation(CONTRACT, observation()), stack_fields(CONTRACT, observation())
    )


def test_one_step_may_come_without_its_axis():
    single = replace(SENSORS, n_obs_steps=1)
    request = {name: array[0] for name, array in request_fields().items()}
    row = row_of(single, request)
    assert row.sensors["camera"].shape == (1, 1, 1, 2, 3)


def test_a_policy_may_be_shown_pictures_alone():
    alone = replace(
        SENSORS, observation={}, sensors={"camera": SENSORS.sensors["camera"]}, instruction=False
    )
    assert row_of(alone, {"camera": request_fields()["camera"]}).vector.shape == (1, 2, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"camera": np.zeros((2, 1, 2, 3))}, "camera: images are float64, expected uint8"),
        ({"camera": [1, 2]}, "camera: is a list, expected an array"),
        ({"camera": np.zeros((2, 2, 1, 3), np.uint8)}, r"camera: shape \(2, 2, 1, 3\)"),
        ({"camera": np.zeros((1, 1, 2, 3), np.uint8)}, "camera: 1 steps, expected"),
        ({"cloud": np.full((2, 4, 3), np.nan)}, "cloud: value at index"),
        (
            {"wrist": np.zeros((2, 1, 2, 3), np.uint8)},
            r"unknown \['wrist'\].*sensors \['camera', 'cloud'\]",
        ),
        ({"camera": np.zeros((2, 3, 1, 2), np.uint8)}, "put the colours last"),
        ({"prompt": 3}, "prompt: is of type int, expected text"),
        ({"prompt": "a" * 2001}, "expected text of at most 2000"),
    ],
)
def test_what_cannot_be_shown_is_named(changes, message):
    with pytest.raises(HandoffError, match=message):
        read_observation(SENSORS, request_fields() | changes)


def test_a_prompt_for_a_policy_that_does_not_read_is_refused():
    with pytest.raises(HandoffError, match="prompt"):
        read_observation(replace(SENSORS, instruction=False), request_fields() | {"prompt": "push"})

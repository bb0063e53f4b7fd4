"""Messages between actor and learner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.wire.actor_card import CriticsCard, MlpCard, array_shapes
from robots.wire.learner import (
    Acknowledgement,
    Hello,
    JournalEntry,
    Message,
    Parameters,
    Pause,
    decode,
    encode,
    max_steps_bytes,
)
from robots.wire.policy import pack, unpack
from tests.real.hil.made import parameters, steps

JOURNAL = "0123456789abcdef"


def pictured() -> JournalEntry:
    images = {"wrist": np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)}
    return JournalEntry(JOURNAL, 5, steps()._replace(pictures=images, next_pictures=images))


def mapped() -> JournalEntry:
    """Feature maps, of which the first row has its own picture before the step."""
    maps = {"wrist": np.arange(2 * 3 * 2 * 2, dtype=np.float16).reshape(2, 3, 2, 2)}
    own = {"wrist": maps["wrist"][:1]}
    return JournalEntry(
        JOURNAL, 5, steps()._replace(pictures=own, next_pictures=maps), np.array([0])
    )


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (np.array([2]), "rows from 0 to 1"),
        (np.array([0.0]), "rows from 0 to 1"),
        (np.array([1, 1]), "do not ascend"),
        (np.array([0, 1]), "wrist: float16 of shape"),
    ],
)
def test_rows_of_pictures_that_contradict_the_steps_are_refused(
    own: np.ndarray, words: str
) -> None:
    with pytest.raises(HandoffError, match=words):
        encode(mapped()._replace(own_pictures=own))


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return type(a) is type(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize(
    "message",
    [
        Hello(JOURNAL, 3),
        JournalEntry(JOURNAL, 5, steps()),
        pictured(),
        mapped(),
        Acknowledgement(-1),
        Acknowledgement(8),
        parameters(),
        Pause(True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert same(decode(encode(message)), message)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("reward", np.array([1.0, np.inf], np.float32), "reward: has a non-finite value"),
        ("reward", np.zeros(2), "reward: float64"),
        ("observation", np.zeros((3, 3), np.float32), "observation: float32 of shape"),
        ("action", np.full((2, 2), 1.5, np.float32), "action: an entry of magnitude 1.5, limit 1"),
        ("next_observation", np.zeros((2, 4), np.float32), "shapes of each pair must be equal"),
        ("terminated", np.zeros(2, np.int64), "terminated: int64"),
        ("episode", np.array([-1, 0]), "a negative episode"),
        (
            "pictures",
            {"wrist": np.zeros((2, 4, 5, 3), np.uint8)},
            "pictures of \\['wrist'\\] before",
        ),
    ],
)
def test_invalid_steps_name_their_column(column: str, value: object, words: str) -> None:
    with pytest.raises(HandoffError, match=words):
        encode(JournalEntry(JOURNAL, 0, steps()._replace(**{column: value})))


def test_parameters_must_fit_their_card() -> None:
    good = parameters()
    for arrays, words in (
        (
            {**good.arrays, "actor.0.bias": np.zeros(6, np.float32)},
            "actor.0.bias is not float32 of shape",
        ),
        (
            {**good.arrays, "hand.0.bias": np.full(3, np.nan, np.float32)},
            "non-finite value. Has the training diverged",
        ),
        (
            {name: array for name, array in good.arrays.items() if name != "centre"},
            "missing or unknown \\['centre'\\]",
        ),
    ):
        with pytest.raises(HandoffError, match=words):
            encode(Parameters(0, good.card, arrays))


def test_another_protocol_is_refused() -> None:
    with pytest.raises(HandoffError, match="protocol 'other/1'"):
        decode(pack({"kind": "hello", "protocol": "other/1", "journal": JOURNAL, "first": 0}))


def test_text_is_an_error_of_the_peer() -> None:
    with pytest.raises(HandoffError, match="the peer reports: no room"):
        decode("no room")


def test_the_largest_frame_of_steps_fits_its_limit() -> None:
    whole = steps(rows=1024, observation=9, action=4)
    images = {name: np.zeros((1024, 8, 8, 3), np.uint8) for name in ("left", "right")}
    frame = encode(
        JournalEntry(JOURNAL, 2**62, whole._replace(pictures=images, next_pictures=images))
    )
    assert len(frame) <= max_steps_bytes(9, 4, 2 * 8 * 8 * 3)


def test_corrupted_frames_raise_only_handoff_errors() -> None:
    rng = np.random.default_rng(0)
    frames = [
        encode(message)
        for message in (
            Hello(JOURNAL, 3),
            pictured(),
            Acknowledgement(4),
            parameters(),
            Pause(False),
        )
    ]
    broken = 0
    for _ in range(3000):
        frame = bytearray(frames[rng.integers(len(frames))])
        for _ in range(rng.integers(1, 4)):
            frame[rng.integers(len(frame))] = rng.integers(256)
        cut = (
            bytes(frame[: rng.integers(1, len(frame) + 1)]) if rng.random() < 0.3 else bytes(frame)
        )
        try:
            decode(cut)
        except HandoffError:
            broken += 1
    assert broken > 1000


@pytest.mark.parametrize("value", [None, [], "x", -1, 2.0, True, 2**63, b"", {"a": 1}])
def test_a_wrong_type_in_any_entry_is_refused(value: object) -> None:
    for message in (
        Hello(JOURNAL, 3),
        JournalEntry(JOURNAL, 5, steps()),
        Acknowledgement(4),
        parameters(),
        Pause(False),
    ):
        fields = unpack(encode(message))
        for name in fields.keys() - {"kind"}:
            if name in ("pictures", "next_pictures", "arrays", "card") or (
                name == "on" and value is True
            ):
                continue
            if name == "number" and value == -1 and isinstance(message, Acknowledgement):
                continue
            with pytest.raises(HandoffError):
                decode(
                    pack({**fields, name: value}) if value != 2**63 else pack({**fields, name: 2.5})
                )


def test_critics_come_with_the_actor_and_must_fit_their_card() -> None:
    plain = parameters()
    continuous, features = 1, 4
    network = MlpCard(layers=(features + continuous, 2, 1), activation="tanh", layer_norm=True)
    card = replace(plain.card, critics=CriticsCard(members=3, network=network))
    shapes = array_shapes(card)
    critic = {name: shape for name, shape in shapes.items() if name.startswith("critic")}
    assert critic["critic.0.weight"] == (3, 5, 2)
    assert critic["critic.0.gain"] == (3, 2)
    assert critic["critic.1.bias"] == (3, 1)
    arrays = plain.arrays | {name: np.ones(shape, np.float32) for name, shape in critic.items()}
    message = decode(encode(Parameters(7, card, arrays)))
    assert isinstance(message, Parameters)
    assert message.card.critics == card.critics
    with pytest.raises(HandoffError, match=r"missing or unknown \['critic\.0\.bias'"):
        encode(Parameters(7, card, plain.arrays))
    other = MlpCard(layers=(features, 2, 1), activation="tanh", layer_norm=True)
    wrong = replace(card, critics=CriticsCard(members=3, network=other))
    with pytest.raises(HandoffError, match=r"critic has layers .* expected 5 entries in and 1 out"):
        array_shapes(wrong)


def test_hidden_layers_have_one_activation_or_one_each() -> None:
    same = MlpCard(layers=(3, 4, 5, 1), activation="relu", layer_norm=False)
    each = replace(same, activation=("elu", "tanh"))
    assert same.activations() == ("relu", "relu")
    assert each.activations() == ("elu", "tanh")
    plain = parameters()
    wrong = replace(plain.card, actor=replace(plain.card.actor, activation=("elu",) * 7))
    with pytest.raises(HandoffError, match=r"7 activations for 1 hidden layers, expected one"):
        array_shapes(wrong)


def test_activations_of_each_layer_survive_the_wire() -> None:
    plain = parameters()
    card = replace(plain.card, actor=replace(plain.card.actor, activation=("elu",)))
    message = decode(encode(Parameters(7, card, plain.arrays)))
    assert isinstance(message, Parameters)
    assert message.card.actor.activations() == ("elu",)

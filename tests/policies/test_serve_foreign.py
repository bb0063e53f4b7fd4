"""Programs that were written for openpi's policy server connect unmodified."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows.__main__ import main
from policies.serve import PolicyServer, ServeConfig
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec
from robots.wire.adapt import NO_PROMPT, RequestAdapter, resize_with_pad
from tests.policies.served import CONTRACT, TOKEN, ask, fields, served

CAMERA = FieldSpec(shape=(6, 8, 3), dtype="uint8", unit="u8")
SEEING = replace(CONTRACT, n_obs_steps=1, sensors={"front": CAMERA})


def test_the_token_is_taken_as_the_password_of_the_address(server):
    # The form in which openpi's programs are given a host: they know no token.
    uri = server.uri.replace("ws://", f"ws://robot:{TOKEN}@")
    with connect(uri, compression=None, proxy=None) as connection:
        assert "contract" in msgpack.unpackb(connection.recv(timeout=30.0))


@pytest.mark.parametrize(
    "credentials", [b"robot:another-token-of-16", b"robot", TOKEN.encode(), b"", b"\xff\xfe:"]
)
def test_another_password_is_refused(server, credentials):
    header = f"Basic {base64.b64encode(credentials).decode()}"
    with pytest.raises(InvalidStatus, match="401"):
        server.connect(header)


def test_a_header_that_is_no_base64_is_refused(server):
    with pytest.raises(InvalidStatus, match="401"):
        server.connect("Basic ???")


def test_names_with_a_prefix_and_nested_maps_mean_the_fields(client):
    plain = fields()
    noise = {"seed": 3, "chunk": 0}
    expected = ask(client, {**plain, **noise})["actions"]
    prefixed = {f"observation/{name}": value for name, value in plain.items()}
    np.testing.assert_array_equal(ask(client, {**prefixed, **noise})["actions"], expected)
    nested = {"observation": plain, **noise}
    np.testing.assert_array_equal(ask(client, nested)["actions"], expected)


def test_a_prompt_that_is_not_read_is_ignored_with_a_note(client):
    answer = ask(client, {**fields(), "prompt": "push the T"})
    assert answer["notes"] == [NO_PROMPT]
    assert "notes" not in ask(client, fields())


def test_names_are_mapped_and_ignored():
    names = {"observation/joints": "agent", "observation/wrist_image": ""}
    with served(names=names) as server, server.client() as client:
        request: dict[str, Any] = dict(fields())
        request["observation/joints"] = request.pop("agent")
        request["observation/wrist_image"] = np.zeros((4, 4, 3), np.uint8)
        assert "actions" in ask(client, request)


def test_a_name_that_nobody_knows_is_named_and_the_line_stays_open(client):
    answer = ask(client, {**fields(), "observation/gripper_position": np.zeros((2, 1))})
    assert "observation/gripper_position" in answer
    assert "actions" in ask(client, fields())


def test_two_names_for_one_field_are_refused(client):
    request = {**fields(), "observation/agent": fields()["agent"]}
    assert "means agent, which another name" in ask(client, request)


def test_deep_nesting_is_refused(client):
    request: dict[str, Any] = dict(fields())
    for _ in range(6):
        request = {"a": request}
    assert "nested more than 4 deep" in ask(client, request)


def look(observation, noise):
    """A policy that tells the mean of its picture."""
    assert isinstance(observation, PolicyInput)
    assert observation.sensors["front"].shape == (1, 1, 6, 8, 3)
    return np.full(noise.shape, observation.sensors["front"].mean(), np.float32)


def test_a_larger_image_is_made_smaller_with_its_aspect_ratio():
    with served(look, SEEING) as server, server.client() as client:
        request: dict[str, Any] = {name: value[-1] for name, value in fields().items()}
        request["observation/front"] = np.full((480, 640, 3), 100, np.uint8)
        assert ask(client, request)["actions"].mean() == pytest.approx(100.0)
        # A square picture gets black to its left and right.
        request["observation/front"] = np.full((640, 640, 3), 100, np.uint8)
        assert ask(client, request)["actions"].mean() == pytest.approx(75.0)
        request["observation/front"] = np.full((6, 8, 3), 0.5)
        assert "front: images are float64, expected uint8" in ask(client, request)


def test_an_image_keeps_its_middle():
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 40:] = 200
    small = resize_with_pad(image, 8, 8)
    assert small.shape == (8, 8, 3)
    assert not small[:2].any()
    assert not small[6:].any()
    assert small[2:6, :3].max() == 0
    assert small[2:6, 5:].min() == 200


def test_a_map_to_an_unknown_field_is_refused():
    with pytest.raises(HandoffError, match="'x' is to mean 'agnt', did you mean 'agent'"):
        RequestAdapter(CONTRACT, {"x": "agnt"})
    with pytest.raises(HandoffError, match="is to mean"):
        PolicyServer(look, CONTRACT, ServeConfig(names={"x": "nothing"}), TOKEN)


def test_a_map_without_a_field_is_refused(capsys):
    assert main(["serve", "runs", "--map", "state"]) == 1
    assert "expected NAME=FIELD" in capsys.readouterr().err

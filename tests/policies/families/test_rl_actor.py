"""A published actor as a policy computes the same actions as the learner, in torch, NumPy and
ONNX."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from policies.card import PolicyCard
from policies.checkpoint import read_card
from policies.export.graph import to_onnx
from policies.export.trunk import trunk_to_onnx
from policies.families.rl_actor import LearnedActor, save_actor
from policies.load import load_module, load_policy
from policies.networks.config import TrunkConfig
from policies.networks.images.efficientnet_lite import pretrained_trunk
from policies.policy_config import LearnedActorConfig
from policies.rl.actor_export import sac_actor
from policies.rl.networks.config import EncoderConfig, MlpSizes
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Observations, Sizes
from real.hil.actor_policy import ActorPolicy
from real.hil.trunk import OnnxTrunk
from robots.config import to_plain, validate
from robots.control.gripper_commands import CommandedGripper
from robots.errors import HandoffError
from robots.spec import FieldSpec
from robots.wire.learner import Parameters, check_parameters

FIELDS = {
    "pose": FieldSpec(shape=(3,), unit="m"),
    "goal": FieldSpec(shape=(3,)),
    "width_target": FieldSpec(shape=(1,)),
}


def new_learner(hand: bool, layer_norm: bool = True) -> Sac:
    sizes = MlpSizes(hidden=(8, 8), layer_norm=layer_norm)
    gripper = GripperConfig(network=sizes) if hand else None
    learner = Sac(
        SacConfig(critic=sizes, actor=sizes, gripper=gripper),
        Sizes(
            observation=7,
            action=3,
            relative_features=((0, 3, 3, 0.1),),
            scaled_features=((0, -1, 2, 0.3), (3, 0, 3, 0.2)),
        ),
        seed=3,
    )
    learner.networks.features.fit(torch.full((7,), -0.5), torch.arange(1.0, 8.0))
    return learner


def card_of(learner: Sac, fields: dict[str, FieldSpec] = FIELDS) -> tuple[PolicyCard, Parameters]:
    card, arrays = sac_actor(learner)
    model = LearnedActorConfig(observation_fields=tuple(fields), card=card)
    policy = PolicyCard(
        task="t", rate_hz=20.0, observation=fields, action=FieldSpec(shape=(3,)), model=model
    )
    return policy, Parameters(5, card, arrays)


def observations() -> np.ndarray:
    obs = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 7)).astype(np.float32)
    obs[:, 6] = np.linspace(0.0, 0.08, 40)
    return obs


@pytest.mark.parametrize(("hand", "layer_norm"), [(True, True), (False, True), (False, False)])
def test_a_saved_actor_answers_as_its_learner(tmp_path: Path, hand: bool, layer_norm: bool) -> None:
    learner, obs = new_learner(hand, layer_norm), observations()
    save_actor(tmp_path, *card_of(learner))
    answer = load_policy(tmp_path)(obs[:, None], np.zeros((40, 1, 3), np.float32))[:, 0]
    expected = learner.act(obs)
    if hand:
        assert len(set(expected[:, 2])) > 1, (
            "a critic that always commands the same would prove little"
        )
        expected = CommandedGripper(3, 0.08).to_env(expected, {"width_target": obs[:, 6:]})
    assert np.abs(answer - expected).max() < 1e-5


def test_its_graph_answers_the_same(tmp_path: Path) -> None:
    save_actor(tmp_path, *card_of(new_learner(True)))
    module, _ = load_module(tmp_path)
    session = onnxruntime.InferenceSession(to_onnx(module, 21).SerializeToString())
    obs, noise = observations()[:, None], np.zeros((40, 1, 3), np.float32)
    (answer,) = session.run(["action"], {"observation": obs, "noise": noise})
    assert np.abs(np.asarray(answer) - load_policy(tmp_path)(obs, noise)).max() < 1e-5


def test_its_card_survives_the_way_through_a_file(tmp_path: Path) -> None:
    card, parameters = card_of(new_learner(True))
    save_actor(tmp_path, card, parameters)
    assert read_card(tmp_path) == card
    assert validate(PolicyCard, json.loads(json.dumps(to_plain(card)))) == card


def test_a_gripper_critic_without_width_target_is_refused() -> None:
    fields = {"pose": FieldSpec(shape=(7,))}
    card, _ = card_of(new_learner(True), fields)
    assert isinstance(card.model, LearnedActorConfig)
    with pytest.raises(HandoffError, match="width_target"):
        LearnedActor(card.model, card.shapes)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    card, _ = card_of(new_learner(True))
    with pytest.raises(HandoffError, match="another network"):
        save_actor(tmp_path, card, card_of(new_learner(False))[1])


def test_to_hold_is_the_entry_of_the_grippers_own_stroke(tmp_path: Path) -> None:
    card, parameters = card_of(new_learner(True))
    assert isinstance(card.model, LearnedActorConfig)
    wide = replace(card, model=replace(card.model, gripper_width_max=0.16))
    obs, answers = observations(), []
    for number, one in enumerate((card, wide)):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_actor(folder, one, parameters)
        noise = np.zeros((40, 1, 3), np.float32)
        answers.append(load_policy(folder)(obs[:, None], noise)[:, 0, 2])
    held = np.abs(answers[0]) < 1.0 - 1e-6
    assert held.any(), "a critic that never holds would prove nothing"
    np.testing.assert_allclose(answers[0][held], 2.0 * obs[held, 6] / 0.08 - 1.0, atol=1e-5)
    np.testing.assert_allclose(answers[1][held], 2.0 * obs[held, 6] / 0.16 - 1.0, atol=1e-5)


PICTURES = {
    name: FieldSpec(shape=(32, 48, 3), dtype="uint8", unit="u8") for name in ("front", "wrist")
}


def pictured_learner() -> Sac:
    """A learner behind the stride-16 maps of two cameras."""
    sizes = MlpSizes(hidden=(8, 8))
    encoder = EncoderConfig(embeddings=2, picture_width=6, vector_width=5)
    config = SacConfig(
        critic=sizes, actor=sizes, encoder=encoder, gripper=GripperConfig(network=sizes)
    )
    maps = tuple((name, 112, 2, 3) for name in PICTURES)
    learner = Sac(config, Sizes(observation=7, action=3, maps=maps), seed=3)
    learner.networks.features.fit(torch.full((7,), -0.5), torch.arange(1.0, 8.0))
    return learner


def pictured_card(learner: Sac) -> tuple[PolicyCard, Parameters]:
    card, parameters = card_of(learner)
    model = replace(card.model, image_fields=tuple(PICTURES), trunk=TrunkConfig())
    return replace(card, model=model, sensors=PICTURES), parameters


def pictures() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.integers(0, 256, (40, 32, 48, 3), dtype=np.uint8) for name in PICTURES}


def test_an_actor_behind_a_trunk_reads_pictures_in_torch_numpy_and_onnx(tmp_path: Path) -> None:
    learner, obs, seen = pictured_learner(), observations(), pictures()
    # The trunk as the actor of a session runs it.
    path = tmp_path / "trunk.onnx"
    path.write_bytes(trunk_to_onnx(pretrained_trunk(16), 32, 48).SerializeToString())
    trunk = OnnxTrunk(path, tuple(PICTURES))
    assert trunk.maps == learner.sizes.maps
    maps = trunk(seen)
    tensors = {name: torch.from_numpy(values) for name, values in maps.items()}
    expected = learner.act_on(Observations(torch.from_numpy(obs), tensors))
    assert np.ptp(expected[:, 0]) > 0.01
    # The published parameters in NumPy.
    card, parameters = pictured_card(learner)
    check_parameters(parameters)
    np.testing.assert_allclose(ActorPolicy(parameters).act(obs, None, maps), expected, atol=1e-5)
    # The saved policy, with the trunk inside, in torch and in ONNX Runtime: maps are not rounded.
    save_actor(tmp_path, card, parameters)
    assert read_card(tmp_path) == card
    module, _ = load_module(tmp_path)
    session = onnxruntime.InferenceSession(to_onnx(module, 21).SerializeToString())
    inputs = {"observation": obs[:, None], "noise": np.zeros((40, 1, 3), np.float32)}
    inputs |= {name: values[:, None] for name, values in seen.items()}
    exported = np.asarray(session.run(["action"], inputs)[0])[:, 0]
    commanded = CommandedGripper(3, 0.08).to_env(expected, {"width_target": obs[:, 6:]})
    np.testing.assert_allclose(exported[:, :2], commanded[:, :2], atol=2e-3)
    with torch.no_grad():
        saved = module(
            torch.from_numpy(obs[:, None]),
            torch.zeros(40, 1, 3),
            {name: torch.from_numpy(values[:, None]) for name, values in seen.items()},
        )
    np.testing.assert_allclose(exported, saved[:, 0].numpy(), atol=1e-5)


def test_a_trunk_that_makes_other_maps_is_refused() -> None:
    card, _ = pictured_card(pictured_learner())
    assert isinstance(card.model, LearnedActorConfig)
    for trunk, message in ((TrunkConfig(stride=8), "Another camera"), (None, "expected a trunk")):
        with pytest.raises(HandoffError, match=message):
            LearnedActor(replace(card.model, trunk=trunk), card.shapes)


def test_black_pictures_make_a_trunk_blind(tmp_path: Path) -> None:
    path = tmp_path / "trunk.onnx"
    path.write_bytes(trunk_to_onnx(pretrained_trunk(16), 32, 48).SerializeToString())
    blind, seeing = (OnnxTrunk(path, ("front",), blind=blind) for blind in (True, False))
    black = {"front": np.zeros((2, 32, 48, 3), np.uint8)}
    np.testing.assert_array_equal(blind(pictures())["front"][:2], seeing(black)["front"])
    with pytest.raises(HandoffError, match="does not exist"):
        OnnxTrunk(tmp_path / "none.onnx", ("front",))

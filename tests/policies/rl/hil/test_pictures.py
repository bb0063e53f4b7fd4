"""The learner of a session whose steps have feature maps: what it stores, and how it resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from policies.rl.actor_export import sac_actor_and_critics
from policies.rl.hil.algorithms import LearnerSetup, SessionData, set_up_learner
from policies.rl.hil.config import HilRlpdConfig, LearnerConfig, MixedUpdateConfig
from policies.rl.hil.learner import LearnerTraining
from policies.rl.networks.config import EncoderConfig, MlpSizes
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.buffer import sizes_of
from policies.rl.replay.transitions import Observations
from real.hil.actor_policy import ActorPolicy
from real.hil.journal import Journal
from robots.spec import ActionSpec, FieldSpec
from robots.wire.learner import Hello, Parameters, decode, encode
from robots.wire.steps import Steps, plain_steps, select_steps

MAPS = (("front", 2, 1, 3), ("wrist", 1, 2, 2))
TINY = MlpSizes(hidden=(8,))


def episode(number: int, length: int, *, demo: bool = False) -> Steps:
    """Observation and maps before step i of episode e are 20 e + i; a person acts at every third."""
    index = np.arange(length)
    value = 20 * number + index

    def maps(of: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: np.ones((length, *shape), np.float16) * of[:, None, None, None].astype(np.float16)
            for name, *shape in MAPS
        }

    last = index == length - 1
    steps = plain_steps(
        np.full(length, number),
        index,
        value[:, None],
        np.zeros((length, 2)),
        last,
        value[:, None] + 1,
        last,
        np.zeros(length, bool),
        demo=demo,
        intervention=(index % 3 == 2) & (not demo),
    )
    return steps._replace(pictures=maps(value), next_pictures=maps(value + 1))


def set_up(folder: Path, demonstration: Steps) -> LearnerSetup:
    algorithm = HilRlpdConfig(
        reward="task",
        sac=SacConfig(
            critic=TINY, actor=TINY, encoder=EncoderConfig(picture_width=4, vector_width=4)
        ),
        online=MixedUpdateConfig(batch_size=8, minibatches=1, training_starts=0),
    )
    data = SessionData(
        fields={"value": FieldSpec(shape=(1,))},
        action=ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0), names=("x", "y")),
        demonstrations=[demonstration],
        maps=MAPS,
        folder=folder,
    )
    return set_up_learner(algorithm, data)


def training(folder: Path, demonstration: Steps) -> LearnerTraining:
    made = set_up(folder, demonstration)
    return LearnerTraining(
        folder,
        made.learner,
        made.replay,
        made.demos,
        made.online,
        LearnerConfig(),
        seed=0,
        publish=made.publish,
        relabel=None,
    )


def give(one: LearnerTraining, frames: list[bytes]) -> None:
    for frame in frames:
        message = decode(frame)
        assert not isinstance(message, Hello)
        one.message_log.put(frame, message)  # type: ignore[arg-type]
    one.receive()


def assert_maps_belong(one: LearnerTraining, name: str) -> None:
    """Every stored step has the maps that it was sent with, though most were sent once."""
    buffer = one.buffers[name]
    batch = buffer.transitions(buffer.drawable())
    for obs in (batch.obs, batch.next_obs):
        for maps in obs.pictures.values():
            assert (maps.flatten(1) == obs.vector_BO).all()


def test_a_learner_that_is_killed_amid_an_episode_knows_the_maps_before_the_next_step(
    tmp_path: Path,
) -> None:
    steps = episode(1, 9)
    with Journal(tmp_path / "journal") as journal:
        for row in range(9):
            journal.append(select_steps(steps, np.array([row])))
        frames = [journal.frame(number) for number in range(9)]
        hello = Hello(journal.identity, 0)
    folder, demonstration = tmp_path / "learner", episode(0, 4, demo=True)
    one = training(folder, demonstration)
    one.message_log.put(encode(hello), hello)
    give(one, frames[:4])
    one.checkpoint()
    give(one, frames[4:6])
    one.update()
    # Nothing after the checkpoint was saved but the log. The demonstrations are in their buffer and
    # are not encoded again.
    one.message_log.close()
    again = training(folder, demonstration._replace(pictures={}, next_pictures={}))
    give(again, frames[6:])
    again.update()
    again.message_log.close()
    assert len(again.buffers["replay"]) == 9
    assert len(again.buffers["demos"]) == 4 + 3, "demonstrations and corrections"
    assert sizes_of(again.buffers["demos"]).maps == MAPS
    for name in ("replay", "demos"):
        assert len(again.buffers[name].drawable()) == len(again.buffers[name])
        assert_maps_belong(again, name)


def test_an_entry_of_one_step_has_one_map_per_camera(tmp_path: Path) -> None:
    shapes = (("front", 112, 6, 6), ("wrist", 112, 6, 6))
    maps = {name: np.ones((5, *shape), np.float16) for name, *shape in shapes}
    steps = episode(1, 5)._replace(pictures=maps, next_pictures=maps)
    with Journal(tmp_path) as journal:
        for row in range(5):
            journal.append(select_steps(steps, np.array([row])))
        sizes = [len(journal.frame(number)) for number in range(5)]
    assert sizes[0] > 2 * 2 * 112 * 36 * 2
    assert max(sizes[1:]) < 2 * 112 * 36 * 2 + 1500


def test_the_values_that_an_actor_evaluates_on_maps_are_those_of_the_learner(
    tmp_path: Path,
) -> None:
    learner = set_up(tmp_path / "learner", episode(0, 4, demo=True)).learner
    assert isinstance(learner, Sac)
    message = decode(encode(Parameters(1, *sac_actor_and_critics(learner))))
    assert isinstance(message, Parameters)
    steps = episode(1, 5)
    action = np.linspace(-0.9, 0.9, 10, dtype=np.float32).reshape(5, 2)
    found = ActorPolicy(message).evaluate(steps.observation, action, steps.pictures)
    assert found is not None
    maps = {name: torch.from_numpy(array).float() for name, array in steps.pictures.items()}
    with torch.no_grad():
        features = learner.features(Observations(torch.from_numpy(steps.observation), maps))
        inputs = torch.cat([features, torch.from_numpy(action)], dim=1)
        value = learner.networks.critic(inputs)[..., 0].numpy()
    np.testing.assert_allclose(found.value, value.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.spread, value.std(axis=0), atol=1e-5)
    assert np.ptp(found.value) > 0.0

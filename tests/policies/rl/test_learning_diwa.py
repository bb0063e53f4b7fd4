"""D3: DiWA on a toy environment: an imitated noisy policy is fine-tuned in the imagination of a
world model of play, without any environment.

PointReach, with the product's own parts from store to policy: 15 demonstrations with action noise
are imitated; 20,000 steps of play train the world model and its classifier; PPO over denoising
steps trains in imagined rollouts; the result is evaluated in the real toy environment, 400
episodes. Required for seeds 0 to 4: fine-tuning adds at least 20 points of success (AdaStop); and
with a model of two fifths of the play, imagined success exceeds real success by more without the
behaviour cloning loss (alpha = 0) than with it (.05).

Settings were chosen with seed 100. On it, with a model of all of the play: imitation .338, imagined
.47; alpha .05, 40 rollouts .518 and .738; alpha 0, 40 rollouts .685 and .908, 100
rollouts .978 and 1. So alpha = 0 shows no wider gap there, and the second check uses a model
of less play. After 60 rollouts fine-tuning with alpha .05 still improves (seeds 0 to 4: .342 to
.549); after 120, seed 100 went from .283 to .785, imagined .968. On a tenth of the play seed 100
reached .345 real and .85 imagined with alpha .05, .243 and .98 with 0; but there, and on a fifth,
the classifiers of some of seeds 0 to 4 are below the required precision (.8) and are refused. On
two fifths none is.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest

from policies.imitation.config import PretrainConfig
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.rl.finetuning.config import DppoFinetuneConfig, FinetuneConfig
from policies.rl.offline.config import RL100_CHAIN
from policies.rl.on_policy.config import DppoConfig, OnPolicyConfig, PpoConfig
from policies.training.config import TrainingConfig
from policies.world_model.config import LATENT, WorldModelConfig, WorldModelSizes
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.interfaces import VecEnv, no_progress
from robots.spec import FieldSpec
from tests.toy_envs.comparison import better, runs
from tests.toy_envs.point_reach import STEP, PointReach, shaking
from tests.toy_envs.toy_env import Act, rollouts, success_rate

pytestmark = pytest.mark.slow

DEMONSTRATIONS, NOISE = 15, 0.8
"""Of half as many as in RL-100's check, so that there is something to gain; the noise is the
same."""
NUM_ENVS, EPISODES = 50, 400
PLAYED, LITTLE, LENGTH = 200, 80, 100
"""Episodes of play, those of a model that knows little, and their steps."""
ROLLOUTS, FEWER = 120, 60
"""Of practice where the model knows all of the play, and where it knows little."""
PRETRAIN = PretrainConfig(
    policy=DiffusionPolicyConfig(
        observation_fields=("state",),
        anchor_field=None,
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        network=MlpConfig(width=128, blocks=2),
    ),
    training=TrainingConfig(steps=3000, learning_rate=1e-3, preflight_seconds=0.0),
    validation_fraction=0.0,
)
MODEL = WorldModelConfig(
    fields=("state", "ways"),
    scaled_features=(("ways", 0.05),),
    sizes=WorldModelSizes(recurrent=128, hidden=(128,)),
    training=TrainingConfig(
        steps=3000, learning_rate=1e-3, batch_size=64, max_grad_norm=10.0, preflight_seconds=0.0
    ),
    success=TrainSuccessConfig(
        classifier=ClassifierConfig(
            fields=(LATENT,),
            label_field="success",
            vector_width=128,
            hidden=(128,),
            relative_only=False,
        ),
        training=TrainingConfig(steps=1500, learning_rate=1e-3, preflight_seconds=0.0),
        precision=0.9,
    ),
)
MODEL_OF_LITTLE = replace(
    MODEL,
    held_out=0.1,
    training=replace(MODEL.training, steps=1500),
    # So few episodes cannot promise as much.
    success=replace(MODEL.success, precision=0.8),
)
FIELDS = {
    "state": FieldSpec(shape=(7,), about="what the toy environment observes"),
    "ways": FieldSpec(
        shape=(4,), unit="m", about="from the point to the thing, from the thing to the goal"
    ),
    "action": FieldSpec(shape=(3,)),
}


class Much(NamedTuple):
    """Success rates, real and imagined, with a model of all of the play."""

    imitation: float
    imitation_imagined: float
    finetuned: float
    finetuned_imagined: float


class Little(NamedTuple):
    """The same where the model knows little of it; `unheld` without the weight of cloning."""

    held: float
    held_imagined: float
    unheld: float
    unheld_imagined: float


def ways(state: np.ndarray) -> np.ndarray:
    """(..., 4) out of (..., 7)."""
    return state[..., 2:6] - state[..., :4]


def write(folder: Path, episodes: list[dict[str, np.ndarray]], **labels: FieldSpec) -> Path:
    folder.mkdir(parents=True)
    stream = StreamSpec(rate_hz=10.0, fields=FIELDS | labels)
    schema = EpisodeSchema(name="point_reach", streams={"policy": stream})
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for episode in episodes:
            writer.append({"policy": episode | {"ways": ways(episode["state"])}}, {})
    return folder


def shown(folder: Path, seed: int) -> Path:
    """The demonstrations."""
    toy_env = PointReach(10, seed)
    steps = rollouts(toy_env, shaking(toy_env, NOISE, seed), DEMONSTRATIONS, demo=True)
    episode, state, action = (
        np.concatenate([getattr(one, name) for one in steps])
        for name in ("episode", "observation", "action")
    )
    parts = [np.flatnonzero(episode == number) for number in np.unique(episode)]
    return write(folder, [{"state": state[rows], "action": action[rows]} for rows in parts])


def played(folder: Path, seed: int, count: int) -> Path:
    """Play: there and back with a hand that turns, to what lies about or past it, and by what the
    person would do."""
    toy_env, draw = PointReach(count, 3000 + seed), np.random.default_rng([seed, 7])
    left = np.zeros(count, np.int64)
    place, misjudged = np.zeros((count, 2)), np.zeros((count, 2))
    hand, person = np.zeros(count), np.zeros(count, bool)
    frames: list[dict[str, np.ndarray]] = []
    for _ in range(LENGTH):
        for row in np.flatnonzero(left == 0):
            left[row] = draw.integers(3, 20)
            person[row], hand[row] = draw.random() < 0.4, draw.choice([-1.0, 0.0, 1.0])
            misjudged[row] = draw.normal(0.0, 0.04, 2)
            about = [draw.uniform(-0.5, 0.5, 2), toy_env.thing[row], toy_env.goal[row]][
                draw.integers(3)
            ]
            place[row] = about + draw.normal(0.0, 0.04, 2)
        way = (place - toy_env.point) / STEP
        way /= np.maximum(1.0, np.abs(way).max(axis=1, keepdims=True))
        turned = np.where(np.abs(way).max(axis=1) < 0.5, hand, 0.0)
        own = np.concatenate([way, turned[:, None]], axis=1)
        action = np.where(person[:, None], toy_env.expert(misjudged), own) + draw.normal(
            0.0, 0.3, (count, 3)
        )
        action = np.clip(action, -1.0, 1.0)
        frame = {"state": toy_env.observe(), "action": action.astype(np.float32)}
        toy_env.move(action)
        frames.append(frame | {"success": toy_env.solved().astype(np.uint8)})
        left -= 1
    columns = {name: np.stack([frame[name] for frame in frames], axis=1) for name in frames[0]}
    episodes = [{name: column[row] for name, column in columns.items()} for row in range(count)]
    return write(folder, episodes, success=FieldSpec(shape=(), dtype="uint8"))


def finetuning(cloning: float, rollouts: int, seed: int) -> FinetuneConfig:
    learning = OnPolicyConfig(
        ppo=PpoConfig(clip=0.2, value_clip=0.2),
        clip_min=None,
        denoising_discount=1.0,
        epochs=5,
        batch_size=2048,
        target_kl=None,
        adaptive_kl_target=0.02,
        max_grad_norm=0.5,
        bc_weight=cloning,
    )
    practice = DppoFinetuneConfig(
        denoising=DppoConfig(steps=5, chain=RL100_CHAIN), learning=learning, critic=(128, 128)
    )
    return FinetuneConfig(algorithm=practice, rollouts=rollouts, decisions=60, seed=seed)


def acting(policy: Path, seed: int) -> Act:
    from policies.load import load_policy

    chunk, draw = load_policy(policy, 5), np.random.default_rng([seed, 5])

    def act(state: np.ndarray) -> np.ndarray:
        noise = draw.standard_normal((len(state), 1, 3)).astype(np.float32)
        return np.clip(chunk(state[:, None], noise)[:, 0], -1.0, 1.0)

    return act


def solved(policy: Path, seed: int) -> float:
    return success_rate(PointReach(NUM_ENVS, 2000 + seed), acting(policy, seed), EPISODES)


def imagined_return(policy: Path, imagined_env: VecEnv, seed: int) -> float:
    """Success rate over one imagined episode per environment."""
    act = acting(policy, seed)
    observation = imagined_env.reset([50_000 + number for number in range(imagined_env.num_envs)])
    over = np.zeros(imagined_env.num_envs, bool)
    success = over
    while not over.all():
        made = imagined_env.step(act(observation["state"]))
        observation, over, success = (
            made.observation,
            made.terminated | made.truncated,
            made.info["success"],
        )
    return float(success.mean())


def imitated(root: Path, seed: int) -> Path:
    """What imitates the shaking person."""
    from policies.imitation.pretrain import pretrain

    base = root / "base"
    base.mkdir(parents=True)
    pretraining = replace(PRETRAIN, training=replace(PRETRAIN.training, seed=seed))
    pretrain(pretraining, shown(root / "demos", seed), base, no_progress)
    return base


def finetuned(
    root: Path, base: Path, model: Path, cloning: float, rollouts: int, seed: int
) -> list[float]:
    """Success rates after fine-tuning in imagination, real and imagined."""
    from policies.rl.finetuning.finetune import finetune
    from policies.world_model.imagined_env import ImaginedVecEnv

    out, limit = root / f"finetuned-{cloning}", PointReach.max_steps
    out.mkdir()
    finetune(
        finetuning(cloning, rollouts, seed),
        base,
        partial(ImaginedVecEnv, model, 100, limit),
        out,
        no_progress,
    )
    return [solved(out, seed), imagined_return(out, ImaginedVecEnv(model, EPISODES, limit), seed)]


def make_world_model(root: Path, config: WorldModelConfig, episodes: int, seed: int) -> Path:
    """A world model of so many episodes of play."""
    from policies.world_model.train import train_world_model

    model = root / "model"
    model.mkdir()
    config = replace(config, training=replace(config.training, seed=seed))
    train_world_model(config, played(root / "play", seed, episodes), model, no_progress)
    return model


def much(seed: int) -> Much:
    from policies.world_model.imagined_env import ImaginedVecEnv

    with TemporaryDirectory() as folder:
        root = Path(folder)
        base, model = imitated(root, seed), make_world_model(root, MODEL, PLAYED, seed)
        before = [
            solved(base, seed),
            imagined_return(base, ImaginedVecEnv(model, EPISODES, PointReach.max_steps), seed),
        ]
        return Much(*before, *finetuned(root, base, model, 0.05, ROLLOUTS, seed))


def little(seed: int) -> Little:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        base, model = imitated(root, seed), make_world_model(root, MODEL_OF_LITTLE, LITTLE, seed)
        shares = [finetuned(root, base, model, cloning, FEWER, seed) for cloning in (0.05, 0.0)]
        return Little(*shares[0], *shares[1])


def columns(found: Sequence[NamedTuple]) -> dict[str, list[float]]:
    return {name: [getattr(one, name) for one in found] for name in found[0]._fields}


def test_finetuning_in_imagination_alone_adds_twenty_points() -> None:
    scores = columns(runs({"much": much})["much"])
    assert np.mean(scores["finetuned"]) >= np.mean(scores["imitation"]) + 0.2
    assert better(scores, "finetuned", "imitation")


def test_without_cloning_more_is_imagined_than_is_real() -> None:
    scores = columns(runs({"little": little})["little"])
    for name in ("held", "unheld"):
        imagined_env, real = scores[f"{name}_imagined"], scores[name]
        scores[f"{name}_gap"] = [one - other for one, other in zip(imagined_env, real, strict=True)]
    assert better(scores, "unheld_gap", "held_gap")

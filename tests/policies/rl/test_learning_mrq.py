"""Learning check of MR.Q: a pendulum is swung up, in fewer steps than by SAC.

Pendulum, four environments, one update per step of one environment after 400 random steps, networks
of 128 units and batches of 128 as fits one core; the encoders get as many updates again, and the
targets are copied every 50 updates, not 250, because there are a hundredth of the published steps.
Beside it, at the same numbers of steps and of updates, run SAC, and FastTD3 with TD3's noise.
Claims, bars fixed before any run with the seeds reported (0 to 4), settings after looks at seeds
100 and 101:
- after 2,000 steps the mean return of MR.Q is above -200; where every environment gets the reward
  of its neighbour it stays below -800 (negative control);
- after 1,500 steps MR.Q returns more than SAC and more than FastTD3, both by AdaStop (the published
  ordering, which the paper has for locomotion).

The ordering was met against SAC and **missed against FastTD3**, which solved seed 1 as early and
the others later, so it is not claimed: AdaStop does not tell -170, -234, -150, -153, -928 from
-1,197, -141, -1,497, -1,604, -1,588. It is reported and not asked. Two arms beside say how little
this bed tells of the method. MR.Q with encoders that keep their initial weights is as good (-166,
-156, -137, -146, -176): a random embedding of three numbers is enough. And FastTD3 with the 3-step
returns that MR.Q has solves three seeds by then.
"""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from policies.random_streams import LearnerStream
from policies.rl.mrq.config import MrqConfig, MrqEncoderConfig
from policies.rl.mrq.learner import Mrq
from policies.rl.mrq.updates import MrqUpdates
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from policies.rl.off_policy.fast_td3 import FastTd3
from policies.rl.off_policy.fast_td3_config import FastTd3Config, PerEnvNoiseConfig
from policies.rl.off_policy.online import Learner, MinibatchSampler, alternate, learn_online
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes
from policies.rl.replay.unrolls import Unrolls
from robots.wire.steps import Steps
from tests.toy_envs.comparison import better, runs
from tests.toy_envs.pendulum import Pendulum, mean_return
from tests.toy_envs.toy_env import Act

pytestmark = pytest.mark.slow

NUM_ENVS, RANDOM, EARLY, LATE = 4, 400, 1500, 2000
"""Environments; steps with random actions, and at the two evaluations."""
UNITS = 128
RATE = 1e-3
SIZES = Sizes(observation=3, action=1)
LAYERS = MlpSizes(hidden=(UNITS, UNITS), activation="relu", layer_norm=False)
NOISE = PerEnvNoiseConfig(spread="linear", low=0.2, high=0.2)
ONLINE = OnlineConfig(batch_size=128, demo_share=0.0, updates_per_step=1.0, training_starts=RANDOM)
MRQ = MrqConfig(
    encoder=MrqEncoderConfig(
        state_size=UNITS, action_size=UNITS // 2, pair_size=UNITS, units=UNITS, learning_rate=3e-4
    ),
    value_units=UNITS,
    value_learning_rate=RATE,
    policy_units=UNITS,
    policy_learning_rate=RATE,
    target_every=50,
    noise=NOISE,
)
SAC = SacConfig(
    critic=LAYERS,
    actor=LAYERS,
    actor_value="min",
    backup_entropy=True,
    init_temperature=1.0,
    learning_rate=RATE,
    actor_learning_rate=RATE,
    temperature_learning_rate=RATE,
    tau=0.01,
)
TD3 = FastTd3Config(
    critic=LAYERS,
    actor=LAYERS,
    low=-160.0,
    high=0.0,
    learning_rate=RATE,
    actor_learning_rate=RATE,
    weight_decay=0.0,
    target_noise=0.2,
    noise=NOISE,
)

Returns = dict[str, float]
"""Mean returns of 100 fresh episodes after `EARLY` and after `LATE` steps."""


class UntrainedEncoders(Mrq):
    """MR.Q whose encoders keep their initial weights."""

    def update_encoder(self, batch: Unrolls, *, terminates: bool) -> None:
        """Only counts."""
        self.encoder_updates += 1


def empty_replay(n_step: int) -> Replay:
    return Replay(ReplayConfig(capacity=LATE, discount=0.98, n_step=n_step), 3, 1)


def evaluated(seed: int, act: Act) -> float:
    return mean_return(Pendulum(100, 1000 + seed), act, 100)


def by_mrq(seed: int, kind: type[Mrq] = Mrq, own: bool = True) -> Returns:
    """Without `own` every environment gets its neighbour's reward."""
    toy_env, learner = Pendulum(NUM_ENVS, seed), kind(MRQ, SIZES, NUM_ENVS, seed)
    updates = MrqUpdates(learner, empty_replay(3), ONLINE.batch_size, seed)

    def collected(done: int) -> int:
        rng = np.random.default_rng([seed, LearnerStream.EXPLORATION, done])
        shown = toy_env.observe()
        learner.observe(shown, toy_env.steps == 0, rng)
        action = learner.act(shown, rng)
        if done < RANDOM:
            action = rng.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        steps = toy_env.transition(action)[0]
        updates.append(steps if own else steps._replace(reward=np.roll(steps.reward, 1)))
        return NUM_ENVS

    early = alternate(collected, updates, ONLINE, EARLY, lambda *_: None)
    returns = {"early": evaluated(seed, learner.act)}
    alternate(collected, updates, ONLINE, LATE, lambda *_: None, early)
    return {**returns, "late": evaluated(seed, learner.act)}


def by_other(seed: int, make: Callable[[int], FastTd3 | Sac], n_step: int = 1) -> Returns:
    toy_env, learner = Pendulum(NUM_ENVS, seed), make(seed)

    def collect(one: Learner, draw: np.random.Generator) -> Steps:
        shown = toy_env.observe()
        if isinstance(learner, FastTd3):
            learner.observe(shown, toy_env.steps == 0, draw)
        steps = toy_env.transition(one.act(shown, draw))[0]
        # Their step sizes are for rewards near 1; those of MR.Q are scaled by itself.
        return steps._replace(reward=0.1 * steps.reward)

    batches = MinibatchSampler(ONLINE, empty_replay(n_step))
    early = learn_online(learner, batches, collect, ONLINE, EARLY, seed, random_steps=RANDOM)
    returns = {"early": evaluated(seed, learner.act)}
    learn_online(learner, batches, collect, ONLINE, LATE, seed, begin=early)
    return {**returns, "late": evaluated(seed, learner.act)}


def new_sac(seed: int) -> Sac:
    return Sac(SAC, SIZES, seed)


def new_td3(seed: int) -> FastTd3:
    return FastTd3(TD3, SIZES, NUM_ENVS, seed)


def test_a_pendulum_is_swung_up_in_fewer_steps_than_by_sac() -> None:
    results = runs(
        {
            "mrq": by_mrq,
            "neighbour's": partial(by_mrq, own=False),
            "untrained encoders": partial(by_mrq, kind=UntrainedEncoders),
            "sac": partial(by_other, make=new_sac),
            "fast_td3": partial(by_other, make=new_td3),
            "fast_td3, 3 steps": partial(by_other, make=new_td3, n_step=3),
        }
    )
    early, late = (
        {arm: [one[when] for one in returns] for arm, returns in results.items()}
        for when in ("early", "late")
    )
    beaten = [arm for arm in results if arm != "mrq" and better(early, "mrq", arm)]
    sys.stdout.write(f"significantly below mrq after {EARLY} steps: {beaten}\n")
    assert np.mean(late["mrq"]) > -200.0
    assert np.mean(late["neighbour's"]) < -800.0
    assert "sac" in beaten

"""Implements stream AC(lambda) (Elsayed et al., arXiv 2410.14606) for observation vectors and
continuous actions.

Actor and critic learn from every step once, as soon as it is made, and nothing of it is kept but
its trace. The released code is followed, except that networks do not observe the time within the
episode: an exported policy is a function of the observation. `networks` has two further
differences. Actions are samples of an unbounded Gaussian, which the environment clips to [-1, 1];
the policy without noise is the clipped mean.

Shape suffixes: N observations, O observation, A action, U outputs of the actor (2 A).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from policies.random_streams import sequence_seed
from policies.rl.replay.transitions import Sizes
from policies.rl.streaming.config import StreamAcOptions
from policies.rl.streaming.networks import Tape, TracedMlp
from policies.rl.streaming.obgd import ObGd
from policies.rl.streaming.running_scales import ObservationNormaliser, ReturnScale


class Decision(NamedTuple):
    """A sampled action, with what the update from it needs."""

    action_A: Tensor
    """The sample, not clipped: mean plus standard deviation times noise."""
    noise_A: Tensor
    """Standard normal noise of the sample."""
    output_U: Tensor
    """(2 A,) outputs of the actor: the mean, and the standard deviation before softplus."""
    tape: Tape
    """Activations of the actor."""


class Learned(NamedTuple):
    """Figures of one update."""

    td_error: float
    """TD error before the update, in scaled rewards."""
    critic_step: float
    """Step size of the critic."""
    actor_step: float
    """Step size of the actor."""


class StreamAc:
    """Learner of one environment.

    Args:
        options: networks and updates.
        sizes: sizes of observation vectors and actions.
        seed: seed of the initial weights.
    """

    def __init__(self, options: StreamAcOptions, sizes: Sizes, seed: int) -> None:
        self.options = options
        self.sizes = sizes
        network = partial(TracedMlp, sizes.observation, options.hidden, sparsity=options.sparsity)
        self.actor = network(2 * sizes.action, seed=sequence_seed(seed, 0))
        self.critic = network(1, seed=sequence_seed(seed, 1))
        self.actor_optimizer = ObGd(self.actor, options.learning_rate, options.actor_kappa)
        self.critic_optimizer = ObGd(self.critic, options.learning_rate, options.critic_kappa)
        self.normaliser = ObservationNormaliser(sizes.observation)
        self.return_scale = ReturnScale(options.discount)
        self.updates = 0
        self._vector_O = torch.zeros(sizes.observation)
        """Current observation, normalised when it was observed."""

    def begin(self, observation_O: np.ndarray) -> None:
        """Begins an episode at an observation (O,) in physical units; traces of an episode that was
        left unfinished are dropped."""
        self._vector_O = torch.from_numpy(self.normaliser(observation_O))
        self.actor.reset_traces()
        self.critic.reset_traces()

    def decide(self, rng: np.random.Generator) -> Decision:
        """Samples an action at the current observation."""
        output_U, tape = self.actor(self._vector_O)
        mean_A, before_A = output_U.chunk(2)
        noise_A = torch.from_numpy(rng.standard_normal(self.sizes.action, dtype=np.float32))
        return Decision(mean_A + softplus(before_A) * noise_A, noise_A, output_U, tape)

    def learn(
        self,
        decision: Decision,
        reward: float,
        next_observation_O: np.ndarray,
        *,
        terminated: bool,
        truncated: bool,
    ) -> Learned:
        """Updates actor and critic from the step that a decision led to.

        Args:
            decision: the newest one of `decide`.
            reward: reward of the step.
            next_observation_O: observation after the step, before a reset, in physical units.
            terminated: whether the step ended the episode, other than by its time limit.
            truncated: whether the time limit ended the episode.

        Raises:
            HandoffError: an observation or a reward that is not finite.
        """
        options, ended = self.options, terminated or truncated
        scaled = self.return_scale(reward, ended)
        next_O = torch.from_numpy(self.normaliser(next_observation_O))
        final = terminated or (truncated and not options.bootstrap_time_limits)
        next_value = 0.0 if final else float(self.critic(next_O)[0])
        value_1, tape = self.critic(self._vector_O)
        error = scaled + options.discount * next_value - float(value_1)

        decay = options.discount * options.trace_lambda
        self.critic.accumulate(tape, torch.ones(1), decay)
        entropy = options.entropy * float(np.sign(error))
        self.actor.accumulate(decision.tape, actor_gradient(decision, entropy), decay)
        critic_step = self.critic_optimizer.step(error)
        figures = Learned(error, critic_step, self.actor_optimizer.step(error))
        if ended:
            self.actor.reset_traces()
            self.critic.reset_traces()
        self._vector_O = next_O
        self.updates += 1
        return figures

    def act(self, observation_NO: np.ndarray) -> np.ndarray:
        """(N, A) actions without noise for observations (N, O) in physical units."""
        vectors_NO = torch.from_numpy(self.normaliser.normalised(observation_NO))
        means = [self.actor(vector_O)[0][: self.sizes.action] for vector_O in vectors_NO]
        return torch.stack(means).clamp_(-1.0, 1.0).numpy()

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "normaliser": self.normaliser.state_dict(),
            "return_scale": self.return_scale.state_dict(),
            "vector": self._vector_O,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.normaliser.load_state_dict(state["normaliser"])
        self.return_scale.load_state_dict(state["return_scale"])
        self._vector_O = state["vector"].clone()
        self.updates = state["updates"]


def actor_gradient(decision: Decision, entropy: float) -> Tensor:
    """(2 A,) gradient of log-probability plus entropy with respect to the actor's outputs.

    With noise z = (a - mean) / std, the log-probability changes by z / std with the mean and by
    (z^2 - 1) / std with the standard deviation, the entropy by 1 / std with the latter.

    Args:
        decision: the action, which counts as fixed.
        entropy: weight of the entropy. With the sign of the TD error, by which the step is
            multiplied, more entropy is sought whatever that sign.
    """
    before_A = decision.output_U.chunk(2)[1]
    inverse_std_A = softplus(before_A).reciprocal()
    noise_A = decision.noise_A
    by_std_A = (noise_A.square() - 1.0 + entropy) * inverse_std_A
    return torch.cat([noise_A * inverse_std_A, by_std_A * torch.sigmoid(before_A)])

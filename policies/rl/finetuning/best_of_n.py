"""Fine-tunes by best-of-N: critics choose among N sampled chunks, and the policy imitates the
choice.

The method combines three papers: an expressive policy trained by imitation alone, with a value that
chooses among its samples (IDQL, Hansen-Estruch et al., arXiv 2304.10573); values of whole executed
chunks (Q-chunking, Li et al., arXiv 2507.07969); the same best-of-N in the target (EXPO, Dong et
al., arXiv 2507.07986, without its edit policy). Where they differ: the target takes the minimum of
the target critics per chunk (EXPO), the choice the mean of the critics (Q-chunking).

A target is the best of a random subset of the next state's chunks. In regular phases the critics
choose again at every state visited since the last phase, and the policy is trained on the chosen
chunks and then acts with the new weights.

Shape suffixes: B batch, R rows, N chunks, T observed steps, O observation, F features, H horizon, A
action, D executed entries of a chunk, E critics.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.families.diffusion import DiffusionPolicy
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.chunk_selection import ChunkSelection, ImitationData
from policies.rl.finetuning.config import BestOfNFinetuneConfig
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import EnsembleMlp, move_towards


class BestOfNFinetuning(ChunkSelection[BestOfNFinetuneConfig]):
    """See `ChunkSelection`.

    Args:
        config: options of the method.
        policy: policy that is trained in place, in imitation phases.
        env: training environments.
        seed: seed of initial weights and sampling.
    """

    imitated = "imitation of the best of N"

    def __init__(
        self, config: BestOfNFinetuneConfig, policy: DiffusionPolicy, env: DecisionEnv, seed: int
    ) -> None:
        super().__init__(config, policy, env, seed)
        inputs = env.entries + int(np.prod(policy.encoded_shape))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critic = EnsembleMlp(config.critics, inputs, config.critic, 1)
        self.target_critic = deepcopy(self.critic).requires_grad_(False)
        self._optimizer = torch.optim.Adam(
            self.critic.parameters(), config.learning_rate, fused=True
        )

    @torch.no_grad()
    def select(self, obs: Tensor, chunk_RNHA: Tensor, generator: torch.Generator | None) -> Tensor:
        """(R, H, A) the chunk of each row with the largest mean value."""
        value_RN = self._values(self.critic, obs, self.env.executed_part(chunk_RNHA)).mean(dim=0)
        return chunk_RNHA[torch.arange(len(obs)), value_RN.argmax(dim=1)]

    def phase_data(self) -> ImitationData:
        """The critics' choice at every state visited since the last phase."""
        return self.choices(self._replay.rows_since(self._imitated_rollouts))

    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One gradient step of the critics; its loss and the mean target."""
        config = self.config
        row_B = self._replay.sample(config.batch_size, generator)
        subset = torch.randperm(config.samples, generator=generator)[: config.backup_samples]
        batch = self._replay.transitions(row_B)
        # Targets: the best of a subset of the next state's chunks.
        with torch.no_grad():
            chunk_BND = self.env.executed_part(batch.next_chunk_BNHA[:, subset])
            next_B = (
                self._values(self.target_critic, batch.next_obs, chunk_BND).amin(dim=0).amax(dim=1)
            )
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_B)
        # Regression of the executed chunks.
        executed_BND = self.env.executed_part(batch.executed_BHA[:, None])
        loss = squared_error(self._values(self.critic, batch.obs, executed_BND)[..., 0], target_B)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        move_towards(self.target_critic, self.critic, config.tau)
        return {"critic_loss": loss.detach(), "value": target_B.mean()}

    def learner_state(self) -> dict[str, Any]:
        """See `ChunkSelection.learner_state`."""
        return {
            "critic": self.critic.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_learner_state(self, state: dict[str, Any]) -> None:
        """See `ChunkSelection.load_learner_state`."""
        self.critic.load_state_dict(state["critic"])
        self.target_critic.load_state_dict(state["target_critic"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _values(self, critic: EnsembleMlp, obs: Tensor, chunk_BND: Tensor) -> Tensor:
        """(E, B, N) values of every critic for executed chunks (B, N, D)."""
        rows, samples, _ = chunk_BND.shape
        obs_BF = obs.flatten(1).repeat_interleave(samples, dim=0)
        return critic(torch.cat([obs_BF, chunk_BND.flatten(0, 1)], dim=1))[..., 0].unflatten(
            1, (rows, samples)
        )

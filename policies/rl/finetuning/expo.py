"""Fine-tunes by EXPO over chunks: the policy proposes chunks, a learned policy edits them, and
critics choose among both.

The learner is `policies.rl.generative.expo` (Dong et al., arXiv 2507.07986), whose action is the
executed part of a chunk and whose base policy is the pretrained one. Where this differs from the
paper, which edits single actions: the base policy imitates in phases instead of at every update,
and its samples are stored with the states (`policies.rl.finetuning.chunk_selection`).

Shape suffixes: R rows, N chunks, T observed steps, O observation, F features, H horizon, A action,
D executed entries of a chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.rl.finetuning.config import ExpoFinetuneConfig
from policies.rl.finetuning.demonstration_selection import DemonstrationSelection
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.generative.expo import Expo
from policies.rl.replay.transitions import Sizes


class ExpoFinetuning(DemonstrationSelection[ExpoFinetuneConfig]):
    """See `DemonstrationSelection`.

    Args:
        config: options of the method.
        setup: policy, environments and demonstrations.

    Raises:
        HandoffError: edits larger than the range of a chunk entry.
    """

    def __init__(self, config: ExpoFinetuneConfig, setup: FinetuneSetup) -> None:
        super().__init__(config, setup)
        observation = int(np.prod(self.policy.encoded_shape))
        sizes = Sizes(observation=observation, action=self.env.entries)
        self.learner = Expo(config.learner(self.policy.config.clip), sizes, setup.seed)

    @torch.no_grad()
    def select(self, obs: Tensor, chunk_RNHA: Tensor, generator: torch.Generator | None) -> Tensor:
        """(R, H, A) the best of the chunks and their edits; without a generator, of edits at their
        mode. Actions that are not executed stay those of the edited chunk."""
        features_RF = self.learner.networks.features(obs.flatten(1))
        base_RND = self.env.executed_part(chunk_RNHA)
        candidate_RND = self.learner.with_edits(features_RF, base_RND, generator)
        best_R = self.learner.best_index(features_RF, candidate_RND)
        row_R = torch.arange(len(obs))
        edited_RHA = chunk_RNHA[row_R, best_R % chunk_RNHA.shape[1]]
        return self.env.with_executed_part(edited_RHA, candidate_RND[row_R, best_R])

    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `ChunkSelection.update`: critic steps on `minibatches`, then one of the edit."""
        batches = [self.minibatch(generator) for _ in range(self.config.minibatches)]
        metrics = self.learner.update(batches)
        return {
            "critic_loss": metrics["critic_loss"],
            "value": metrics["target"],
            "edited": metrics["edited"],
            "edit_entropy": metrics["entropy"],
            "temperature": metrics["temperature"],
        }

    def learner_state(self) -> dict[str, Any]:
        """See `ChunkSelection.learner_state`."""
        return {"expo": self.learner.state_dict()}

    def load_learner_state(self, state: dict[str, Any]) -> None:
        """See `ChunkSelection.load_learner_state`."""
        self.learner.load_state_dict(state["expo"])

"""Fine-tunes by Q-chunking: the policy imitates all recorded chunks, and critics of whole chunks
choose among its samples.

The learner is `policies.rl.generative.q_chunking` (Li et al., arXiv 2507.07969) with the choice of
the best sample; its behaviour model is the pretrained policy. Where this differs from the released
code: the behaviour model imitates in phases instead of at every update, its samples are stored with
the states (`policies.rl.finetuning.chunk_selection`), and demonstrations have a fixed share of
every minibatch.

Shape suffixes: R rows, N chunks, T observed steps, O observation, F features, H horizon, A action,
D executed entries of a chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.rl.finetuning.config import QChunkingFinetuneConfig
from policies.rl.finetuning.demonstration_selection import DemonstrationSelection
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.generative.q_chunking import QChunking
from policies.rl.replay.transitions import Sizes


class QChunkingFinetuning(DemonstrationSelection[QChunkingFinetuneConfig]):
    """See `DemonstrationSelection`.

    Args:
        config: options of the method.
        setup: policy, environments and demonstrations.
    """

    def __init__(self, config: QChunkingFinetuneConfig, setup: FinetuneSetup) -> None:
        super().__init__(config, setup)
        observation = int(np.prod(self.policy.encoded_shape))
        sizes = Sizes(observation=observation, action=self.env.entries)
        self.learner = QChunking(config.learner(), sizes, setup.seed)

    @torch.no_grad()
    def select(self, obs: Tensor, chunk_RNHA: Tensor, generator: torch.Generator | None) -> Tensor:
        """(R, H, A) the chunk of each row with the greatest value by the trained critics."""
        features_RF = self.learner.networks.features(obs.flatten(1))
        best_R = self.learner.best_index(features_RF, self.env.executed_part(chunk_RNHA))
        return chunk_RNHA[torch.arange(len(obs)), best_R]

    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `ChunkSelection.update`."""
        metrics = self.learner.update([self.minibatch(generator)])
        return {"critic_loss": metrics["critic_loss"], "value": metrics["target"]}

    def learner_state(self) -> dict[str, Any]:
        """See `ChunkSelection.learner_state`."""
        return {"q_chunking": self.learner.state_dict()}

    def load_learner_state(self, state: dict[str, Any]) -> None:
        """See `ChunkSelection.load_learner_state`."""
        self.learner.load_state_dict(state["q_chunking"])

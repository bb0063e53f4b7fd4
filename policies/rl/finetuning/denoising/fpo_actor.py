"""Makes a flow policy an actor of PPO without a likelihood (FPO).

McAllister et al., arXiv 2507.21053, and the released code, akanazawa/fpo. A chunk is sampled by the
policy's own sampler, whose initial noise explores. In place of its log-probability stands minus its
flow-matching loss, estimated at pairs of time and noise that are drawn with the chunk and kept, so
that old and new loss are compared at the same pairs: the ratio exp(old loss - new loss) is 1 before
an update, and rises where the policy learns to generate the chunk. FPO++ (Yi et al., arXiv
2602.02481) gives every pair a ratio of its own and bounds losses; its zero noise at inference is
not part of this, the fine-tuned policy samples as before.

Paper and released code differ: the paper's loss is the squared norm of the velocity's error, the
code's the mean over entries of the error of the noise that follows from it; the options name both,
and the code is the default. The code adds no noise to chunks by default, as here.

Shape suffixes: B batch, N pairs of time and noise, U units (N, or 1 of the mean), H horizon, A
action.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from policies.families.diffusion import DiffusionPolicy
from policies.families.vla import VlaPolicy
from policies.policy import ObservationTensors
from policies.rl.finetuning.denoising.config import FpoFinetuneConfig
from policies.rl.on_policy.diffusion_actor import trained_modules
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.on_policy.ppo import ActorEvaluation
from policies.rl.on_policy.rollout import Trace
from policies.samplers.flow_matching import FlowGrid, flow_example, training_time


class FlowLossSample(NamedTuple):
    """Sampled chunks, with the pairs at which their loss is estimated."""

    chunk_BHA: Tensor
    """Normalised action chunks."""
    trace: Trace
    """`chunk` (B, 1, H, A), `time` (B, 1, N) and `noise` (B, 1, N, H, A)."""
    log_prob_BK: Tensor
    """(B, 1, U) minus the flow-matching losses under the policy that acted."""


class FpoActor:
    """Implements `policies.rl.on_policy.ppo.OnPolicyActor` and `UnitActor`.

    Args:
        policy: flow policy that is trained in place; a `vla` trains what is trainable in it.
        config: options of the loss.
    """

    denoising_steps = 1

    def __init__(self, policy: DiffusionPolicy | VlaPolicy, config: FpoFinetuneConfig) -> None:
        self.policy = policy.eval()
        self.config = config
        self.reference = copy.deepcopy(policy).requires_grad_(False)
        """Frozen copy of the initial policy."""
        if isinstance(policy, DiffusionPolicy):
            policy.requires_grad_(False)
            for module in trained_modules(policy):
                module.requires_grad_(True)
        grid = cast(FlowGrid, policy.chain_grid(None, eta=0.0, flow_noise=0.0))
        self._sampler_time_K = grid.time_K

    def parameters(self) -> list[nn.Parameter]:
        """Trained parameters of the policy."""
        return [parameter for parameter in self.policy.parameters() if parameter.requires_grad]

    def extra_modules(self) -> dict[str, nn.Module]:
        """Networks of fine-tuning besides the policy, by name."""
        return {"reference": self.reference}

    @torch.no_grad()
    def decide(self, obs: Any, generator: torch.Generator) -> FlowLossSample:
        """Samples a chunk for every row, and the pairs of its loss.

        Args:
            obs: normalised observations (B, T, O), or a TensorDict of several fields; see
                `policies.rl.collection.chunk_env.ChunkEnv`.
            generator: supplies all randomness.
        """
        observed, rows = observation_tensors(obs), len(obs)
        noise_BHA = torch.randn((rows, *self.policy.chunk_shape), generator=generator)
        chunk_BHA = self.policy.sample(observed, noise_BHA)
        time_BN, noise_BNHA = self.draw_pairs(rows, generator)
        loss_BN = self.losses(observed, chunk_BHA, time_BN, noise_BNHA)
        trace = {
            "chunk": chunk_BHA[:, None],
            "time": time_BN[:, None],
            "noise": noise_BNHA[:, None],
        }
        return FlowLossSample(chunk_BHA, trace, self._log_prob(loss_BN)[:, None])

    def evaluate(self, obs: Any, denoising_step: Tensor, trace: Trace) -> ActorEvaluation:
        """See `UnitActor.evaluate`: minus the losses at the pairs of the rollout."""
        pairs = (trace["chunk"], trace["time"], trace["noise"])
        return ActorEvaluation(self._log_prob(self.losses(observation_tensors(obs), *pairs)))

    def log_prob(self, obs: Any, denoising_step: Tensor, trace: Trace) -> Tensor:
        """See `OnPolicyActor.log_prob`: minus the mean loss."""
        return self.evaluate(obs, denoising_step, trace).log_prob.mean(dim=1)

    def bc_loss(self, obs: Any, generator: torch.Generator) -> Tensor:
        """See `OnPolicyActor.bc_loss`: the mean loss of chunks of the initial policy."""
        observed, rows = observation_tensors(obs), len(obs)
        noise_BHA = torch.randn((rows, *self.policy.chunk_shape), generator=generator)
        with torch.no_grad():
            chunk_BHA = self.reference.sample(observed, noise_BHA)
        return self.losses(observed, chunk_BHA, *self.draw_pairs(rows, generator)).mean()

    def draw_pairs(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Times (B, N) in (0, 1], 1 for pure noise, and standard normal noise (B, N, H, A)."""
        samples = self.config.samples
        uniform_BN = torch.rand((rows, samples), generator=generator)
        if self.config.times == "sampler":
            time_K = self._sampler_time_K
        elif isinstance(self.policy, DiffusionPolicy):
            timesteps = self.policy.config.train_timesteps
            time_K = torch.arange(1, timesteps + 1) / timesteps
        else:
            time_K = None
        if time_K is None:
            time_BN = training_time(uniform_BN, "beta")
        else:
            time_BN = time_K[(uniform_BN * len(time_K)).long().clamp(max=len(time_K) - 1)]
        shape = (rows, samples, *self.policy.chunk_shape)
        return time_BN, torch.randn(shape, generator=generator)

    def losses(
        self,
        observed: ObservationTensors,
        chunk_BHA: Tensor,
        time_BN: Tensor,
        noise_BNHA: Tensor,
    ) -> Tensor:
        """Flow-matching losses (B, N) of chunks, with gradients.

        Args:
            observed: observations of the chunks, which are encoded once for all pairs.
            chunk_BHA: normalised chunks.
            time_BN: times of the pairs.
            noise_BNHA: noise of the pairs.
        """
        velocity = self.policy.velocity(observed)
        losses = []
        for time_B, noise_BHA in zip(time_BN.unbind(1), noise_BNHA.unbind(1), strict=True):
            noisy_BHA, target_BHA = flow_example(chunk_BHA, noise_BHA, time_B)
            error_BHA = velocity(noisy_BHA, time_B) - target_BHA
            if self.config.prediction == "noise":
                # The noise is the noisy chunk plus (1 - t) times the velocity.
                error_BHA = (1.0 - time_B)[:, None, None] * error_BHA
            square_BE = error_BHA.square().flatten(1)
            losses.append(
                square_BE.mean(dim=1) if self.config.reduce == "mean" else square_BE.sum(dim=1)
            )
        loss_BN = torch.stack(losses, dim=1)
        limit = self.config.loss_limit
        return loss_BN if limit is None else loss_BN.clamp(max=limit)

    def _log_prob(self, loss_BN: Tensor) -> Tensor:
        """(B, U) what stands for the log-probability."""
        return -loss_BN if self.config.per_sample else -loss_BN.mean(dim=1, keepdim=True)

"""Defines the interface between a fine-tuning run and its method: what a method does, and what it
is made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from policies.families.diffusion import DiffusionPolicy
    from policies.families.vla import VlaPolicy
    from policies.policy import ChunkPolicy, DenoisingPolicy
    from policies.policy_config import PolicyConfig
    from policies.rl.collection.episode_statistics import EpisodeStatistics
    from policies.rl.collection.interfaces import DecisionEnv
    from policies.rl.collection.reward_shaping import RewardShaping
    from policies.rl.offline.offline_dataset import OfflineDataset


class FinetuneMethod(Protocol):
    """A fine-tuning method, which trains its policy in place."""

    @property
    def statistics(self) -> EpisodeStatistics:
        """Statistics of the ended episodes; call `flush` before reading them."""
        ...

    def rollout(self, decisions: int) -> dict[str, float]:
        """Collects `decisions` decisions per environment and learns from them; returns metrics of
        the update.

        Raises:
            HandoffError: the run has collapsed or diverged.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """State that the next rollout depends on, without the environments and the files of
        `save_rollouts`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict` and begins new episodes."""
        ...

    def save_rollouts(self, out: Path) -> None:
        """Writes the rollouts since the last call, if the method keeps them."""
        ...

    def load_rollouts(self, out: Path) -> None:
        """Reads the files of `save_rollouts`; called after `load_state_dict`."""
        ...

    @property
    def phase_due(self) -> bool:
        """Whether a longer training phase is due before the next rollout."""
        ...

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """Runs the training phase that is due.

        Args:
            identity: identity of the fine-tuning run, to resume a killed phase.
            out: output folder.
            progress: receives the progress of the phase.
        """
        ...

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """Finalises the policy after the last rollout; returns the configuration for its card.

        Args: see `run_phase`.
        """
        ...


class FinetuneSetup(NamedTuple):
    """All that a method is made from, beside its own options."""

    policy: ChunkPolicy
    """Pretrained policy, which the method trains in place."""
    model: PolicyConfig
    """Configuration of the policy."""
    env: DecisionEnv
    """Training environments."""
    seed: int
    """Seed of initial weights, noise and minibatches."""
    reward: RewardShaping
    """Shaping of the task reward, which also applies to demonstrations."""
    demos: Path | None
    """Folder of the demonstrations' `store.zarr`."""

    def diffusion_policy(self, instructed: bool = False) -> DiffusionPolicy:
        """The policy, if it denoises chunks. Encoders of images and point clouds stay as they are.

        Args:
            instructed: whether the method takes a policy with a sentence encoder.

        Raises:
            HandoffError: a policy of another family, or with a sentence encoder that the method
                does not take.
        """
        from policies.families.diffusion import DiffusionPolicy

        if not isinstance(self.policy, DiffusionPolicy):
            raise HandoffError(
                f"finetune: the policy is a {type(self.policy).__name__}, expected a diffusion or flow policy."
            )
        if self.policy.language_conditioned and not instructed:
            raise HandoffError(
                "finetune: the policy is language-conditioned through a sentence encoder, expected a diffusion or flow "
                "policy without policy.language. Only 'dppo', 'fpo', 'reinflow', 'dsrl' and 'rl_token' fine-tune it "
                "with its instructions."
            )
        return self.policy

    def plain_flow_policy(self) -> DiffusionPolicy:
        """The policy, if it is a flow policy of the family `diffusion`, with or without
        instructions.

        Raises:
            HandoffError: a policy of another family or objective, or a student of the distillation
                `shortcut`.
        """
        from policies.families.diffusion import DiffusionPolicy

        policy = self.policy
        if not isinstance(policy, DiffusionPolicy) or policy.config.objective != "flow":
            objective = getattr(policy.config, "objective", "none")
            raise HandoffError(
                f"finetune: the policy is a {type(policy).__name__} with objective '{objective}', expected a flow "
                "policy (policy.objective: flow). 'dppo' fine-tunes a diffusion policy, 'vla' with flow.kind: learned "
                "a vla by learned noise."
            )
        if policy.config.step_conditioned:
            raise HandoffError(
                "finetune: the policy is a student of the distillation 'shortcut', whose sampler's steps are longer "
                "than its velocity holds. Fine-tune its teacher, or use 'dsrl'."
            )
        return policy

    def flow_policy(self) -> DiffusionPolicy | VlaPolicy:
        """The policy, if its sampler follows the velocity of a flow: as `plain_flow_policy`, or a
        `vla`.

        Raises:
            HandoffError: see `plain_flow_policy`; or a `vla` that started from a checkpoint.
        """
        from policies.families.vla import VlaPolicy

        if not isinstance(self.policy, VlaPolicy):
            return self.plain_flow_policy()
        if self.policy.checkpoint is not None:
            raise HandoffError(
                "finetune: the policy started from a checkpoint, whose sampler moves padded entries of actions, too; "
                "expected a vla without policy.checkpoint. 'dsrl' and 'rl_token' fine-tune it."
            )
        return self.policy

    def denoising_policy(self) -> DenoisingPolicy:
        """The policy, if its sampler has an initial noise: a diffusion or flow policy, or a `vla`.

        Raises:
            HandoffError: a policy of another family.
        """
        from policies.policy import DenoisingPolicy

        if not isinstance(self.policy, DenoisingPolicy):
            raise HandoffError(
                f"finetune: the policy is a {type(self.policy).__name__}, whose sampler has no initial noise and no "
                "features for an actor beside it; expected a diffusion or flow policy, or a vla. Use another method."
            )
        return self.policy

    def demonstrations(self, discount: float) -> OfflineDataset:
        """Transitions of the demonstrations, with rewards discounted per action.

        Raises:
            HandoffError: no demonstrations, or see
                `policies.rl.offline.offline_dataset.demonstration_dataset`.
        """
        from policies.rl.offline.offline_dataset import demonstration_dataset

        if self.demos is None:
            raise HandoffError(
                "finetune: the algorithm learns from demonstrations, but demos is None. Does the stage list them among "
                "its inputs?"
            )
        return demonstration_dataset(self.demos, self.policy, self.model, self.reward, discount)

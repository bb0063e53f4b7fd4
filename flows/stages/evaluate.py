"""Stage `evaluate_*`: a policy under a protocol, by default the published push-T one in
gym-pusht."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from flows.config.protocols import push_t_published
from policies.card import PolicyCard
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    BesoConfig,
    DiffusionPolicyConfig,
    LearnedActorConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from robots.config import config, to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.evaluation.agent import AgentFor, ChunkAgent, Chunking, chunking_under
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol, Sampling, agreed


@config
class EvaluatePolicyConfig:
    """The protocol, how it is carried out, and how the policy under test samples."""

    protocol: Protocol = field(default_factory=push_t_published)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    denoising_steps: int | None = None
    """Sampler steps; None takes the policy's own."""
    instruction: str | None = None
    """What a policy that reads language is told; None takes the worlds' own words, else the
    policy's."""


def run(
    config: EvaluatePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Evaluates `inputs["policy"]` and writes `report.html` beside the result."""
    from sim.evaluation.comparison import read_result
    from sim.evaluation.evaluate import evaluate, make_env
    from sim.evaluation.report import write_report

    path, protocol = inputs["policy"], config.protocol
    load, execution = checkpoint_agent(
        path, protocol, config.denoising_steps, config.instruction, config.evaluate.device
    )
    worlds = partial(make_env, protocol)
    metrics = evaluate(protocol, config.evaluate, load, worlds, out, progress, execution)
    write_report(out / "report.html", [read_result(out, path.name)])
    return metrics


def checkpoint_agent(
    path: Path,
    protocol: Protocol,
    denoising_steps: int | None = None,
    instruction: str | None = None,
    device: str = "cpu",
) -> tuple[partial[AgentFor], dict[str, Any]]:
    """A saved policy under a protocol: what loads it in each process, and how it is executed,
    plain.

    Args:
        path: directory of the policy.
        protocol: under which it will act.
        denoising_steps: sampler steps; None takes the policy's own.
        instruction: what a policy that reads language is told; None takes the worlds' own words,
            else the policy's.
        device: where it computes: `cpu`, `cuda`, or `auto`.

    Raises:
        HandoffError: no policy there, or one that cannot do what the protocol rules.
    """
    from policies.checkpoint import read_card

    own = sampler_steps(read_card(path).model)
    steps = protocol.sampling.denoising_steps
    if own is None:
        # One pass is one step to a protocol; the policy itself knows no number.
        agreed("sampling.denoising_steps", steps, 1)
        agreed("denoising_steps", denoising_steps, 1)
        steps = None
    elif steps is None:
        steps = denoising_steps
    elif denoising_steps is not None:
        agreed("sampling.denoising_steps", steps, denoising_steps)
    chunking = chunking_under(protocol, chunking_of(path, instruction))
    execution = {**to_plain(chunking), "denoising_steps": steps or own or 1}
    return partial(load_agent, path, steps, chunking, protocol.sampling, device), execution


def sampler_steps(model: PolicyConfig) -> int | None:
    """Steps in which the policy samples by itself; None for one that answers in one pass."""
    match model:
        case DiffusionPolicyConfig() | VlaConfig():
            return model.inference_steps
        case BesoConfig():
            return model.sampling_steps
        case ActConfig() | BehaviourCloningConfig() | TokenVlaConfig() | LearnedActorConfig():
            return None


def chunking_of(policy: Path, instruction: str | None = None) -> Chunking:
    """How the saved policy wants to be executed.

    Args:
        policy: its directory.
        instruction: what it is told if it reads language; None takes the worlds' own words, else
            the policy's.

    Raises:
        HandoffError: it does not read and there are words.
    """
    from policies.checkpoint import read_card

    card = read_card(policy)
    return Chunking(
        fields=tuple(card.observation),
        sensors=tuple(card.sensors),
        instruction=instruction_of(card, instruction),
        listens=instruction is None and isinstance(card.model, VlaConfig | TokenVlaConfig),
        action_size=card.action_size,
        n_obs_steps=card.model.n_obs_steps,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
        ensemble=card.model.temporal_ensemble if isinstance(card.model, ActConfig) else None,
    )


def instruction_of(card: PolicyCard, given: str | None = None) -> str | None:
    """What a policy is told: the `given` words, else those it was trained with; None for one that
    does not read.

    Raises:
        HandoffError: it does not read and there are words.
    """
    if not isinstance(card.model, VlaConfig | TokenVlaConfig):
        if given is not None:
            raise HandoffError(
                f"policy: told '{given}', but the family '{card.model.kind}' reads no instructions."
            )
        return None
    return given or card.model.instruction or card.task.replace("_", " ")


def load_agent(
    path: Path, steps: int | None, chunking: Chunking, sampling: Sampling, device: str = "cpu"
) -> AgentFor:
    """The saved policy, on one thread of torch: two busy threads on two cores are slower than
    one."""
    import torch

    from policies.load import load_policy
    from policies.training.loop import resolve_device

    torch.set_num_threads(1)
    policy = load_policy(path, steps, str(resolve_device(device)))
    return lambda env: ChunkAgent(policy, chunking, sampling)

"""Stage `evaluate_*`: a policy under a protocol, by default the published push-T one in gym-pusht."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from flows.protocols import push_t_published
from robots.config import config, to_plain
from robots.types import Progress
from sim.agent import AgentFor, ChunkAgent, Chunking, chunking_under
from sim.evaluate import EvaluateConfig
from sim.protocol import Protocol, Sampling, agreed


@config
class EvaluatePolicyConfig:
    """The protocol, how it is carried out, and how the policy under test samples."""

    protocol: Protocol = field(default_factory=push_t_published)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    denoising_steps: int | None = None
    """Sampler steps; None takes the policy's own."""


def run(config: EvaluatePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Evaluates `inputs["policy"]` and writes `report.html` beside the result."""
    from sim.comparison import read_result
    from sim.evaluate import evaluate, make_env
    from sim.evaluation_report import write_report

    path, protocol = inputs["policy"], config.protocol
    load, execution = checkpoint_agent(path, protocol, config.denoising_steps)
    worlds = partial(make_env, protocol)
    metrics = evaluate(protocol, config.evaluate, load, worlds, out, progress, execution)
    write_report(out / "report.html", [read_result(out, path.name)])
    return metrics


def checkpoint_agent(
    path: Path, protocol: Protocol, denoising_steps: int | None = None
) -> tuple[partial[AgentFor], dict[str, Any]]:
    """A saved policy under a protocol: what loads it in each process, and how it is executed, plain.

    Raises:
        HandoffError: no policy there, or one that cannot do what the protocol rules.
    """
    from policies.checkpoint import read_card

    steps = protocol.sampling.denoising_steps
    if steps is None:
        steps = denoising_steps
    elif denoising_steps is not None:
        agreed("sampling.denoising_steps", steps, denoising_steps)
    chunking = chunking_under(protocol, chunking_of(path))
    execution = {**to_plain(chunking), "denoising_steps": steps or read_card(path).model.inference_steps}
    return partial(load_agent, path, steps, chunking, protocol.sampling), execution


def chunking_of(policy: Path) -> Chunking:
    """How the saved policy wants to be executed."""
    from policies.checkpoint import read_card

    card = read_card(policy)
    return Chunking(
        fields=tuple(card.observation),
        action_size=card.action_size,
        n_obs_steps=card.model.n_obs_steps,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
    )


def load_agent(path: Path, steps: int | None, chunking: Chunking, sampling: Sampling) -> AgentFor:
    """The saved policy, on one thread of torch: two busy threads on two cores are slower than one."""
    import torch

    from policies.load import load_policy

    torch.set_num_threads(1)
    policy = load_policy(path, steps)
    return lambda env: ChunkAgent(policy, chunking, sampling)

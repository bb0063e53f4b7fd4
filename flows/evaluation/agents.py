"""Agents that can be evaluated: saved policies, exported ones, one that acts at random, and a
task's scripted expert."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from policies.card import PolicyCard
from robots.config import to_plain
from robots.errors import HandoffError
from sim.evaluation.agent import (
    AgentFor,
    ChunkAgent,
    Chunking,
    ExpertAgent,
    RandomAgent,
    chunking_under,
)
from sim.evaluation.protocol import Protocol, Sampling, agreed, check_trained_with

EXPERT_ENGINES = ("mujoco", "warp")
"""Engines that run the tasks of an arm, and so their experts."""


@dataclass(frozen=True)
class Entrant:
    """An agent that takes part in an evaluation."""

    name: str
    load: Callable[[], AgentFor]
    """Called once in each process."""
    execution: Mapping[str, Any]
    """How it answers, plain; told beside the result."""
    step: int | None = None
    """Training steps, where they are known."""


def make_agent(
    spec: str, protocol: Protocol, instruction: str | None = None, device: str = "cpu"
) -> Entrant:
    """The agent that `--policy` names.

    Args:
        spec: directory of a saved policy, ONNX file with a contract, `random` or `expert`.
        protocol: under which it will act.
        instruction: what a policy that reads language is told; None takes the worlds' words, else
            its own.
        device: where a saved policy computes: `cpu`, `cuda`, or `auto`.

    Raises:
        HandoffError: no such agent, or one that cannot do what the protocol rules.
    """
    path = Path(spec)
    match spec:
        case "random":
            return Entrant(
                "random", load_random, {"agent": "uniform within the bounds of the actions"}
            )
        case "expert":
            from sim.make import TASKS

            if protocol.engine not in EXPERT_ENGINES or protocol.task not in TASKS:
                raise HandoffError(
                    f"--policy expert: task {protocol.task} of engine {protocol.engine} has none; these have, on "
                    f"{' and '.join(EXPERT_ENGINES)}: {', '.join(TASKS)}."
                )
            return Entrant(
                "expert", load_expert, {"agent": "the task's scripted expert, which sees the state"}
            )
        case _ if path.suffix == ".onnx":
            name = path.parent.resolve().name if path.stem == "policy" else path.stem
            return Entrant(name, *_onnx_agent(path, protocol, instruction))
        case _ if path.is_dir():
            load, execution = checkpoint_agent(path, protocol, None, instruction, device)
            return Entrant(path.name or path.resolve().name, load, execution, _training_steps(path))
        case _:
            raise HandoffError(
                f"--policy {spec}: neither a directory nor an .onnx file, and not 'random' or 'expert'. "
                "Is the path right?"
            )


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

    card = read_card(path)
    check_trained_with(protocol, card.robot)
    own = card.model.sampler_steps
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
        listens=instruction is None and card.model.reads_language,
        action_size=card.action_size,
        n_obs_steps=card.model.n_obs_steps,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
        ensemble=card.model.ensemble,
    )


def instruction_of(card: PolicyCard, given: str | None = None) -> str | None:
    """What a policy is told: the `given` words, else those it was trained with; None for one that
    does not read.

    Raises:
        HandoffError: it does not read and there are words.
    """
    if not card.model.reads_language:
        if given is not None:
            raise HandoffError(
                f"policy: told '{given}', but the family '{card.model.kind}' reads no instructions."
            )
        return None
    return given or card.model.own_instruction or card.task.replace("_", " ")


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


def load_random() -> AgentFor:
    """An agent that acts at random in whatever worlds it is given."""
    return lambda env: RandomAgent(env.action_spec)


def load_expert() -> AgentFor:
    """The scripted expert of whatever worlds it is given."""
    return ExpertAgent


def load_onnx(path: Path, chunking: Chunking, sampling: Sampling) -> AgentFor:
    """The exported policy, on one thread of ONNX Runtime."""
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path)
    return lambda env: ChunkAgent(policy, chunking, sampling)


def _onnx_agent(
    path: Path, protocol: Protocol, instruction: str | None = None
) -> tuple[partial[AgentFor], dict[str, Any]]:
    from math import prod

    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path)
    contract = policy.contract
    check_trained_with(protocol, contract.robot)
    if policy.reader is None and instruction is not None:
        raise HandoffError(f"{path}: told '{instruction}', but the policy reads no instructions.")
    own = (
        None
        if policy.reader is None
        else policy.reader.reading.said or contract.task.replace("_", " ")
    )
    # To a protocol tokens are no steps: `flows.evaluation.agents.sampler_steps`.
    kind, _, number = contract.sampler.rpartition("-")
    steps = 1 if contract.sampler == "one-step" or kind == "tokens" else int(number)
    agreed("sampling.denoising_steps", protocol.sampling.denoising_steps, steps)
    chunking = chunking_under(
        protocol,
        Chunking(
            fields=tuple(contract.observation),
            action_size=prod(contract.action.shape),
            n_obs_steps=contract.n_obs_steps,
            horizon=contract.horizon,
            n_action_steps=contract.n_action_steps,
            instruction=instruction or own,
            listens=policy.reader is not None and instruction is None,
        ),
    )
    execution = {**to_plain(chunking), "denoising_steps": steps, "policy": contract.policy}
    return partial(load_onnx, path, chunking, protocol.sampling), execution


def _training_steps(path: Path) -> int | None:
    """Of a checkpoint whose folder ends in them, such as `step-2000`."""
    digits = re.search(r"step[-_]?(\d+)$", path.name)
    return int(digits[1]) if digits else None

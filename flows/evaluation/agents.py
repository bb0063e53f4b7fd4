"""Creates the agents of an evaluation: saved policies, exported and served policies, a random
agent, and a task's scripted expert."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.card import PolicyCard
from robots.config import to_plain
from robots.contract import ONNX_FILE, Contract
from robots.errors import HandoffError
from robots.language.text import task_sentence
from robots.wire.policy import TOKEN_VARIABLE
from sim.evaluation.agent import (
    ChunkAgent,
    Chunking,
    ExpertAgent,
    MakeAgent,
    RandomAgent,
    chunking_under,
)
from sim.evaluation.protocol import Protocol, Sampling, check_trained_with, require_match

if TYPE_CHECKING:
    from real.deploy.onnx_policy import OnnxPolicy
    from real.deploy.remote_policy import RemoteConfig

ANSWER_SECONDS = 60.0
"""Time limit for one chunk of a served policy [s]; no arm waits for it."""
EXPERT_ENGINES = ("mujoco", "warp", "maniskill")
"""Engines that run the arm's tasks and their scripted experts; ManiSkill with `maniskill.arm`."""


@dataclass(frozen=True)
class Entrant:
    """An agent of an evaluation, with its name and execution options."""

    name: str
    load: Callable[[], MakeAgent]
    """Loads the agent; called once in each process."""
    execution: Mapping[str, Any]
    """Execution options as plain values, stored with the result."""
    step: int | None = None
    """Number of training steps, if known."""


def make_agent(
    spec: str, protocol: Protocol, instruction: str | None = None, device: str = "cpu"
) -> Entrant:
    """Creates the agent that `--policy` names.

    Args:
        spec: directory of a saved policy, ONNX file with a contract or its directory, address of a
            policy server (`ws://host:port`, see `handoff serve`), `random` or `expert`.
        protocol: protocol of the evaluation.
        instruction: instruction for a language-conditioned policy; None takes the environment's,
            else the policy's.
        device: device of a saved policy: `cpu`, `cuda`, or `auto`.

    Raises:
        HandoffError: no such agent, or an agent that is incompatible with the protocol.
    """
    from policies.checkpoint import CARD

    path = Path(spec)
    match spec:
        case "random":
            return Entrant(
                "random", load_random, {"agent": "uniform within the bounds of the actions"}
            )
        case "expert":
            from sim.make import TASKS

            if protocol.simulator == "isaaclab" and protocol.has_arm_task:
                load = partial(load_observed_expert, protocol.task, protocol.robot)
                return Entrant(
                    "expert", load, {"agent": "the task's scripted expert, over observations"}
                )
            if protocol.engine not in EXPERT_ENGINES or not protocol.has_arm_task:
                raise HandoffError(
                    f"--policy expert: task {protocol.task} of engine {protocol.engine} has no scripted expert; "
                    f"tasks with one, on {', '.join(EXPERT_ENGINES)} and Isaac Lab: {', '.join(TASKS)}."
                )
            return Entrant(
                "expert", load_expert, {"agent": "the task's scripted expert, which sees the state"}
            )
        case _ if spec.startswith(("ws://", "wss://")):
            name = re.sub(r"[^0-9A-Za-z.-]+", "-", spec.split("://")[1]).strip("-")
            return Entrant(name, *_remote_agent(spec, protocol, instruction))
        case _ if path.suffix == ".onnx":
            name = path.parent.resolve().name if path.stem == "policy" else path.stem
            load, execution = _onnx_agent(path, protocol, instruction)
            return Entrant(name + ("-changed" if execution["changed"] else ""), load, execution)
        case _ if (path / ONNX_FILE).is_file() and not (path / CARD).exists():
            return make_agent(str(path / ONNX_FILE), protocol, instruction, device)
        case _ if path.is_dir():
            _refuse_other_artifact(spec, path)
            load, execution = checkpoint_agent(path, protocol, None, instruction, device)
            return Entrant(path.name or path.resolve().name, load, execution, _training_steps(path))
        case _:
            raise HandoffError(
                f"--policy {spec}: neither a directory nor an .onnx file nor ws://, and not 'random' or 'expert'. "
                "Is the path right?"
            )


def _refuse_other_artifact(spec: str, path: Path) -> None:
    """Refuses the artifact of a stage that makes no policy.

    Raises:
        HandoffError: it is the artifact of another kind.
    """
    from flows.runner.artifact import MANIFEST, read_manifest
    from policies.checkpoint import CARD

    if (path / CARD).exists() or not (path / MANIFEST).is_file():
        return
    manifest = read_manifest(path)
    raise HandoffError(
        f"--policy {spec}: is the {manifest['kind']} of the stage '{manifest['stage']}', expected the artifact of a "
        "stage that makes a policy or a bundle."
    )


def agents_by_stage(
    policies: Sequence[Path],
    protocol: Protocol,
    denoising_steps: int | None,
    instruction: str | None,
    device: str,
) -> dict[str, partial[MakeAgent]]:
    """Loaders of saved policies by the stage that made each; see `checkpoint_agent`.

    Raises:
        HandoffError: see `checkpoint_agent`.
    """
    from flows.runner.artifact import read_manifest

    return {
        read_manifest(policy)["stage"]: checkpoint_agent(
            policy, protocol, denoising_steps, instruction, device
        )[0]
        for policy in policies
    }


def checkpoint_agent(
    path: Path,
    protocol: Protocol,
    denoising_steps: int | None = None,
    instruction: str | None = None,
    device: str = "cpu",
    *,
    blind: bool = False,
) -> tuple[partial[MakeAgent], dict[str, Any]]:
    """Returns the loader of a saved policy, called in each process, and its execution options as
    plain values.

    Args:
        path: directory of the policy.
        protocol: protocol of the evaluation.
        denoising_steps: sampler steps; None takes the policy's.
        instruction: instruction for a language-conditioned policy; None takes the environment's,
            else the policy's.
        device: device of the policy: `cpu`, `cuda`, or `auto`.
        blind: whether its cameras and point clouds give zeros.

    Raises:
        HandoffError: no policy in `path`, a policy that is incompatible with the protocol, or one
            without sensors that is to be blind.
    """
    from policies.checkpoint import read_card

    card = read_card(path)
    check_trained_with(protocol, card.robot)
    default_steps = card.model.sampler_steps
    steps = protocol.sampling.denoising_steps
    if default_steps is None:
        # A protocol counts a single forward pass as one step; the policy has no number of steps.
        require_match("sampling.denoising_steps", steps, 1)
        require_match("denoising_steps", denoising_steps, 1)
        steps = None
    elif steps is None:
        steps = denoising_steps
    elif denoising_steps is not None:
        require_match("sampling.denoising_steps", steps, denoising_steps)
    if blind and not card.sensors:
        raise HandoffError(
            f"{path}: the policy has no cameras or point clouds, so it cannot be blind."
        )
    chunking = replace(chunking_under(protocol, chunking_of(path, instruction)), blind=blind)
    execution = {**to_plain(chunking), "denoising_steps": steps or default_steps or 1}
    return partial(load_agent, path, steps, chunking, protocol.sampling, device), execution


def chunking_of(policy: Path, instruction: str | None = None) -> Chunking:
    """Returns the execution options of a saved policy.

    Args:
        policy: directory of the policy.
        instruction: instruction for a language-conditioned policy; None takes the environment's,
            else the policy's.

    Raises:
        HandoffError: an instruction for a policy that is not language-conditioned.
    """
    from policies.checkpoint import read_card

    card = read_card(policy)
    return Chunking(
        fields=tuple(card.observation),
        sensors=tuple(card.sensors),
        instruction=instruction_of(card, instruction),
        listens=instruction is None and card.model.language_conditioned,
        action_size=card.action_size,
        n_obs_steps=card.model.n_obs_steps,
        observation_stride=card.model.observation_stride,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
        ensemble=card.model.ensemble,
    )


def instruction_of(card: PolicyCard, instruction: str | None = None) -> str | None:
    """Returns `instruction`, or by default that of the training; None for a policy that is not
    language-conditioned.

    Raises:
        HandoffError: an instruction for a policy that is not language-conditioned.
    """
    if not card.model.language_conditioned:
        if instruction is not None:
            raise HandoffError(
                f"policy: got the instruction '{instruction}', but the family '{card.model.kind}' is not "
                "language-conditioned."
            )
        return None
    return instruction or card.model.default_instruction or task_sentence(card.task)


def load_agent(
    path: Path, steps: int | None, chunking: Chunking, sampling: Sampling, device: str = "cpu"
) -> MakeAgent:
    """Loads a saved policy, limited to one torch thread: on two cores, two threads are slower than
    one."""
    import torch

    from policies.load import load_policy
    from policies.training.loop import resolve_device

    torch.set_num_threads(1)
    policy = load_policy(path, steps, str(resolve_device(device)))
    return lambda env: ChunkAgent(policy, chunking, sampling)


def load_random() -> MakeAgent:
    """Returns a factory of agents with uniformly random actions."""
    return lambda env: RandomAgent(env.action_spec)


def load_expert() -> MakeAgent:
    """Returns a factory of the scripted experts of environments."""
    return ExpertAgent


def load_observed_expert(task: str, robot: str) -> MakeAgent:
    """Returns a factory of scripted experts of environments that show observations only."""
    from sim.evaluation.agent import ObservedExpertAgent
    from sim.make import find_task

    return partial(ObservedExpertAgent, find_task(task, robot=robot))


def load_onnx(path: Path, digest: str, chunking: Chunking, sampling: Sampling) -> MakeAgent:
    """Loads an exported policy, limited to one thread of ONNX Runtime.

    Raises:
        HandoffError: the file is no longer the one with this digest.
    """
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path, allow_changed=True)
    if policy.digest != digest:
        raise HandoffError(
            f"{path}: has digest {policy.digest[:12]}, expected {digest[:12]}. Was it replaced during the evaluation?"
        )
    return lambda env: ChunkAgent(policy, chunking, sampling)


def load_remote(
    config: RemoteConfig, expected: Contract, chunking: Chunking, sampling: Sampling
) -> MakeAgent:
    """Connects to a policy server that still serves the policy of `expected`; the connection ends
    with the process.

    Raises:
        HandoffError: no token, no server, or one of another policy.
    """
    from real.deploy.remote_policy import RemotePolicy

    policy = RemotePolicy(config, _token(config.uri), expected)
    return lambda env: ChunkAgent(policy, chunking, sampling)


def _onnx_agent(
    path: Path, protocol: Protocol, instruction: str | None = None
) -> tuple[partial[MakeAgent], dict[str, Any]]:
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(path, allow_changed=True)
    chunking, steps = _onnx_chunking(policy, protocol, instruction)
    execution = {
        **to_plain(chunking),
        "denoising_steps": steps,
        "policy": policy.name,
        "changed": policy.changed,
        "file": policy.digest,
        "precision": policy.contract.precision,
    }
    return partial(load_onnx, path, policy.digest, chunking, protocol.sampling), execution


def onnx_chunking(policy: OnnxPolicy, protocol: Protocol) -> Chunking:
    """Execution options of an exported policy under a protocol.

    Raises:
        HandoffError: a policy that is incompatible with the protocol.
    """
    return _onnx_chunking(policy, protocol, None)[0]


def _onnx_chunking(
    policy: OnnxPolicy, protocol: Protocol, instruction: str | None
) -> tuple[Chunking, int]:
    default = policy.tokenizer.spec.default_instruction if policy.tokenizer is not None else None
    return _contract_chunking(str(policy.path), policy.contract, protocol, instruction, default)


def _remote_agent(
    uri: str, protocol: Protocol, instruction: str | None = None
) -> tuple[partial[MakeAgent], dict[str, Any]]:
    from real.deploy.remote_policy import RemoteConfig, RemotePolicy

    config = RemoteConfig(uri=uri, answer_seconds=ANSWER_SECONDS)
    with RemotePolicy(config, _token(uri)) as policy:
        contract = policy.contract
    chunking, steps = _contract_chunking(uri, contract, protocol, instruction, None)
    execution = {
        **to_plain(chunking),
        "denoising_steps": steps,
        "policy": contract.policy,
        "server": uri,
    }
    return partial(load_remote, config, contract, chunking, protocol.sampling), execution


def _token(uri: str) -> str:
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise HandoffError(
            f"--policy {uri}: no token. Set {TOKEN_VARIABLE} to the one that `handoff serve` prints."
        )
    return token


def _contract_chunking(
    name: str,
    contract: Contract,
    protocol: Protocol,
    instruction: str | None,
    default_instruction: str | None,
) -> tuple[Chunking, int]:
    """Execution options and sampler steps of a policy that is known by its contract.

    Raises:
        HandoffError: a policy that is incompatible with the protocol, or an instruction for one
            that is not language-conditioned.
    """
    check_trained_with(protocol, contract.robot)
    if not contract.instruction and instruction is not None:
        raise HandoffError(
            f"{name}: got the instruction '{instruction}', but the policy is not language-conditioned."
        )
    if contract.instruction:
        default_instruction = default_instruction or task_sentence(contract.task)
    # A protocol does not count action tokens as sampler steps.
    kind, _, number = contract.sampler.rpartition("-")
    steps = 1 if contract.sampler == "one-step" or kind == "tokens" else int(number)
    require_match("sampling.denoising_steps", protocol.sampling.denoising_steps, steps)
    chunking = chunking_under(
        protocol,
        Chunking(
            fields=tuple(contract.observation),
            sensors=tuple(contract.sensors),
            action_size=prod(contract.action.shape),
            n_obs_steps=contract.n_obs_steps,
            observation_stride=contract.observation_stride,
            horizon=contract.horizon,
            n_action_steps=contract.n_action_steps,
            instruction=instruction or default_instruction,
            listens=contract.instruction and instruction is None,
            ensemble=contract.ensemble,
        ),
    )
    return chunking, steps


def _training_steps(path: Path) -> int | None:
    """Returns the training steps of a checkpoint whose folder name ends in them, e.g.
    `step-2000`."""
    digits = re.search(r"step[-_]?(\d+)$", path.name)
    return int(digits[1]) if digits else None

"""Checks that training, ONNX Runtime, the evaluation and the robot's process compute the same
actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flows.gating.conditions import Condition, at_most
from flows.gating.config import TOLERANCES, GateConfig, tolerance
from robots.contract import GOLDEN_FIELDS, GOLDEN_RATE
from robots.errors import HandoffError, SafetyError

if TYPE_CHECKING:
    from real.deploy.bundle_checks import Parity
    from real.deploy.onnx_policy import OnnxPolicy
    from sim.evaluation.rollout import EpisodeResult

TORCH = "difference between ONNX Runtime and training"
EVALUATION = "difference between the evaluation and the robot's process"
UNIT = "normalised units"
SAME_FILE = TOLERANCES["float32"]
"""Largest difference between two programs that run one file on the same observations, whatever its
precision [normalised action units]."""


def against_training(
    settings: GateConfig, policy: OnnxPolicy, golden: Mapping[str, np.ndarray]
) -> Condition:
    """Compares ONNX Runtime with the actions that torch computed for recorded observations."""
    from real.deploy.bundle_checks import golden_parity

    try:
        parity = golden_parity(policy, golden)
    except SafetyError as error:
        return Condition(TORCH, "failed", note=str(error))
    limit = tolerance(settings, policy.contract)
    exchanged = _exchanged(policy, golden, parity.normalised > limit)
    changed = "were the weights changed after the golden examples were made?"
    precision = policy.contract.precision
    if precision != "float32":
        changed = f"is that the rounding of {precision}? The played episodes say what it costs"
    hint = exchanged or changed
    return _condition(TORCH, policy, parity, limit, hint)


def against_robot(
    settings: GateConfig,
    policy: OnnxPolicy,
    golden: Mapping[str, np.ndarray],
    episodes: Sequence[EpisodeResult],
) -> Condition:
    """Compares the evaluation's execution of chunks, and the robot's in a process of its own, with
    the actions that were played, on the observations of those episodes.

    Args:
        settings: limits, and the protocol with its sampling.
        policy: the exported policy.
        golden: golden examples, for the scale of actions.
        episodes: recorded episodes of `policy`.
    """
    from real.deploy.bundle_checks import difference, robot_actions

    scale = golden["action_scale"].min(axis=0)
    fields = [_observations(episode) for episode in episodes]
    played = np.concatenate([episode.actions for episode in episodes])
    robot = robot_actions(policy.path, [episode.seed for episode in episodes], fields)
    evaluation = [
        _evaluated_actions(settings, policy, episode.seed, observed)
        for episode, observed in zip(episodes, fields, strict=True)
    ]
    both = np.stack([np.concatenate(robot), np.concatenate(evaluation)])
    hint = "do the contract's order of fields and its chunk fit the policy?"
    found = difference(both, played, scale)
    return _condition(EVALUATION, policy, found, SAME_FILE, hint)


def order_of_fields(policy: OnnxPolicy, golden: Mapping[str, np.ndarray]) -> Condition | None:
    """Compares the order in which the contract concatenates the fields of an observation with that
    of the golden examples; None for examples without fields."""
    name = "order of the observation"
    given = {
        key.removeprefix(GOLDEN_FIELDS): golden[key]
        for key in golden
        if key.startswith(GOLDEN_FIELDS)
    }
    if not given:
        return None
    contract = policy.contract
    missing = sorted(contract.observation.keys() ^ given.keys())
    if missing:
        return Condition(name, "failed", note=f"contract and training differ in {missing}")
    rows, steps = golden["observation"].shape[:2]
    vector = np.concatenate(
        [given[key].reshape(rows, steps, -1) for key in contract.observation], axis=2
    )
    wrong = np.flatnonzero((vector != golden["observation"]).any(axis=(0, 1)))
    if not len(wrong):
        return Condition(name, "passed", note=", ".join(contract.observation))
    note = (
        f"entries {[int(i) for i in wrong[:8]]} of the vector come from other fields than in training; the "
        f"contract's order is {', '.join(contract.observation)}"
    )
    return Condition(name, "failed", note=note)


def rate_of_training(policy: OnnxPolicy, golden: Mapping[str, np.ndarray]) -> Condition | None:
    """Compares the contract's rate with that of the demonstrations; None for examples without
    it."""
    if GOLDEN_RATE not in golden:
        return None
    name = "rate"
    trained = float(golden[GOLDEN_RATE])
    stated = policy.contract.rate_hz
    if abs(trained - stated) <= 1e-6 * trained:
        return Condition(name, "passed", stated, trained, unit="Hz")
    note = f"the policy was trained at {trained:g} Hz, its contract says {stated:g} Hz"
    return Condition(name, "failed", stated, trained, unit="Hz", note=note)


def _observations(episode: EpisodeResult) -> dict[str, np.ndarray]:
    if episode.trajectory is None:
        raise HandoffError("gate: the episodes were not recorded.")
    return {name: values for name, values in episode.trajectory.items() if name != "action"}


def _evaluated_actions(
    settings: GateConfig, policy: OnnxPolicy, seed: int, fields: Mapping[str, np.ndarray]
) -> np.ndarray:
    """(steps, A) actions of the evaluation's agent on recorded observations."""
    from flows.evaluation.agents import onnx_chunking
    from sim.evaluation.agent import ChunkAgent

    agent = ChunkAgent(policy, onnx_chunking(policy, settings.protocol), settings.protocol.sampling)
    agent.reset([seed])
    steps = len(next(iter(fields.values())))
    running = np.ones(1, dtype=bool)
    actions = [
        agent.act({name: values[step][None] for name, values in fields.items()}, running)[0]
        for step in range(steps)
    ]
    return np.stack(actions)


def _condition(name: str, policy: OnnxPolicy, parity: Parity, limit: float, hint: str) -> Condition:
    unit = policy.contract.action.unit
    entries = ", ".join(f"{value:.1e}" for value in parity.physical)
    agrees = parity.normalised <= limit
    note = f"per entry of an action {entries} {unit}" + ("" if agrees else f"; {hint}")
    details = {"per_entry": parity.physical, "entry_unit": unit}
    return at_most(name, parity.normalised, limit, unit=UNIT, note=note, details=details)


def _exchanged(policy: OnnxPolicy, golden: Mapping[str, np.ndarray], differs: bool) -> str:
    """Names entries of the action that look exchanged; empty if none do."""
    from real.deploy.bundle_checks import batch_actions

    if not differs:
        return ""
    scale = golden["action_scale"]
    given, expected = batch_actions(policy, golden) / scale, golden["action"] / scale
    size = expected.shape[-1]
    near = [
        min(range(size), key=lambda other: np.abs(given[..., entry] - expected[..., other]).max())
        for entry in range(size)
    ]
    moved = [entry for entry in range(size) if near[entry] != entry]
    if not moved:
        return ""
    return f"entries {moved} of the action look like entries {[near[entry] for entry in moved]} of training"

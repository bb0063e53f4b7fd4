"""Writes the contract of a saved policy: what its actions mean, its rules and the range of its
training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from robots.contract import CONVENTIONS, FRAMES, INTERFACES, Contract, Precision
from robots.control.actions import AS_RECORDED, PD_TARGET, StepSpace, agent_dynamics
from robots.control.impedance import ImpedanceGains
from robots.control.training_range import DataRange, InputRange, data_range, input_range
from robots.errors import HandoffError
from robots.franka import find_robot

if TYPE_CHECKING:
    from policies.card import PolicyCard
    from policies.data.demonstrations import DemonstrationArrays
    from policies.policy import ChunkPolicy

_BLOCK = 1024
"""Number of steps whose point clouds are read at once."""
_MOST_POINTS = 1_000_000
"""Largest number of points from which quantiles are computed."""


@dataclass(frozen=True)
class ActionMeaning:
    """Meaning of a policy's actions to the controller."""

    interface: str
    """One of `robots.control.actions.ActionInterface`."""
    steps: StepSpace | None = None
    """Step sizes and limits of the actions of an arm."""
    impedance: ImpedanceGains | None = None
    """Gains of the impedance law in training."""


@dataclass(frozen=True)
class TrainingRanges:
    """Ranges of the training data of one policy."""

    inputs: Mapping[str, InputRange]
    """By observation field and point cloud."""
    action: DataRange | None


NO_RANGES = TrainingRanges({}, None)
"""Ranges of a policy that is served from its directory, without its data."""


def contract_of(
    card: PolicyCard,
    meaning: ActionMeaning,
    sampler: str,
    *,
    policy: str,
    training_data: str,
    ranges: TrainingRanges = NO_RANGES,
    precision: Precision = "float32",
) -> Contract:
    """The contract of a saved policy.

    Args:
        card: card of the policy.
        meaning: meaning of its actions to the controller.
        sampler: name and steps of the sampler.
        policy: digest of the policy.
        training_data: digest of the demonstrations; empty where unknown.
        ranges: ranges of the training data.
        precision: number type inside the graph.

    Raises:
        HandoffError: an action interface whose actions have another size or unit.
    """
    _check_meaning(card, meaning)
    specs = (*card.observation.values(), *card.sensors.values(), card.action)
    return Contract(
        task=card.task,
        observation=card.observation,
        action=card.action,
        rate_hz=card.rate_hz,
        n_obs_steps=card.model.n_obs_steps,
        observation_stride=card.model.observation_stride,
        prefix=card.model.most_decided,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
        action_interface=meaning.interface,
        sampler=sampler,
        training_data=training_data,
        policy=policy,
        sensors=card.sensors,
        instruction=card.model.language_conditioned,
        ensemble=card.model.ensemble,
        precision=precision,
        steps=meaning.steps,
        dynamics=agent_dynamics(PD_TARGET) if meaning.interface == PD_TARGET else None,
        impedance=meaning.impedance,
        robot=card.robot,
        training_range=dict(ranges.inputs),
        action_range=ranges.action,
        conventions={**CONVENTIONS, "action_interface": INTERFACES[meaning.interface]},
        frames={name: text for name, text in FRAMES.items() if name in {s.frame for s in specs}},
    )


def stated_interface(interface: str | None, card: PolicyCard) -> str:
    """The given interface, or else the one that the recorded actions state; those that state one
    keep it where `as_recorded` is given.

    Raises:
        HandoffError: neither, or another than the recorded one.
    """
    recorded = card.action.interface if card.action.interface in INTERFACES else None
    if interface is None and recorded is None:
        stated = f"state '{card.action.interface}'" if card.action.interface else "say nothing"
        raise HandoffError(
            f"policy of task '{card.task}': the meaning of its actions is not known; the recorded ones {stated}. Set "
            "action_interface of the stage that exports it (or handoff serve --action-interface ..) to one of "
            f"{', '.join(INTERFACES)}; docs/concepts/contract.md explains them. Imported data "
            "state it by map.action_interface of their ingest."
        )
    if interface == AS_RECORDED and recorded is not None:
        return recorded
    if None not in (interface, recorded) and interface != recorded:
        raise HandoffError(
            f"policy of task '{card.task}': action_interface is '{interface}', but its recorded actions are "
            f"'{recorded}'. Leave it out, or use the demonstrations of the policy."
        )
    return interface or recorded or ""


def training_ranges(module: ChunkPolicy, data: DemonstrationArrays) -> TrainingRanges:
    """Ranges of the demonstrations, widened to those that the policy's normaliser was fitted to,
    since a policy may have been trained on more than these demonstrations."""
    fitted = _fitted_range(module)
    inputs = {}
    for name, (first, last) in data.card.shapes.entries.items():
        entries = slice(first, last)
        unit = data.card.observation[name].unit
        rows = data.observation_MO[:, entries]
        inputs[name] = input_range(unit, rows, (fitted[0][entries], fitted[1][entries]))
    for name in data.card.model.point_fields:
        inputs[name] = input_range(data.card.sensors[name].unit, _points(data, name))
    return TrainingRanges(inputs, data_range(data.action_MA))


def _fitted_range(module: ChunkPolicy) -> tuple[np.ndarray, np.ndarray]:
    """(O,) lowest and highest values to which the normaliser of observations was fitted; infinities
    that widen nothing for entries that were constant, and for a normaliser that was not fitted."""
    centre = module.normalize_observation.centre.double().cpu().numpy()
    half_range = module.normalize_observation.half_range.double().cpu().numpy()
    unknown = half_range == 1.0
    low = np.where(unknown, np.inf, centre - half_range)
    return low, np.where(unknown, -np.inf, centre + half_range)


def _points(data: DemonstrationArrays, name: str) -> np.ndarray:
    """(N, entries) points of a cloud in all steps; their extremes, and evenly chosen others."""
    import torch

    frames, steps = data.sensors[name], len(data.action_MA)
    size = data.card.sensors[name].shape
    stride = max(1, steps * size[0] // _MOST_POINTS)
    kept = []
    for first in range(0, steps, _BLOCK):
        block = torch.arange(first, min(first + _BLOCK, steps))
        points = frames.steps(block).numpy().reshape(-1, size[-1])
        kept += [points[::stride], points.min(axis=0)[None], points.max(axis=0)[None]]
    return np.concatenate(kept)


def _check_meaning(card: PolicyCard, meaning: ActionMeaning) -> None:
    """Refuses an interface that cannot be that of the policy's actions."""
    if meaning.interface not in INTERFACES:
        raise HandoffError(
            f"export: action_interface is '{meaning.interface}', known are {', '.join(INTERFACES)}."
        )
    size, unit = prod(card.action.shape), card.action.unit
    if meaning.interface == PD_TARGET and (size, unit) != (2, "m"):
        raise HandoffError(
            f"export: action_interface is '{PD_TARGET}', a position of 2 entries [m], but actions of task "
            f"'{card.task}' have {size} entries [{unit}]. Which of {', '.join(INTERFACES)} are they?"
        )
    steps = meaning.steps
    if steps is None:
        return
    if steps.kind != meaning.interface:
        raise HandoffError(
            f"export: steps are those of '{steps.kind}', but actions of task '{card.task}' are "
            f"'{meaning.interface}'. Set steps.kind of the export to it."
        )
    names = steps.spec(find_robot(card.robot or "fr3")).names
    if size not in (len(names), len(names) + 1):
        raise HandoffError(
            f"export: steps move {', '.join(names)} and perhaps a gripper, but actions of task '{card.task}' have "
            f"{size} entries. Set export.steps to what the actions move."
        )

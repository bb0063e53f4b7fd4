"""Metadata of a saved policy, and the sizes of its inputs and outputs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import NamedTuple

from policies.policy_config import PolicyConfig
from robots.config import Hertz, Whole, config
from robots.errors import HandoffError
from robots.spec import FieldSpec


class Shapes(NamedTuple):
    """Input and output sizes of a policy, given by the data."""

    entries: Mapping[str, tuple[int, int]]
    """Start and end of each observation field in the observation vector of one step."""
    action: int
    """A, entries of one action."""
    anchor: int | None
    """First entry, in the observation vector, of the field that actions are relative to; None for
    absolute actions."""
    sensors: Mapping[str, tuple[int, ...]]
    """Shape of one step of every camera and point cloud, by name."""
    estimated: int = 0
    """G, entries that the policy estimates in addition to what it observes."""

    @property
    def observation(self) -> int:
        """O, entries of the observation vector of one step."""
        return max((end for _, end in self.entries.values()), default=0)

    @classmethod
    def of_vector(cls, observation: int, action: int, anchor: int | None) -> Shapes:
        """Shapes of a policy that observes a single vector."""
        return cls({"observation": (0, observation)}, action, anchor, {})


@config
class PolicyCard:
    """Metadata of a saved policy, written as `config.json` next to its weights."""

    version: Whole = 3
    """Version of the layout. Version 3 names the family in `model.kind`; version 2 had diffusion
    policies only, with the network's sizes in `model.network`; version 1 had the MLP only, with its
    sizes in `model`."""
    task: str
    """Name of the task, from the schema of the demonstrations."""
    rate_hz: Hertz
    """Policy steps per second of robot time."""
    observation: dict[str, FieldSpec]
    """Observation fields of one step, in the order of the observation vector."""
    sensors: dict[str, FieldSpec] = field(default_factory=dict)
    """Cameras and point clouds of one step."""
    estimated: dict[str, FieldSpec] = field(default_factory=dict)
    """Vectors that the policy estimates; it does not observe them."""
    action: FieldSpec
    """Shape (A entries), unit and frame of one action."""
    model: PolicyConfig
    """Configuration of the policy family."""
    robot: str = ""
    """Name of the robot that the demonstrations were recorded with; empty where unknown, as in
    older cards."""

    @property
    def shapes(self) -> Shapes:
        """Sizes for the policy's network."""
        entries, end = {}, 0
        for name, spec in self.observation.items():
            entries[name] = (end, end + prod(spec.shape))
            end += prod(spec.shape)
        sensors = {name: tuple(spec.shape) for name, spec in self.sensors.items()}
        estimated = sum(prod(spec.shape) for spec in self.estimated.values())
        return Shapes(entries, self.action_size, self.anchor, sensors, estimated)

    @property
    def observation_size(self) -> int:
        """O, entries of the observation vector of one step."""
        return sum(prod(spec.shape) for spec in self.observation.values())

    @property
    def anchor(self) -> int | None:
        """First entry, in the observation vector, of the field that actions are relative to; None
        for absolute actions.

        Raises:
            HandoffError: the field does not exist, or its size is not that of an action.
        """
        name = self.model.anchor_field
        if name is None:
            return None
        if name not in self.observation or prod(self.observation[name].shape) != self.action_size:
            raise HandoffError(
                f"policy: anchor_field '{name}' must be an observed field with the {self.action_size} entries of an "
                f"action; observed are {sorted(self.observation)}."
            )
        preceding = list(self.observation)[: list(self.observation).index(name)]
        return sum(prod(self.observation[field].shape) for field in preceding)

    @property
    def action_size(self) -> int:
        """A, entries of one action."""
        return prod(self.action.shape)

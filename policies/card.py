"""Configuration that the learning stages share, and what a saved policy says of itself. Imports
without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import NamedTuple

from policies.policy_config import PolicyConfig
from robots.config import config
from robots.errors import HandoffError
from robots.spec import FieldSpec


class Shapes(NamedTuple):
    """Sizes that the data give a policy."""

    entries: Mapping[str, tuple[int, int]]
    """Where each observed field begins and ends in the observation vector of one step."""
    action: int
    """A, entries of one action."""
    anchor: int | None
    """Entry of the observation vector at which the field begins that actions are relative to; None
    without one."""
    sensors: Mapping[str, tuple[int, ...]]
    """Shape of one step of every camera and point cloud."""

    @property
    def observation(self) -> int:
        """O, entries of the observation vector of one step."""
        return max((end for _, end in self.entries.values()), default=0)

    @classmethod
    def of_vector(cls, observation: int, action: int, anchor: int | None) -> Shapes:
        """Those of a policy that sees one vector and nothing else."""
        return cls({"observation": (0, observation)}, action, anchor, {})


@config
class PolicyCard:
    """What a saved policy says of itself, in `config.json` beside its weights."""

    version: int = 3
    """3 tells the family in `model.kind`; 2 had diffusion policies only, with the sizes of the
    network under `model.network`; 1 had those of the only network, the MLP, in `model`."""
    task: str
    """Name of the task, from the schema of the demonstrations."""
    rate_hz: float
    """Policy steps per second of robot time."""
    observation: dict[str, FieldSpec]
    """Fields of one step in the order of the observation vector."""
    sensors: dict[str, FieldSpec] = field(default_factory=dict)
    """Cameras and point clouds of one step."""
    action: FieldSpec
    """Entries of one action, A."""
    model: PolicyConfig
    """Configuration of the policy's family and network."""
    robot: str = ""
    """Name of the robot that the demonstrations were recorded with; empty where none was, and in
    cards from before it was stated."""

    @property
    def shapes(self) -> Shapes:
        """Sizes for the policy's network."""
        entries, end = {}, 0
        for name, spec in self.observation.items():
            entries[name] = (end, end + prod(spec.shape))
            end += prod(spec.shape)
        sensors = {name: tuple(spec.shape) for name, spec in self.sensors.items()}
        return Shapes(entries, self.action_size, self.anchor, sensors)

    @property
    def observation_size(self) -> int:
        """O, entries of the observation vector of one step."""
        return sum(prod(spec.shape) for spec in self.observation.values())

    @property
    def anchor(self) -> int | None:
        """Entry of the observation vector at which the field begins that actions are relative to;
        None without one.

        Raises:
            HandoffError: there is no such field, or it has not the entries of an action.
        """
        name = self.model.anchor_field
        if name is None:
            return None
        if name not in self.observation or prod(self.observation[name].shape) != self.action_size:
            raise HandoffError(
                f"policy: anchor_field '{name}' must be an observed field with the {self.action_size} entries of an "
                f"action; observed are {sorted(self.observation)}."
            )
        before = list(self.observation)[: list(self.observation).index(name)]
        return sum(prod(self.observation[field].shape) for field in before)

    @property
    def action_size(self) -> int:
        """A, entries of one action."""
        return prod(self.action.shape)

"""The contract of an exported policy: all that a robot process must know to run it, carried inside
the ONNX file."""

from __future__ import annotations

import json
from dataclasses import field

from robots.config import config, to_plain, validate
from robots.control.actions import CartesianDelta
from robots.errors import HandoffError
from robots.spec import FieldSpec

CONTRACT_KEY = "handoff.contract"
"""Metadata key of the contract's JSON inside the ONNX file."""


@config
class Contract:
    """Shapes, units, rates and provenance of one exported policy."""

    version: int = 1
    """Version of the contract's layout; a reader refuses any other."""
    task: str
    """Name of the task that the policy was trained for."""
    observation: dict[str, FieldSpec]
    """Fields of one step, concatenated in this order into the network's observation vector."""
    action: FieldSpec
    """Field that one action holds: its shape, unit and frame."""
    rate_hz: float
    """Policy steps per second of robot time."""
    n_obs_steps: int
    """Steps of observation that the network receives, the newest last."""
    horizon: int
    """Actions that the network predicts per chunk."""
    n_action_steps: int
    """Actions executed per chunk, starting at index `n_obs_steps - 1`."""
    action_interface: str
    """What an action means to the controller; `robots.control.actions` lists the known ones."""
    sampler: str
    """Name and steps of the sampler inside the graph, e.g. `ddim-10` or `one-step`."""
    training_data: str
    """Digest of the demonstrations."""
    policy: str
    """Digest of the policy artifact that was exported."""
    sensors: dict[str, FieldSpec] = field(default_factory=dict)
    """Cameras and point clouds of one step; contracts from before there were any have none."""
    instruction: bool = False
    """Whether the policy is language-conditioned and needs an instruction."""
    steps: CartesianDelta | None = None
    """What a step of the interface `cartesian_delta` is, and how far they lead; contracts from
    before it was told, and those of other interfaces, have none."""
    robot: str = ""
    """Name of the robot whose joints, gripper and limits the policy was trained with; empty where
    no robot is behind the actions (gym's push-T), and in contracts from before it was stated."""

    @property
    def observation_size(self) -> int:
        """O, entries of the flat observation of one step."""
        from math import prod

        return sum(prod(spec.shape) for spec in self.observation.values())

    def to_json(self) -> str:
        """JSON; keys keep their order, because that of `observation` is the order of the
        observation vector."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Reads `to_json` back.

        Raises:
            HandoffError: not JSON, unknown or missing keys, or another contract version.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise HandoffError(
                f"contract: not JSON ({error}). Was the ONNX file made by another tool?"
            ) from None
        contract = validate(cls, values, "contract")
        if contract.version != 1:
            raise HandoffError(
                f"contract: version {contract.version}, this build reads 1. Export the policy again."
            )
        return contract

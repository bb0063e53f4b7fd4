"""Defines the contract of an exported policy: shapes, units and rates, stored in the ONNX file."""

from __future__ import annotations

import json
from dataclasses import field

from robots.config import Count, Hertz, Whole, config, to_plain, validate
from robots.control.actions import CartesianDelta
from robots.errors import HandoffError
from robots.spec import FieldSpec

CONTRACT_KEY = "handoff.contract"
"""Metadata key of the contract's JSON inside the ONNX file."""
ONNX_FILE = "policy.onnx"
"""Name of the exported policy in the folder of a bundle."""


@config
class Contract:
    """Shapes, units, rates and provenance of one exported policy."""

    version: Whole = 1
    """Version of the contract's layout; a reader refuses any other."""
    task: str
    """Name of the task that the policy was trained for."""
    observation: dict[str, FieldSpec]
    """Fields of one step, concatenated in this order into the network's observation vector."""
    action: FieldSpec
    """Shape, unit and frame of one action."""
    rate_hz: Hertz
    """Policy steps per second of robot time."""
    n_obs_steps: Count
    """Number of observation steps that the network receives, the newest last."""
    horizon: Count
    """Number of actions that the network predicts per chunk."""
    n_action_steps: Count
    """Number of actions executed per chunk, starting at index `n_obs_steps - 1`."""
    action_interface: str
    """Meaning of an action to the controller; `robots.control.actions` lists the known ones."""
    sampler: str
    """Name and steps of the sampler inside the graph, e.g. `ddim-10` or `one-step`."""
    training_data: str
    """Digest of the demonstrations."""
    policy: str
    """Digest of the policy artifact that was exported."""
    sensors: dict[str, FieldSpec] = field(default_factory=dict)
    """Cameras and point clouds of one step; empty in contracts written before they were
    supported."""
    instruction: bool = False
    """Whether the policy is language-conditioned and needs an instruction."""
    steps: CartesianDelta | None = None
    """Step sizes and workspace of the interface `cartesian_delta`; None for other interfaces, and
    in contracts written before the field existed."""
    robot: str = ""
    """Name of the robot whose joints, gripper and limits the policy was trained with; empty if the
    environment has no robot (gym's push-T), and in contracts written before the field existed."""

    @property
    def observation_size(self) -> int:
        """O, entries of the flat observation of one step."""
        from math import prod

        return sum(prod(spec.shape) for spec in self.observation.values())

    def to_json(self) -> str:
        """JSON of the contract. Keys keep their order, because the order of `observation` is that
        of the observation vector."""
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

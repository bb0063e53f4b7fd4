"""Defines the contract of an exported policy, stored in the ONNX file. Together with the graph it
states all that a program needs to act with the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import Literal

from robots.config import Count, Hertz, NonNegative, Whole, config, to_plain, validate
from robots.control.actions import AgentDynamics, StepSpace
from robots.control.impedance import ImpedanceGains
from robots.control.training_range import DataRange, InputRange
from robots.errors import HandoffError
from robots.spec import FieldSpec

PREFIX_INPUT = "prefix"
"""Input of a graph with decided actions, and entry of a request to a policy server."""
CONTRACT_KEY = "handoff.contract"
"""Metadata key of the contract's JSON inside the ONNX file."""
ONNX_FILE = "policy.onnx"
"""Name of the exported policy in the folder of a bundle."""
GOLDEN_FILE = "golden.npz"
"""Name of the golden examples there: recorded inputs, and the actions that torch computed for
them."""
GOLDEN_FIELDS = "fields/"
"""Prefix of the names of the observation's fields in the golden examples."""
GOLDEN_SENSORS = "sensors/"
"""Prefix of the names of cameras and point clouds there."""
GOLDEN_RATE = "rate_hz"
"""Name of the rate of the demonstrations there [1/s]."""
VERSION = 2
"""Version of the contract's layout that this build writes and reads."""

CONVENTIONS = {
    "units": "SI units as each field states them; angles in radians",
    "quaternion": "w, x, y, z; unit length, w >= 0",
    "rotation vector": "axis times angle [rad], in axes of the stated frame",
    "observation": (
        "float32 (batch, n_obs_steps, O), oldest step first; each field flattened in row-major order, "
        "fields concatenated in the order of `observation`"
    ),
    "sensors": (
        "one input per entry of `sensors`, named by it: cameras (batch, n_obs_steps, height, width, 3) uint8 RGB from "
        "0 to 255 at the stated size, not normalised; point clouds (batch, n_obs_steps, points, coordinates) float32"
    ),
    "history": (
        "n_obs_steps observations, every observation_stride-th step of 1 / rate_hz seconds back from the newest; "
        "before an episode's beginning its first observation is repeated"
    ),
    "noise": (
        "float32 (batch, horizon, A), independent standard normal numbers, drawn anew for every chunk; Handoff's "
        "evaluation draws chunk i of an episode from numpy.random.Generator(numpy.random.Philox(key=[seed, i]))"
    ),
    "action": (
        "float32 (batch, horizon, A) in the stated unit; index n_obs_steps - 1 belongs to the newest observation"
    ),
    "execution": (
        "per chunk, the actions from index n_obs_steps - 1 on, n_action_steps in number, are executed, one every "
        "1 / rate_hz seconds; then the next chunk is inferred"
    ),
    "prefix": (
        "unless `prefix` is 0, an input float32 (batch, prefix, A + 1): the actions that will be executed while the "
        "chunk is inferred, the newest observation's first, each followed by 1, and zeros behind them; the chunk "
        "goes on from them, and its own actions in their places are not to be executed"
    ),
    "ensemble": (
        "unless `ensemble` is null, a chunk is inferred in every step in place of `execution`, and the predictions of "
        "all chunks for the step are averaged with weights exp(-ensemble * i), i = 0 for the oldest chunk"
    ),
    "training_range": (
        "low to high was in the training data; inputs below refuse_below or above refuse_above are refused, others are "
        "passed unchanged"
    ),
}
"""Rules that hold for every policy; names in backquotes are entries of the contract."""

FRAMES = {
    "board": (
        "board of push-T, 0.512 m square: origin in the upper left corner of gym-pusht's image, x right, y down; "
        "1 mm is 1 px"
    ),
    "base": "base of the arm (libfranka's frame O): origin on the mounting plane, x forward, z up",
}
"""Frames by the names that fields and actions give."""
Precision = Literal["float32", "float16", "int8"]
"""Number type inside a graph."""
INTERFACES = {
    "pd_target": (
        "position target a of a point p, which moves by v <- v + (k_p (a - p) - k_v v) dt, p <- p + v dt "
        "with `dynamics` and dt = 1 / dynamics.rate_hz"
    ),
    "cartesian_delta": (
        "entries in [-1, 1] move the target of the frame between the fingertips along `steps.axes`, in base axes, "
        "times steps.translation or steps.rotation, within steps.low and steps.high, and at most the leash away from "
        "the measured pose; an impedance law with the gains `impedance`, at 1 kHz on an FR3, follows it; a last entry "
        "beyond the axes is the gripper: -1 closed, 1 open"
    ),
    "joint_delta": (
        "entries in [-1, 1] move the joints' target positions, times steps.step, at most steps.leash away from the "
        "measured ones and steps.margin within the joint limits; an impedance law with the joint gains of "
        "`impedance`, at 1 kHz on an FR3, follows them; an entry beyond the joints is the gripper: -1 closed, 1 open"
    ),
    "joint_target": (
        "target joint positions [rad], which the target in force approaches at steps.speed of the joints' velocity "
        "limits, at most steps.leash away from the measured ones and steps.margin within the joint limits; an "
        "impedance law with the joint gains of `impedance`, at 1 kHz on an FR3, follows it; an entry beyond the joints "
        "is the gripper: -1 closed, 1 open"
    ),
    "as_recorded": (
        "as the demonstrations define it, in the units and the order of the names of `action`; no controller of "
        "Handoff runs it"
    ),
}
"""Meanings of an action by `Contract.action_interface`."""


@config
class Contract:
    """Shapes, units, rates, rules and provenance of one exported policy."""

    version: Whole = VERSION
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
    """Meaning of an action to the controller; `INTERFACES` explains the known ones."""
    sampler: str
    """Name and steps of the sampler inside the graph, e.g. `ddim-10` or `one-step`."""
    training_data: str
    """Digest of the demonstrations."""
    policy: str
    """Digest of the policy artifact that was exported."""
    sensors: dict[str, FieldSpec] = field(default_factory=dict)
    """Cameras and point clouds of one step."""
    instruction: bool = False
    """Whether the policy is language-conditioned and needs an instruction."""
    observation_stride: Count = 1
    """Steps between two observation steps."""
    prefix: Whole = 0
    """Largest number of decided actions with which the policy can begin a chunk
    (`robots.interfaces.PolicyInput.prefix`); 0 for policies that take none."""
    ensemble: NonNegative | None = None
    """Coefficient of temporal ensembling (`robots.control.temporal_ensemble`); None executes one
    chunk at a time."""
    precision: Precision = "float32"
    """Number type inside the graph; inputs and outputs are float32 in any case. `int8` has integer
    weights in its matrix products, and rounds what they are multiplied with to 8 bits."""
    steps: StepSpace | None = None
    """Step sizes and limits of the interfaces `cartesian_delta`, `joint_delta` and `joint_target`;
    None for other interfaces."""
    dynamics: AgentDynamics | None = None
    """Dynamics of the point that the interface `pd_target` moves; None for other interfaces."""
    impedance: ImpedanceGains | None = None
    """Gains of the impedance law in training for interfaces of an arm; None for others, and where
    they are not known."""
    robot: str = ""
    """Name of the robot whose joints, gripper and limits the policy was trained with; empty if the
    environment has no robot (gym's push-T)."""
    training_range: dict[str, InputRange] = field(default_factory=dict)
    """Range of the training data by the name of an observation field or point cloud. Empty if the
    policy was not exported but is served from its directory."""
    action_range: DataRange | None = None
    """Range of the actions in the training data; None where `training_range` is empty."""
    conventions: dict[str, str] = field(default_factory=lambda: dict(CONVENTIONS))
    """Rules for inputs, outputs and execution, for programs other than Handoff."""
    frames: dict[str, str] = field(default_factory=dict)
    """Meaning of the frames of observation and action."""

    @property
    def observation_size(self) -> int:
        """O, entries of the flat observation of one step."""
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
        return cls.from_plain(values)

    @classmethod
    def from_plain(cls, values: Mapping[str, object]) -> Contract:
        """Reads `robots.config.to_plain` of a contract back.

        Raises:
            HandoffError: unknown or missing keys, or another contract version.
        """
        version = values.get("version", 1) if isinstance(values, Mapping) else values
        # The version comes first: keys of other versions are not known here. Version 1 lacks the
        # range of the training data and the file's digest, which cannot be added afterwards.
        if version != VERSION:
            raise HandoffError(
                f"contract: version {version}, this build reads {VERSION}. Export the policy again."
            )
        return validate(cls, values, "contract")

"""Defines the conditions of a release and their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from types import MappingProxyType
from typing import Any

from flows.config.protocols import push_t_published
from real.deploy.bundle_checks import LatencyConfig
from real.franka.config import FrankaConfig
from real.motion.joint_space import LEVER
from robots.config import Count, Positive, Share, config
from robots.contract import Contract, Precision
from robots.control.actions import CartesianDelta, JointDelta, StepSpace
from robots.franka import find_robot
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol

TOLERANCES: Mapping[Precision, float] = MappingProxyType(
    {"float32": 1e-5, "float16": 1e-2, "int8": 5e-2}
)
"""Largest difference by export in each precision [normalised action units]. In float32 only the
order of sums differs; half precision and 8 bits round every product, by 0.05 % and 0.4 % of the
largest entry. What that costs in closed loop, the played episodes say."""
SENSORS_TOLERANCE = 1e-4
"""Largest difference by export in float32 of a policy with cameras or point clouds [normalised
action units]: a picture passes fifty layers, each of which sums hundreds of products in an order
of its own."""

POSITION_TRACKING_M = 0.02
"""Largest root mean square distance between streamed and measured position [m]."""


@config
class SpecificationLimit:
    """Share of the episodes that must satisfy a specification."""

    min_share: Share = 0.8
    """Smallest lower end of the interval of the share (Wilson); 20 of 20 episodes have 0.84, and
    200 of 200 have 0.98."""


@config
class TwinLimits:
    """Limits of the episodes that the exported policy played at the twin."""

    min_success: Share = 0.5
    """Smallest lower end of the interval of the success rate."""
    max_faults: Share = 0.1
    """Largest share of starts that a limit or the robot ended."""
    tracking_rms_m: Positive | None = None
    """Largest root mean square distance between streamed and measured position in any start [m];
    None takes `POSITION_TRACKING_M` for streamed positions. Steps keep their target ahead of the
    arm by up to the leash, and have its length as their limit; a turn of a joint counts 0.2 m per
    radian."""
    torque_rate_share: Share = 0.9
    """Largest rate of change of the commanded joint torques, as a share of the robot's limit."""
    contact_share: Share = 0.9
    """Largest external joint torque of a start without a fault, as a share of the threshold at
    which the robot stops."""
    specifications: dict[str, SpecificationLimit] = field(default_factory=dict)
    """Shares of the starts that must satisfy specifications of the stage `deploy`, by name."""


@config
class GateConfig:
    """Conditions of a release. The defaults are the loosest limits that a real arm accepts."""

    tolerance: Positive | None = None
    """Largest absolute difference between the actions of ONNX Runtime and those of training on the
    golden examples [normalised action units]; None takes `TOLERANCES` of the contract's precision,
    and `SENSORS_TOLERANCE` for a policy in float32 with cameras or point clouds."""
    period_share: Share = 0.5
    """Largest 99th percentile of the time of one inference, as a share of the control period."""
    p99_ms: Positive | None = None
    """Largest 99th percentile of the time of one inference [ms], where it is below that of
    `period_share`; None leaves it to `period_share`."""
    min_speedup: Positive | None = None
    """Smallest ratio of the median inference time of the input `reference` to the bundle's; None
    requires none."""
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    """Measurement of the inference time."""
    protocol: Protocol = field(default_factory=push_t_published)
    """Task, start states and rules of the episodes that the exported policy plays."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Environments, videos and confidence of those episodes."""
    min_success: Share = 0.5
    """Smallest lower end of the interval of the success rate (Wilson)."""
    margin: Share = 0.1
    """Largest loss to the trained policy, its teacher, the teacher in one step and the incumbent:
    the lower end of the paired difference must be above minus this margin [units of the
    protocol's score]."""
    specifications: dict[str, SpecificationLimit] = field(default_factory=dict)
    """Shares of the played episodes that must satisfy specifications of `evaluate`, by name."""
    repeated: Count = 4
    """Number of episodes that are played twice, and must be equal to the bit."""
    incumbent: str = ""
    """Folder of the bundle or release that this one replaces, or of its gate; empty if it is the
    first."""
    twin: TwinLimits | None = field(default_factory=TwinLimits)
    """Limits of the episodes at the twin, the input `twin`; null waives them, which a real arm
    refuses."""


_SMALLER_IS_LOOSER = ("min_success", "repeated")
_LARGER_IS_LOOSER = (
    "tolerance",
    "period_share",
    "margin",
    "max_faults",
    "tracking_rms_m",
    "torque_rate_share",
    "contact_share",
)


def tracking_limit(limits: TwinLimits, steps: StepSpace | None) -> float:
    """Largest distance between streamed and measured position [m].

    Args:
        limits: limits at the twin.
        steps: steps of the policy's actions; None for streamed positions.
    """
    if limits.tracking_rms_m is not None:
        return limits.tracking_rms_m
    if steps is None:
        return POSITION_TRACKING_M
    if isinstance(steps, CartesianDelta):
        return steps.leash_translation * sum(axis in ("x", "y", "z") for axis in steps.axes) ** 0.5
    joints = find_robot(FrankaConfig().robot).num_joints
    leashes = (steps.leash,) * joints if isinstance(steps, JointDelta) else steps.leash
    return LEVER * math.hypot(*leashes)


def tolerance(settings: GateConfig, contract: Contract) -> float:
    """Largest difference by the export of a policy [normalised action units]."""
    if settings.tolerance is not None:
        return settings.tolerance
    usual = TOLERANCES[contract.precision]
    return max(usual, SENSORS_TOLERANCE) if contract.sensors else usual


def looser(settings: GateConfig, contract: Contract) -> list[str]:
    """Names the limits that are looser than the defaults, with both values; a real arm refuses a
    bundle that was released under such limits.

    Args:
        settings: the limits.
        contract: of the bundle, whose precision, sensors and steps decide defaults.
    """
    return [*_looser("", _stated(settings, contract), _stated(GateConfig(), contract))]


def _stated(settings: GateConfig, contract: Contract) -> GateConfig:
    """The limits with those in place of None that the bundle's contract gives."""
    twin = settings.twin
    if twin is not None:
        twin = replace(twin, tracking_rms_m=tracking_limit(twin, contract.steps))
    return replace(settings, tolerance=tolerance(settings, contract), twin=twin)


def _looser(prefix: str, given: Any, default: Any) -> Iterator[str]:
    for entry in fields(given):
        value, usual = getattr(given, entry.name), getattr(default, entry.name)
        name = prefix + entry.name
        if entry.name == "twin" and value is None:
            yield f"{name} is waived"
        elif entry.name == "twin":
            yield from _looser("twin.", value, usual)
        elif _is_looser(entry.name, value, usual):
            yield f"{name} is {value:g}, default {usual:g}"


def _is_looser(name: str, value: Any, usual: Any) -> bool:
    if name in _SMALLER_IS_LOOSER:
        return value < usual
    return name in _LARGER_IS_LOOSER and value > usual

"""Defines the options of this package."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from robots.config import Count, Finite, NonNegative, Positive, Seed, Whole, config
from robots.control.impedance import ImpedanceGains
from robots.franka import RobotName
from sim.scene.dynamics import DynamicsQuantity, DynamicsValue, quantity_name


@config
class Parameter:
    """One tunable parameter of the simulated arm and its range."""

    what: DynamicsQuantity
    """Quantity of the parameter. stiffness, damping: gains of the impedance law, as factors of
    `TrackingConfig.gains`. viscous, friction: joint friction, proportional to velocity [Nm s/rad]
    and constant [Nm]. armature: reflected rotor inertia [kg m^2]. payload: mass between the
    fingertips [kg]. delay: delay of all targets [s]."""
    joints: tuple[Whole, ...] = ()
    """Numbers, from 1, of the joints that share the value; empty for all joints. Ignored for
    payload and delay."""
    low: Finite
    """Lower bound, in the unit of `UNITS`."""
    high: Finite
    """Upper bound, in the unit of `UNITS`."""
    log: bool = False
    """Whether the search is uniform in the logarithm, suitable for factors."""

    @property
    def name(self) -> str:
        """Name in reports, such as `stiffness of joint 2`."""
        return quantity_name(self.what, self.joints)


@config
class SharedParameters:
    """One value of stiffness, damping, friction and armature for all joints, the payload and the
    delay."""

    kind: Literal["shared"] = "shared"
    """Choice of parameters."""


@config
class PerJointParameters:
    """Stiffness, damping, friction and armature of every joint, the payload and the delay; the
    gains of single joints need environments with joint actions."""

    kind: Literal["per_joint"] = "per_joint"
    """Choice of parameters."""


@config
class ListedParameters:
    """Parameters listed one by one."""

    kind: Literal["listed"] = "listed"
    """Choice of parameters."""
    items: tuple[Parameter, ...]
    """The parameters with their ranges."""


ParameterSet = Annotated[
    SharedParameters | PerJointParameters | ListedParameters, Field(discriminator="kind")
]


@config
class TrackingConfig:
    """Simulated arm whose parameters are tuned."""

    robot: RobotName = "fr3"
    """Name of the arm."""
    gains: ImpedanceGains = ImpedanceGains()
    """Gains of the robot's controller in the recording, to which factors refer."""
    gripper: bool = True
    """Whether the robot's gripper is mounted."""
    payload_compensated: bool = False
    """Whether the robot compensates the payload's weight; then only its inertia has an effect."""
    timestep: Positive = 0.005
    """Maximum physics step [s], that of the environments that will use the result."""
    threads: Count = 1
    """Number of physics threads, which does not affect the results."""
    batch: Count = 64
    """Number of parameter sets simulated together, which bounds memory."""


@config
class RandomSearch:
    """The paper's search: sets drawn uniformly within the ranges, of which the best is kept."""

    kind: Literal["random"] = "random"
    """Choice of the algorithm."""
    samples: Annotated[int, Field(ge=2)] = 1000
    """K, number of parameter sets."""


@config
class CrossEntropySearch:
    """A random search, then rounds of the cross-entropy method around its best sets, then
    Gauss-Newton steps."""

    kind: Literal["cross_entropy"] = "cross_entropy"
    """Choice of the algorithm."""
    samples: Annotated[int, Field(ge=2)] = 1000
    """Number of parameter sets of the random search."""
    rounds: Annotated[int, Field(ge=0)] = 5
    """Rounds of the cross-entropy method; 0 skips them."""
    round_samples: Annotated[int, Field(ge=1)] = 200
    """Number of parameter sets per round."""
    elites: Annotated[int, Field(ge=2)] = 20
    """Number of best sets from which a round takes its mean and standard deviation."""
    polish: Annotated[int, Field(ge=0)] = 8
    """Maximum number of Gauss-Newton steps; 0 skips them."""


SearchAlgorithm = Annotated[RandomSearch | CrossEntropySearch, Field(discriminator="kind")]


@config
class TuneConfig:
    """Search for the parameters, and the simulated arm."""

    algorithm: SearchAlgorithm = CrossEntropySearch()
    """Algorithm of the search."""
    keep: Annotated[int, Field(ge=1)] = 10
    """Number of best sets whose standard deviation is reported."""
    seed: Seed = 0
    """Seed of the search."""
    noise_floor: Annotated[float, Field(gt=0.0)] = 2e-5
    """Minimum standard deviation of a measured position for the intervals [rad]; our choice, a
    fifth of the angle of one joint that corresponds to 0.1 mm at a reach of 1 m (the arm's
    published repeatability)."""
    profile_points: Annotated[int, Field(ge=0)] = 9
    """Number of values per parameter at which the error's profile is computed; 0 skips the
    profiles."""
    tracking: TrackingConfig = TrackingConfig()
    """Replay of the recorded motion in simulation."""


@config
class MotionsConfig:
    """Exciting motions of an arm: sums of sines in every joint."""

    robot: RobotName = "fr3"
    """Name of the arm."""
    motions: Annotated[int, Field(ge=1)] = 4
    """Number of recorded motions."""
    seconds: Annotated[float, Field(ge=1.0)] = 8.0
    """Duration of a motion [s]."""
    rate_hz: Annotated[float, Field(gt=0.0)] = 100.0
    """Samples per second, which is also the rate of the targets."""
    harmonics: Annotated[int, Field(ge=1)] = 5
    """Number of sines per joint, of periods `seconds`, `seconds` / 2, and so on."""
    amplitude: Annotated[float, Field(gt=0.0)] = 0.5
    """Largest distance of a joint from the ready posture [rad]."""
    limit_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Largest speed and acceleration, as a fraction of the robot's limits."""
    clearance: Annotated[float, Field(ge=0.0)] = 0.15
    """Smallest height of every joint's frame and of the fingertips above the table [m]."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the motions and of the noise."""


@config
class ExcitationConfig(MotionsConfig):
    """Exciting motions of a simulated arm, recorded as a real one's would be."""

    noise: Annotated[float, Field(ge=0.0)] = 1e-4
    """Standard deviation of the measured positions [rad]."""
    deviations: tuple[DynamicsValue, ...] = ()
    """Values in which the recorded arm differs from the robot's model; without any, tuning should
    find the model's own."""
    gains: ImpedanceGains = ImpedanceGains()
    """Gains of the arm's joint controller."""
    gripper: bool = True
    """Whether the robot's gripper is mounted."""
    payload_compensated: bool = False
    """Whether the arm compensates the payload's weight; then only its inertia has an effect."""


@config
class TuneStoreConfig(TuneConfig):
    """Parameters of the simulated arm that are fitted to a store of recorded motions."""

    parameters: ParameterSet = SharedParameters()
    """Parameters to tune; all others keep the model's own values."""
    stream: str = "robot"
    """Stream of the recordings, with the measured joint positions `q` (J,) [rad] and optionally the
    velocities `dq`."""
    target: str = "q_d"
    """Field of the commanded joint positions (J,) [rad]. `q_d` of a real arm is the command only if
    its own joint controller tracked it."""
    rate_hz: Annotated[float, Field(gt=0.0)] = 100.0
    """Rate to which recordings are thinned, a whole fraction of the stream's."""
    spread: NonNegative = 0.0
    """Half width of the interval from which every episode of later stages draws a value, in half
    widths of its 95 % interval and within the range of the parameter; 0 takes the tuned value in
    all episodes."""
    held_out: Annotated[int, Field(ge=0)] = 1
    """Number of recordings, the last ones, that are not fitted; their tracking error is
    reported."""

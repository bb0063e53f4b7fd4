"""Defines the record of a deployed episode, and writes it to a store while the episode runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from real.franka.state_recorder import StateRecorder, robot_fields
from real.motion.stream import StreamConfig
from robots.contract import Contract
from robots.episodes.running_episode import EpisodeSink
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.franka.robot import Robot
from robots.interfaces import Label
from robots.signals import delayed_signals
from robots.spec import FieldSpec, is_immutable

if TYPE_CHECKING:
    from robots.episodes.store import EpisodeStore

_ROBOT_MEANING = {
    "time": ("s", "", "robot time since the episode began"),
    "q": ("rad", "", "measured joint positions JOINTS"),
    "dq": ("rad/s", "", "measured joint velocities JOINTS"),
    "q_d": ("rad", "", "desired joint positions JOINTS"),
    "tau_J": ("Nm", "", "measured joint torques JOINTS, gravity included"),
    "tau_J_d": ("Nm", "", "commanded joint torques JOINTS, without gravity"),
    "tau_ext": ("Nm", "", "estimated external joint torques JOINTS, filtered"),
    "base_T_ee": ("m", "base", "measured pose of the pusher's tip, homogeneous"),
    "success_rate": ("1", "", "share of the last 100 control commands that arrived in time"),
}
_REFERENCE_MEANING = {
    "position": ("m", "target streamed to the impedance"),
    "velocity": ("m/s", "velocity streamed with it"),
    "asked": ("m", "what the agent's dynamics asked for, before the governor"),
    "measured": ("m", "the pusher at the end of the tick"),
}


PERSON = {
    "intervention": FieldSpec(shape=(), dtype="uint8", about="1 where a person acted"),
    "segment": FieldSpec(
        shape=(), dtype="int32", about="number of the takeover in the episode, -1 without one"
    ),
    "reason": FieldSpec(
        shape=(), dtype="uint8", about="of the takeover, see robots.interfaces.Reason"
    ),
    "step_time": FieldSpec(
        shape=(),
        dtype="float64",
        unit="s",
        about="robot time since the episode began",
        role="other",
    ),
}
"""Further fields of the stream `policy` in a supervised episode. Its rate is then nominal and
`step_time` exact: no step is made while the arm holds still, and a step is cut short when the
person takes the arm over or gives it back."""


_FORGOTTEN = np.zeros(0)
"""Stands in the rows of a record for a picture that is on the disk."""


@dataclass
class LoopRecord:
    """Everything that the loop records of an episode, up to a fault if there was one."""

    policy: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """One row per policy step: the observation, `action` as executed, `action_proposed`; in a
    supervised episode also the fields of `PERSON`. Pictures are empty once they are written."""
    reference: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """One row per stream tick: `position` and `velocity` as streamed, the requested position
    `asked` before the governor, and the `measured` position at the end of the tick."""
    begin: float = 0.0
    """Robot time of the first policy step [s]."""
    end: float = 0.0
    """Robot time of the newest state [s]."""
    inference_ms: list[float] = field(default_factory=list)
    """Host time of every inference [ms]."""
    stopped: bool = False
    """Whether the stop condition ended the episode."""
    label: Label = Label.NONE
    """The person's label, which ended the episode."""
    labelled_by: str = ""
    """Name of the person who gave it; empty if it is not known, or nobody did."""
    held: float = 0.0
    """Robot time for which the person held the arm still [s]."""
    people: set[str] = field(default_factory=set)
    """Names of the people who had the arm."""
    beside: set[str] = field(default_factory=set)
    """Names of those who had control at the console, whoever moved the arm."""
    specifications: dict[str, float] = field(default_factory=dict)
    """Robustness of every specification of the loop, up to the end of the episode or a fault."""
    write: Callable[[], None] = lambda: None
    """Called once per policy period, between the sending of a target and the end of its tick;
    writes what is new."""


def deploy_schema(
    contract: Contract,
    extra: Mapping[str, FieldSpec],
    stream: StreamConfig,
    robot: Robot,
    frame: str = "board",
    *,
    supervised: bool = False,
    coordinates: int | None = None,
) -> EpisodeSchema:
    """Streams of a deployed episode.

    Args:
        contract: contract of the policy; its observation fields and action become the stream
            `policy`, with `action` as executed and `action_proposed` as the policy returned it.
        extra: further fields that `observe` returns at every policy step.
        stream: rate and limits of the stream `reference`, whose guards are recorded with it; the
            stream `robot` has 1000 Hz.
        robot: the arm.
        frame: frame of positions.
        supervised: whether a person supervises; their interventions become fields of the stream
            `policy`.
        coordinates: number D of coordinates of the space in which steps move a gripper's target
            (`real.motion.action_space`); None for a pusher on a board, whose actions are targets.
    """
    action, tool = ("target", "pusher") if coordinates is None else ("step", "hand")
    shape = contract.action.shape if coordinates is None else (coordinates,)
    executed = FieldSpec(
        shape=contract.action.shape,
        unit=contract.action.unit,
        frame=contract.action.frame,
        about=f"{action} as executed",
        names=contract.action.names,
        interface=contract.action_interface,
        role="action",
    )
    proposed = FieldSpec(
        shape=contract.action.shape,
        unit=contract.action.unit,
        frame=contract.action.frame,
        about=f"{action} as the policy gave it",
        names=contract.action.names,
        interface=contract.action_interface,
        role="action",
    )
    policy = {**contract.observation, **extra, "action": executed, "action_proposed": proposed}
    policy |= PERSON if supervised else {}
    reference = {
        name: FieldSpec(shape=shape, unit=unit, frame=frame, about=about.replace("pusher", tool))
        for name, (unit, about) in _REFERENCE_MEANING.items()
    }
    return EpisodeSchema(
        name=contract.task,
        streams={
            "policy": StreamSpec(rate_hz=contract.rate_hz, fields=policy),
            "reference": StreamSpec(
                rate_hz=stream.stream_hz, fields={**reference, **stream.monitored()}
            ),
            "robot": StreamSpec(rate_hz=1000.0, fields=_robot_states(robot, tool)),
        },
        robot=robot.config_name,
    )


def _robot_states(robot: Robot, tool: str) -> dict[str, FieldSpec]:
    shapes = robot_fields(robot.num_joints)
    return {
        name: FieldSpec(
            shape=shapes[name],
            dtype="float64",
            unit=unit,
            frame=frame,
            about=about.replace("pusher", tool).replace("JOINTS", f"1..{robot.num_joints}"),
        )
        for name, (unit, frame, about) in _ROBOT_MEANING.items()
    }


class RecordWriter:
    """Writes the rows of a running episode to an `EpisodeSink`, each of them once and in order.

    Args:
        record: record that `run_episode` fills.
        sink: episode of a store with a schema by `deploy_schema`.
    """

    def __init__(self, record: LoopRecord, sink: EpisodeSink) -> None:
        self._record = record
        self._sink = sink
        self._written = {"policy": 0, "reference": 0, "robot": 0}
        self._next_state = 0

    def write(self, recorder: StateRecorder) -> None:
        """Writes the rows that were completed and the states that arrived since the last call.

        A signal waits until it returns, so that none leads to rows that are written twice.

        Raises:
            HandoffError: fields that differ from the schema, or a disk that cannot be written.
        """
        record = self._record
        with delayed_signals():
            self._write_rows("policy", record.policy)
            self._write_rows("reference", record.reference)
            last = recorder.count(record.end)
            first = max(self._next_state, recorder.count(record.begin))
            if first < last:
                self._write_states(recorder, first, last)

    def commit(
        self,
        recorder: StateRecorder,
        metadata: Mapping[str, Any],
        into: EpisodeStore | None = None,
    ) -> int:
        """Writes the rest, commits the episode and returns its number.

        Args:
            recorder: recorder of the robot's states. If none has arrived since the beginning, the
                newest one before is written.
            metadata: JSON-ready metadata, such as seed, host and outcome; whether the arm was
                stopped is added.
            into: another store, see `EpisodeSink.commit`.

        Raises:
            HandoffError: see `write`; or no state has arrived at all.
        """
        self.write(recorder)
        last = recorder.count(self._record.end)
        if not self._written["robot"] and last:
            self._write_states(recorder, last - 1, last)
        return self._sink.commit({**metadata, "stopped": self._record.stopped}, into)

    def discard(self) -> None:
        """Drops the episode."""
        self._sink.discard()

    def _write_rows(self, stream: str, rows: Mapping[str, list[np.ndarray]]) -> None:
        first, last = self._written[stream], num_rows(rows)
        if first < last:
            self._sink.extend(stream, whole_rows(rows, first, last))
            self._written[stream] = last
            _forget_pictures(rows, first, last)

    def _write_states(self, recorder: StateRecorder, first: int, last: int) -> None:
        states = recorder.rows(first, last)
        # Rounded to the clock's 1 ms; otherwise the last bits would depend on when the robot was
        # switched on.
        states["time"] = np.round(states["time"] - self._record.begin, 3)
        self._sink.extend("robot", states)
        self._next_state = last
        self._written["robot"] += last - first


def _forget_pictures(rows: Mapping[str, list[np.ndarray]], first: int, last: int) -> None:
    """Frees the memory of written pictures; the outcome of an episode needs the small fields
    alone."""
    for values in rows.values():
        if values[first].ndim > 1:
            for row in range(first, last):
                values[row] = _FORGOTTEN


def add_row(rows: dict[str, list[np.ndarray]], row: Mapping[str, Any]) -> None:
    """Adds one row of all fields; an interrupt inside leaves a last row that `num_rows` does not
    count."""
    if not rows:
        # All at once, so that a first row without some fields is incomplete, too.
        rows.update({name: [] for name in row})
    for name, value in row.items():
        kept = isinstance(value, np.ndarray) and is_immutable(value)
        rows.setdefault(name, []).append(value if kept else np.array(value))


def num_rows(rows: Mapping[str, Sequence[np.ndarray]]) -> int:
    """Number of rows of which every field is there."""
    return min(map(len, rows.values()), default=0)


def whole_rows(
    rows: Mapping[str, Sequence[np.ndarray]], first: int = 0, last: int | None = None
) -> dict[str, np.ndarray]:
    """(T, ...) per field: rows `first` to `last`, exclusive, of at least one; None is all whole
    rows. A single row is not copied."""
    last = num_rows(rows) if last is None else last
    if last == first + 1:
        return {name: values[first][None] for name, values in rows.items()}
    return {name: np.stack(values[first:last]) for name, values in rows.items()}


def tracking_figures(
    record: LoopRecord, robot: Mapping[str, np.ndarray], period: float
) -> dict[str, float]:
    """JSON-ready figures of the arm's tracking.

    Args:
        record: record of the loop.
        robot: states of the robot during it, at 1 kHz.
        period: stream period [s].

    Returns:
        `tracking_rms_m` and `tracking_max_m` (streamed against measured), `governor_max_m`
        (requested against streamed), `jerk_rms_m_s3` of the streamed position, `peak_speed_m_s` of
        the end effector,
        `peak_joint_speed_rad_s`, `peak_tau_ext_nm`, `min_success_rate`; with a force guard
        `peak_external_force_n`, with an energy tank `min_tank_energy_j`.
    """
    reference = whole_rows(record.reference)
    position = reference["position"]
    error = np.linalg.norm(position - reference["measured"], axis=1)
    held_back = np.linalg.norm(reference["asked"] - position, axis=1)
    jerk = np.diff(position, n=3, axis=0) / period**3
    step = np.linalg.norm(np.diff(robot["base_T_ee"][:, :3, 3], axis=0), axis=1)
    guarded = {}
    if "wrench_ext" in reference:
        force = np.linalg.norm(reference["wrench_ext"][:, :3], axis=1)
        guarded["peak_external_force_n"] = float(force.max())
    if "tank_energy" in reference:
        guarded["min_tank_energy_j"] = float(reference["tank_energy"].min())
    return {
        **guarded,
        "tracking_rms_m": float(np.sqrt(np.mean(error**2))),
        "tracking_max_m": float(error.max()),
        "governor_max_m": float(held_back.max()),
        "jerk_rms_m_s3": float(np.sqrt((jerk**2).sum(axis=1).mean())) if len(jerk) else 0.0,
        "peak_speed_m_s": float(step.max(initial=0.0) * 1000.0),
        "peak_joint_speed_rad_s": float(np.abs(robot["dq"]).max()),
        "peak_tau_ext_nm": float(np.abs(robot["tau_ext"]).max()),
        "min_success_rate": float(robot["success_rate"].min()),
    }

"""A deployed episode in an `EpisodeStore`: what the policy saw and asked, what was streamed, what
the robot did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from real.deploy.loop import EpisodeRecord
from real.franka.state_recorder import ROBOT_FIELDS
from robots.contract import Contract
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

_ROBOT_MEANING = {
    "time": ("s", "", "robot time since the episode began"),
    "q": ("rad", "", "measured joint positions 1..7"),
    "dq": ("rad/s", "", "measured joint velocities 1..7"),
    "q_d": ("rad", "", "desired joint positions 1..7"),
    "tau_J": ("Nm", "", "measured joint torques 1..7, gravity included"),
    "tau_J_d": ("Nm", "", "commanded joint torques 1..7, without gravity"),
    "tau_ext": ("Nm", "", "estimated external joint torques 1..7, filtered"),
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
    ),
}
"""Fields of the stream `policy` where a person watches. Its rate is then nominal, `step_time`
exact: no step is made while the arm is held, and a step is cut short where the arm changes
hands."""


def deploy_schema(
    contract: Contract,
    extra: Mapping[str, FieldSpec],
    stream_hz: float,
    frame: str = "board",
    *,
    overseen: bool = False,
    coordinates: int | None = None,
) -> EpisodeSchema:
    """Streams of a deployed episode.

    Args:
        contract: of the policy; its observation fields and action become the stream `policy`, with
            `action` as executed and `action_proposed` as the policy gave it.
        extra: what else `observe` returns at every policy step.
        stream_hz: rate of the stream `reference`. The stream `robot` has 1000 Hz.
        frame: that positions are expressed in.
        overseen: a person watches; their interventions become fields of the stream `policy`.
        coordinates: D of the space in which steps move the target of a hand
            (`real.deploy.action_space`); None: a pusher on a board, whose actions are targets.
    """
    what, tool = ("target", "pusher") if coordinates is None else ("step", "hand")
    shape = contract.action.shape if coordinates is None else (coordinates,)
    executed = FieldSpec(
        shape=contract.action.shape,
        unit=contract.action.unit,
        frame=contract.action.frame,
        about=f"{what} as executed",
    )
    proposed = FieldSpec(
        shape=contract.action.shape,
        unit=contract.action.unit,
        frame=contract.action.frame,
        about=f"{what} as the policy gave it",
    )
    policy = {**contract.observation, **extra, "action": executed, "action_proposed": proposed}
    policy |= PERSON if overseen else {}
    reference = {
        name: FieldSpec(shape=shape, unit=unit, frame=frame, about=about.replace("pusher", tool))
        for name, (unit, about) in _REFERENCE_MEANING.items()
    }
    robot = {
        name: FieldSpec(
            shape=ROBOT_FIELDS[name],
            dtype="float64",
            unit=unit,
            frame=frame_,
            about=about.replace("pusher", tool),
        )
        for name, (unit, frame_, about) in _ROBOT_MEANING.items()
    }
    return EpisodeSchema(
        name=contract.task,
        streams={
            "policy": StreamSpec(rate_hz=contract.rate_hz, fields=policy),
            "reference": StreamSpec(rate_hz=stream_hz, fields=reference),
            "robot": StreamSpec(rate_hz=1000.0, fields=robot),
        },
    )


def append_episode(
    store: EpisodeStore,
    record: EpisodeRecord,
    robot: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
) -> int:
    """Appends one episode to a store made with `deploy_schema`.

    Args:
        store: open for appending.
        record: of `run_episode`.
        robot: of `FlightRecorder.between(record.begin, record.end)`; its times are stored relative
            to the beginning.
        metadata: JSON-ready; seed, host, outcome. Host times of the inferences are added.

    Returns:
        The episode's index.

    Raises:
        HandoffError: fields that differ from the schema.
    """
    streams = {
        "policy": whole_rows(record.policy),
        "reference": whole_rows(record.reference),
        # Rounded to the clock's 1 ms, or the last bits would tell when the robot was switched on.
        "robot": {**robot, "time": np.round(robot["time"] - record.begin, 3)},
    }
    added = {
        "stopped": record.stopped,
        "inference_ms": [round(value, 3) for value in record.inference_ms],
    }
    return store.append(streams, {**metadata, **added})


def whole_rows(rows: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    """(T, ...) per field. A last row that an interrupt has left without some of its fields is left
    out."""
    length = min(map(len, rows.values()))
    return {name: np.stack(values[:length]) for name, values in rows.items()}


def tracking_figures(record: EpisodeRecord, robot: Mapping[str, np.ndarray]) -> dict[str, float]:
    """JSON-ready figures of how well the arm followed.

    Returns:
        `tracking_rms_m` and `tracking_max_m` (streamed against measured), `governor_max_m` (asked
        against streamed), `peak_speed_m_s` of the end effector, `peak_joint_speed_rad_s`,
        `peak_tau_ext_nm`, `min_success_rate`.
    """
    reference = whole_rows(record.reference)
    position, measured, asked = (reference[name] for name in ("position", "measured", "asked"))
    error = np.linalg.norm(position - measured, axis=1)
    step = np.linalg.norm(np.diff(robot["base_T_ee"][:, :3, 3], axis=0), axis=1)
    return {
        "tracking_rms_m": float(np.sqrt(np.mean(error**2))),
        "tracking_max_m": float(error.max()),
        "governor_max_m": float(np.linalg.norm(asked - position, axis=1).max()),
        "peak_speed_m_s": float(step.max(initial=0.0) * 1000.0),
        "peak_joint_speed_rad_s": float(np.abs(robot["dq"]).max()),
        "peak_tau_ext_nm": float(np.abs(robot["tau_ext"]).max()),
        "min_success_rate": float(robot["success_rate"].min()),
    }

"""Real-to-sim tuning, on a "real" robot that is the same simulator with hidden parameters."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.config import validate
from robots.control.actions import JointTarget
from robots.control.impedance import ImpedanceGains
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.kinematics import batched_jacobian
from robots.spec import FieldSpec
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.identification.config import (
    CrossEntropySearch,
    Parameter,
    RandomSearch,
    TrackingConfig,
    TuneConfig,
)
from sim.identification.identifiability import analyse, correlation_inflation
from sim.identification.parameters import (
    nominal_values,
    per_joint,
    to_values,
    write_parameters,
)
from sim.identification.recordings import Recording, check_recordings, read_recordings
from sim.identification.report import to_json, write_tuning
from sim.identification.tracking import Tracking
from sim.identification.tune import Tuning, tune
from sim.make import find_task

FR3 = find_robot("fr3")
Q_HOME = FR3.q_home
RATE = 100.0
STIFFNESS = Parameter(what="stiffness", low=0.5, high=2.0, log=True)
DAMPING = Parameter(what="damping", low=0.5, high=2.0, log=True)
FRICTION = Parameter(what="friction", low=0.0, high=2.0)
PAYLOAD = Parameter(what="payload", low=0.0, high=2.0)
DELAY = Parameter(what="delay", low=0.0, high=0.04)
HIDDEN = {STIFFNESS: 1.3, DAMPING: 0.8, FRICTION: 0.7, PAYLOAD: 0.9, DELAY: 0.017}


def quick(
    *, profile_points: int = 0, tracking: TrackingConfig | None = None, **search: Any
) -> TuneConfig:
    """A search of few sets."""
    return TuneConfig(
        algorithm=CrossEntropySearch(**search),
        profile_points=profile_points,
        tracking=tracking or TrackingConfig(),
    )


QUICK = quick(samples=60, rounds=1, round_samples=20, elites=8, polish=6, profile_points=0)


def sines(seed: int, seconds: float = 1.5, amplitude: float = 0.3, hz: float = 0.7) -> np.ndarray:
    """(T, 7) every joint on a sine of its own, from the ready posture."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE))[:, None] / RATE
    phase, rate = rng.uniform(0, 6, 7), hz * rng.uniform(0.7, 1.5, 7)
    return Q_HOME + amplitude * (np.sin(2 * np.pi * rate * time + phase) - np.sin(phase))


def record(
    hidden: dict[Parameter, float],
    targets: np.ndarray,
    noise: float = 0.0,
    tracking: TrackingConfig | None = None,
) -> Recording:
    """What the real robot does: the simulator with the hidden values, and noise [rad] on its
    encoders."""
    still = Recording(targets, targets, RATE)
    values = np.array([list(hidden.values())])
    q = Tracking([still], tuple(hidden), tracking or TrackingConfig()).positions(values)[0][0]
    return Recording(targets, q + noise * np.random.default_rng(9).standard_normal(q.shape), RATE)


def truth_error(recording: Recording) -> float:
    values = np.array([list(HIDDEN.values())])
    return float(Tracking([recording], tuple(HIDDEN), TrackingConfig()).errors(values).mean())


@pytest.fixture(scope="module")
def noisy() -> Recording:
    return record(HIDDEN, sines(0), noise=1e-3)


@pytest.fixture(scope="module")
def tuning(noisy: Recording) -> Tuning:
    return tune([noisy], tuple(HIDDEN), QUICK)


def test_with_noise_the_best_set_tracks_within_5_percent_of_the_hidden_one(
    tuning: Tuning, noisy: Recording
) -> None:
    assert tuning.mse <= 1.05 * truth_error(noisy)
    assert tuning.mse < 0.01 * tuning.nominal_mse


def test_without_noise_the_best_set_tracks_to_the_floor() -> None:
    assert tune([record(HIDDEN, sines(0))], tuple(HIDDEN), QUICK).mse < 1e-8


def test_of_the_random_search_the_median_and_the_worst_set_are_clearly_worse(
    noisy: Recording,
) -> None:
    search = TuneConfig(algorithm=RandomSearch(samples=100), profile_points=0)
    errors = tune([noisy], tuple(HIDDEN), search).sampled_mse
    assert len(errors) == 100
    assert errors[0] < 0.25 * np.median(errors)
    assert np.median(errors) < 0.25 * errors[-1]


def test_rounds_and_polish_improve_on_the_random_search(tuning: Tuning, noisy: Recording) -> None:
    search = TuneConfig(algorithm=RandomSearch(samples=60), profile_points=0)
    assert tuning.mse < tuning.sampled_mse[0] < tune([noisy], tuple(HIDDEN), search).mse


def test_targets_shuffled_in_time_cannot_be_fitted(noisy: Recording) -> None:
    order = np.random.default_rng(0).permutation(len(noisy.target))
    assert tune(
        [noisy._replace(target=noisy.target[order])], tuple(HIDDEN), QUICK
    ).mse > 100 * truth_error(noisy)


def test_targets_of_another_recording_cannot_be_fitted(noisy: Recording) -> None:
    assert tune([noisy._replace(target=sines(1))], tuple(HIDDEN), QUICK).mse > 100 * truth_error(
        noisy
    )


def test_hidden_values_are_determined_and_within_their_intervals(tuning: Tuning) -> None:
    assert tuning.report.determined.all()
    assert tuning.report.open_directions == ()
    for (low, high), hidden in zip(tuning.intervals, HIDDEN.values(), strict=True):
        assert low < hidden < high


def test_a_compensated_payload_in_slow_motion_is_reported_as_not_determined() -> None:
    compensated = TrackingConfig(payload_compensated=True)
    hidden = {STIFFNESS: 1.3, PAYLOAD: 0.9}
    slow = record(hidden, sines(0, hz=0.05), noise=1e-3, tracking=compensated)
    config = quick(samples=30, rounds=0, profile_points=0, tracking=compensated)
    tuning = tune([slow], tuple(hidden), config)
    assert tuning.report.determined.tolist() == [True, False]
    assert [d.about for d in tuning.report.open_directions] == ["payload is not determined"]
    assert "NOT determined" in tuning.lines()[2]
    assert "NOT determined" not in tuning.lines()[1]


def test_a_payload_whose_weight_is_felt_is_determined_by_the_same_slow_motion() -> None:
    hidden = {STIFFNESS: 1.3, PAYLOAD: 0.9}
    slow = record(hidden, sines(0, hz=0.05), noise=1e-3)
    tuning = tune([slow], tuple(hidden), quick(samples=30, rounds=0, profile_points=0))
    assert tuning.report.determined.all()
    low, high = tuning.intervals[1]
    assert low < 0.9 < high
    assert high - low < 0.1


def test_two_names_for_the_damping_of_one_joint_are_reported_as_a_trade_off() -> None:
    hidden = {
        Parameter(what="damping", joints=(2,), low=0.5, high=2.0): 1.1,
        Parameter(what="viscous", joints=(2,), low=0.0, high=60.0): 20.0,
    }
    tuning = tune(
        [record(hidden, sines(0), noise=1e-3)],
        tuple(hidden),
        quick(samples=30, rounds=0, profile_points=5),
    )
    assert not tuning.report.determined.any()
    assert tuning.report.condition > 1e4
    words = tuning.report.open_directions[0].about
    assert "damping of joint 2" in words
    assert "viscous of joint 2" in words
    assert "trade off" in words
    # Along the trade-off the error stays: 50 Nm s/rad of the gain's damping are as good as 50 of
    # the joint's.
    assert tuning.report.profile[1, 2] < 1.05 * tuning.mse


def test_a_profile_is_lowest_beside_the_hidden_value() -> None:
    recording = record({STIFFNESS: 1.3, PAYLOAD: 0.9}, sines(0), noise=1e-3)
    tuning = tune([recording], (STIFFNESS, PAYLOAD), quick(samples=20, rounds=0, profile_points=5))
    at = to_values((PAYLOAD,), tuning.report.profile_at[:, None])[:, 0]
    np.testing.assert_allclose(at, [0.0, 0.5, 1.0, 1.5, 2.0])
    assert np.argmin(tuning.report.profile[1]) == 2
    assert (tuning.report.profile >= tuning.mse - 1e-15).all()


def test_the_same_seed_finds_the_same_values_in_any_batch(noisy: Recording) -> None:
    config = quick(samples=30, rounds=1, round_samples=10, elites=5, polish=1, profile_points=0)
    small = quick(
        samples=30,
        rounds=1,
        round_samples=10,
        elites=5,
        polish=1,
        profile_points=0,
        tracking=TrackingConfig(batch=7),
    )
    a, b = tune([noisy], tuple(HIDDEN), config), tune([noisy], tuple(HIDDEN), small)
    np.testing.assert_array_equal(a.values, b.values)
    np.testing.assert_array_equal(a.sampled_mse, b.sampled_mse)


def test_a_delay_of_two_samples_shifts_the_motion_by_two_samples() -> None:
    target = np.tile(Q_HOME, (80, 1))
    target[20:, 3] += 0.2
    tracking = Tracking([Recording(target, target, RATE)], (DELAY,), TrackingConfig())
    prompt, late = tracking.positions(np.array([[0.0], [0.02]]))[0]
    np.testing.assert_allclose(late[2:], prompt[:-2], atol=1e-9)
    assert np.abs(late - prompt).max() > 0.01


def test_an_uncompensated_payload_sags_by_its_torque_over_the_stiffness() -> None:
    target = np.tile(Q_HOME, (400, 1))
    target[0, 6] += 1e-3
    tracking = Tracking(
        [Recording(target, np.tile(Q_HOME, (400, 1)), RATE)], (PAYLOAD,), TrackingConfig()
    )
    sag = tracking.positions(np.array([[0.5]]))[0][0, -1] - Q_HOME
    positions, rotations = FR3.chain.batched_joint_frames(Q_HOME[None] + sag)
    grasp = positions[:, -1] + rotations[:, -1] @ [0.0, 0.0, FR3.gripper.tcp_offset]
    J = batched_jacobian(positions, rotations, grasp)[0]
    torque = J[2] * -9.81 * 0.5
    np.testing.assert_allclose(sag, torque / np.array(ImpedanceGains().joint_stiffness), atol=2e-5)
    assert np.abs(sag).max() > 3e-3


def test_another_robot_moves_by_its_own_masses() -> None:
    target = sines(0, seconds=0.5)
    still = [Recording(target, target, RATE)]
    of_fr3, of_panda = (
        Tracking(still, (PAYLOAD,), TrackingConfig(robot=name)).positions(np.array([[0.5]]))[0]
        for name in ("fr3", "panda")
    )
    assert np.abs(of_fr3 - of_panda).max() > 1e-3


def test_friction_above_the_springs_torque_holds_a_joint_still() -> None:
    # 0.01 rad at 600 Nm/rad is 6 Nm.
    target = np.tile(Q_HOME, (50, 1))
    target[10:, 0] += 0.01
    parameter = Parameter(what="friction", joints=(1,), low=0.0, high=10.0)
    loose, stuck = Tracking(
        [Recording(target, target, RATE)], (parameter,), TrackingConfig()
    ).positions(np.array([[2.0], [7.0]]))[0]
    assert abs(stuck[-1, 0]) < 5e-4
    np.testing.assert_allclose(loose[-1, 0], (6.0 - 2.0) / 600.0, atol=5e-4)


def test_nominal_values_track_as_the_model_itself_does() -> None:
    parameters = (
        *per_joint(FR3, "armature", 0.0, 1.0),
        Parameter(what="viscous", low=0.0, high=1.0),
        STIFFNESS,
        DELAY,
    )
    target = sines(2, seconds=0.5)
    still = Recording(target, target, RATE)
    same = Tracking([still], parameters, TrackingConfig()).positions(
        nominal_values(parameters, FR3)[None]
    )[0]
    # A delay of 0 changes nothing, so this is the untouched model.
    bare = Tracking([still], (DELAY,), TrackingConfig()).positions(np.array([[0.0]]))[0]
    np.testing.assert_allclose(same, bare, atol=1e-12)


def test_tuned_values_are_written_into_the_model_of_a_task() -> None:
    engine = MujocoEngine(find_task("reach"), 1, MujocoConfig(actions=JointTarget()))
    base, joint = copy.copy(engine.model), engine.model.actuator("impedance_fr3_joint2").id
    friction = Parameter(what="friction", joints=(2,), low=0.0, high=2.0)
    delay = write_parameters(
        (STIFFNESS, friction, DELAY), np.array([1.5, 0.4, 0.01]), base, engine.model, FR3
    )
    assert delay == 0.01
    assert engine.model.actuator_gainprm[joint, 0] == 900.0
    assert engine.model.actuator_biasprm[joint, 1] == -900.0
    assert engine.model.dof_frictionloss[:7].tolist() == [0, 0.4, 0, 0, 0, 0, 0]
    with pytest.raises(HandoffError, match="payload: the model has no body 'payload'"):
        write_parameters((PAYLOAD,), np.array([1.0]), base, engine.model, FR3)


def test_a_linear_problem_has_the_textbook_intervals() -> None:
    # r = A u with columns of length 10 and 0.1, noise 0.02: deviations 0.002 and 0.2.
    A = np.zeros((4, 2))
    A[0, 0], A[1, 1] = 10.0, 0.1
    report = analyse(lambda u: u @ A.T, np.array([0.5, 0.5]), ("a", "b"), 0.02, profile_points=0)
    np.testing.assert_allclose(report.half_width, [1.96 * 0.002, 1.96 * 0.2], rtol=1e-6)
    np.testing.assert_allclose(report.sensitivity, [5.0, 0.05], rtol=1e-6)
    np.testing.assert_allclose(report.condition, 1e4, rtol=1e-6)
    np.testing.assert_allclose(report.interval[1], [0.5 - 0.392, 0.5 + 0.392], rtol=1e-6)
    assert report.determined.tolist() == [True, False]


def test_the_intervals_of_noisy_data_cover_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(1)
    A, truth = rng.standard_normal((50, 2)), np.array([0.4, 0.6])
    covered = 0
    for _ in range(300):
        y = A @ truth + 0.3 * rng.standard_normal(50)
        best = np.linalg.lstsq(A, y, rcond=None)[0]
        report = analyse(lambda u, y=y: u @ A.T - y, best, ("a", "b"), 0.3, profile_points=0)
        covered += bool(report.interval[0, 0] <= truth[0] <= report.interval[0, 1])
    # 285 expected, deviation 3.8.
    assert 270 <= covered <= 298


def test_a_parameter_without_any_effect_has_an_infinite_half_width() -> None:
    report = analyse(
        lambda u: 3.0 * u[:, :1],
        np.array([0.5, 0.5]),
        ("sensitive", "insensitive"),
        0.01,
        profile_points=0,
    )
    assert np.isfinite(report.half_width[0])
    assert np.isinf(report.half_width[1])
    assert np.isinf(report.condition)
    assert report.interval[1].tolist() == [0.0, 1.0]


def test_correlated_residuals_count_as_fewer() -> None:
    rng = np.random.default_rng(0)
    white = rng.standard_normal((20000, 1))
    assert correlation_inflation([white]) == pytest.approx(1.0, abs=0.05)
    slow = white.copy()
    for k in range(1, len(slow)):
        slow[k] += 0.5 * slow[k - 1]
    # First-order process with r = 0.5: (1 + 0.5) / (1 - 0.5).
    assert correlation_inflation([slow]) == pytest.approx(3.0, rel=0.1)


def test_a_logarithmic_range_has_its_geometric_mean_in_the_middle() -> None:
    np.testing.assert_allclose(to_values((STIFFNESS, PAYLOAD), np.array([0.5, 0.5])), [1.0, 1.0])
    np.testing.assert_allclose(to_values((STIFFNESS, PAYLOAD), np.array([1.0, 0.0])), [2.0, 0.0])


def test_files_tell_values_intervals_and_verdicts(tuning: Tuning, tmp_path: Path) -> None:
    write_tuning(tuning, tmp_path)
    written = json.loads((tmp_path / "tuning.json").read_text())
    assert written == to_json(tuning)
    assert written["parameters"]["payload"]["determined"] is True
    assert written["parameters"]["payload"]["value"] == tuning.value("payload")
    assert (tmp_path / "tracking.png").stat().st_size > 10_000
    assert not (tmp_path / "profiles.png").exists()


def test_progress_counts_every_parameter_set(noisy: Recording) -> None:
    reports: list[tuple[int, int]] = []
    config = quick(samples=70, rounds=1, round_samples=10, elites=5, polish=0, profile_points=0)
    tune([noisy], (STIFFNESS,), config, lambda done, total, note="": reports.append((done, total)))
    assert reports == [(64, 80), (70, 80), (80, 80)]


def test_a_recorded_stream_is_read_at_a_tenth_of_its_rate(tmp_path: Path) -> None:
    fields = {name: FieldSpec(shape=(7,), dtype="float64") for name in ("q", "dq", "q_d")}
    schema = EpisodeSchema(name="t", streams={"robot": StreamSpec(rate_hz=1000.0, fields=fields)})
    ramp = np.linspace(0.0, 1.0, 200)[:, None] * np.ones(7)
    with EpisodeStore.create(tmp_path / "s.zarr", schema) as store:
        store.append({"robot": {"q": ramp, "dq": ramp * 0 + 1, "q_d": ramp + 0.1}}, {})
    [recording] = read_recordings(tmp_path / "s.zarr")
    assert recording.rate_hz == 100.0
    np.testing.assert_array_equal(recording.q, ramp[::10])
    np.testing.assert_allclose(recording.target - recording.q, 0.1)
    assert recording.dq is not None
    with pytest.raises(HandoffError, match="no field 'wanted'"):
        read_recordings(tmp_path / "s.zarr", target="wanted")
    with pytest.raises(HandoffError, match="every is 0"):
        read_recordings(tmp_path / "s.zarr", every=0)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_target_that_repeats_the_measurement_is_refused(tmp_path: Path, lag: int) -> None:
    fields = {name: FieldSpec(shape=(7,), dtype="float64") for name in ("q", "q_d")}
    schema = EpisodeSchema(name="t", streams={"robot": StreamSpec(rate_hz=1000.0, fields=fields)})
    ramp = np.linspace(0.0, 1.0, 200)[:, None] * np.ones(7)
    echo = np.concatenate([ramp[:1].repeat(lag, axis=0), ramp[: 200 - lag]])
    with EpisodeStore.create(tmp_path / "s.zarr", schema) as store:
        store.append({"robot": {"q": ramp, "q_d": ramp + 0.1}}, {})
        store.append({"robot": {"q": ramp, "q_d": echo}}, {})
    read_recordings(tmp_path / "s.zarr", episodes=[0])
    with pytest.raises(HandoffError, match=r"in episode 1 of .* the target 'q_d' repeats"):
        read_recordings(tmp_path / "s.zarr")
    with pytest.raises(HandoffError, match="no stream 'arm' with motions of a robot"):
        read_recordings(tmp_path / "s.zarr", stream="arm")


def test_bad_recordings_are_refused_with_their_reason() -> None:
    good = Recording(sines(0), sines(0), RATE)
    broken = good.q.copy()
    broken[3, 1] = np.nan
    for bad, message in (
        ([], "0 given"),
        ([good._replace(q=broken)], "q of joint 2 at sample 3 is nan"),
        (
            [good._replace(target=good.target[:, :6])],
            r"target has shape \(150, 6\), expected \(150, 7\)",
        ),
        ([good._replace(target=good.target[:-1])], r"target has shape \(149, 7\)"),
        ([Recording(good.target[:9], good.q[:9], RATE)], "9 samples, at least 10"),
        ([good, good._replace(rate_hz=50.0)], r"rates \[50.0, 100.0\] Hz"),
        ([good._replace(rate_hz=0.0)], "rate is 0.0 Hz"),
        ([good._replace(target=np.tile(Q_HOME, (150, 1)))], "arm at rest"),
    ):
        with pytest.raises(HandoffError, match=message):
            check_recordings(bad)


def test_bad_parameters_are_refused_with_their_reason(noisy: Recording) -> None:
    for bad, message in (
        ((), "0 given"),
        ((PAYLOAD, PAYLOAD), "given more than once"),
        ((Parameter(what="friction", joints=(8,), low=0.0, high=1.0),), r"joints \[8\]"),
        ((Parameter(what="delay", low=0.1, high=0.0),), "bounds swapped"),
        ((Parameter(what="payload", low=0.0, high=1.0, log=True),), "0 < low"),
    ):
        with pytest.raises(HandoffError, match=message):
            tune([noisy], bad, QUICK)
    with pytest.raises(
        HandoffError, match=r"algorithm.samples' is 1: .*greater than or equal to 2"
    ):
        validate(TuneConfig, {"algorithm": {"kind": "random", "samples": 1}})
    with pytest.raises(HandoffError, match=r"unknown key 'algorithm\.rounds'"):
        validate(TuneConfig, {"algorithm": {"kind": "random", "rounds": 1}})

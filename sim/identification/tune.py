"""Tunes a simulated arm to real recordings: finds parameters with which it follows recorded joint
targets like the real arm.

The method of the paper (Lin et al., arXiv 2502.20396, "autotune"): sample K parameter sets, replay
the recorded target sequences in parallel simulations, and keep the set with the smallest mean
squared tracking error; `rounds=0, polish=0` selects it. Joint limits, which the paper samples, too,
are not tuned because they are published. Our additions: scale factors are sampled uniformly in the
logarithm; rounds of the cross-entropy method around the best sets; damped Gauss-Newton steps at the
end; and a report on which parameters the recordings determine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from robots.config import config, to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.storage.durable import write_atomically
from sim.identification.identifiability import (
    Identifiability,
    analyse,
    correlation_inflation,
    jacobian,
)
from sim.identification.parameters import UNITS, Parameter, Quantity, nominal_values, to_values
from sim.identification.recordings import Recording
from sim.identification.tracking import Tracking, TrackingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@config
class TuneConfig:
    """Effort of the search."""

    samples: int = 1000
    """K, number of parameter sets of the paper's random search."""
    rounds: int = 5
    """Rounds of the cross-entropy method after the random search; 0 skips them."""
    round_samples: int = 200
    """Number of parameter sets per round."""
    elites: int = 20
    """Number of best sets from which a round takes its mean and standard deviation."""
    polish: int = 8
    """Maximum number of Gauss-Newton steps at the end; 0 skips them."""
    keep: int = 10
    """Number of best sets whose standard deviation is reported."""
    seed: int = 0
    """Seed of the search."""
    noise_floor: float = 2e-5
    """Minimum standard deviation of a measured position for the intervals [rad]; our choice, a
    fifth of the angle of one joint that corresponds to 0.1 mm at a reach of 1 m (the arm's
    published repeatability)."""
    profile_points: int = 9
    """Number of values per parameter at which the error's profile is computed; 0 skips the
    profiles."""
    tracking: TrackingConfig = TrackingConfig()
    """Replay of the recorded motion in simulation."""


class Tuning(NamedTuple):
    """Result of tuning."""

    parameters: tuple[Parameter, ...]
    values: np.ndarray
    """(D,) best values."""
    mse: float
    """Mean squared tracking error with the best values [rad^2]."""
    joint_mse: np.ndarray
    """(J,) mean squared tracking error per joint with the best values [rad^2]."""
    nominal_mse: float
    """Mean squared tracking error with the model's own values [rad^2]."""
    sampled_values: np.ndarray
    """(S, D) all sets of the random search and of the rounds, the best first."""
    sampled_mse: np.ndarray
    """(S,) errors of these sets, ascending [rad^2]."""
    best_few_spread: np.ndarray
    """(D,) standard deviation of the `config.keep` best sampled values."""
    report: Identifiability
    config: TuneConfig
    recordings: tuple[Recording, ...]
    tracked: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Per recording, positions (T, J) [rad] simulated with the model's own values and with the best
    values."""

    def value(self, what: Quantity, joint: int = 1) -> float:
        """Best value of one parameter.

        Raises:
            HandoffError: the parameter was not tuned.
        """
        for parameter, value in zip(self.parameters, self.values, strict=True):
            of_joint = not parameter.joints or joint in parameter.joints
            if parameter.what == what and (what in ("payload", "delay") or of_joint):
                return float(value)
        raise HandoffError(
            f"tuning: {what} of joint {joint} was not tuned; tuned parameters are {self.names}."
        )

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return [parameter.name for parameter in self.parameters]

    @property
    def intervals(self) -> np.ndarray:
        """(D, 2) 95 % intervals of the values, clipped to the ranges."""
        return to_values(self.parameters, self.report.interval.T).T

    def lines(self) -> list[str]:
        """Summary in words, with one line per parameter and per trade-off."""
        text = [
            f"tracking error {self.mse**0.5:.2e} rad rms, {self.nominal_mse**0.5:.2e} rad before tuning"
        ]
        for i, parameter in enumerate(self.parameters):
            low, high = self.intervals[i]
            verdict = "" if self.report.determined[i] else "; NOT determined by these recordings"
            verdict += (
                "; at the end of its range, which may be too narrow"
                if self.report.at_bound[i]
                else ""
            )
            value = f"{self.values[i]:.4g} {UNITS[parameter.what]}"
            text.append(f"{parameter.name}: {value}, 95 % in [{low:.4g}, {high:.4g}]{verdict}")
        return text + [direction.about for direction in self.report.open_directions]


def tune(
    recordings: Sequence[Recording],
    parameters: Sequence[Parameter],
    config: TuneConfig | None = None,
    progress: Progress = no_progress,
) -> Tuning:
    """Finds the parameters for which simulation and recordings agree best. Deterministic for a
    given seed.

    Args:
        recordings: recordings of one rate; together they should move every joint fast and slowly.
        parameters: D parameters to tune with their ranges; all others keep the model's values.
        config: effort of the search.
        progress: counts parameter sets.

    Raises:
        HandoffError: invalid recordings, parameters or counts, or all simulations diverged.
    """
    config = config or TuneConfig()
    _check(config)
    tracking = Tracking(recordings, parameters, config.tracking)
    try:
        return _tune(tracking, config, progress)
    finally:
        tracking.close()


def write_tuning(tuning: Tuning, folder: Path) -> None:
    """Writes `tuning.json`, `tracking.png` and, if there are profiles, `profiles.png` to an
    existing `folder`."""
    text = json.dumps(to_json(tuning), indent=2, allow_nan=False) + "\n"
    write_atomically(folder / "tuning.json", text.encode())
    _draw_tracking(tuning).savefig(folder / "tracking.png", dpi=110)
    if len(tuning.report.profile_at):
        _draw_profiles(tuning).savefig(folder / "profiles.png", dpi=110)


def to_json(tuning: Tuning) -> dict[str, Any]:
    """Results of a tuning as JSON-serialisable values; infinite ones become null."""
    report = tuning.report
    results = {
        name: {
            "value": float(tuning.values[i]),
            "unit": UNITS[tuning.parameters[i].what],
            "interval_95": tuning.intervals[i].tolist(),
            "determined": bool(report.determined[i]),
            "at_bound": bool(report.at_bound[i]),
            "spread_of_best_few": float(tuning.best_few_spread[i]),
            "sensitivity_rad": float(report.sensitivity[i]),
            "profile_mse": [_finite(value) for value in report.profile[i]],
            "profile_at": to_values((tuning.parameters[i],), report.profile_at[:, None])[
                :, 0
            ].tolist(),
        }
        for i, name in enumerate(tuning.names)
    }
    few = tuning.sampled_mse[: tuning.config.keep]
    return {
        "mse": tuning.mse,
        "nominal_mse": tuning.nominal_mse,
        "joint_mse": tuning.joint_mse.tolist(),
        "best_few_mse": [_finite(value) for value in few.tolist()],
        "parameters": results,
        "condition": _finite(report.condition),
        "trade_offs": [direction.about for direction in report.open_directions],
        "lines": tuning.lines(),
        "config": to_plain(tuning.config),
    }


def _tune(tracking: Tracking, config: TuneConfig, progress: Progress) -> Tuning:
    parameters = tracking.parameters
    unit, joint_mse = _search(tracking, config, progress)
    order = np.argsort(joint_mse.mean(axis=1), kind="stable")
    unit, errors = unit[order], joint_mse[order].mean(axis=1)
    if not np.isfinite(errors[0]):
        raise HandoffError(
            f"tuning: all {len(errors)} parameter sets diverged. Is the damping's range far too high or too low?"
        )

    def residuals(sets: np.ndarray) -> np.ndarray:
        return tracking.residuals(to_values(parameters, sets))

    # Refine the best set, then compare it with the model's own values.
    best = _polish(residuals, unit[0], config.polish)
    values, nominal = to_values(parameters, best), nominal_values(parameters, tracking.robot)
    tracked = tracking.positions(np.stack([nominal, values]))
    blocks = [s[1, 1:] - r.q[1:] for s, r in zip(tracked, tracking.recordings, strict=True)]
    errors_joint = tracking.errors(np.stack([nominal, values]))
    # Noise of a residual, inflated by its correlation in time.
    degrees = max(1, sum(block.size for block in blocks) - len(best))
    variance = (
        sum(float(np.sum(block**2)) for block in blocks) / degrees * correlation_inflation(blocks)
    )
    noise = float(np.sqrt(max(variance, config.noise_floor**2)))
    names = [parameter.name for parameter in parameters]
    few = to_values(parameters, unit[: config.keep])
    return Tuning(
        parameters=parameters,
        values=values,
        mse=float(errors_joint[1].mean()),
        joint_mse=errors_joint[1],
        nominal_mse=float(errors_joint[0].mean()),
        sampled_values=to_values(parameters, unit),
        sampled_mse=errors,
        best_few_spread=few.std(axis=0),
        report=analyse(residuals, best, names, noise, config.profile_points),
        config=config,
        recordings=tracking.recordings,
        tracked=tuple((s[0], s[1]) for s in tracked),
    )


def _search(
    tracking: Tracking, config: TuneConfig, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Searches randomly, then by the cross-entropy method; returns unit coordinates (S, D) of all
    sets and their errors per joint (S, J) [rad^2]."""
    size = len(tracking.parameters)
    rng = np.random.default_rng(config.seed)
    total = config.samples + config.rounds * config.round_samples
    tried, errors = np.zeros((0, size)), np.zeros((0, tracking.robot.num_joints))
    proposals = rng.random((config.samples, size))
    for done in range(config.rounds + 1):
        for i in range(0, len(proposals), config.tracking.batch):
            batch = proposals[i : i + config.tracking.batch]
            errors = np.concatenate(
                [errors, tracking.errors(to_values(tracking.parameters, batch))]
            )
            tried = np.concatenate([tried, batch])
            progress(len(tried), total, f"best {np.sqrt(errors.mean(axis=1).min()):.2e} rad rms")
        if done < config.rounds:
            elite = tried[np.argsort(errors.mean(axis=1), kind="stable")[: config.elites]]
            # The minimum spread keeps the search going in directions in which the elites happen to
            # agree.
            spread = np.maximum(elite.std(axis=0), 0.01)
            proposals = elite.mean(axis=0) + spread * rng.standard_normal(
                (config.round_samples, size)
            )
            proposals = np.clip(proposals, 0.0, 1.0)
    return tried, errors


def _polish(residuals: Any, start: np.ndarray, steps: int) -> np.ndarray:
    """Takes Levenberg-Marquardt steps within the ranges; each tries several dampings at once and
    keeps the best."""
    best, error = start, float(np.mean(residuals(start[None]) ** 2))
    for _ in range(steps):
        J, r = jacobian(residuals, best), residuals(best[None])[0]
        normal = J.T @ J
        scale = float(np.trace(normal)) / len(best)
        if scale <= 0.0:
            break
        dampings = scale * 10.0 ** np.arange(-6.0, 2.0)
        moves = [np.linalg.solve(normal + d * np.eye(len(best)), -J.T @ r) for d in dampings]
        sets = np.clip(best + np.array(moves), 0.0, 1.0)
        errors = np.mean(residuals(sets) ** 2, axis=1)
        winner = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
        gain = error - float(errors[winner])
        if not gain > 0.0:
            break
        best, error = sets[winner], float(errors[winner])
        if gain < 1e-6 * error:
            break
    return best


def _check(config: TuneConfig) -> None:
    if config.samples < 2 or config.rounds < 0 or config.polish < 0:
        raise HandoffError(
            f"tuning: samples is {config.samples}, rounds {config.rounds}, polish {config.polish}; expected at least "
            "2, 0 and 0."
        )
    if config.rounds and (config.round_samples < 1 or config.elites < 2):
        raise HandoffError(
            f"tuning: round_samples is {config.round_samples}, elites {config.elites}; expected at least 1 and 2."
        )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _draw_tracking(tuning: Tuning) -> Figure:
    """Plots the tracking error of the first recording per joint: measured, simulated before and
    after tuning."""
    from matplotlib.figure import Figure

    recording, (before, after) = tuning.recordings[0], tuning.tracked[0]
    time = np.arange(len(recording.q)) / recording.rate_hz
    figure = Figure(figsize=(9, 13), layout="constrained")
    axes = figure.subplots(len(tuning.joint_mse), 1, sharex=True)
    for joint, ax in enumerate(axes):
        for label, q, style in (
            ("measured", recording.q, {"color": "0.2", "lw": 1.6}),
            ("simulated before", before, {"color": "tab:orange", "lw": 1.0, "ls": "--"}),
            ("simulated after", after, {"color": "tab:blue", "lw": 1.0}),
        ):
            ax.plot(time, 1e3 * (q - recording.target)[:, joint], label=label, **style)
        ax.set_ylabel(f"joint {joint + 1} [mrad]")
        ax.set_title(
            f"rms difference after tuning {1e3 * tuning.joint_mse[joint] ** 0.5:.3f} mrad",
            fontsize=8,
        )
    axes[0].legend(ncols=3, fontsize=8)
    axes[-1].set_xlabel("time [s]")
    figure.suptitle("Position minus target")
    return figure


def _draw_profiles(tuning: Tuning) -> Figure:
    """Plots the error along each parameter with the others adapted; parameters that the recordings
    do not determine are grey."""
    from matplotlib.figure import Figure

    count = len(tuning.parameters)
    columns = min(4, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.2 * columns, 2.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for i, ax in enumerate(axes):
        if i >= count:
            ax.set_visible(False)
            continue
        at = to_values((tuning.parameters[i],), tuning.report.profile_at[:, None])[:, 0]
        ax.plot(at, 1e3 * np.sqrt(tuning.report.profile[i]), "o-", ms=3, color="tab:blue")
        ax.axhline(1e3 * tuning.mse**0.5, color="0.6", lw=0.8)
        ax.axvspan(
            *tuning.intervals[i],
            alpha=0.2,
            color="tab:green" if tuning.report.determined[i] else "0.5",
        )
        ax.set_title(tuning.names[i], fontsize=8)
        ax.set_xlabel(UNITS[tuning.parameters[i].what], fontsize=7)
        ax.set_ylabel("rms [mrad]", fontsize=7)
    return figure

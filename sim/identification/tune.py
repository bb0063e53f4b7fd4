"""Tunes a simulated arm to real recordings: finds parameters with which it follows recorded joint
targets like the real arm.

The method of the paper (Lin et al., arXiv 2502.20396, "autotune"): sample K parameter sets, replay
the recorded target sequences in parallel simulations, and keep the set with the smallest mean
squared tracking error (`RandomSearch`). Joint limits, which the paper samples, too,
are not tuned because they are published. Our additions: scale factors are sampled uniformly in the
logarithm; rounds of the cross-entropy method around the best sets; damped Gauss-Newton steps at the
end; and a report on which parameters the recordings determine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.storage.durable import write_atomically
from sim.identification.config import CrossEntropySearch, RandomSearch, TuneConfig
from sim.identification.identifiability import (
    Identifiability,
    analyse,
    correlation_inflation,
    jacobian,
)
from sim.identification.parameters import Parameter, nominal_values, to_values
from sim.identification.recordings import Recording
from sim.identification.tracking import Tracking
from sim.scene.dynamics import UNITS, ArmDynamics, DynamicsQuantity, DynamicsValue


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

    def value(self, what: DynamicsQuantity, joint: int = 1) -> float:
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

    def dynamics(self, source: str = "", spread: float = 0.0) -> ArmDynamics:
        """The best values as dynamics of environments.

        Args:
            source: digest of the data from which they follow.
            spread: half width of the interval from which episodes draw, in half widths of the
                95 % interval; 0 has no such interval.
        """
        ranges = np.array([(item.low, item.high) for item in self.parameters])
        distances = spread * (self.intervals - self.values[:, None])
        bounds = np.clip(self.values[:, None] + distances, ranges[:, :1], ranges[:, 1:])
        # Values on a logarithmic scale are rounded otherwise than their intervals.
        bounds[:, 0] = np.minimum(bounds[:, 0], self.values)
        bounds[:, 1] = np.maximum(bounds[:, 1], self.values)
        return ArmDynamics(
            robot=self.config.tracking.robot,
            values=tuple(
                DynamicsValue(
                    what=item.what,
                    joints=item.joints,
                    value=float(value),
                    low=float(low) if spread else None,
                    high=float(high) if spread else None,
                )
                for item, value, (low, high) in zip(
                    self.parameters, self.values, bounds, strict=True
                )
            ),
            payload_compensated=self.config.tracking.payload_compensated,
            source=source,
        )

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


class KnownErrors:
    """Errors of the sets that an interrupted search has evaluated, kept in a file.

    Their order suffices, because the sets are a function of the seed and of the earlier errors.

    Args:
        path: the file; None keeps nothing.
        tracking: replay that evaluates the sets.
        config: effort of the search; errors of another search are discarded.
    """

    def __init__(self, path: Path | None, tracking: Tracking, config: TuneConfig) -> None:
        self._path = path
        self._identity = _identity(tracking, config)
        self._errors = np.zeros((0, tracking.robot.num_joints))
        self._used = 0
        if path is not None and path.is_file():
            with np.load(path, allow_pickle=False) as saved:
                if str(saved["identity"]) == self._identity:
                    self._errors = saved["errors"]

    def next(self, count: int) -> np.ndarray | None:
        """The next `count` errors (count, J), or None if they are not all known."""
        if self._used + count > len(self._errors):
            # Kept errors of a part of a batch are evaluated again.
            self._errors = self._errors[: self._used]
            return None
        self._used += count
        return self._errors[self._used - count : self._used]

    def add(self, errors: np.ndarray) -> None:
        """Appends the errors (B, J) of the next sets, and writes the file."""
        self._errors = np.concatenate([self._errors, errors])
        self._used = len(self._errors)
        if self._path is not None:
            buffer = BytesIO()
            np.savez(buffer, identity=np.array(self._identity), errors=self._errors)
            write_atomically(self._path, buffer.getvalue())


def tune(
    recordings: Sequence[Recording],
    parameters: Sequence[Parameter],
    config: TuneConfig | None = None,
    progress: Progress = no_progress,
    resume: Path | None = None,
) -> Tuning:
    """Finds the parameters for which simulation and recordings agree best. Deterministic for a
    given seed.

    Args:
        recordings: recordings of one rate; together they should move every joint fast and slowly.
        parameters: D parameters to tune with their ranges; all others keep the model's values.
        config: effort of the search.
        progress: counts parameter sets.
        resume: file in which the errors of the sets are kept, so that an interrupted search
            resumes with the same result; None keeps none.

    Raises:
        HandoffError: invalid recordings or parameters, or all simulations diverged.
    """
    config = config or TuneConfig()
    tracking = Tracking(recordings, parameters, config.tracking)
    known = KnownErrors(resume, tracking, config)
    try:
        return _tune(tracking, config, progress, known)
    finally:
        tracking.close()


def _tune(tracking: Tracking, config: TuneConfig, progress: Progress, known: KnownErrors) -> Tuning:
    parameters = tracking.parameters
    unit, joint_mse = _search(tracking, config, progress, known)
    order = np.argsort(joint_mse.mean(axis=1), kind="stable")
    unit, errors = unit[order], joint_mse[order].mean(axis=1)
    if not np.isfinite(errors[0]):
        raise HandoffError(
            f"tuning: all {len(errors)} parameter sets diverged. Is the damping's range far too high or too low?"
        )

    def residuals(sets: np.ndarray) -> np.ndarray:
        return tracking.residuals(to_values(parameters, sets))

    # Refine the best set, then compare it with the model's own values.
    best = _polish(residuals, unit[0], _effort(config).polish)
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
    tracking: Tracking, config: TuneConfig, progress: Progress, known: KnownErrors
) -> tuple[np.ndarray, np.ndarray]:
    """Searches randomly, then by the cross-entropy method; returns unit coordinates (S, D) of all
    sets and their errors per joint (S, J) [rad^2]."""
    size = len(tracking.parameters)
    rng = np.random.default_rng(config.seed)
    effort = _effort(config)
    total = effort.samples + effort.rounds * effort.round_samples
    tried, errors = np.zeros((0, size)), np.zeros((0, tracking.robot.num_joints))
    proposals = rng.random((effort.samples, size))
    for done in range(effort.rounds + 1):
        for i in range(0, len(proposals), config.tracking.batch):
            batch = proposals[i : i + config.tracking.batch]
            fresh = known.next(len(batch))
            if fresh is None:
                fresh = tracking.errors(to_values(tracking.parameters, batch))
                known.add(fresh)
            errors = np.concatenate([errors, fresh])
            tried = np.concatenate([tried, batch])
            progress(len(tried), total, f"best {np.sqrt(errors.mean(axis=1).min()):.2e} rad rms")
        if done < effort.rounds:
            elite = tried[np.argsort(errors.mean(axis=1), kind="stable")[: effort.elites]]
            # The minimum spread keeps the search going in directions in which the elites happen to
            # agree.
            spread = np.maximum(elite.std(axis=0), 0.01)
            proposals = elite.mean(axis=0) + spread * rng.standard_normal(
                (effort.round_samples, size)
            )
            proposals = np.clip(proposals, 0.0, 1.0)
    return tried, errors


def _effort(config: TuneConfig) -> CrossEntropySearch:
    """The search as one of the cross-entropy method; a random search has no rounds and no steps."""
    if isinstance(config.algorithm, RandomSearch):
        return CrossEntropySearch(samples=config.algorithm.samples, rounds=0, polish=0)
    return config.algorithm


def _identity(tracking: Tracking, config: TuneConfig) -> str:
    """Digest (hex sha256) of all that decides the search's sets and errors."""
    parts = [to_plain(config), [to_plain(item) for item in tracking.parameters]]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for recording in tracking.recordings:
        digest.update(repr(recording.rate_hz).encode())
        for array in (recording.target, recording.q, recording.dq):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


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

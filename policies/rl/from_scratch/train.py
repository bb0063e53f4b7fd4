"""Trains a policy by RL from scratch in vectorised environments, on vectors and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.rl.from_scratch.config import (
    CqnAsAlgorithm,
    FastTd3Algorithm,
    FromScratchConfig,
    PpoAlgorithm,
    PpoLagrangianAlgorithm,
    PqlAlgorithm,
    ReplayOptions,
    RlpdAlgorithm,
    StreamAcAlgorithm,
    online_options,
)
from policies.rl.off_policy.config import updates_due
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv

if TYPE_CHECKING:
    from policies.networks.images.picture_features import PictureEncoder
    from policies.rl.collection.device_episodes import DeviceEnv
    from policies.rl.from_scratch.off_policy import ReplayRun
    from policies.rl.from_scratch.on_policy import RolloutRun
    from policies.rl.from_scratch.streaming import StreamRun
    from robots.wire.steps import Steps

PICTURE = "reinforce.png"
RESULTS = ("episodes", "success", "return", "cost", "multiplier")
"""Entries of the last point of the learning curve that are metrics, where it has them."""
DEVICE_ALGORITHMS = PpoAlgorithm | FastTd3Algorithm | PqlAlgorithm
"""Algorithms that collect in environments that stay on a device."""


def train_from_scratch(
    config: FromScratchConfig,
    task: str,
    make_env: Callable[[], VecEnv | DeviceEnv],
    out: Path,
    progress: Progress,
    robot: str = "",
    demos: Path | None = None,
) -> dict[str, Any]:
    """Trains a policy and writes it, without exploration noise, to `out`, with its learning curve
    (`reinforce.jsonl`, `reinforce.png`).

    Args:
        config: algorithm and options of the training.
        task: name of the task, for the policy card.
        make_env: makes a vectorised environment without auto-reset and with actions in [-1, 1], or
            one that stays on a device, where PPO, FastTD3 and PQL then train; it is closed at the
            end.
        out: output folder; a killed run in it is resumed.
        progress: called at every checkpoint.
        robot: name of the robot; empty if it is not one of Handoff's robots.
        demos: store of demonstrations, read by RLPD and CQN-AS.

    Returns:
        Metrics: steps (of all environments), updates, episodes, success, return and, where the
        environments have one, cost (of the last episodes), cpu_seconds, and counts that depend on
        the algorithm.

    Raises:
        HandoffError: observation fields or actions are unsuitable, demonstrations are missing or
            not read, a cost is limited that the environments do not report, the environments stay
            on a device and the algorithm does not, there are several and the algorithm learns in
            one, or values are not finite.
    """
    from policies.training.loop import torch_threads

    check_demonstrations(config, given=demos is not None)
    with torch_threads(config.threads):
        training = make_run(config, make_env(), out, demos)
        try:
            training.resume()
            with training.run.resumable.timed():
                training.learn(progress)
        finally:
            training.run.env.env.close()
            training.run.resumable.close()
    training.run.save_policy(training.actor(), task, robot)
    entries = training.run.resumable.entries
    _draw(entries, out / PICTURE)
    training.run.resumable.log_image("curve", out / PICTURE)
    training.run.resumable.close()
    training.finish()
    final = {name: entries[-1][name] for name in RESULTS if name in entries[-1]}
    cpu_seconds = round(training.run.resumable.cpu_seconds(), 1)
    return {**training.counts(), **final, "cpu_seconds": cpu_seconds}


def check_demonstrations(config: FromScratchConfig, *, given: bool) -> None:
    """Checks that demonstrations are given to an algorithm that reads them, and to no other.

    Raises:
        HandoffError: they are missing, or would be ignored.
    """
    kind = config.algorithm.kind
    reads = isinstance(config.algorithm, RlpdAlgorithm | CqnAsAlgorithm)
    if reads and not given:
        raise HandoffError(
            f"reinforce: the algorithm {kind} needs demonstrations. Connect its input demos, or use sac."
        )
    if given and not reads:
        raise HandoffError(
            f"reinforce: the algorithm {kind} reads no demonstrations, but its input demos is connected. Use rlpd "
            "or cqn_as, or remove the input."
        )


def check_resident(config: FromScratchConfig) -> None:
    """Checks that a run can be collected in environments that stay on a device.

    Raises:
        HandoffError: an algorithm that runs on the host only.
    """
    algorithm = config.algorithm
    if not isinstance(algorithm, DEVICE_ALGORITHMS):
        match algorithm:
            case PpoLagrangianAlgorithm():
                why = "such environments report no cost"
            case StreamAcAlgorithm():
                why = "it learns on the host, from one environment"
            case _:
                why = "it acts on the host, where its replay buffer is"
        raise HandoffError(
            "reinforce: the protocol's option resident: true is for the algorithms ppo, fast_td3 and pql, not "
            f"{algorithm.kind}: {why}. Set resident: false, or use one of them."
        )


def check_learning(config: FromScratchConfig, num_envs: int) -> None:
    """Checks that a replay buffer is learned from before the run of `num_envs` environments ends.

    Raises:
        HandoffError: the run ends before its first update.
    """
    algorithm = config.algorithm
    if not isinstance(algorithm, ReplayOptions):
        return
    if algorithm.learning_starts >= algorithm.collections:
        raise HandoffError(
            f"reinforce: learning_starts is {algorithm.learning_starts} of {algorithm.collections} collections, so "
            f"{algorithm.kind} would end without an update. Raise collections, or lower learning_starts."
        )
    online = online_options(algorithm, num_envs)
    if not updates_due(online, algorithm.collections * num_envs):
        kind, learning = config.algorithm.kind, algorithm.collections - algorithm.learning_starts
        raise HandoffError(
            f"reinforce: {learning} collections of {num_envs} environments after learning_starts, with "
            f"{online.updates_per_step:g} updates per step, so {kind} would end without an update. Raise collections, "
            "or the number of updates."
        )


def check_sequences(config: FromScratchConfig, max_steps: int) -> None:
    """Checks that the sequences of CQN-AS are not longer than an episode of at most `max_steps`
    steps.

    Raises:
        HandoffError: they are longer.
    """
    algorithm = config.algorithm
    if isinstance(algorithm, CqnAsAlgorithm) and algorithm.learner.horizon > max_steps:
        raise HandoffError(
            f"reinforce: learner.horizon is {algorithm.learner.horizon}, but an episode ends after {max_steps} steps, "
            "so that no sequence of actions is ever executed. Lower learner.horizon."
        )


def check_environments(config: FromScratchConfig, num_envs: int) -> None:
    """Checks that there is one environment for an algorithm that learns from a single stream of
    steps.

    Raises:
        HandoffError: there are several.
    """
    if isinstance(config.algorithm, StreamAcAlgorithm) and num_envs != 1:
        raise HandoffError(
            f"reinforce: num_envs is {num_envs}, but the algorithm {config.algorithm.kind} learns from one stream of "
            "steps, whose traces belong to one episode at a time. Set num_envs: 1, or use another algorithm."
        )


def make_run(
    config: FromScratchConfig, env: VecEnv | DeviceEnv, out: Path, demos: Path | None
) -> ReplayRun | RolloutRun | StreamRun:
    """A run that has not begun, with its environments, which are closed if it cannot be made.

    Args:
        config: algorithm and observed fields.
        env: see `train_from_scratch`.
        out: folder of the run.
        demos: store of the demonstrations of `rlpd` and `cqn_as`.

    Raises:
        HandoffError: the algorithm or the fields do not fit the environments.
    """
    from policies.rl.collection.device_episodes import DeviceEnv

    try:
        if isinstance(env, DeviceEnv):
            return _make_device_run(config, env, out)
        return _make_host_run(config, env, out, demos)
    except BaseException:
        env.close()
        raise


def _make_device_run(
    config: FromScratchConfig, env: DeviceEnv, out: Path
) -> ReplayRun | RolloutRun:
    from policies.rl.collection.seeds import CountedSeeds
    from policies.rl.from_scratch.device_env import DeviceStateEnv
    from policies.rl.from_scratch.run import ScratchRun

    check_resident(config)
    algorithm = config.algorithm
    seeds = CountedSeeds(config.first_seed)
    pictures = None
    if config.image_fields:
        from policies.networks.images.picture_features import DevicePictureEncoder

        pictures = DevicePictureEncoder(
            config.image_features, config.image_fields, env.observation_spec, env.device
        )
    state_env = DeviceStateEnv(
        env, config.fields, seeds, config.reward, algorithm.discount, pictures
    )
    if isinstance(algorithm, PpoAlgorithm):
        from policies.rl.from_scratch.on_policy import RolloutRun

        run = ScratchRun(config, state_env, seeds, out, step="rollouts", pictures=pictures)
        return RolloutRun(algorithm, run)
    from policies.rl.from_scratch.off_policy import ReplayRun

    assert isinstance(algorithm, FastTd3Algorithm | PqlAlgorithm)
    run = ScratchRun(config, state_env, seeds, out, step="collections", pictures=pictures)
    return ReplayRun(algorithm, run)


def _make_host_run(
    config: FromScratchConfig, env: VecEnv, out: Path, demos: Path | None
) -> ReplayRun | RolloutRun | StreamRun:
    from policies.rl.collection.seeds import CountedSeeds
    from policies.rl.collection.state_env import StateEnv
    from policies.rl.from_scratch.run import ScratchRun

    check_environments(config, env.num_envs)
    pictures = _picture_encoder(config, env)
    steps = [] if demos is None else _demonstrations(config, env, demos, pictures)
    seeds = CountedSeeds(config.first_seed)
    state_env = StateEnv(env, config.fields, seeds, config.reward, pictures)
    algorithm = config.algorithm
    if isinstance(algorithm, PpoAlgorithm | PpoLagrangianAlgorithm):
        from policies.rl.from_scratch.on_policy import RolloutRun

        run = ScratchRun(config, state_env, seeds, out, step="rollouts", pictures=pictures)
        return RolloutRun(algorithm, run)
    if isinstance(algorithm, StreamAcAlgorithm):
        from policies.rl.from_scratch.streaming import StreamRun

        run = ScratchRun(config, state_env, seeds, out, step="steps", pictures=pictures)
        return StreamRun(algorithm, run)
    from policies.rl.from_scratch.off_policy import ReplayRun

    rows = sum(one.rows for one in steps)
    run = ScratchRun(
        config, state_env, seeds, out, step="collections", demos=rows, pictures=pictures
    )
    return ReplayRun(algorithm, run, steps)


def _picture_encoder(config: FromScratchConfig, env: VecEnv) -> PictureEncoder | None:
    if not config.image_fields:
        return None
    from policies.networks.images.picture_features import PictureEncoder

    return PictureEncoder(config.image_features, config.image_fields, env.observation_spec)


def _demonstrations(
    config: FromScratchConfig, env: VecEnv, path: Path, pictures: PictureEncoder | None
) -> list[Steps]:
    from policies.rl.collection.state_env import vector_fields
    from policies.rl.from_scratch.demonstrations import demonstration_steps

    fields = vector_fields(env.observation_spec, config.fields)
    specs = {name: env.observation_spec[name] for name in fields}
    return list(demonstration_steps(path, specs, env.action_spec, config.reward, pictures))


def _draw(entries: list[dict[str, float]], file: Path) -> None:
    from policies.training.plots import draw_entries

    panels = {"success": "success, last 100 episodes", "return": "return, last 100 episodes"}
    if "cost" in entries[-1]:
        panels["cost"] = "cost, last 100 episodes"
    draw_entries(entries, file, ("steps", "steps in all environments"), panels)

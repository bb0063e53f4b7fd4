"""Plays episodes with the exported file as the robot runs it, and compares them start by start with
those of other policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.gating.ancestry import Ancestry, Evaluated, Evaluations
from flows.gating.conditions import Condition, at_least, not_evaluated
from flows.gating.config import GateConfig
from flows.gating.robot_agent import load_robot
from robots.contract import ONNX_FILE, Contract
from robots.interfaces import Progress
from robots.storage.durable import remove_tree

if TYPE_CHECKING:
    from sim.evaluation.rollout import EpisodeResult

EXPORTED = "exported"
INCUMBENT = "incumbent"
"""Folders with the results of the episodes that the gate plays."""
JOURNAL = ".episodes"
"""Folder of the finished episodes of an interrupted gate."""
OWN = ("episodes",)
"""Entries of a protocol in which the gate's may differ from that of an evaluation that it is
compared with, if the starts are among the evaluated ones."""


@dataclass(frozen=True)
class Played:
    """Episodes that an exported policy played."""

    metrics: Mapping[str, Any]
    """See `sim.evaluation.evaluate.evaluate`."""
    episodes: Sequence[EpisodeResult]


def play(
    settings: GateConfig,
    bundle: Path,
    contract: Contract,
    out: Path,
    progress: Progress,
    *,
    videos: int | None = None,
    resume: bool = False,
) -> Played:
    """Plays the protocol's episodes with the ONNX file of `bundle` and writes their result to
    `out`.

    Args:
        settings: protocol and execution.
        bundle: folder with `policy.onnx`.
        contract: its contract.
        out: folder of the result, made if it is missing.
        progress: counts control periods of all episodes.
        videos: number of episodes recorded as videos; None takes the settings'.
        resume: keeps finished episodes in `out` until the result is written, and goes on with those
            of an interrupted call.

    Raises:
        HandoffError: the policy does not fit the protocol's environments.
        SafetyError: an observation or action that is not finite.
    """
    from sim.evaluation.evaluate import make_env, run_episodes, write_result
    from sim.evaluation.protocol import check_trained_with

    protocol, config = settings.protocol, settings.evaluate
    check_trained_with(protocol, contract.robot)
    load = partial(load_robot, bundle / ONNX_FILE, contract.rate_hz, protocol.sampling)
    env = partial(make_env, protocol)
    out.mkdir(exist_ok=True)
    journal = out / JOURNAL if resume else None
    episodes = run_episodes(
        protocol,
        load,
        env,
        config.batch,
        config.workers,
        progress,
        specifications=config.specifications,
        journal=journal,
    )
    chosen = config if videos is None else replace(config, videos=videos)
    execution = {"runtime": "onnxruntime", "policy": contract.policy, "sampler": contract.sampler}
    metrics = write_result(protocol, chosen, episodes, env, out, execution)
    if journal is not None:
        remove_tree(journal)
    return Played(metrics, episodes)


def play_again(
    settings: GateConfig, bundle: Path, contract: Contract, played: Played
) -> list[EpisodeResult]:
    """Plays the first episodes again, on their own, and records what the policy observed."""
    from robots.interfaces import no_progress
    from sim.evaluation.evaluate import make_env, run_episodes

    protocol = settings.protocol
    seeds = [episode.seed for episode in played.episodes[: settings.repeated]]
    load = partial(load_robot, bundle / ONNX_FILE, contract.rate_hz, protocol.sampling)
    env = partial(make_env, protocol)
    return run_episodes(protocol, load, env, len(seeds), 1, no_progress, seeds=seeds, record=True)


def determinism(played: Played, again: Sequence[EpisodeResult]) -> Condition:
    """Whether episodes that were played again have the same actions, to the bit, and outcomes."""
    pairs = list(zip(played.episodes, again, strict=False))
    different = [one.seed for one, two in pairs if not _same(one, two)]
    note = f"episodes of seeds {different} differ when they are played again" if different else ""
    same = len(pairs) - len(different)
    return at_least("equal repetitions", same, len(pairs), unit="episodes", note=note)


def _same(one: EpisodeResult, two: EpisodeResult) -> bool:
    return one.success == two.success and np.array_equal(one.actions, two.actions)


def success(settings: GateConfig, played: Played) -> Condition:
    """The lower end of the interval of the success rate."""
    rate = played.metrics["success"]
    return at_least(
        "success of the exported policy",
        rate["low"],
        settings.min_success,
        note=f"{rate['k']} of {rate['n']} episodes, {_percent(settings)} interval up to "
        f"{rate['high']:.3f}",
        details=dict(rate),
    )


LOSS_BY_EXPORT = "loss by export"
LOSS_TO_TEACHER = "loss to the teacher"
LOSS_TO_ONE_STEP = "loss to the teacher in one step"
LOSS_TO_INCUMBENT = "loss to the incumbent"


def against_ancestors(
    settings: GateConfig, played: Played, ancestry: Ancestry, evaluations: Evaluations
) -> list[Condition]:
    """Paired differences to the policy that was exported, its teacher, and the teacher in one
    step."""
    who = "the policy that was exported"
    conditions = [_paired(settings, played, LOSS_BY_EXPORT, who, evaluations.policy)]
    names = (LOSS_TO_TEACHER, LOSS_TO_ONE_STEP)
    if ancestry.teachers is None:
        reason = "the bundle is no artifact of a run, so its teacher is not known"
        return [*conditions, *(not_evaluated(name, reason) for name in names)]
    if len(ancestry.teachers) != 1:
        note = (
            f"it has {len(ancestry.teachers)} teachers, each for an instruction"
            if ancestry.teachers
            else "it was distilled from no other policy"
        )
        return [*conditions, *(Condition(name, "not applicable", note=note) for name in names)]
    teacher = evaluations.teacher
    conditions.append(_paired(settings, played, LOSS_TO_TEACHER, "the teacher", teacher))
    if teacher is not None and teacher.denoising_steps == 1:
        note = "the teacher has one step"
        return [*conditions, Condition(LOSS_TO_ONE_STEP, "not applicable", note=note)]
    who, in_one_step = "the teacher in one step", evaluations.teacher_in_one_step
    return [*conditions, _paired(settings, played, LOSS_TO_ONE_STEP, who, in_one_step)]


def against_incumbent(settings: GateConfig, played: Played, incumbent: Played | None) -> Condition:
    """Paired difference to the policy that this one replaces."""
    if incumbent is None:
        note = "it replaces no other policy"
        return Condition(LOSS_TO_INCUMBENT, "not applicable", note=note)
    scores = {episode.seed: episode.score for episode in incumbent.episodes}
    return _difference(settings, played, LOSS_TO_INCUMBENT, scores)


def _paired(
    settings: GateConfig, played: Played, name: str, who: str, found: Evaluated | None
) -> Condition:
    from sim.evaluation.protocol import differences

    if found is None:
        return not_evaluated(name, f"no input 'scores' evaluates {who}")
    table = found.result.table
    other = [
        key for key in differences(table["protocol"], played.metrics["protocol"]) if key not in OWN
    ]
    if other:
        return not_evaluated(
            name,
            f"{found.result.name} evaluates {who} under another protocol: {', '.join(other)}",
        )
    scores = {episode["seed"]: episode["score"] for episode in table["episodes"]}
    missing = [episode.seed for episode in played.episodes if episode.seed not in scores]
    if missing:
        return not_evaluated(
            name,
            f"{found.result.name} has {len(scores)} episodes and lacks {len(missing)} of "
            f"the gate's, e.g. seed {missing[0]}",
        )
    return _difference(settings, played, name, scores)


def _difference(
    settings: GateConfig, played: Played, name: str, scores: Mapping[int, float]
) -> Condition:
    """Condition on the lower end of the paired difference: exported policy minus the other."""
    from sim.evaluation import intervals
    from sim.evaluation.evaluate import BOOTSTRAP_SEED

    mine = [episode.score for episode in played.episodes]
    theirs = [scores[episode.seed] for episode in played.episodes]
    difference = intervals.paired_difference(
        theirs, mine, BOOTSTRAP_SEED, settings.evaluate.confidence
    )
    return at_least(
        name,
        difference["low"],
        -settings.margin,
        note=f"mean difference {difference['mean']:+.3f}, {_percent(settings)} interval up to "
        f"{difference['high']:+.3f}, {len(mine)} starts",
        details={**difference, "n": len(mine), "other_mean": float(np.mean(theirs))},
    )


def _percent(settings: GateConfig) -> str:
    return f"{100 * settings.evaluate.confidence:g} %"

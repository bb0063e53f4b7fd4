"""Stage `correct`: trains a policy by RL while a person corrects it, in an actor and a learner
process."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.artifacts import Classifier, Episodes, Output, Policy
from flows.correction.config import CorrectConfig
from flows.correction.hints import check_hints
from flows.correction.pictures import TRUNK, check_pictures, write_trunk
from flows.correction.refresh_process import check_refresh
from flows.correction.versions import remove_unfinished
from flows.stages.learn.config import TRAINING_TELEMETRY
from policies.rl.hil.config import HilJsrlConfig, HilRlpdConfig, HilSerlConfig, HilWsrlConfig
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.spec import ActionSpec

TELEMETRY = TRAINING_TELEMETRY

POLL_SECONDS = 0.05
"""Polling interval of the processes [s]."""
LEARNER_SECONDS = 30.0
"""Time limit for the learner's last update and checkpoint, after which it is killed [s]."""


def run(
    config: CorrectConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
    classifier: Classifier | None = None,
    guide: Policy | None = None,
    policy: Policy | None = None,
) -> Output[Policy]:
    """Writes the policy to `out`, every episode to `out/store.zarr`, and `learning.png`.

    `demos` are demonstrations; `classifier`, if present, detects success, else the task does.
    `guide` is the policy that guides episodes in JSRL, and `policy` the one learned offline that
    WSRL goes on from. A killed run resumes: the learner from its checkpoint, the actor from its
    journal.

    Raises:
        HandoffError: JSRL's guide solves too few episodes, an error of either process, or the
            person stopped.
    """
    from flows.correction.guide import guide_metrics
    from flows.correction.versions import refused_versions
    from flows.reports.learning_curve import learning_metrics, read_history
    from flows.reports.plots import draw_learning
    from flows.session.hints import recorded_usefulness
    from policies.checkpoint import CARD
    from robots.episodes.store import EpisodeStore

    counters: dict[str, Any] = {}
    if not (out / CARD).exists():
        inputs = {"demos": demos, "classifier": classifier, "guide": guide, "policy": policy}
        write_trunk(config, demos, out)
        counters = _train(config, inputs, out, progress)
    for name in ("metrics.jsonl", "training.png", "logs"):
        if (out / "learner" / name).exists():
            shutil.move(out / "learner" / name, out / name)
    # Metrics and plots of the training.
    history = read_history(out / "store.zarr")
    demonstrations = read_history(demos / "store.zarr")
    metrics = learning_metrics(history, demonstrations)
    draw_learning(history, demonstrations, out / "learning.png")
    # The artifact contains the policy and the episodes, not the files that resume the training.
    for name in ("learner", "actor"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / TRUNK).unlink(missing_ok=True)
    remove_unfinished(out)
    counted = {name: counters[name] for name in ("steps", "updates") if name in counters}
    guiding = guide_metrics(config.algorithm, out / "store.zarr", config.seed)
    useful = recorded_usefulness(EpisodeStore.open(out / "store.zarr"))
    hints = {"hints": useful} if useful else {}
    refused = {} if config.refresh is None else refused_versions(out)
    return Output({**counted, **metrics, **guiding, **hints, **refused})


def check(config: CorrectConfig, sources: Mapping[str, Any]) -> None:
    """Refuses inputs that the algorithm lacks or does not read.

    Raises:
        HandoffError: such an input, pictures that the algorithm does not read, or hints without
            their source.
    """
    algorithm = config.algorithm
    needed = {"guide": algorithm.kind == "jsrl", "policy": algorithm.kind == "wsrl"}
    if isinstance(algorithm, HilSerlConfig | HilRlpdConfig | HilJsrlConfig | HilWsrlConfig):
        needed["classifier"] = algorithm.reward == "classifier"
    for name, reads in needed.items():
        if reads and name not in sources:
            reward = " with the reward 'classifier'" if name == "classifier" else ""
            raise HandoffError(
                f"correct: {algorithm.kind}{reward} needs the input '{name}', the stage has {sorted(sources)}."
            )
        if name in sources and not reads:
            raise HandoffError(
                f"correct: {algorithm.kind} does not read the input '{name}'. Remove it"
                + (", or set algorithm.reward=classifier." if name == "classifier" else ".")
            )
    check_pictures(config)
    check_hints(config, sources)
    check_refresh(config, sources)


def _train(
    config: CorrectConfig, inputs: Mapping[str, Path | None], out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs both processes until the policy is saved; returns the learner's counters."""
    from flows.correction.actor_process import act
    from flows.correction.learner_process import learn
    from flows.correction.processes import RestartedProcess, end_together
    from flows.correction.refresh_process import refresh

    token = secrets.token_hex(16)
    arguments = (config, out, inputs["demos"], inputs["policy"], _action(config), token)
    learner = RestartedProcess("learner", learn, arguments)
    actor = RestartedProcess("actor", act, ())
    refreshing = RestartedProcess("classifier", refresh, (config, out, inputs["classifier"]))
    counters: dict[str, Any] = {}
    status = "starting"
    refused = 0
    learner.start()
    if config.refresh is not None:
        refreshing.start()
    try:
        while not learner.done:
            # Messages of the learner.
            for message in learner.receive():
                match message:
                    case ("ready", port):
                        # A restarted learner must use the same port.
                        with_port = replace(config, learner=replace(config.learner, port=port))
                        learner.arguments = (with_port, *learner.arguments[1:])
                        actor.arguments = (
                            config,
                            out,
                            inputs["classifier"],
                            inputs["guide"],
                            f"ws://127.0.0.1:{port}",
                            token,
                        )
                    case ("counters", values):
                        counters = values
                        if actor.process is None and counters["steps"] < config.steps:
                            actor.start()
                    case ("enough",):
                        actor.send("stop")
            # A version that the classifier's process has published is found by the others.
            for message in refreshing.receive():
                match message:
                    case ("version", _, reason) if reason:
                        refused += 1
            # Messages of the actor.
            for message in actor.receive():
                match message:
                    case ("status", line):
                        status = line
                    case ("stopped",):
                        raise HandoffError(
                            "training: stopped by the person. Run the same command to resume."
                        )
            progress(
                min(counters.get("steps", 0), config.steps),
                config.steps,
                _progress_note(counters, status, actor.done, refused),
            )
            time.sleep(POLL_SECONDS)
    finally:
        # Neither waits for the other: the actor's journal keeps what the learner has not received.
        end_together([actor, refreshing, learner], LEARNER_SECONDS)
    return counters


def _progress_note(
    counters: dict[str, Any], status: str, actor_done: bool, refused: int = 0
) -> str:
    if not counters:
        return status
    state = "remaining updates" if actor_done else status
    classifiers = f"{refused} classifiers refused, " if refused else ""
    return (
        f"success {counters['recent_success']:.2f}, corrected {counters['recent_interventions']:.2f}, "
        f"{counters['updates']} updates, {classifiers}{state}"
    )


def _action(config: CorrectConfig) -> ActionSpec:
    """Returns the action spec of the environment, so that the learner's process needs no
    environment."""
    from flows.session.environment import make_session_env

    env, _ = make_session_env(replace(config.env, arm=None), on_end="freeze")
    with closing(env):
        return env.action_spec

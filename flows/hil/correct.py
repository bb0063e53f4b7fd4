"""Stage `train`: a policy that learns while it acts, and a person who corrects it, until its steps
are made."""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.hil.config import CorrectConfig
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.spec import ActionSpec

LOOK_SECONDS = 0.05
"""Between two looks at the processes."""


def run(
    config: CorrectConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes the policy to `out`, every episode to `out/store.zarr`, and `learning.png`.

    `inputs["demos"]` are demonstrations; `inputs["classifier"]`, where there is one, says what
    success is. A killed run goes on: the learner from its checkpoint, the actor from its journal.

    Raises:
        HandoffError: what either process finds, or the person wants to stop.
    """
    from flows.reports.learning_curve import learning_figures, read_history
    from flows.reports.plots import draw_learning
    from policies.checkpoint import CARD

    classifier = inputs.get("classifier")
    if (config.reward == "classifier") != (classifier is not None):
        raise HandoffError(
            f"train: the reward is '{config.reward}', but the classifier is {classifier}."
        )
    counters: dict[str, Any] = {}
    if not (out / CARD).exists():
        counters = _train(config, inputs["demos"], classifier, out, progress)
        for name in ("metrics.jsonl", "training.png"):
            if (out / "learner" / name).exists():
                shutil.copy(out / "learner" / name, out / name)
    history = read_history(out / "store.zarr")
    demonstrations = read_history(inputs["demos"] / "store.zarr")
    figures = learning_figures(history, demonstrations)
    draw_learning(history, demonstrations, out / "learning.png")
    # The artifact is the policy and the episodes; what a learner needs to go on is of no use to
    # anyone else.
    for name in ("learner", "actor"):
        shutil.rmtree(out / name, ignore_errors=True)
    return {
        **{name: counters[name] for name in ("steps", "updates") if name in counters},
        **figures,
    }


def _train(
    config: CorrectConfig, demos: Path, classifier: Path | None, out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs both processes until the policy is there; returns the learner's counters."""
    from flows.hil.actor_process import act
    from flows.hil.learner_process import learn
    from flows.hil.processes import Side

    token = secrets.token_hex(16)
    learner = Side("learner", learn, (config, out, demos, _action(config), token))
    actor = Side("actor", act, ())
    counters: dict[str, Any] = {}
    status = "starting"
    learner.start()
    try:
        while not learner.done:
            for message in learner.hear():
                match message:
                    case ("ready", port):
                        # A learner that is started again must be found where it was.
                        placed = replace(config, learner=replace(config.learner, port=port))
                        learner.arguments = (placed, *learner.arguments[1:])
                        actor.arguments = (config, out, classifier, f"ws://127.0.0.1:{port}", token)
                    case ("counters", values):
                        counters = values
                        if actor.process is None and counters["steps"] < config.steps:
                            actor.start()
                    case ("enough",):
                        actor.say("stop")
            for message in actor.hear():
                match message:
                    case ("status", line):
                        status = line
                    case ("stopped",):
                        raise HandoffError(
                            "training: stopped by the person. Run the same command to go on."
                        )
            progress(
                min(counters.get("steps", 0), config.steps),
                config.steps,
                _note(counters, status, actor.done),
            )
            time.sleep(LOOK_SECONDS)
    finally:
        actor.end()
        learner.end(30.0)
    return counters


def _note(counters: dict[str, Any], status: str, ended: bool) -> str:
    if not counters:
        return status
    who = "learning on" if ended else status
    return (
        f"success {counters['recent_success']:.2f}, corrected {counters['recent_interventions']:.2f}, "
        f"{counters['updates']} updates, {who}"
    )


def _action(config: CorrectConfig) -> ActionSpec:
    """The world's actions; asked of a world, so that the learner needs none."""
    from flows.session.worlds import make_session_worlds

    env, _ = make_session_worlds(config.world, on_end="freeze")
    with closing(env):
        return env.action_spec

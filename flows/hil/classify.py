"""Stage `classifier`: states of success, what else there is to see, and a detector that tells them
apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.hil.config import ClassifyConfig
from flows.session.config import HilWorld
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress

if TYPE_CHECKING:
    from flows.session.episodes import Ended, Round
    from robots.episodes.store import EpisodeStore, EpisodeWriter
    from sim.recording.hard_negatives import Propose

MOST_EPISODES = 500
"""Demonstrations for states of success, after which it is given up."""
COMMIT_BYTES = 2**18
"""Of episodes that are committed together: some dozen, which are soon made again."""
SOURCES = ("policy", "corrected", "random", "leaving")
"""Who acts in a policy's episodes, in turns: a clone of the demonstrations, the clone with a
simulated person who corrects it, chance, and the scripted expert, who leaves success again and
again (`sim.recording.hard_negatives`)."""


def run(
    config: ClassifyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes the classifier (`success.onnx` too), and what it learned from: `solved.zarr` and
    `policy.zarr`.

    `inputs["clone"]` is a policy cloned from the demonstrations. Precision and recall are those of
    its held-out episodes, none of which took part in learning or in the choice of the threshold.

    Raises:
        HandoffError: too few successes, no threshold is precise enough, or the person wants to
            stop.
    """
    from policies.rewards.success_classifier import classifier_to_onnx, load_classifier
    from policies.rewards.train_success_classifier import (
        join_steps,
        read_labelled_steps,
        train_success,
    )
    from robots.storage.durable import write_atomically

    counts = _collect(config, inputs["clone"], out, progress)
    fields = config.train.classifier
    solved = read_labelled_steps(out / "solved.zarr", fields, by_policy=False)
    steps = join_steps([solved, read_labelled_steps(out / "policy.zarr", fields, by_policy=True)])
    report = train_success(config.train, steps, out, progress)
    classifier, card = load_classifier(out)
    write_atomically(out / "success.onnx", classifier_to_onnx(classifier, card).SerializeToString())
    negatives = int((~steps.success).sum())
    return {**counts, "negatives": negatives, **report}


def _collect(config: ClassifyConfig, clone: Path, out: Path, progress: Progress) -> dict[str, int]:
    """Records episodes of both kinds, going on from what is there; returns how many, and states of
    success."""
    from flows.session.episodes import Round
    from flows.session.worlds import make_operator, make_session_worlds, standing_still
    from robots.episodes.corrections import corrections_schema, open_corrections
    from sim.recording.hard_negatives import LEAVES, ROUNDS, leaving_expert, random_ways
    from sim.recording.simulated_operator import OperatorConfig, SimulatedOperator

    env, engine = make_session_worlds(config.world, on_end="freeze", endless=True)
    longer = replace(config.world, max_steps=env.max_steps + 3 * LEAVES * ROUNDS)
    around, solver = make_session_worlds(longer, on_end="freeze", endless=True)
    with closing(env), closing(around):
        schema = corrections_schema(
            config.world.task,
            env.rate_hz,
            env.observation_spec,
            env.action_spec,
            config.world.robot,
        )
        with (
            open_corrections(out / "solved.zarr", schema) as solved,
            open_corrections(out / "policy.zarr", schema) as made,
        ):
            with closing(make_operator(config.operator, engine, demonstrates=True)) as person:
                pace = config.operator.speed if config.operator.kind != "simulated" else 0.0
                still = standing_still(env.action_spec, engine.task.robot)
                session = Round(env, person, still, pace=pace, linger=config.linger)
                positives = _demonstrate(config, session, solved, progress)
            # A clone that hardly ever succeeds alone would leave no success to judge by: so it is
            # helped now and then.
            people = {
                "policy": SimulatedOperator(engine, OperatorConfig(policy="never")),
                "corrected": SimulatedOperator(engine, config.operator.simulated),
            }
            policy = _policy(clone, config)
            ways: dict[str, Callable[[int], Propose]] = {
                "random": partial(random_ways, env.action_spec),
                "leaving": partial(leaving_expert, solver),
            }
            with made.writer(COMMIT_BYTES) as writer:
                for number in range(made.num_episodes, config.policy_episodes):
                    source = SOURCES[number % len(SOURCES)]
                    seed = config.first_seed + MOST_EPISODES + number
                    propose = ways[source](seed) if source in ways else policy
                    worlds, linger = (
                        (around, around.max_steps) if source == "leaving" else (env, config.linger)
                    )
                    session = Round(
                        worlds, people.get(source, people["policy"]), propose, linger=linger
                    )
                    _record(config.world, session, made, writer, seed, source)
                    progress(number + 1, config.policy_episodes, "episodes of a policy")
            return {
                "demonstrations": solved.num_episodes,
                "policy_episodes": made.num_episodes,
                "positives": positives,
                "policy_positives": _positives(made),
            }


def _demonstrate(
    config: ClassifyConfig, session: Round, store: EpisodeStore, progress: Progress
) -> int:
    """Records solved episodes until there are enough states of success; returns their number."""
    number, positives = store.num_episodes, _positives(store)
    with store.writer(COMMIT_BYTES) as writer:
        while positives < config.positives:
            if number >= MOST_EPISODES:
                raise HandoffError(
                    f"classifier: {positives} states of success after {number} episodes, {config.positives} wanted. "
                    "Does the task's success last?"
                )
            progress(positives, config.positives, "states of success")
            seed = config.first_seed + number
            positives += _record(config.world, session, store, writer, seed, "demonstration")
            number += 1
    return positives


def _record(
    world: HilWorld,
    session: Round,
    store: EpisodeStore,
    writer: EpisodeWriter,
    seed: int,
    source: str,
) -> int:
    """One episode; returns its states of success."""
    from flows.session.worlds import robot_label
    from robots.episodes.corrections import EpisodeAssembler

    assembler = EpisodeAssembler(store, 1, {"robot": robot_label(world)}, writer)

    def choose(ended: Ended) -> EpisodeAssembler:
        return assembler

    ended = session.run(seed, choose, {"source": source})
    if ended.stopped:
        raise HandoffError("classifier: stopped by the person. Run the same command to go on.")
    return ended.solved_steps


def _positives(store: EpisodeStore) -> int:
    return int((store.column("policy", "reward") > 0.5).sum()) if store.num_episodes else 0


def _policy(clone: Path, config: ClassifyConfig) -> Callable[[Observation], np.ndarray]:
    """The cloned policy, a step at a time."""
    import torch

    from policies.load import load_policy
    from real.hil.interfaces import observation_vector
    from sim.make import find_task

    torch.set_num_threads(1)
    policy = load_policy(clone)
    specs = {
        name: term.spec
        for name, term in find_task(
            config.world.task, config.world.rate_hz, config.world.robot
        ).observations.items()
    }
    vector = observation_vector(specs, config.world.observation_fields)

    def propose(observation: Observation) -> np.ndarray:
        seen = vector(observation)[:, None]
        # Regression pays no heed to noise.
        return policy(seen, np.zeros((1, 1, _size(clone)), np.float32))[:, 0].astype(np.float64)

    return propose


def _size(policy: Path) -> int:
    from policies.checkpoint import read_card

    return read_card(policy).action_size

"""Stage `classify`: records successes and hard negatives, and trains a success classifier on
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flows.artifacts import Classifier, Output, Policy
from flows.stages.learn.config import TRAINING_TELEMETRY, ClassifyConfig
from robots.errors import HandoffError
from robots.interfaces import Observation, PolicyInput, Progress

if TYPE_CHECKING:
    from flows.session.episodes import EpisodeLoop, EpisodeOutcome
    from robots.episodes.episode_writer import EpisodeWriter
    from robots.episodes.metadata.episode_metadata import EpisodeOrigin
    from robots.episodes.store import EpisodeStore
    from robots.spec import FieldSpec
    from sim.recording.hard_negatives import Propose

TELEMETRY = TRAINING_TELEMETRY

MAX_EPISODES = 500
"""Maximum number of demonstrations recorded to collect success states; the stage then ends with an
error, and goes on from them when it is run again with fewer `positives`."""
COMMIT_BYTES = 2**18
"""Size of a group of episodes that is committed at once [bytes]: a few dozen, which are quickly
recorded again."""
SOURCES = ("policy", "corrected", "random", "leaving")
"""Actors of the policy episodes, in turn: a policy cloned from the demonstrations, the clone
corrected by a simulated operator, random actions, and the scripted expert, which leaves the success
state repeatedly (`sim.recording.hard_negatives`)."""


def run(
    config: ClassifyConfig,
    out: Path,
    progress: Progress,
    *,
    clone: Policy,
) -> Output[Classifier]:
    """Writes the classifier, also as `success.onnx`, and its data: `solved.zarr` and `policy.zarr`.

    `clone` is a policy cloned from the demonstrations. Precision and recall are measured
    on held-out policy episodes, used neither for training nor for the choice of the threshold.

    Raises:
        HandoffError: too few successes, no threshold is precise enough, or the person stopped.
    """
    from policies.rewards.labelled_steps import join_steps, read_labelled_steps
    from policies.rewards.success_files import classifier_to_onnx, load_classifier
    from policies.rewards.train_success_classifier import train_success
    from robots.storage.durable import write_atomically

    counts = _collect(config, clone, out, progress)
    fields = config.train.classifier
    solved = read_labelled_steps(out / "solved.zarr", fields, by_policy=False)
    steps = join_steps([solved, read_labelled_steps(out / "policy.zarr", fields, by_policy=True)])
    report = train_success(config.train, steps, out, progress)
    classifier, card = load_classifier(out)
    write_atomically(out / "success.onnx", classifier_to_onnx(classifier, card).SerializeToString())
    negatives = int((~steps.success).sum())
    return Output({**counts, "negatives": negatives, **report})


def _collect(config: ClassifyConfig, clone: Path, out: Path, progress: Progress) -> dict[str, int]:
    """Records demonstrations and policy episodes, resuming an interrupted attempt; returns their
    numbers and those of success states."""
    from flows.session.environment import (
        make_session_env,
        policy_digest,
        session_origin,
        session_schema,
    )
    from flows.session.episodes import EpisodeLoop
    from robots.episodes.corrections import open_corrections
    from sim.recording.hard_negatives import LEAVES, ROUNDS, leaving_expert, random_walk
    from sim.recording.simulated_operator import OperatorConfig, SimulatedOperator

    # One environment for policies, one with more time for the expert that leaves success.
    env, engine = make_session_env(config.env, on_end="freeze", ignore_success=True)
    longer = replace(config.env, max_steps=env.max_steps + 3 * LEAVES * ROUNDS)
    leaving_env, leaving_engine = make_session_env(longer, on_end="freeze", ignore_success=True)
    with closing(env), closing(leaving_env):
        schema = session_schema(config.env, env)
        with (
            open_corrections(out / "solved.zarr", schema) as solved,
            open_corrections(out / "policy.zarr", schema) as policy_store,
        ):
            positives = _success_states(config, solved, progress)
            # Policy episodes. A clone that rarely succeeds would leave no successes to evaluate on,
            # so it is corrected in some of them.
            operators = {
                "policy": SimulatedOperator(engine, OperatorConfig(policy="never")),
                "corrected": SimulatedOperator(engine, config.operator.simulated),
            }
            policy = cloned_policy(clone, config, env.observation_spec)
            digest = policy_digest(clone)
            actors: dict[str, Callable[[int], Propose]] = {
                "random": partial(random_walk, env.action_spec),
                "leaving": partial(leaving_expert, leaving_engine),
            }
            with policy_store.writer(COMMIT_BYTES) as writer:
                for number in range(policy_store.num_episodes, config.policy_episodes):
                    source = SOURCES[number % len(SOURCES)]
                    seed = config.first_seed + MAX_EPISODES + number
                    propose = actors[source](seed) if source in actors else policy
                    episode_env, linger = (
                        (leaving_env, leaving_env.max_steps)
                        if source == "leaving"
                        else (env, config.linger)
                    )
                    session = EpisodeLoop(
                        episode_env,
                        operators.get(source, operators["policy"]),
                        propose,
                        linger=linger,
                    )
                    origin = session_origin(
                        config.env,
                        engine,
                        source,
                        live=False,
                        policy_digest=None if source in actors else digest,
                    )
                    _record(origin, session, policy_store, writer, seed)
                    progress(number + 1, config.policy_episodes, "policy episodes")
            return {
                "demonstrations": solved.num_episodes,
                "policy_episodes": policy_store.num_episodes,
                "positives": positives,
                "positives_labelled": _labelled(solved),
                "contradicted": _contradicted(solved),
                "policy_positives": _positives(policy_store),
            }


def _success_states(config: ClassifyConfig, store: EpisodeStore, progress: Progress) -> int:
    """Records demonstrations until there are enough success states; returns the number of these.

    Raises:
        HandoffError: too few success states after `MAX_EPISODES`, or the person stopped.
    """
    from flows.session.environment import (
        hold,
        inform,
        make_operator,
        make_session_env,
        session_origin,
        still_policy,
    )
    from flows.session.episodes import EpisodeLoop

    # A person needs more time than a policy.
    live = config.operator.kind != "simulated"
    seconds = config.operator.seconds if live else None
    env, engine = make_session_env(
        config.env, on_end="freeze", ignore_success=True, seconds=seconds
    )
    with (
        closing(env),
        closing(
            make_operator(
                config.operator,
                engine,
                demonstrates=True,
                stage="success states",
                max_steps=env.max_steps,
            )
        ) as person,
        store.writer(COMMIT_BYTES) as writer,
    ):

        def object_to_label(why: str) -> None:
            hold(person, why)
            progress(positives, config.positives, why)

        origin = session_origin(config.env, engine, "demonstration", live=live)
        session = EpisodeLoop(
            env,
            person,
            still_policy(env.action_spec, engine.task.robot),
            pace=config.operator.speed if live else 0.0,
            linger=config.linger,
            label_linger=config.linger if live else 0,
            object_to_label=object_to_label if live else None,
        )
        number = store.num_episodes
        positives = _positives(store)
        labelled = _labelled(store)
        counted = f"the simulator's success, or your label: {config.linger} states each"
        while positives < config.positives:
            if number >= MAX_EPISODES:
                raise HandoffError(
                    f"classifier: {positives} success states after {number} episodes, expected {config.positives}. "
                    "Does the success condition last longer than one step, or are labels of success missing? Lower "
                    "`positives` to go on with these."
                )
            progress(positives, config.positives, "success states")
            counts = f"{positives} of {config.positives}, {labelled} from labels"
            inform(person, {"success states": counts, "what counts": counted})
            outcome = _record(origin, session, store, writer, config.first_seed + number)
            positives += outcome.solved_steps
            labelled += outcome.labelled_steps
            number += 1
    return positives


def _record(
    origin: EpisodeOrigin,
    session: EpisodeLoop,
    store: EpisodeStore,
    writer: EpisodeWriter,
    seed: int,
) -> EpisodeOutcome:
    """Records one episode.

    Raises:
        HandoffError: the person stopped.
    """
    from flows.session.environment import wall_clock
    from robots.episodes.corrections import EpisodeAssembler

    now = wall_clock(live=origin.session is not None)
    assembler = EpisodeAssembler(store, 1, origin.entries(), memory=writer, now=now)
    outcome = session.run(seed, assembler, {})
    if outcome.stopped:
        raise HandoffError("classifier: stopped by the person. Run the same command to resume.")
    return outcome


def _positives(store: EpisodeStore) -> int:
    return int((store.column("policy", "reward") > 0.5).sum()) if store.num_episodes else 0


def _labelled(store: EpisodeStore) -> int:
    """Number of success states that follow a label of success."""
    from flows.session.episodes import LABELLED

    return sum(int(store.metadata(n).get(LABELLED, 0)) for n in range(store.num_episodes))


def _contradicted(store: EpisodeStore) -> int:
    """Number of demonstrations whose label the person has kept against the simulator."""
    from flows.session.episodes import CONTRADICTED

    return sum(bool(store.metadata(n).get(CONTRADICTED)) for n in range(store.num_episodes))


def cloned_policy(
    clone: Path, config: ClassifyConfig, fields: Mapping[str, FieldSpec]
) -> Callable[[Observation], np.ndarray]:
    """Returns the cloned policy as a function from an observation to one action.

    Raises:
        HandoffError: the environment has no picture of a camera that the policy observes.
    """
    import torch

    from policies.checkpoint import read_card
    from policies.load import load_policy
    from real.hil.interfaces import observation_vector
    from sim.make import find_task

    torch.set_num_threads(1)
    policy, sensors = load_policy(clone), tuple(read_card(clone).sensors)
    missing = [name for name in sensors if name not in fields]
    if missing:
        raise HandoffError(
            f"classifier: the cloned policy observes {missing}, the environment {sorted(fields)}. Set env.cameras to "
            "the cameras of its demonstrations."
        )
    specs = {
        name: term.spec
        for name, term in find_task(
            config.env.task, config.env.rate_hz, config.env.robot
        ).observations.items()
    }
    vector = observation_vector(specs, config.env.observation_fields)

    def propose(observation: Observation) -> np.ndarray:
        obs = vector(observation)[:, None]
        # A regression policy ignores the noise.
        inputs = PolicyInput(obs, {name: observation[name][:, None] for name in sensors})
        return policy(inputs, np.zeros((1, 1, _size(clone)), np.float32))[:, 0].astype(np.float64)

    return propose


def _size(policy: Path) -> int:
    from policies.checkpoint import read_card

    return read_card(policy).action_size

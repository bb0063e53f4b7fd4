"""The actor's process of the stage `train`: a world, a person, the newest policy, and a record of
all they do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.hil.config import CorrectConfig
from flows.session.worlds import make_operator, make_session_worlds, robot_label
from real.hil.actor import Actor, ActorStep
from real.hil.interfaces import ActionMapping, IdentityActions, ScaledWallClock, observation_vector
from real.hil.journal import Journal
from real.hil.learner_client import LearnerClient, LearnerClientConfig
from real.hil.rewards import ClassifierReward, EnvReward
from robots.control.gripper_commands import CommandedHand
from robots.episodes.corrections import (
    STREAM,
    EpisodeAssembler,
    StepOutcome,
    corrections_schema,
    open_corrections,
)
from robots.errors import words
from robots.franka.robot import Robot
from robots.interfaces import Intervention, Label, Observation, Operator, Requests
from robots.signals import delayed_signals
from robots.spec import ActionSpec
from robots.success import SuccessDetector

if TYPE_CHECKING:
    pass

SAY_SECONDS = 0.2
"""Between two words to the parent about how things stand."""
FLUSH_SECONDS = 30.0
"""For the learner to take what is committed, once the actor has ended."""


def act(
    config: CorrectConfig,
    folder: Path,
    classifier: Path | None,
    uri: str,
    token: str,
    parent: Connection,
) -> None:
    """Acts until the parent says `stop` or the person does; records episodes in
    `folder/store.zarr`.

    An episode that anything else ends, such as a lost sensor or a signal, is recorded up to there,
    with its fault. Says to the parent `("status", line)` now and then and `("stopped",)` where the
    person wants to stop.
    """
    with ExitStack() as stack:
        env, engine = make_session_worlds(
            config.world, on_end="reset", endless=classifier is not None
        )
        stack.enter_context(closing(env))
        operator = _Attended(make_operator(config.operator, engine), config.operator.half_life)
        stack.enter_context(closing(operator))
        schema = corrections_schema(
            config.world.task,
            env.rate_hz,
            env.observation_spec,
            env.action_spec,
            config.world.robot,
        )
        store = stack.enter_context(open_corrections(folder / "store.zarr", schema))
        operator.steps = int(store.ends(STREAM)[-1]) if store.num_episodes else 0
        journal = stack.enter_context(Journal(folder / "actor"))
        link = stack.enter_context(
            LearnerClient(journal, LearnerClientConfig(uri=uri), token, folder / "actor")
        )
        about = {"robot": robot_label(config.world), "source": "training"}
        recorder = _Recorder(EpisodeAssembler(store, 1, about), operator)

        def watch(acted: ActorStep) -> None:
            with delayed_signals():
                recorder(acted)
            operator.report_step(acted)
            if parent.poll() and parent.recv() == "stop":
                actor.stop()
            recorder.say(parent, link)

        def hold() -> None:
            if parent.poll() and parent.recv() == "stop":
                actor.stop()
            recorder.say(parent, link)

        actor = Actor(
            env,
            operator,
            journal,
            link,
            config.actor,
            rewards=EnvReward(sparse=True) if classifier is None else detected_reward(classifier),
            actions=learner_actions(env.action_spec, engine.task.robot),
            clock=None if config.speed <= 0.0 else ScaledWallClock(config.speed),
            vector=observation_vector(env.observation_spec, config.world.observation_fields),
            starts=lambda: env.episode_seeds,
            hold=hold,
            watch=watch,
        )
        try:
            actor.run()
        except BaseException as error:
            with delayed_signals():
                recorder.cut_off(words(error))
            raise
        if operator.stopped:
            parent.send(("stopped",))
        link.flush(FLUSH_SECONDS)


def learner_actions(spec: ActionSpec, robot: Robot) -> ActionMapping:
    """Between the learner's actions and the world's: a hand is commanded, everything else is the
    same."""
    if spec.names[-1:] != ("gripper",):
        return IdentityActions(spec.size)
    return CommandedHand(spec.size, robot.gripper.width_max)


def detected_reward(classifier: Path) -> ClassifierReward:
    """What the classifier of the stage before says, on one thread of ONNX Runtime."""
    from real.deploy.onnx_success import OnnxSuccess

    success = OnnxSuccess(classifier / "success.onnx")
    return ClassifierReward(success, SuccessDetector(success.contract.detector))


class _Attended:
    """A person, from whom is noted when they stop, where episodes begin, and how their attention
    wanes."""

    def __init__(self, operator: Operator, half_life: int) -> None:
        self._operator, self._half_life = operator, half_life
        self.seeds: list[int] = [0]
        self.stopped, self.steps = False, 0

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> None:
        self.seeds = list(seeds)
        if self._half_life > 0 and hasattr(self._operator, "attention"):
            self._operator.attention = 0.5 ** (self.steps / self._half_life)  # type: ignore[attr-defined]
        self._operator.reset(seeds, worlds)

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        self.steps += 1
        return self._operator.intervene(proposed, observation)

    def requests(self) -> Requests:
        requests = self._operator.requests()
        self.stopped |= requests.stop
        return requests

    def status(self) -> str:
        return self._operator.status()

    def close(self) -> None:
        self._operator.close()

    def report_step(self, acted: ActorStep) -> None:
        """What came of the step, for an operator who wants to know."""
        from real.console.console_operator import ConsoleOperator

        if isinstance(self._operator, ConsoleOperator):
            verdict = acted.verdict
            self._operator.report_step(
                acted.observation,
                acted.intervention,
                reward=float(verdict.reward[0]),
                success=bool(verdict.success[0]),
                probability=None if verdict.probability is None else float(verdict.probability[0]),
                label=acted.label,
                last=bool(acted.last[0]),
            )


class _Recorder:
    """Writes every episode down when it ends, and tells the parent how things stand."""

    def __init__(self, assembler: EpisodeAssembler, operator: _Attended) -> None:
        self._assembler, self._operator = assembler, operator
        self._solved, self._said = False, 0.0
        self._running: tuple[Observation, dict[str, Any]] | None = None
        """What the running episode's last step led to, and its metadata up to then; None before its
        first step."""

    def __call__(self, acted: ActorStep) -> None:
        self._solved |= bool(acted.step.info["success"][0])
        dropped = acted.label in (Label.REDO, Label.DISCARD)
        about: dict[str, Any] = {
            "seed": self._operator.seeds[0],
            "true_success": self._solved,
            "discard_reason": acted.label.name.lower() if dropped else None,
        }
        outcome = StepOutcome(
            reward=acted.verdict.reward,
            success=np.where(acted.last, np.where(acted.verdict.success, 1, -1), 0),
            final_observation=acted.step.final_observation,
            last=acted.last,
            policy_version=acted.steps.policy_version,
        )
        moved = acted.step.executed > 0
        running, self._running = self._running, None
        self._assembler.add(acted.observation, acted.intervention, outcome, moved, [about])
        if acted.last[0]:
            self._solved = False
        elif not moved[0]:
            self._running = running
        else:
            # The world may write its next observation into the same arrays.
            final = {name: np.array(array) for name, array in acted.step.final_observation.items()}
            person = {"operator": acted.intervention.operator, "device": acted.intervention.device}
            self._running = final, {**person, **about}

    def cut_off(self, fault: str) -> None:
        """Writes the running episode down as it stands, where it has begun."""
        if self._running is not None:
            (final, about), self._running = self._running, None
            self._assembler.cut_off(0, final, {**about, "fault": fault, "discard_reason": "fault"})

    def say(self, parent: Connection, link: LearnerClient) -> None:
        now = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            self._said = now
            state = link.state
            line = (
                self._operator.status()
                if state.condition == "connected"
                else f"{state.condition} {state.trouble}"
            )
            parent.send(("status", line))

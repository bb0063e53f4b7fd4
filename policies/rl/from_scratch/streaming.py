"""Trains a policy on a stream of steps: stream AC(lambda).

One environment and the learner alternate: an action, a step, an update, and the step is forgotten.
The complete state is saved every few thousand steps: weights, traces, statistics and the
environment. A killed run resumes bit-identically, or with a new episode if the environment cannot
be saved.
"""

from __future__ import annotations

import numpy as np

from policies.random_streams import LearnerStream
from policies.rl.actor_export import stream_actor
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import StreamAcAlgorithm
from policies.rl.from_scratch.run import SavedActor, ScratchRun, checked_figures, episode_figures
from policies.rl.replay.transitions import Sizes
from policies.rl.streaming.stream_ac import Learned, StreamAc
from robots.interfaces import Progress


class StreamRun:
    """State of one run.

    Args:
        algorithm: the algorithm with its options.
        run: the environment, of which there is one, curve and folder of the run.
    """

    def __init__(self, algorithm: StreamAcAlgorithm, run: ScratchRun[StateEnv]) -> None:
        self.run = run
        self._algorithm = algorithm
        sizes = Sizes(observation=run.env.entries, action=run.env.env.action_spec.size)
        self.learner = StreamAc(algorithm, sizes, run.config.seed)

    def resume(self) -> None:
        """Restores the state of a killed run with the same configuration, or starts a new one."""
        state = self.run.resumable.resume()
        if state is None:
            self.run.env.begin()
            self.learner.begin(self.run.env.observation[0])
            return
        self.learner.load_state_dict(state["learner"])
        self.run.load_state_dict(state)
        if state["env"]["env"] is None:
            self.learner.begin(self.run.env.observation[0])

    def learn(self, progress: Progress) -> None:
        """Runs the remaining steps, each with its update."""
        algorithm = self._algorithm
        figures: list[Learned] = []
        while self.learner.updates < algorithm.steps:
            figures.append(self._step())
            done = self.learner.updates
            if done % algorithm.save_every == 0 or done == algorithm.steps:
                entry = self._entry(figures)
                figures.clear()
                self.run.resumable.entries.append(entry)
                self.run.resumable.save(
                    {"learner": self.learner.state_dict(), **self.run.state_dict()}
                )
                note = f"success {entry['success']:.2f}, return {entry['return']:.2f}"
                progress(done, algorithm.steps, note)

    def actor(self) -> SavedActor:
        """The deterministic policy."""
        return SavedActor(*stream_actor(self.learner), version=self.learner.updates)

    def counts(self) -> dict[str, int]:
        """Number of steps, and of updates."""
        return {"steps": self.learner.updates, "updates": self.learner.updates}

    def finish(self) -> None:
        """Removes the files that only a resumed run needs."""
        self.run.resumable.finish()

    def _step(self) -> Learned:
        """One step of the environment and the update that it brings."""
        env, seed = self.run.env, self.run.config.seed
        rng = np.random.default_rng([seed, LearnerStream.EXPLORATION, self.learner.updates])
        decision = self.learner.decide(rng)
        steps = env.step(decision.action_A.clamp(-1.0, 1.0).numpy()[None])
        terminated, truncated = bool(steps.terminated[0]), bool(steps.truncated[0])
        learned = self.learner.learn(
            decision,
            float(steps.reward[0]),
            steps.next_observation[0],
            terminated=terminated,
            truncated=truncated,
        )
        if terminated or truncated:
            self.learner.begin(env.observation[0])
        return learned

    def _entry(self, figures: list[Learned]) -> dict[str, float]:
        """Entry of the curve, with means since the last one."""
        td_error, critic_step, actor_step = np.mean(np.abs(np.array(figures)), axis=0)
        means = {"td_error": td_error, "critic_step": critic_step, "actor_step": actor_step}
        hint = "Are the observations and the rewards those of the task?"
        return {
            "steps": self.learner.updates,
            "cpu_seconds": round(self.run.resumable.cpu_seconds(), 1),
            **episode_figures(self.run.env),
            **checked_figures(means, f"{self.learner.updates} steps", hint),
        }

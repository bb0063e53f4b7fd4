"""Collects rollouts with inference for one part of the environments while the others are simulated.

This is RLinf's fine-grained pipelining (arXiv 2510.06710, `rollout.pipeline_stage_num` there). Here
the parts take turns in a fixed order, and the noise of a decision is sampled for all environments
before it is split. A rollout therefore uses the same environments, seeds and noise as the
sequential loop, and its numbers differ only by rounding in products of other batch sizes.

Shape suffixes: N environments.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import torch

from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.interfaces import (
    ChunkActor,
    ChunkActorOutput,
    DecisionEnv,
    PresampledNoiseActor,
    StepResult,
)
from policies.rl.collection.split_chunk_env import ChunkEnvPart, SplitChunkEnv, concatenate_results
from policies.rl.on_policy.rollout import Trace
from robots.errors import HandoffError


class PipelinedCollector(ChunkCollector):
    """A `ChunkCollector` that infers for one part of the environments while others are simulated.

    Args:
        env: environments in parts.
        actor: see `ChunkCollector`; must be a `PresampledNoiseActor`.
        seed: seed of all sampling.

    Raises:
        HandoffError: an actor whose noise cannot be sampled in advance.
    """

    def __init__(self, env: SplitChunkEnv, actor: ChunkActor, seed: int = 0) -> None:
        if not isinstance(actor, PresampledNoiseActor):
            raise HandoffError(
                f"placement: the environments have {len(env.parts)} parts, but {type(actor).__name__} "
                "cannot sample its noise in advance, so results would depend on the parts. Choose "
                "placement.kind: disaggregated, or add sample_noise and decide_with_noise to the actor."
            )
        super().__init__(env, actor, seed)
        self._presampled_actor = actor
        self._parts = env.parts

    def _decisions(self, decisions: int) -> Generator[tuple[dict[str, Any], Trace, StepResult]]:
        running: list[_StartedStep] = []
        state_before = self._generator.get_state()
        try:
            for step in range(decisions + 1):
                decide = step < decisions
                finished = []
                started = []
                # The noise of this decision, for all environments at once.
                state_before = self._generator.get_state()
                presampled = {}
                if decide:
                    presampled = self._presampled_actor.sample_noise(
                        self.env.num_envs, self._generator
                    )
                # Each part finishes its running step and starts the next.
                for index, part in enumerate(self._parts):
                    if running:
                        finished.append(self._end(part, running[index]))
                    if decide:
                        started.append(self._begin(part, presampled))
                running = started
                if finished:
                    yield self._concatenate(finished)
        except GeneratorExit:
            # All episodes have ended, so the steps started in advance changed nothing: drop them
            # and their noise.
            for part in self._parts:
                part.discard()
            self._generator.set_state(state_before)
            raise

    def _begin(self, part: ChunkEnvPart, presampled: Trace) -> _StartedStep:
        obs = part.chunk_env.observation()
        output = self._presampled_actor.decide_with_noise(
            obs, {name: noise[part.rows] for name, noise in presampled.items()}
        )
        part.begin_step(output.chunk_BHA)
        return _StartedStep(obs, output)

    def _end(self, part: ChunkEnvPart, step: _StartedStep) -> _FinishedStep:
        result = part.end_step()
        return _FinishedStep(self._row(step.obs, step.output, result), step.output.trace, result)

    def _concatenate(self, steps: list[_FinishedStep]) -> tuple[dict[str, Any], Trace, StepResult]:
        result = concatenate_results([step.result for step in steps])
        self.statistics.add(result)
        return (
            _concatenate_rows([step.row for step in steps]),
            _concatenate_rows([step.trace for step in steps]),
            result,
        )


class _StartedStep(NamedTuple):
    obs: Any
    output: ChunkActorOutput


class _FinishedStep(NamedTuple):
    row: dict[str, Any]
    trace: Trace
    result: StepResult


def make_collector(env: DecisionEnv, actor: ChunkActor, seed: int = 0) -> ChunkCollector:
    """The collector for these environments: pipelined if they have several parts."""
    if isinstance(env, SplitChunkEnv) and len(env.parts) > 1:
        return PipelinedCollector(env, actor, seed)
    return ChunkCollector(env, actor, seed)


def _concatenate_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

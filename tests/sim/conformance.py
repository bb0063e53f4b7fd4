"""What every `VecEnv` must do, whatever its engine: checks over an `Entry` of `engines.py`, each
stating one fact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import EnvState, Step, VecEnv
from robots.spec import check_fields
from tests.sim.conformance_entries import Entry, OnEnd

LONG = 40
"""A time limit [steps] that no check reaches unless it means to."""


_idle: dict[tuple[str, int, OnEnd, int], list[VecEnv]] = defaultdict(list)


@contextmanager
def envs(
    entry: Entry,
    num_envs: int,
    on_end: OnEnd = "reset",
    max_steps: int = LONG,
    *,
    new: bool = False,
) -> Iterator[VecEnv]:
    """Environments for one check; shared among checks where the entry says so, unless they must be
    `new`."""
    idle = _idle[entry.name, num_envs, on_end, max_steps] if entry.reuse and not new else []
    env = idle.pop() if idle else entry.make(num_envs, on_end, max_steps)
    healthy = False
    try:
        yield env
        healthy = entry.reuse and not new
    finally:
        if healthy:
            idle.append(env)
        else:
            env.close()


def close_idle() -> None:
    """Closes shared environments that no check uses any more."""
    for envs in _idle.values():
        while envs:
            envs.pop().close()


Check = Callable[[Entry], None]


def random_actions(env: VecEnv, steps: int, seed: int = 0) -> np.ndarray:
    """(T, N, A) within the bounds, or within one unit of zero where there are none."""
    low, high = np.clip(env.action_spec.low, -1.0, None), np.clip(env.action_spec.high, None, 1.0)
    shape = (steps, env.num_envs, env.action_spec.size)
    return np.random.default_rng(seed).uniform(low, high, size=shape)


def assert_same(entry: Entry, one: np.ndarray, two: np.ndarray, what: str) -> None:
    assert one.dtype == two.dtype, what
    if entry.exact or one.dtype.kind != "f":
        np.testing.assert_array_equal(one, two, err_msg=what)
    else:
        np.testing.assert_allclose(
            one, two, rtol=entry.tolerance, atol=entry.tolerance, err_msg=what
        )


def assert_same_steps(
    entry: Entry, one: Step, two: Step, rows_one: list[int], rows_two: list[int]
) -> None:
    for name, array in _arrays(one).items():
        assert_same(entry, array[rows_one], _arrays(two)[name][rows_two], name)


def check_an_environment_depends_on_its_seed_and_actions_only(entry: Entry) -> None:
    # The same two seeds in slots 0, 1 of 2 environments and in slots 2, 0 of 3.
    with envs(entry, 2) as small, envs(entry, 3) as large:
        first, second = small.reset([11, 12]), large.reset([12, 13, 11])
        for name, array in first.items():
            assert_same(entry, array, second[name][[2, 0]], name)
        assert any((first[name][0] != first[name][1]).any() for name in first), (
            "different seeds, one start"
        )
        for action in random_actions(small, 8):
            one = small.step(action)
            two = large.step(np.stack([action[1], -action[0], action[0]]))
            assert_same_steps(entry, one, two, [0, 1], [2, 0])


def check_a_second_episode_from_the_same_seed_is_the_first(entry: Entry) -> None:
    with envs(entry, 1) as env:
        actions = random_actions(env, 6)
        episodes = []
        for _ in range(2):
            env.reset([5])
            episodes.append([env.step(action) for action in actions])
        for one, two in zip(*episodes, strict=True):
            assert_same_steps(entry, one, two, [0], [0])


def check_a_chunk_is_its_actions_one_by_one(entry: Entry) -> None:
    with envs(entry, 2) as single, envs(entry, 2) as chunked:
        single.reset([1, 2])
        chunked.reset([1, 2])
        actions = random_actions(single, 6)
        steps = [single.step(action) for action in actions]
        chunk = chunked.step(actions.transpose(1, 0, 2))
        assert chunk.reward.shape == (2, 6)
        assert_same(
            entry, chunk.reward, np.stack([step.reward for step in steps], axis=1), "reward"
        )
        assert chunk.executed.tolist() == [6, 6]
        same = chunk._replace(reward=steps[-1].reward, executed=steps[-1].executed)
        assert_same_steps(entry, same, steps[-1], [0, 1], [0, 1])


def check_a_chunk_stops_where_its_environment_ends(entry: Entry) -> None:
    with (
        envs(entry, 2, "freeze", max_steps=4) as single,
        envs(entry, 2, "freeze", max_steps=4) as chunked,
    ):
        single.reset([1, 2])
        chunked.reset([1, 2])
        actions = random_actions(single, 6)
        last = [single.step(action) for action in actions[:4]][-1]
        chunk = chunked.step(actions.transpose(1, 0, 2))
        assert chunk.executed.tolist() == [4, 4]
        assert (chunk.reward[:, 4:] == 0.0).all()
        for name, array in last.final_observation.items():
            assert_same(entry, array, chunk.final_observation[name], name)


def check_the_time_limit_truncates_and_does_not_terminate(entry: Entry) -> None:
    with envs(entry, 2, max_steps=3) as env:
        env.reset([1, 2])
        steps = [env.step(action) for action in random_actions(env, 4)]
        assert [step.truncated.tolist() for step in steps] == [
            [False] * 2,
            [False] * 2,
            [True] * 2,
            [False] * 2,
        ]
        assert not any(step.terminated.any() for step in steps)


def check_a_solved_environment_terminates_and_is_not_truncated(entry: Entry) -> None:
    assert entry.solve is not None
    with envs(entry, 2, "freeze") as env:
        observation = env.reset([1, 2])
        step = env.step(entry.solve(observation))
        for _ in range(entry.solve_steps):
            if step.terminated.all():
                break
            step = env.step(entry.solve(step.observation))
        assert step.terminated.all()
        assert step.info["success"].all()
        assert not step.truncated.any()


def check_the_final_observation_is_the_one_before_the_reset(entry: Entry) -> None:
    with (
        envs(entry, 2, "reset", max_steps=3) as resetting,
        envs(entry, 2, "freeze", max_steps=3) as freezing,
    ):
        resetting.reset([1, 2])
        freezing.reset([1, 2])
        one, two = [
            (resetting.step(action), freezing.step(action))
            for action in random_actions(resetting, 3)
        ][-1]
        for name, array in two.observation.items():
            assert_same(entry, array, one.final_observation[name], name)
            assert_same(entry, array, two.final_observation[name], name)
        assert any(
            (one.observation[name] != one.final_observation[name]).any() for name in one.observation
        )


def check_automatic_starts_are_repeatable_and_new(entry: Entry) -> None:
    starts = []
    with envs(entry, 1, max_steps=2) as env:
        for _ in range(2):
            env.reset([7])
            after = [env.step(action).observation for action in random_actions(env, 4)]
            starts.append((after[1], after[3]))
    for name in starts[0][0]:
        assert_same(entry, starts[0][0][name], starts[1][0][name], name)
        assert_same(entry, starts[0][1][name], starts[1][1][name], name)
    assert any((starts[0][0][name] != starts[0][1][name]).any() for name in starts[0][0]), (
        "each episode starts alike"
    )


def check_a_frozen_environment_stays_as_it_is(entry: Entry) -> None:
    with envs(entry, 2, "freeze", max_steps=3) as env:
        env.reset([1, 2])
        actions = random_actions(env, 6)
        for action in actions[:2]:
            env.step(action)
        env.reset([9], env_ids=[1])
        end = env.step(actions[2])
        assert end.truncated.tolist() == [True, False]
        step = [env.step(action) for action in actions[3:5]][-1]
        assert step.executed.tolist() == [0, 1]
        assert step.reward[0] == 0.0
        assert step.truncated.tolist() == [True, True]
        for name, array in step.observation.items():
            np.testing.assert_array_equal(array[0], end.observation[name][0], err_msg=name)
            np.testing.assert_array_equal(step.final_observation[name][0], array[0], err_msg=name)
        # A frozen environment's action is not looked at.
        step = env.step(np.full_like(actions[5], np.nan))
        assert step.executed.tolist() == [0, 0]


def check_a_partial_reset_leaves_the_others_alone(entry: Entry) -> None:
    with envs(entry, 3) as disturbed, envs(entry, 3) as calm:
        before = disturbed.reset([1, 2, 3])
        calm.reset([1, 2, 3])
        actions = random_actions(calm, 6)
        for action in actions[:3]:
            before = disturbed.step(action).observation
            calm.step(action)
        observation = disturbed.reset([8], env_ids=[1])
        for name, array in observation.items():
            np.testing.assert_array_equal(array[[0, 2]], before[name][[0, 2]], err_msg=name)
        for action in actions[3:]:
            assert_same_steps(entry, disturbed.step(action), calm.step(action), [0, 2], [0, 2])
        # And the environment that was reset is the one of its seed.
        fresh = calm.reset([8, 8, 8])
        for name, array in observation.items():
            assert_same(entry, array[1], fresh[name][1], name)


def check_a_restored_state_has_the_saved_future(entry: Entry) -> None:
    with envs(entry, 2) as env:
        env.reset([1, 2])
        actions = random_actions(env, 14)
        before = [env.step(action).observation for action in actions[:5]][-1]
        state = env.save()
        expected = [env.step(action) for action in actions[5:9]]
        # Elsewhere in between, so that nothing left over can help.
        env.reset([3, 4])
        for action in actions[9:]:
            env.step(action)
        for name, array in env.restore(state).items():
            assert_same(entry, array, before[name], name)
        for action, step in zip(actions[5:9], expected, strict=True):
            assert_same_steps(entry, env.step(action), step, [0, 1], [0, 1])


def check_a_restored_environment_counts_its_steps_on(entry: Entry) -> None:
    with envs(entry, 1, max_steps=5) as env:
        env.reset([1])
        actions = random_actions(env, 10)
        for action in actions[:3]:
            env.step(action)
        state = env.save()
        env.reset([2])
        env.restore(state)
        assert [bool(env.step(action).truncated[0]) for action in actions[3:5]] == [False, True]


def check_saved_rows_fit_into_any_environment(entry: Entry) -> None:
    # As groups need them: row 1 into environments 0 and 2 of another set, whose environment 1 goes
    # on undisturbed.
    with envs(entry, 2) as source, envs(entry, 3) as group, envs(entry, 3) as calm:
        actions = random_actions(group, 8)
        source.reset([1, 2])
        for action in actions[:4]:
            source.step(action[:2])
        state: EnvState = {name: array[[1, 1]] for name, array in source.save().items()}
        for env in (group, calm):
            env.reset([5, 6, 7])
            env.step(actions[0])
        group.restore(state, env_ids=[0, 2])
        for action in actions[4:]:
            same = np.stack([action[1], action[1], action[1]])
            expected, one, other = source.step(same[:2]), group.step(same), calm.step(same)
            assert_same_steps(entry, one, expected, [0, 2], [1, 1])
            assert_same_steps(entry, one, other, [1], [1])


def check_an_ended_environment_is_restored_as_ended(entry: Entry) -> None:
    with envs(entry, 2, "freeze", max_steps=3) as env:
        env.reset([1, 2])
        actions = random_actions(env, 6)
        for action in actions[:2]:
            env.step(action)
        env.reset([9], env_ids=[1])
        end = [env.step(action) for action in actions[2:4]][-1]
        state = env.save()
        expected = env.step(actions[4])
        env.reset([3, 4])
        for name, array in env.restore(state).items():
            assert_same(entry, array, end.observation[name], name)
        step = env.step(actions[4])
        assert step.executed.tolist() == [0, 1]
        assert_same_steps(entry, step, expected, [0, 1], [0, 1])


def check_an_engine_that_cannot_save_says_so(entry: Entry) -> None:
    with envs(entry, 1) as env:
        env.reset([1])
        with pytest.raises(HandoffError):
            env.save()


def check_arrays_are_as_specified(entry: Entry) -> None:
    with envs(entry, 2) as env:
        start = env.reset([1, 2])
        step = env.step(random_actions(env, 1)[0])
        for observation in (start, step.observation, step.final_observation):
            check_fields(env.observation_spec, observation)
            for name, spec in env.observation_spec.items():
                assert observation[name].shape == (2, *spec.shape), name
                assert observation[name].dtype == np.dtype(spec.dtype), name
        assert step.reward.shape == (2,)
        assert np.isfinite(step.reward).all()
        assert [
            array.dtype for array in (step.terminated, step.truncated, step.info["success"])
        ] == [np.dtype(bool)] * 3
        assert {array.shape[0] for array in _arrays(step).values()} == {2}
        assert step.executed.tolist() == [1, 1]
        assert env.rate_hz > 0.0
        assert len(env.action_spec.high) == env.action_spec.size > 0


def check_earlier_arrays_are_not_overwritten(entry: Entry) -> None:
    with envs(entry, 2, max_steps=3) as env:
        start = env.reset([1, 2])
        actions = random_actions(env, 6)
        steps = [env.step(actions[0])]
        kept = [deepcopy(start), deepcopy(_arrays(steps[0]))]
        for action in actions[1:5]:
            steps.append(env.step(action))
            kept.append(deepcopy(_arrays(steps[-1])))
        env.reset([8], env_ids=[0])
        env.step(actions[5])
        for held, copies in zip([start, *(_arrays(step) for step in steps)], kept, strict=True):
            for name, copy in copies.items():
                np.testing.assert_array_equal(held[name], copy, err_msg=name)


def check_a_nan_action_is_refused(entry: Entry) -> None:
    with envs(entry, 2) as env:
        env.reset([1, 2])
        action = random_actions(env, 1)[0]
        action[1, 0] = np.nan
        with pytest.raises(HandoffError, match="nan"):
            env.step(action)


def check_a_wrong_shape_is_refused(entry: Entry) -> None:
    with envs(entry, 2) as env:
        env.reset([1, 2])
        action = random_actions(env, 1)[0]
        for wrong in (
            action[:1],
            np.pad(action, ((0, 0), (0, 1))),
            action[0],
            action[:, None, None],
        ):
            with pytest.raises(HandoffError, match="shape"):
                env.step(wrong)


def check_environments_and_seeds_must_fit(entry: Entry) -> None:
    with envs(entry, 2, new=True) as env:
        with pytest.raises(HandoffError, match="first reset"):
            env.reset([1], env_ids=[0])
        env.reset([1, 2])
        for seeds, rows in (
            ([1], None),
            ([1, 2, 3], None),
            ([1], [2]),
            ([1, 2], [0, 0]),
            ([-1, 2], None),
        ):
            with pytest.raises(HandoffError):
                env.reset(seeds, rows)


def check_stepping_before_a_reset_is_an_error(entry: Entry) -> None:
    with envs(entry, 2, new=True) as env, pytest.raises(HandoffError, match="reset"):
        env.step(random_actions(env, 1)[0])


def check_closed_environments_say_so(entry: Entry) -> None:
    env = entry.make(2, "reset", LONG)
    env.reset([1, 2])
    action = random_actions(env, 1)[0]
    env.close()
    env.close()
    for use in (lambda: env.reset([1, 2]), lambda: env.step(action), env.save):
        with pytest.raises(HandoffError, match="closed"):
            use()


EVERYWHERE: list[Check] = [
    check_an_environment_depends_on_its_seed_and_actions_only,
    check_a_second_episode_from_the_same_seed_is_the_first,
    check_a_chunk_is_its_actions_one_by_one,
    check_a_chunk_stops_where_its_environment_ends,
    check_the_time_limit_truncates_and_does_not_terminate,
    check_the_final_observation_is_the_one_before_the_reset,
    check_automatic_starts_are_repeatable_and_new,
    check_a_frozen_environment_stays_as_it_is,
    check_a_partial_reset_leaves_the_others_alone,
    check_arrays_are_as_specified,
    check_earlier_arrays_are_not_overwritten,
    check_a_nan_action_is_refused,
    check_a_wrong_shape_is_refused,
    check_environments_and_seeds_must_fit,
    check_stepping_before_a_reset_is_an_error,
    check_closed_environments_say_so,
]
WHERE_STATES_ARE_SAVED: list[Check] = [
    check_a_restored_state_has_the_saved_future,
    check_a_restored_environment_counts_its_steps_on,
    check_saved_rows_fit_into_any_environment,
    check_an_ended_environment_is_restored_as_ended,
]


OF_ITS_OWN_STARTS: list[Check] = [
    check_an_environment_depends_on_its_seed_and_actions_only,
    check_automatic_starts_are_repeatable_and_new,
    check_a_partial_reset_leaves_the_others_alone,
    *WHERE_STATES_ARE_SAVED,
]
"""Those that depend on how a task places its objects; the others test the engine."""


def is_slow(entry: Entry, check: Check) -> bool:
    """Whether a check runs only with the learning checks: one of the engine itself, of which
    another entry makes faster environments."""
    return entry.slow and check not in OF_ITS_OWN_STARTS


def checks_of(entry: Entry) -> list[Check]:
    """All that apply to this engine."""
    solved: list[Check] = (
        [check_a_solved_environment_terminates_and_is_not_truncated] if entry.solve else []
    )
    saved = WHERE_STATES_ARE_SAVED if entry.save else [check_an_engine_that_cannot_save_says_so]
    return EVERYWHERE + solved + saved


def _arrays(step: Step) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in step._asdict().items():
        arrays |= (
            {f"{name} {key}": array for key, array in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return arrays

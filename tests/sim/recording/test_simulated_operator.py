"""The simulated person: when it steps in, for how long, and what it is good for."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Intervention, Observation, Reason
from robots.spec import ActionSpec
from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.recording.simulated_operator import (
    OperatorConfig,
    SimulatedOperator,
    Value,
    disagreement,
)
from sim.tasks.task import ExpertTarget, Reward, Task
from sim.vec_env import EngineVecEnv, VecEnvConfig

RATE = 10.0
EXPERTS = np.array([[1.0, 0.0, 0.0]])
OTHER = np.array([[0.8, 0.0, 0.0]])
"""0.2 / sqrt(3) = 0.115 from the expert's: more than agreement, less than disagreement."""
"""What the fake environments' expert does: a policy that proposes it never disagrees."""
AT_ONCE = (0.0, 0.0)


class FakeEnv:
    """N environments of four numbers each: dense reward, success, and the expert's target of the
    gripper (x)."""

    def __init__(self, n: int) -> None:
        self.num_envs, self.rate_hz = n, RATE
        self.action_spec = ActionSpec(low=(-1.0,) * 3, high=(1.0,) * 3)
        self.state = SimpleNamespace(
            n=n, reward=np.zeros(n), success=np.zeros(n, dtype=bool), x=np.ones(n)
        )
        self.task = Task(
            name="fake",
            robot=find_robot("fr3"),
            scene=lambda: cast(Any, None),
            reset=lambda rng, start: None,
            q_posture=find_robot("fr3").q_home,
            observations={},
            rewards={"progress": Reward(1.0, lambda v: cast(Any, v).reward)},
            success=lambda v: cast(Any, v).success,
            expert=self._expert,
        )

    def _expert(self, view: Any) -> ExpertTarget:
        pose = np.zeros((self.num_envs, 6))
        pose[:, 0] = self.state.x
        return ExpertTarget(pose=pose, width=np.full(self.num_envs, 0.08))

    @property
    def view(self) -> Any:
        return self.state

    def to_action(self, target: ExpertTarget) -> np.ndarray:
        return target.pose[:, :3] * np.asarray(target.speed)


def person(
    n: int = 1, seeds: list[int] | None = None, value: Any = None, **config: Any
) -> SimulatedOperator:
    operator = SimulatedOperator(FakeEnv(n), OperatorConfig(**config), value)
    operator.reset(list(range(n)) if seeds is None else seeds)
    return operator


def watch(operator: SimulatedOperator, steps: int) -> list[Intervention]:
    fake = cast(FakeEnv, operator._engine)
    return [operator.intervene(np.repeat(OTHER, fake.num_envs, axis=0)) for _ in range(steps)]


def held(history: list[Intervention]) -> list[int]:
    """Steps at which environment 0 is in the person's hands."""
    return [k for k, step in enumerate(history) if step.intervening[0]]


def test_a_takeover_follows_its_cause_by_exactly_the_reaction_time() -> None:
    # The reward never rises: at 10 Hz, patience of 0.5 s ends at step 5; 0.3 s later is step 8; 0.4
    # s are 4 steps.
    history = watch(person(patience=0.5, reaction_time=(0.3, 0.3), hold_time=(0.4, 0.4)), 12)
    assert held(history) == [8, 9, 10, 11]
    assert history[8].reason[0] == Reason.STALLED
    assert history[7].reason[0] == Reason.NONE


def test_a_person_without_reaction_time_takes_over_at_the_cause() -> None:
    assert held(watch(person(patience=0.5, reaction_time=AT_ONCE, hold_time=(0.2, 0.2)), 7)) == [
        5,
        6,
    ]


def test_reaction_times_are_drawn_between_their_bounds() -> None:
    operator = person(400, patience=0.1, reaction_time=(0.2, 0.4), hold_time=(9.0, 9.0))
    starts = np.array([step.intervening for step in watch(operator, 8)]).argmax(axis=0)
    # The cause comes at step 1; 0.2 to 0.4 s later, with 0.3 s twice as likely as either end.
    assert np.unique(starts).tolist() == [3, 4, 5]
    counts = np.bincount(starts)[3:]
    assert 160 < counts[1] < 240
    assert min(counts[0], counts[2]) > 60


def test_progress_puts_the_takeover_off() -> None:
    operator = person(patience=0.5, reaction_time=AT_ONCE, hold_time=(0.1, 0.1), progress=0.05)
    fake = cast(FakeEnv, operator._engine)
    history = []
    for k in range(12):
        fake.state.reward[:] = 0.1 * (k >= 4)
        history.append(operator.intervene(OTHER))
    assert held(history) == [9]


def test_a_rise_smaller_than_progress_counts_as_stalling() -> None:
    operator = person(patience=0.5, reaction_time=AT_ONCE, hold_time=(0.1, 0.1), progress=0.2)
    fake = cast(FakeEnv, operator._engine)
    history = []
    for k in range(7):
        fake.state.reward[:] = 0.1 * (k >= 4)
        history.append(operator.intervene(OTHER))
    assert held(history) == [5]


def test_a_stall_in_which_the_expert_would_do_the_same_is_no_cause() -> None:
    for action, expected in ((EXPERTS, []), (OTHER, [5])):
        operator = person(patience=0.5, reaction_time=AT_ONCE, hold_time=(0.1, 0.1))
        assert held([operator.intervene(action) for _ in range(7)]) == expected


def test_a_solved_task_needs_nobody() -> None:
    operator = person(patience=0.5, reaction_time=AT_ONCE)
    cast(FakeEnv, operator._engine).state.success[:] = True
    assert held(watch(operator, 20)) == []


def test_disagreement_for_longer_than_patience_is_a_cause() -> None:
    # The expert's action is (1, 0, 0): a proposal of (-1, 0, 0) is 2 / sqrt(3) = 1.15 away, one of
    # (0, 0, 0) 0.58.
    for action, expected in ((-1.0, [2]), (0.0, [])):
        operator = person(
            patience=0.3, reaction_time=AT_ONCE, hold_time=(0.1, 0.1), disagreement=1.0
        )
        fake = cast(FakeEnv, operator._engine)
        history = []
        for k in range(4):
            fake.state.reward[:] = k
            history.append(operator.intervene(np.array([[action, 0.0, 0.0]])))
        assert held(history) == expected
        assert not expected or history[2].reason[0] == Reason.DISAGREES


def test_disagreement_is_in_halves_of_the_range() -> None:
    spec = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0))
    np.testing.assert_allclose(
        disagreement(spec, np.array([[1.0, 1.0]]), np.array([[-1.0, -5.0]])), 2.0
    )
    joints = ActionSpec(low=(-3.0,), high=(3.0,), unit="rad")
    np.testing.assert_allclose(disagreement(joints, np.array([[1.0]]), np.array([[0.4]])), 0.6)


def test_segments_are_numbered_within_the_episode() -> None:
    history = watch(person(patience=0.2, reaction_time=AT_ONCE, hold_time=(0.2, 0.2)), 12)
    # Stalled at step 2, held for 2 steps; given back at 4, which starts the watching anew: stalled
    # at 7.
    assert [int(step.segment[0]) for step in history] == [
        -1,
        -1,
        0,
        0,
        -1,
        -1,
        -1,
        1,
        1,
        -1,
        -1,
        -1,
    ]


def test_handing_back_when_recovered_waits_for_progress() -> None:
    operator = person(
        patience=0.2,
        reaction_time=AT_ONCE,
        hold_time=(0.2, 0.2),
        hand_back="when_recovered",
        progress=0.5,
    )
    fake = cast(FakeEnv, operator._engine)
    history = []
    for k in range(9):
        fake.state.reward[:] = float(k >= 7)
        history.append(operator.intervene(OTHER))
    assert held(history) == [2, 3, 4, 5, 6]


def test_the_random_rate_is_within_its_binomial_interval() -> None:
    operator = person(50, policy="random", rate=0.3, reaction_time=AT_ONCE, hold_time=(0.1, 0.1))
    held = np.array([step.intervening for step in watch(operator, 200)])
    # A decision falls at every step but those right after a takeover of one step.
    free = ~np.vstack([np.zeros((1, 50), dtype=bool), held[:-1]])
    assert not held[~free].any()
    n = int(free.sum())
    assert abs(held[free].sum() - 0.3 * n) < 3.3 * np.sqrt(n * 0.3 * 0.7)


def test_attention_scales_the_rate() -> None:
    operator = person(50, policy="random", rate=1.0, reaction_time=AT_ONCE, hold_time=(0.1, 0.1))
    operator.attention = 0.25
    held = np.array([step.intervening for step in watch(operator, 200)])
    free = ~np.vstack([np.zeros((1, 50), dtype=bool), held[:-1]])
    n = int(free.sum())
    assert abs(held[free].sum() - 0.25 * n) < 3.3 * np.sqrt(n * 0.25 * 0.75)
    operator.attention = 0.0
    assert not np.array([step.intervening for step in watch(operator, 20)])[1:].any()


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_a_value_gap_decides_with_rlifs_probabilities(scale: float) -> None:
    # Expert's value 10 (or -10); the first 100 environments propose what is 5 % worse, the others
    # what is 1 % worse.
    def value(observation: Any, action: np.ndarray) -> np.ndarray:
        return 10.0 * scale - 10.0 * np.abs(action[:, 0] - 1.0)

    operator = person(
        200, value=value, policy="value_gap", gap=0.03, reaction_time=AT_ONCE, hold_time=(0.1, 0.1)
    )
    proposed = np.zeros((200, 3))
    proposed[:100, 0], proposed[100:, 0] = 0.95, 0.99
    count = np.zeros((2, 2))
    before = np.zeros(200, dtype=bool)
    for _ in range(60):
        now = operator.intervene(proposed, {}).intervening
        for group, rows in enumerate((slice(0, 100), slice(100, 200))):
            count[group] += now[rows][~before[rows]].sum(), (~before[rows]).sum()
        before = now
    for (hits, n), p in zip(count, (0.95, 0.05), strict=True):
        assert abs(hits - p * n) < 3.3 * np.sqrt(n * p * (1.0 - p))


def test_who_does_not_intervene_passes_the_policys_action_on_unchanged() -> None:
    operator = person(policy="never", patience=0.1)
    proposed = np.array([[7.0, -3.0, 0.123]])
    for _ in range(20):
        step = operator.intervene(proposed)
        np.testing.assert_array_equal(step.executed, proposed)
        assert not step.intervening[0]
        assert step.segment[0] == -1


def test_a_skilled_person_does_what_the_expert_does() -> None:
    step = person(3, policy="always", reaction_time=AT_ONCE).intervene(-np.ones((3, 3)))
    np.testing.assert_array_equal(step.executed, [[1.0, 0.0, 0.0]] * 3)
    assert (step.reason == Reason.ALWAYS).all()
    np.testing.assert_array_equal(step.proposed, -np.ones((3, 3)))
    assert (step.operator, step.device) == ("simulated", "simulated")


def test_the_operators_bias_is_a_constant_offset() -> None:
    bias = (0.01, -0.02, 0.03, 0.0, 0.0, 0.0)
    for step in watch(person(policy="always", reaction_time=AT_ONCE, bias=bias), 5):
        np.testing.assert_allclose(step.executed, [[1.01, -0.02, 0.03]])


def test_lack_of_skill_scales_noise_slips_and_speed() -> None:
    def acts(**config: Any) -> np.ndarray:
        operator = person(500, policy="always", reaction_time=AT_ONCE, **config)
        return np.concatenate([step.executed for step in watch(operator, 4)])

    still = {"slip": 0.0, "slowest": 1.0}
    noise = (0.04, 0.04, 0.04, 0.0, 0.0, 0.0)
    for skill in (0.0, 0.5):
        deviation = acts(skill=skill, noise=noise, **still).std(axis=0)
        np.testing.assert_allclose(deviation, (1.0 - skill) * 0.04, rtol=0.06)
    quiet = (0.0,) * 6
    np.testing.assert_allclose(
        acts(skill=0.5, noise=quiet, slip=0.0, slowest=0.4), [[0.7, 0.0, 0.0]] * 2000
    )
    slips = np.linalg.norm(
        acts(skill=0.0, noise=quiet, slip=0.2, slip_size=0.1, slowest=1.0) - [1, 0, 0], axis=1
    )
    assert sorted(np.unique(slips.round(9))) == [0.0, 0.1]
    assert abs((slips > 0).sum() - 400) < 3.3 * np.sqrt(2000 * 0.2 * 0.8)


def test_interventions_depend_on_the_seed_only() -> None:
    config: dict[str, Any] = {"policy": "random", "skill": 0.3, "rate": 0.2}
    many = watch(person(5, seeds=[4, 8, 15, 16, 23], **config), 60)
    one = watch(person(1, seeds=[15], **config), 60)
    other = watch(person(1, seeds=[16], **config), 60)
    for a, b in zip(many, one, strict=True):
        np.testing.assert_array_equal(a.executed[2], b.executed[0])
        assert (a.intervening[2], a.segment[2], a.reason[2]) == (
            b.intervening[0],
            b.segment[0],
            b.reason[0],
        )
    assert held(one) != held(other)


def test_a_reset_of_one_environment_leaves_the_others_alone() -> None:
    operator = person(2, seeds=[1, 2], patience=0.3, reaction_time=AT_ONCE, hold_time=(9.0, 9.0))
    watch(operator, 5)
    operator.reset([7], [1])
    step = watch(operator, 1)[0]
    assert step.intervening.tolist() == [True, False]


def test_bad_use_is_refused_with_its_reason() -> None:
    with pytest.raises(HandoffError, match=r"skill is 1\.5"):
        person(skill=1.5)
    with pytest.raises(HandoffError, match=r"reaction_time is \[0.5, 0.2\]"):
        person(reaction_time=(0.5, 0.2))
    with pytest.raises(HandoffError, match="needs a reference Q"):
        person(policy="value_gap")
    with pytest.raises(HandoffError, match="before the first reset"):
        SimulatedOperator(FakeEnv(1)).intervene(np.zeros((1, 3)))
    with pytest.raises(HandoffError, match=r"shape \(2, 3\), expected \(1, 3\)"):
        person().intervene(np.zeros((2, 3)))
    with pytest.raises(HandoffError, match=r"seeds \[1, 2\] for 1 environments"):
        person().reset([1, 2])
    with pytest.raises(HandoffError, match="needs the observation"):
        person(policy="value_gap", value=lambda o, a: a[:, 0]).intervene(np.zeros((1, 3)))


def expert_value(engine: MujocoEngine, steps: int, discount: float = 0.98) -> Value:
    """Reference Q of the scripted expert, by simulation: the action first, then what the expert
    does, discounted rewards summed over `steps`."""

    def value(observation: Observation, action: np.ndarray) -> np.ndarray:
        everyone = np.ones(engine.num_envs, dtype=bool)
        state = engine.save()
        total = np.zeros(engine.num_envs)
        for k in range(steps):
            engine.step(action if k == 0 else engine.expert_action(), everyone)
            total += discount**k * engine.read().reward
        engine.restore(np.arange(engine.num_envs), state)
        return total

    return value


def run(
    task: Task, n: int, config: OperatorConfig | None, gap: bool = False, steps: int | None = None
) -> Any:
    """Success rate of a policy of random actions, alone or watched by a person, and the share of
    steps taken over."""
    engine = MujocoEngine(task, n)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
    observation = env.reset(range(n))
    operator = (
        SimulatedOperator(engine, config, expert_value(engine, 4) if gap else None)
        if config
        else None
    )
    if operator:
        operator.reset(env.episode_seeds)
    rng = np.random.default_rng(0)
    success, taken = np.zeros(n, dtype=bool), 0.0
    for _ in range(steps or task.max_steps):
        action = rng.uniform(-1.0, 1.0, (n, engine.action_spec.size))
        if operator:
            intervention = operator.intervene(action, observation)
            action, taken = intervention.executed, taken + intervention.intervening.mean()
        step = env.step(action)
        observation, success = step.observation, success | step.info["success"]
    state = engine.qpos.copy()
    env.close()
    return SimpleNamespace(
        success=success.mean(), taken=taken / (steps or task.max_steps), state=state
    )


def test_always_with_full_skill_succeeds_as_the_expert_does_and_without_skill_fails() -> None:
    skilled = run(
        find_task("pick_cube"), 25, OperatorConfig(policy="always", reaction_time=AT_ONCE)
    )
    clumsy = run(
        find_task("pick_cube"),
        25,
        OperatorConfig(policy="always", reaction_time=AT_ONCE, skill=0.0),
    )
    assert skilled.success == 1.0
    assert skilled.taken == 1.0
    assert clumsy.success <= 0.4


def test_a_person_who_never_steps_in_leaves_the_policys_trajectory_as_it_is() -> None:
    alone = run(find_task("reach"), 3, None, steps=20)
    watched = run(find_task("reach"), 3, OperatorConfig(policy="never"), steps=20)
    np.testing.assert_array_equal(alone.state, watched.state)


def test_a_person_who_predicts_failure_raises_a_random_policys_success() -> None:
    alone = run(find_task("reach"), 50, None)
    watched = run(find_task("reach"), 50, OperatorConfig(policy="failure", hold_time=(1.0, 2.0)))
    # 5 of 50 against 30 of 50: exact 95 % intervals [0.03, 0.22] and [0.45, 0.74] are far apart.
    assert alone.success <= 0.1
    assert watched.success >= 0.6
    assert watched.taken < 0.7


def test_a_person_who_compares_values_raises_a_random_policys_success() -> None:
    config = OperatorConfig(policy="value_gap", reaction_time=AT_ONCE, hold_time=(0.2, 0.2))
    alone = run(find_task("reach"), 20, None)
    watched = run(find_task("reach"), 20, config, gap=True)
    # 2 of 20 against 12 of 20: exact 95 % intervals [0.01, 0.32] and [0.36, 0.81] do not touch.
    assert alone.success <= 0.1
    assert watched.success >= 0.6

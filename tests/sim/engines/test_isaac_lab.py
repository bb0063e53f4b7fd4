import json
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.isaac_lab import IsaacLabConfig, IsaacLabEngine
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim import isaaclab_api
from tests.sim.conformance import Check, checks_of
from tests.sim.conformance_entries import Entry, OnEnd
from tests.sim.isaaclab_fake import API, EPISODE_STEPS, FAR, FakeEnvironment, Recorded, install

LINE = partial(IsaacLabEngine, "Isaac-Line", config=IsaacLabConfig(device="cpu"))
KINDS = pytest.mark.parametrize("kind", ["managed", "direct"])


def make_line(num_envs: int, on_end: OnEnd, max_steps: int) -> EngineVecEnv:
    return EngineVecEnv(
        LINE(num_envs=num_envs), VecEnvConfig(on_end=on_end, max_steps=max_steps, guard_steps=0)
    )


ENTRY = Entry("isaac_fake", make_line, save=False)


def fake_of(engine: IsaacLabEngine) -> FakeEnvironment:
    return engine._env._target


@KINDS
@pytest.mark.parametrize(
    "check", checks_of(ENTRY), ids=lambda check: check.__name__.removeprefix("check_")
)
def test_adapter_conforms_on_an_environment_with_isaac_labs_semantics(
    monkeypatch: pytest.MonkeyPatch, kind: str, check: Check
) -> None:
    install(monkeypatch, kind)
    check(ENTRY)


@KINDS
def test_simulator_is_started_before_the_environment_and_closed_after_it(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = install(monkeypatch, kind)
    config = IsaacLabConfig(overrides=("physics=newton_mjwarp",), creation_seed=5)
    IsaacLabEngine("Isaac-Line", 2, config).close()
    assert log == [
        "configured for cuda:0 with ['physics=newton_mjwarp']",
        "launched with {'device': 'cuda:0', 'visualizer': 'none'}",
        "made Isaac-Line from seed 5",
        "environment closed",
        "simulator closed",
    ]


@KINDS
def test_fields_are_groups_and_their_terms(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    install(monkeypatch, kind)
    engine = LINE(num_envs=3)
    shapes = {name: (spec.shape, spec.dtype) for name, spec in engine.observation_spec.items()}
    assert shapes == {"policy": ((2,), "float32"), "critic/place": ((1,), "float32")}
    assert (engine.action_spec.low, engine.rate_hz) == ((-np.inf,), 20.0)


def test_time_limit_is_the_step_at_which_isaac_lab_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind, steps in (("managed", EPISODE_STEPS), ("direct", EPISODE_STEPS - 1)):
        install(monkeypatch, kind)
        env = EngineVecEnv(LINE(num_envs=1), VecEnvConfig(guard_steps=0))
        env.reset([1])
        step = env.step(np.zeros((1, EPISODE_STEPS, 1)))
        assert (step.executed[0], step.truncated[0], step.terminated[0]) == (steps, True, False)
        assert step.final_observation["policy"][0, 1] == steps
        assert step.observation["policy"][0, 1] == 0


def test_an_environment_that_isaac_lab_ends_earlier_is_not_stepped_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "managed")
    engine = IsaacLabEngine("Isaac-Line", 2, IsaacLabConfig(max_steps=EPISODE_STEPS + 5))
    env = EngineVecEnv(engine, VecEnvConfig(guard_steps=0))
    env.reset([1, 2])
    with pytest.raises(
        HandoffError, match="environment 0 timed out in Isaac Lab before the limit of 65 steps"
    ):
        env.step(np.zeros((2, EPISODE_STEPS + 1, 1)))


def test_success_is_a_termination_term(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "managed")
    env = EngineVecEnv(
        IsaacLabEngine("Isaac-Line", 2, IsaacLabConfig(success_term="success")), VecEnvConfig()
    )
    env.reset([1, 2])
    step = env.step(np.array([[FAR], [0.0]]))
    assert step.info["success"].tolist() == step.terminated.tolist() == [True, False]


@KINDS
def test_an_unknown_success_term_is_refused_and_the_simulator_closed(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = install(monkeypatch, kind)
    with pytest.raises(HandoffError, match="no termination term 'solved'"):
        IsaacLabEngine("Isaac-Line", 2, IsaacLabConfig(success_term="solved"))
    assert log[-2:] == ["environment closed", "simulator closed"]


@KINDS
def test_batch_seeding_resets_together_and_keeps_environments_that_have_just_started(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    install(monkeypatch, kind)
    engine = IsaacLabEngine("Isaac-Line", 3, IsaacLabConfig(seeding="batch"))
    env = EngineVecEnv(engine, VecEnvConfig(guard_steps=0))
    first = env.reset([1, 2, 3])["policy"]
    assert len({float(place) for place in first[:, 0]}) == 3
    before = fake_of(engine).resets
    step = env.step(np.array([[FAR], [0.0], [0.0]]))
    assert fake_of(engine).resets == before + 1
    assert step.final_observation["policy"][0, 0] >= FAR
    assert 0.0 <= step.observation["policy"][0, 0] < 1.0
    np.testing.assert_array_equal(env.reset([1, 2, 3])["policy"], first)


def test_cameras_are_rendered_again_after_a_direct_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "direct")
    engine = LINE(num_envs=2)
    engine.reset(np.array([1]), np.array([3]))
    assert fake_of(engine).rendered == 2


@KINDS
def test_states_are_not_saved(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    install(monkeypatch, kind)
    with pytest.raises(HandoffError, match="behave differently"):
        LINE(num_envs=1).save()


def test_missing_final_observations_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "managed")
    engine = LINE(num_envs=1)
    engine._env.cfg.compute_final_obs = False
    env = EngineVecEnv(engine, VecEnvConfig(guard_steps=0))
    env.reset([1])
    with pytest.raises(HandoffError, match="no final_obs although"):
        env.step(np.array([[FAR]]))


def test_an_unknown_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "managed")
    with pytest.raises(HandoffError, match="no task 'Isaac-Nowhere'"):
        IsaacLabEngine("Isaac-Nowhere", 1)


def test_without_isaac_lab_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isaaclab_tasks", None)
    with pytest.raises(HandoffError, match=r"handoff envs create isaaclab, and engine: server"):
        LINE(num_envs=1)


@pytest.mark.parametrize(
    "use",
    [
        lambda env: env.reset(
            3
        ),  # `seed` alone may stand by position in a direct environment's reset
        lambda env: env.reset(env_ids=[0], worlds=[0]),
        lambda env: env.step(),
        lambda env: env.rewind(),
        lambda env: setattr(env, "compute_final_observation", True),
    ],
)
def test_the_stand_in_refuses_what_isaac_lab_does_not_have(
    monkeypatch: pytest.MonkeyPatch, use: Any
) -> None:
    env = Recorded(object(), "ManagerBasedRLEnv", "DirectRLEnv")
    with pytest.raises((TypeError, AttributeError)):
        use(env)


def test_the_record_tells_parameters_properties_and_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "class Env(Base):\n"
        "    cfg: object\n"
        "    def __init__(self, cfg, *rest, mode=None, **more):\n"
        "        self.count: int = 0\n"
        "    @property\n"
        "    def rate(self): return 1\n"
        "    @staticmethod\n"
        "    def seed(seed=-1): return seed\n"
        "def launch(cfg, arguments=None): pass\n"
    )
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/env.py", source)
    monkeypatch.setattr(isaaclab_api, "FUNCTIONS", {"small.launch": "small/env.py"})
    monkeypatch.setattr(isaaclab_api, "CLASSES", {"Env": "small/env.py"})
    api = isaaclab_api.record(wheel)
    env = api["classes"]["Env"]
    assert [
        (item["name"], item["kind"], item["default"]) for item in env["methods"]["__init__"]
    ] == [
        ("cfg", "POSITIONAL_OR_KEYWORD", False),
        ("rest", "VAR_POSITIONAL", False),
        ("mode", "KEYWORD_ONLY", True),
        ("more", "VAR_KEYWORD", False),
    ]
    assert (env["bases"], env["properties"], env["attributes"]) == (
        ["Base"],
        ["rate"],
        ["cfg", "count"],
    )
    assert [item["default"] for item in api["functions"]["small.launch"]] == [False, True]
    assert api["wheel"] == wheel.name
    json.dumps(api)


def test_the_record_is_of_the_version_that_the_adapter_names() -> None:
    import sim.engines.isaac_lab

    assert API["wheel"] == "isaaclab-3.0.0-py3-none-any.whl"
    assert "`isaaclab` 3.0.0 wheel" in (sim.engines.isaac_lab.__doc__ or "")

"""Options of environments that an engine would refuse in its stage are refused before anything
runs."""

from __future__ import annotations

import pytest

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from robots.errors import HandoffError


def build(recipe: str, *overrides: str) -> None:
    stages(read_recipe(recipe, list(overrides)))


WARP = "teacher.protocol={uses: reach, engine: warp, options: {device: cpu, resident: true}}"


@pytest.mark.parametrize(
    ("recipe", "override", "problem"),
    [
        ("reach_ppo", "shared.protocol.options.residnt=true", "did you mean 'resident'"),
        ("reach_ppo", "teacher.protocol.options.randomized=maybe", "stage teacher: .*boolean"),
        ("reach_ppo", "teacher.protocol.options.resident=true", r"mujoco ignores \['resident'\]"),
        ("demo", "scores.protocol.options.pictures=96", "stage scores@teacher: .*'picture'"),
        ("reach_ppo", WARP.replace("teacher", "scores"), "stage scores: .*from scratch only"),
        (
            "reach_ppo",
            WARP.replace("device: cpu", "contact_threshold: 5.0"),
            "warp ignores .'contact_threshold'",
        ),
        (
            "reach_ppo",
            WARP.replace("resident", "cameras: {names: [front]}, resident"),
            "has cameras and resident: true, but image_fields is empty",
        ),
        ("reach_flow_ppo", WARP.replace("teacher", "tuned"), "algorithm 'fpo' runs on the host"),
    ],
)
def test_an_option_that_the_engine_does_not_read_is_refused(
    recipe: str, override: str, problem: str
) -> None:
    with pytest.raises(HandoffError, match=problem):
        build(recipe, override)


def test_options_that_the_engine_reads_pass() -> None:
    build("reach_ppo", WARP)
    build("demo", "scores.protocol.options.picture=96")
    build("vla_ppo", WARP.replace("reach", "reach_by_name"))


def test_cameras_that_a_policy_does_not_observe_are_refused_on_a_device() -> None:
    cameras = WARP.replace("reach", "reach_by_name").replace("resident", "cameras: {}, resident")
    with pytest.raises(HandoffError, match="has cameras, which the policy does not observe"):
        build("vla_ppo", cameras)


def test_the_actions_of_a_gymnasium_id_need_a_meaning_before_they_are_learned() -> None:
    mountain = (
        "protocol={name: car, engine: gym, task: MountainCarContinuous-v0, max_steps: 9, "
        "options: {gym: {success: terminated}}}"
    )
    recipe = ["reach_ppo", f"shared.{mountain}", "teacher.fields=[]", "~gate", "~twin"]
    with pytest.raises(HandoffError, match=r"actions of MountainCarContinuous-v0 mean .*as_recor"):
        build(*recipe, "~bundle.action_interface")
    build(*recipe, "bundle.action_interface=as_recorded")


@pytest.mark.parametrize(
    ("recipe", "override", "problem"),
    [
        ("reach_ppo", "teacher.fields=[dq, gaol]", "fields has the field 'gaol', .*'goal'"),
        (
            "reach_ppo",
            "teacher.image_fields=[image_wrist]",
            r"image_fields has the field 'image_wrist', .*\(protocol reach\) lacks; it has none",
        ),
        (
            "reach_fast_td3",
            "teacher.algorithm={kind: mrq, collections: 80}",
            "learning_starts is 80 of 80 collections, so mrq would end without an update",
        ),
        (
            "reach_fast_td3",
            "teacher.algorithm={kind: mrq, collections: 100, updates_per_step: 0.0007}",
            "20 collections of 64 environments after learning_starts, with 0.0007 updates per step, so "
            "mrq would end without an update",
        ),
    ],
)
def test_training_from_scratch_that_would_be_in_vain_is_refused(
    recipe: str, override: str, problem: str
) -> None:
    with pytest.raises(HandoffError, match=problem):
        build(recipe, override)
    build("reach_fast_td3", "teacher.algorithm={kind: mrq, collections: 81}")
    build(
        "reach_fast_td3",
        "teacher.algorithm={kind: mrq, collections: 100, updates_per_step: 0.0008}",
    )


def test_a_policy_is_evaluated_where_its_cameras_are() -> None:
    cameras = "shared.protocol.options.cameras"
    with pytest.raises(
        HandoffError, match=r"'image_front', .*pick_cube_cameras\) lacks; it has none"
    ):
        build("pick_cube_cameras", f"{cameras}=null")
    with pytest.raises(HandoffError, match=r"image_front', .*did you mean 'image_frond'"):
        build("pick_cube_cameras", f"{cameras}.names=[frond, wrist, overview]")
    build("pick_cube_cameras")


def test_an_actor_elsewhere_is_refused_for_environments_on_a_device() -> None:
    with pytest.raises(HandoffError, match="expected collocated"):
        build(
            "vla_ppo",
            WARP.replace("reach", "reach_by_name"),
            "teacher.placement.kind=disaggregated",
        )


def test_imagined_rollouts_need_no_options() -> None:
    build("switch_diwa", "teacher.protocol.options.resident=true")

"""Graphs of stages: wiring is checked from signatures, matrices fan out and in, seeds are apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.stage import Stage
from robots.errors import HandoffError
from tests.flows.recipes.lab import STAGES

HEAD = """
demos: {uses: scripted, with: {task: push_t, episodes: 4}}
teacher: {uses: pretrain, inputs: {demos: demos}}
"""


def built(tmp_path: Path, text: str, head: str = HEAD, **more: Any) -> dict[str, Stage]:
    """The stages of a recipe whose stages are the lines of `head` and `text`."""
    lines = "\n".join(f"  {line}" for line in (head + text).splitlines() if line.strip())
    top = "".join(f"{key}: {value}\n" for key, value in more.items())
    file = tmp_path / "mine.yaml"
    file.write_text(f"{top}stages:\n{lines}\n")
    return {stage.name: stage for stage in stages(read_recipe(str(file)), fetch=False)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x: {uses: pretrian, inputs: {demos: demos}}",
            "stage kind 'pretrian' does not exist, did",
        ),
        ("x: {uses: pretrain}", "input 'demos' (episodes) is missing; candidates: demos."),
        ("x: {uses: export, inputs: {demos: demos}}", "'policy' (policy) is missing; candidates"),
        (
            "x: {uses: pretrain, inputs: {demo: demos}}",
            "stage x (pretrain): unknown input 'demo', did you mean 'demos'",
        ),
        (
            "x: {uses: pretrain, inputs: {demos: demoz}}",
            "'demoz', which is no stage of the recipe, did you mean 'demos'",
        ),
        (
            "x: {uses: evaluate, inputs: {policy: demos}}",
            "takes policy, 'demos' (scripted) makes episodes; candidates: teacher.",
        ),
        (
            "x: {uses: deploy, inputs: {bundle: teacher}}",
            "no stage of the recipe makes bundle",
        ),
        (
            "a: {uses: finetune, inputs: {policy: b}}\nb: {uses: finetune, inputs: {policy: a}}",
            "the stages a -> b -> a need each other",
        ),
        ("x: {uses: evaluate, inputs: {policy: teacher@seed=3}}", "there is no stage 'teacher@see"),
        ("x: {uses: no_such.module}", "there is no module no_such"),
        ("x: {uses: robots.errors}", "robots.errors has no function run()"),
        ("x: {uses: 'robots.errors:suggest'}", "expected (config: OPTIONS, out: Path"),
    ],
)
def test_wrong_wiring_is_refused_with_candidates(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        built(tmp_path, text)
    assert message in str(caught.value)


def test_stages_are_ordered_after_their_inputs(tmp_path: Path) -> None:
    head = "teacher: {uses: pretrain, inputs: {demos: demos}}\n"
    declared = built(tmp_path, "demos: {uses: scripted, with: {task: push_t}}", head)
    assert list(declared) == ["demos", "teacher"]
    assert declared["teacher"].inputs == {"demos": declared["demos"]}


def test_a_list_of_policies_fans_an_evaluation_out(tmp_path: Path) -> None:
    declared = built(
        tmp_path,
        "other: {uses: pretrain, inputs: {demos: demos}}\n"
        "scores: {uses: evaluate, inputs: {policy: [teacher, other]}, with: {protocol: push_t_fr3}}",
    )
    assert list(declared)[-2:] == ["scores@teacher", "scores@other"]
    assert declared["scores@other"].inputs == {"policy": declared["other"]}


def test_a_matrix_fans_out_over_seeds_and_options_and_downstream_follows(tmp_path: Path) -> None:
    declared = built(
        tmp_path,
        "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: push_t_fr3}}",
        HEAD.replace(
            "inputs: {demos: demos}}",
            "inputs: {demos: demos}, matrix: {seed: [0, 2], training.learning_rate: [1.0e-3]}}",
        ),
    )
    assert list(declared) == [
        "demos",
        "teacher@seed=0,training.learning_rate=0.001",
        "teacher@seed=2,training.learning_rate=0.001",
        "scores@seed=0,training.learning_rate=0.001",
        "scores@seed=2,training.learning_rate=0.001",
    ]
    second = declared["teacher@seed=2,training.learning_rate=0.001"]
    assert (second.config.training.seed, second.config.training.learning_rate) == (2, 1e-3)
    scores = declared["scores@seed=2,training.learning_rate=0.001"]
    assert scores.inputs == {"policy": second}
    # Every policy is evaluated from the same starts.
    assert scores.config == declared["scores@seed=0,training.learning_rate=0.001"].config


def test_labelled_values_of_a_matrix_are_blocks(tmp_path: Path) -> None:
    matrix = "policy.network: {small: {kind: mlp, width: 8}, unet: {kind: unet}}"
    declared = built(
        tmp_path, "", HEAD.replace("{demos: demos}}", f"{{demos: demos}}, matrix: {{{matrix}}}}}")
    )
    assert declared["teacher@policy.network=small"].config.policy.network.width == 8
    assert declared["teacher@policy.network=unet"].config.policy.network.kind == "unet"


def test_a_matrix_over_a_block_keeps_what_was_set_inside_it(tmp_path: Path) -> None:
    matrix = "policy: {short: {horizon: 4, n_action_steps: 2}}"
    head = HEAD.replace(
        "{demos: demos}}",
        f"{{demos: demos}}, with: {{policy: {{n_obs_steps: 3}}}}, matrix: {{{matrix}}}}}",
    )
    policy = built(tmp_path, "", head)["teacher@policy=short"].config.policy
    assert (policy.n_obs_steps, policy.horizon) == (3, 4)


def test_matrices_with_a_common_key_are_paired_by_its_value(tmp_path: Path) -> None:
    head = HEAD.replace("episodes: 4}}", "episodes: 4}, matrix: {seed: [0, 1]}}")
    declared = built(
        tmp_path,
        "mixed: {uses: export, inputs: {policy: teacher, demos: demos}}",
        head,
    )
    assert list(declared)[-2:] == ["mixed@seed=0", "mixed@seed=1"]
    inputs = declared["mixed@seed=1"].inputs
    assert [source.name for source in inputs.values()] == ["teacher@seed=1", "demos@seed=1"]
    # The seed of the demonstrations is that of the policy trained on them.
    assert declared["demos@seed=1"].config.first_seed == 1_000_000
    assert declared["teacher@seed=1"].config.training.seed == 1


def test_matrices_without_a_common_value_are_refused(tmp_path: Path) -> None:
    text = (
        "a: {uses: pretrain, inputs: {demos: demos}, matrix: {seed: [0]}}\n"
        "b: {uses: scripted, with: {task: push_t}, matrix: {seed: [1]}}\n"
        "x: {uses: export, inputs: {policy: a, demos: b}}"
    )
    with pytest.raises(HandoffError, match="their matrices have no value in common"):
        built(tmp_path, text)


def test_an_option_refers_to_the_value_of_its_copy(tmp_path: Path) -> None:
    head = (
        "demos: {uses: scripted, with: {task: '${matrix:task}'}, matrix: {task: [reach, pick_cube]}}\n"
        "teacher: {uses: pretrain, inputs: {demos: demos}, with:"
        " {policy: {observation_fields: [grasp_pose], anchor_field: null}}}\n"
    )
    text = "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: '${matrix:task}'}}"
    declared = built(tmp_path, text, head)
    assert declared["demos@task=pick_cube"].config.task == "pick_cube"
    assert declared["scores@task=pick_cube"].config.protocol.task == "pick_cube"
    with pytest.raises(HandoffError, match=r"\$\{matrix:tsk\}, but neither"):
        built(tmp_path, text.replace(":task", ":tsk"), head)


TABLE = (
    "demos: {uses: scripted, with: {task: '${matrix:skill.task}'}, matrix: {skill: {"
    "touch: {task: reach, seen: {fields: [goal]}}, lift: {task: lift_cube, seen: {fields: [cube_position]}}}}}\n"
    "teacher: {uses: pretrain, inputs: {demos: demos}, with:"
    " {policy: {observation_fields: '${matrix:skill.seen.fields}', anchor_field: null}}}\n"
)


def test_the_values_of_a_matrix_may_be_tables(tmp_path: Path) -> None:
    text = "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: '${matrix:skill.task}'}}"
    declared = built(tmp_path, text, TABLE)
    assert declared["demos@skill=lift"].config.task == "lift_cube"
    assert declared["teacher@skill=touch"].config.policy.observation_fields == ("goal",)
    assert declared["scores@skill=touch"].config.protocol.task == "reach"
    with pytest.raises(
        HandoffError, match=r"skill\.tsk\}, but the copy's skill has no entry 'tsk', did"
    ):
        built(tmp_path, text.replace("skill.task", "skill.tsk"), TABLE)
    with pytest.raises(HandoffError, match=r"skill\.task is '(reach|lift_cube)' and no table"):
        built(tmp_path, text.replace("skill.task", "skill.task.x"), TABLE)
    with pytest.raises(HandoffError, match=r"\$\{matrix:skil\.task\}, but neither .* 'skill'"):
        built(tmp_path, text.replace("skill.task", "skil.task"), TABLE)


def test_an_entry_of_one_table_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    text = "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: '${matrix:skill.task}'}}"
    of_both = TABLE.replace("task: reach,", "task: reach, words: a,").replace(
        "task: lift_cube,", "task: lift_cube, words: b,"
    )
    # A stage that reads it may have been removed.
    assert built(tmp_path, text, of_both)
    with pytest.raises(
        HandoffError, match=r"matrix\.skill\.touch has the entry 'tasks', which noth"
    ):
        built(tmp_path, text, TABLE.replace("task: reach,", "task: reach, tasks: reach,"))


def test_a_matrix_chooses_among_the_inputs_that_have_its_key(tmp_path: Path) -> None:
    scores = (
        "untrained: {uses: pretrain, inputs: {demos: demos}, with:"
        " {policy: {observation_fields: [q], anchor_field: null}}}\n"
        "scores: {uses: evaluate, inputs: {policy: [teacher, untrained]},"
        " with: {protocol: '${matrix:skill.task}'}}\n"
    )
    text = "x: {uses: compare, inputs: {evaluations: scores}, matrix: {skill: [touch, lift]}}"
    declared = built(tmp_path, scores + text, TABLE)
    assert [stage.name for stage in declared["x@skill=lift"].inputs.values()] == [
        "scores@teacher,skill=lift",
        "scores@untrained,skill=lift",
    ]
    with pytest.raises(HandoffError, match="has the key 'task', which is no option"):
        built(tmp_path, scores + text.replace("skill: [touch", "task: [touch"), TABLE)
    with pytest.raises(HandoffError, match="compare: 0 evaluation"):
        built(tmp_path, scores + text.replace("touch, lift", "touch, push"), TABLE)


def test_shared_options_reach_the_stages_that_read_them(tmp_path: Path) -> None:
    text = "scores: {uses: evaluate, inputs: {policy: teacher}}"
    declared = built(tmp_path, text, shared="{protocol: {uses: push_t_fr3, episodes: 3}}")
    assert declared["scores"].config.protocol.episodes == 3
    text = "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: {episodes: 5}}}"
    declared = built(tmp_path, text, shared="{protocol: push_t_fr3}")
    assert declared["scores"].config.protocol.episodes == 5
    assert declared["scores"].config.protocol.name == "push_t_fr3"


def test_a_shared_option_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="no stage of the recipe has an option 'protcol'"):
        built(tmp_path, "", shared="{protcol: reach}")


def test_a_named_protocol_has_the_defaults_of_its_class(tmp_path: Path) -> None:
    text = "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: push_t_fr3}}"
    score = built(tmp_path, text)["scores"].config.protocol.score
    assert (score.of, score.over) == ("success", "max")


def test_the_seed_of_a_recipe_shifts_learning_and_not_evaluation(tmp_path: Path) -> None:
    text = "scores: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: push_t_fr3}}"
    zero, three = built(tmp_path, text), built(tmp_path, text, seed=3)
    assert three["teacher"].config.training.seed == zero["teacher"].config.training.seed + 3
    assert three["demos"].config.first_seed == 3_000_000
    assert three["scores"].config == zero["scores"].config


def test_a_key_of_a_matrix_that_is_no_option_must_be_referred_to(tmp_path: Path) -> None:
    head = (
        "demos: {uses: scripted, with: {task: push_t}}\n"
        "teacher: {uses: pretrain, inputs: {demos: demos}, with: {policy: '${matrix:denoiser}'},"
        " matrix: {denoiser: [mlp, unet]}}\n"
    )
    declared = built(tmp_path, "", head)
    assert declared["teacher@denoiser=unet"].config.policy.network.kind == "unet"
    with pytest.raises(HandoffError, match="the key 'denoizer', which is no option of the stage"):
        built(tmp_path, "", head.replace("{denoiser: [mlp", "{denoizer: [mlp"))


OBSERVED = """
demos: {uses: scripted, with: {task: open_drawer, episodes: 4}}
teacher: {uses: pretrain, inputs: {demos: demos}, with: {policy: {
  observation_fields: [q, opening], anchor_field: null}}}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x: {uses: pretrain, inputs: {demos: demos}, with: {policy: {observation_fields: [openning], "
            "anchor_field: null}}}",
            "stage x: policy.observation_fields has the field 'openning', which its input 'demos' (task open_drawer) "
            "lacks; did you mean 'opening'?",
        ),
        (
            "x: {uses: pretrain, inputs: {demos: demos}, with: {policy: {observation_fields: [q]}}}",
            "stage x: policy.anchor_field has the field 'agent', which its input 'demos' (task open_drawer) lacks",
        ),
        (
            "x: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: pick_cube}}",
            "stage x: policy.observation_fields of the stage teacher has the field 'opening', which its environments "
            "(protocol pick_cube) lacks",
        ),
        (
            "x: {uses: evaluate, inputs: {policy: teacher}}",
            "the field 'q', which its environments (protocol push_t_published) lacks",
        ),
        (
            "tuned: {uses: finetune, inputs: {policy: teacher}, with: {protocol: open_drawer}}\n"
            "bundle: {uses: export, inputs: {policy: tuned, demos: demos}}\n"
            "x: {uses: deploy, inputs: {bundle: bundle}}",
            "stage x: policy.observation_fields of the stage teacher has the field 'opening', which its environments "
            "(the push-T table) lacks",
        ),
        (
            "x: {uses: evaluate, inputs: {policy: teacher}, with: {protocol: {uses: open_drawer, "
            "options: {actions: {kind: joint_delta}}}}}",
            "stage x: the environments of its protocol take actions of the kind 'joint_delta', the policy imitates "
            "'cartesian_delta' of the stage demos. Set x.protocol.options.actions.kind=cartesian_delta, or "
            "demos.demonstrate.mujoco.actions.kind=joint_delta.",
        ),
        (
            "student: {uses: distill, inputs: {teacher: teacher, demos: demos}}\n"
            "x: {uses: evaluate, inputs: {policy: student}, with: {protocol: {uses: open_drawer, "
            "options: {actions: {kind: joint_target}}}}}",
            "stage x: the environments of its protocol take actions of the kind 'joint_target'",
        ),
        (
            "x: {uses: offline, inputs: {demos: demos}, with: {algorithm: {observation_fields: [q, width, goal]}}}",
            "stage x: algorithm.observation_fields has the field 'goal', which its input 'demos'",
        ),
        (
            "x: {uses: pretrain, inputs: {demos: demos}, with: {policy: {observation_fields: [q], "
            "estimated_fields: [openning], anchor_field: null}}}",
            "stage x: policy.estimated_fields has the field 'openning', which its input 'demos' (task open_drawer) "
            "lacks; did you mean 'opening'?",
        ),
    ],
)
def test_fields_that_demonstrations_or_environments_lack_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(HandoffError) as caught:
        built(tmp_path, text, OBSERVED)
    assert message in str(caught.value)


def test_fields_of_demonstrations_that_a_stage_of_ones_own_makes_are_not_checked(
    tmp_path: Path,
) -> None:
    (tmp_path / "own_filter.py").write_text(STAGES)
    head = """
demos: {uses: scripted, with: {task: open_drawer, episodes: 4}}
mine: {uses: 'own_filter:run', inputs: {demos: demos}}
"""
    text = (
        "x: {uses: pretrain, inputs: {demos: mine}, with: {policy: {observation_fields: [distance], "
        "anchor_field: null}}}"
    )
    assert "x" in built(tmp_path, text, head)


def test_a_fine_tuned_flow_is_distilled_by_regression_alone(tmp_path: Path) -> None:
    head = OBSERVED.replace("anchor_field: null", "anchor_field: null, objective: flow")
    text = (
        "tuned: {uses: finetune, inputs: {policy: teacher}, with: {protocol: open_drawer}}\n"
        "again: {uses: finetune, inputs: {policy: tuned}, with: {protocol: open_drawer}}\n"
        "x: {uses: distill, inputs: {teacher: again, demos: demos}%s}"
    )
    assert "x" in built(tmp_path, text % "", head)
    with pytest.raises(
        HandoffError, match="the teacher is fine-tuned, and the algorithm 'shortcut'"
    ):
        built(tmp_path, text % ", with: {algorithm: {kind: shortcut}}", head)


LEARNED = """
taught:
  uses: reinforce
  with:
    protocol: reach
    algorithm: {kind: fast_td3, learner: {atoms: 21}}
"""


def test_a_changed_kind_beside_options_of_another_says_how_to_leave_them_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.yaml"
    lines = "\n".join(f"  {line}" for line in LEARNED.splitlines() if line.strip())
    file.write_text(f"stages:\n{lines}\n")
    with pytest.raises(HandoffError, match=r"to leave them out: 'taught.algorithm=\{kind: mrq\}'"):
        stages(read_recipe(str(file), ["taught.algorithm.kind=mrq"]), fetch=False)
    # Nothing of the kind where another option is misspelt.
    with pytest.raises(HandoffError) as refused:
        stages(read_recipe(str(file), ["taught.algorithm.learner.atom=2"]), fetch=False)
    assert "to leave them out" not in str(refused.value)
    (made,) = stages(read_recipe(str(file), ["taught.algorithm={kind: mrq}"]), fetch=False)
    assert made.config.algorithm.kind == "mrq"


def test_a_kind_with_a_dot_too_many_is_corrected(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    lines = "\n".join(f"  {line}" for line in LEARNED.splitlines() if line.strip())
    file.write_text(f"stages:\n{lines}\n")
    with pytest.raises(HandoffError, match=r"no module mr.*Or did you mean 'mrq'\?"):
        stages(read_recipe(str(file), ["taught.algorithm={kind: mr.q}"]), fetch=False)

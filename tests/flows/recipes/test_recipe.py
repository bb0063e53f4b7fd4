"""Recipes: files that extend others, overrides by stage, references, clear errors."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from flows.config.files import CONFIGS, available, read_yaml, recipes
from flows.config.protocols import read_protocol
from flows.deployment.config import DeployConfig
from flows.recipes.recipe import read_recipe
from flows.runner.plan import plan
from flows.runner.stage import Stage, identity
from flows.stages.data.ingest import SHIPPED
from policies.networks.config import TransformerConfig, UnetConfig
from policies.policy_config import ActConfig, TokenVlaConfig
from policies.rl.on_policy.config import GroupConfig
from robots.config import to_plain
from robots.errors import HandoffError
from tests.flows.recipe_stages import declared, options

POLICIES = available("policy")
DENOISERS = ("mlp", "unet", "unet_image", "transformer", "flow")
"""Policies of the diffusion family."""
VLAS = ("vla", "pi0")
"""Policies of the vla family; all others have the name of their family."""
BACKBONES = (*VLAS, "token_vla")
"""Policies on a vision-language model, whose folder the user names."""


def chosen(name: str, folder: Path) -> list[str]:
    """Overrides that choose a policy, with its mandatory options."""
    folders = [f"teacher.policy.backbone.folder={folder}"] if name in BACKBONES else []
    return [f"teacher.policy={name}", *folders]


@pytest.mark.parametrize("name", recipes())
def test_every_shipped_recipe_is_built(name: str) -> None:
    assert declared(name, [f"demos.data={SHIPPED}"] if name == "own_data" else [])
    assert read_recipe(name).name == name


@pytest.mark.parametrize("name", recipes())
def test_every_shipped_recipe_reads_on_two_screens(name: str) -> None:
    assert len((CONFIGS / f"{name}.yaml").read_text().splitlines()) <= 110


def test_an_override_reaches_its_stage_alone() -> None:
    built = options("vla_ppo", ["pretrained.validation_fraction=0.5"])
    assert built["pretrained"].validation_fraction == 0.5
    assert built["imitator"].validation_fraction == 0.0


def test_a_shared_override_reaches_every_stage_that_reads_it() -> None:
    built = options("pick_rl100", ["protocol.episodes=7"])
    for name in ("teacher", "scores@teacher", "scores@student", "control"):
        assert built[name].protocol.episodes == 7


def test_an_override_below_a_reference_changes_a_copy() -> None:
    built = options("vla_ppo", ["pretrained.training.steps=20", "imitator.training.steps=10"])
    assert (built["pretrained"].training.steps, built["imitator"].training.steps) == (20, 10)
    assert built["imitator"].training.batch_size == built["pretrained"].training.batch_size


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["teacher.training.stepz=7"],
            "unknown key 'teacher.training.stepz', did you mean 'steps'",
        ),
        (["techer.seed=7"], "unknown key 'techer.seed': 'techer' is no stage of the recipe"),
        (["teacher.training.steps=many"], "'teacher.training.steps' is 'many'"),
        (["teacher.training.steps"], "has no '='"),
        (["gate.tolerance=[1,2"], "override 'gate.tolerance=[1,2'"),
        (["gate.tolerance=1,2"], "has several values"),
        (["seed=-1"], "seed is -1"),
        (["twin=null", "twin.table.starts=2"], "the stage twin was removed"),
        (["~gate.tolerance"], "the recipe does not set this key"),
        (["~twin"], "input 'twin' is 'twin', which is no stage of the recipe"),
        (["teacher.policy=flwo"], "policy 'flwo' does not exist, did you mean 'flow'"),
        (["scores.protocol=elsewhere"], "protocol 'elsewhere' does not exist, there are"),
    ],
)
def test_a_bad_override_is_named_by_its_path(overrides: list[str], message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        declared("demo", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stage_is_removed() -> None:
    assert "twin" in declared("demo")
    assert "twin" not in declared("demo", ["~twin", "~gate"])
    assert "twin" not in declared("demo", ["twin=null", "gate=null"])


def test_a_pool_and_resources_reach_the_stage_and_leave_its_key_alone() -> None:
    def demos(*overrides: str) -> Stage:
        return declared("demo", overrides)["demos"]

    there = demos("demos.pool=gpu", "demos.resources.gpus=1")
    assert (there.pool, there.resources.gpus, there.resources.cores) == ("gpu", 1, 1)
    assert identity(there, {}) == identity(demos(), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: {a: {uses: ingest, input: {}}}", "unknown key 'input', did you mean 'inputs'"),
        ("stages: {a: {inputs: {}}}", "stage a: no 'uses'"),
        ("stage: {}", "unknown key 'stage', did you mean 'stages'"),
        ("name: a", "no stages"),
        ("{defaults: mine, stages: {}}", "it extends itself"),
        ("stages: {a: {uses: ingest, matrix: {seed: []}}}", "expected a list of values"),
        ("stages: {a: {uses: ingest, matrix: {seed: [1, 1]}}}", "are not distinct"),
        ("stages: {a: {uses: pretrain, inputs: {demos: [1]}}}", "expected the name of a stage"),
        ("stages: {a: {uses: '${nowhere}'}}", "nowhere"),
        ("stages: {a: {uses: approve, pool: ray}}", "an approval waits where the run is"),
        ("stages: {a: {uses: ingest, pool: [gpu]}}", "expected the name of a work pool"),
        ("stages: {a: {uses: ingest, resources: {gpu: 1}}}", "unknown key 'a.resources.gpu'"),
        ("stages: {a: {uses: ingest, resources: {cores: 0}}}", "a.resources.cores"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_by_the_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(HandoffError) as caught:
        read_recipe(str(file))
    assert message in str(caught.value)


def test_a_recipe_extends_another_and_replaces_a_stage_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{defaults: demo, stages: {demos: {uses: scripted, with: {task: reach}}, twin: null,"
        " teacher: {with: {policy: {kind: act, kl_weight: 3.0}}}}}"
    )
    recipe = read_recipe(str(file))
    assert recipe.name == "mine"
    assert recipe.stages["demos"].options == {"task": "reach"}
    assert "twin" not in recipe.stages
    # The inputs of the stage of the same kind are inherited.
    assert recipe.stages["teacher"].inputs == {"demos": ("demos",)}


def test_a_block_of_another_kind_replaces_the_inherited_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        "{defaults: demo, stages: {teacher: {with: {policy: {kind: act, kl_weight: 3}}}}}"
    )
    second.write_text("{defaults: first, stages: {teacher: {with: {policy: {kind: diffusion}}}}}")
    assert read_recipe(str(second)).stages["teacher"].options == {"policy": {"kind": "diffusion"}}


def test_a_named_policy_brings_its_network_and_named_training_its_rates() -> None:
    unet = options("demo", ["teacher.policy=unet", "teacher.training=unet"])["teacher"]
    assert unet.policy.network == UnetConfig()
    assert unet.policy.n_obs_steps == 2
    training = unet.training
    assert (training.learning_rate, training.warmup_steps, training.betas) == (
        1e-4,
        500,
        (0.95, 0.999),
    )
    transformer = options("demo", ["teacher.policy=transformer", "teacher.training=transformer"])
    assert transformer["teacher"].policy.network == TransformerConfig()
    assert (
        transformer["teacher"].training.weight_decay,
        transformer["teacher"].training.decay,
    ) == (0.1, "matrices")
    assert options("demo", ["teacher.policy=mlp"]) == options("demo")


@pytest.mark.parametrize("name", POLICIES)
def test_every_named_policy_replaces_the_whole_block(name: str, tmp_path: Path) -> None:
    removed = ["~student", "~control", "~reference", "~bundle", "~gate", "~twin"]
    alone = [*removed, "scores.inputs.policy=teacher"]
    built = declared("demo", [*chosen(name, tmp_path), *alone, "demos.download=false"])
    model = built["teacher"].config.policy
    plain = name.removesuffix("_laptop")
    family = "diffusion" if plain in DENOISERS else "vla" if plain in VLAS else plain
    assert model.kind == family
    assert set(to_plain(model)) == {field.name for field in fields(model)}
    assert list(built) == ["demos", "teacher", "scores"]
    assert plan(list(built.values()), tmp_path)[0].action == "run"


def test_a_family_without_a_default_for_a_key_names_it() -> None:
    with pytest.raises(HandoffError, match=r"missing key 'teacher\.policy\.backbone'"):
        options("demo", ["teacher.policy.kind=vla"])


def test_another_family_has_its_own_keys() -> None:
    alone = ["~student", "~control", "~reference", "~bundle", "~gate", "~twin"]
    chosen = ["scores.inputs.policy=teacher", "teacher.policy.kind=act"]
    model = options("demo", [*alone, *chosen, "teacher.policy.kl_weight=3"])["teacher"].policy
    assert isinstance(model, ActConfig)
    assert model.kl_weight == 3.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["teacher.policy.kl_weight=3"], "'teacher.policy.kl_weight' is not read by the kind "),
        (
            ["teacher.policy.kind=act", "teacher.policy.kl_wieght=3"],
            "unknown key 'teacher.policy.kl_wieght', did you mean 'kl_weight'",
        ),
        (
            ["teacher.policy.kind=act", "teacher.policy.kl_weight=much"],
            "'teacher.policy.kl_weight' is 'much'",
        ),
        (
            ["teacher.policy.kind=acct"],
            "'teacher.policy.kind' is 'acct', did you mean 'act'",
        ),
        (
            ["teacher.policy.network={kind: unet, width: 3}"],
            "'teacher.policy.network.width' is not read by the kind 'unet', only by mlp",
        ),
        (["teacher.policy.kind=nowhere.Mine"], "there is no module nowhere"),
        (["teacher.policy.kind=robots.errors.Mine"], "no configuration class Mine"),
    ],
)
def test_a_key_that_the_chosen_kind_does_not_read_is_refused(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(HandoffError) as caught:
        options("demo", overrides)
    assert message in str(caught.value)


def test_push_t_from_images_has_the_papers_options_under_the_image_protocol() -> None:
    built = options("push_t_image")
    teacher, scores = built["teacher"], built["scores"]
    assert scores.protocol == read_protocol("push_t_image")
    published = read_protocol("push_t_published")
    assert scores.protocol == replace(published, name="push_t_image", options={"picture": 96})
    model, training = teacher.policy, teacher.training
    assert (model.observation_fields, model.image_fields) == (("agent",), ("image",))
    assert (model.n_obs_steps, model.horizon, model.n_action_steps) == (2, 16, 8)
    assert model.network == UnetConfig(widths=(512, 1024, 2048), time_embedding=128)
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (64, 1e-4, 1e-6)
    assert (training.betas, training.schedule, training.warmup_steps) == (
        (0.95, 0.999),
        "cosine",
        500,
    )
    assert (training.ema_power, training.device) == (0.75, "cuda")
    assert scores.evaluate.device == "cuda"


def test_no_position_of_the_t_is_observed_in_push_t_from_pictures() -> None:
    built = options("push_t_pictures")
    policy = built["teacher"].policy
    assert (policy.observation_fields, policy.image_fields) == (("agent",), ("image",))
    assert policy.point_fields == ()
    assert isinstance(built["twin"].table, DeployConfig)
    assert built["scores@student"].protocol == read_protocol("push_t_image")
    assert built["blind"].blind


def test_push_t_from_images_is_built_for_a_processor() -> None:
    built = options("push_t_image", ["teacher.training.device=cpu", "teacher.training.steps=3"])
    assert (built["teacher"].training.device, built["scores"].evaluate.device) == ("cpu", "cpu")


def test_a_small_backbone_and_groups_are_reached_by_overrides() -> None:
    built = options(
        "vla_token_ppo",
        [
            "pretrained.policy.backbone.scratch.width=64",
            "pretrained.policy.backbone.scratch.layers=3",
            "teacher.algorithm.group={size: 4}",
        ],
    )
    policy = built["pretrained"].policy
    assert isinstance(policy, TokenVlaConfig)
    assert policy.backbone.scratch is not None
    assert (policy.backbone.scratch.width, policy.backbone.scratch.layers) == (64, 3)
    assert built["teacher"].algorithm.group == GroupConfig(size=4)


def test_a_policy_that_cannot_be_finetuned_is_refused_before_imitation() -> None:
    with pytest.raises(HandoffError, match="family 'act'; expected a diffusion or flow policy"):
        options("pusht_best_of_n", ["pretrained.policy=act"])


@pytest.mark.parametrize("kind", ["best_of_n", "dppo"])
def test_a_policy_that_sees_is_finetuned(kind: str) -> None:
    options(
        "pusht_best_of_n", ["pretrained.policy=unet_image", f"teacher.algorithm={{kind: {kind}}}"]
    )


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("act", "one_step"), ("unet_image", "shortcut"), ("mlp", "shortcut"), ("act", "shortcut")],
)
def test_a_policy_that_cannot_be_distilled_is_refused_before_imitation(
    name: str, algorithm: str
) -> None:
    words = f"cannot be distilled to one step by the algorithm '{algorithm}'"
    with pytest.raises(HandoffError, match=words):
        options("demo", [f"teacher.policy={name}", f"student.algorithm={{kind: {algorithm}}}"])


@pytest.mark.parametrize(
    ("recipe", "overrides", "words"),
    [
        ("pusht_best_of_n", ["pretrained.policy.prefix=2"], "no method of fine-tuning knows"),
        (
            "demo",
            [
                "teacher.policy=flow",
                "teacher.policy.prefix=2",
                "student.algorithm={kind: shortcut}",
            ],
            "the algorithm 'shortcut' does not know",
        ),
    ],
)
def test_decided_actions_are_refused_where_training_would_forget_them(
    recipe: str, overrides: list[str], words: str
) -> None:
    with pytest.raises(HandoffError, match=words):
        options(recipe, overrides)


def test_a_policy_without_cameras_is_not_evaluated_blind() -> None:
    options("pick_cube_cameras")
    with pytest.raises(HandoffError, match="blind is set, but the policy has no image_fields"):
        options("demo", ["control.blind=true"])


def test_a_policy_that_sees_is_distilled() -> None:
    options("demo", ["teacher.policy=unet_image"])


@pytest.mark.parametrize("algorithm", ["one_step", "shortcut"])
def test_a_flow_is_distilled_by_both_algorithms(algorithm: str) -> None:
    options("demo", ["teacher.policy=flow", f"student.algorithm={{kind: {algorithm}}}"])


def test_more_halvings_than_the_timesteps_have_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"6 halvings of 100 .* expected at most 5 halvings"):
        options("demo", ["teacher.policy=flow", "student.algorithm={kind: shortcut, halvings: 6}"])


def test_imitation_of_a_step_conditioned_policy_is_refused() -> None:
    with pytest.raises(HandoffError, match="imitation learns no steps of a length"):
        options("demo", ["teacher.policy=flow", "teacher.policy.step_conditioned=true"])


def test_a_policy_without_language_cannot_be_finetuned_as_a_vla() -> None:
    with pytest.raises(HandoffError, match="expected 'token_vla'"):
        options("pusht_best_of_n", ["teacher.algorithm={kind: vla}"])


def test_an_override_below_a_value_of_the_matrix_keeps_the_named_option() -> None:
    built = options("compare_push_t", ["teacher.training.steps=7"])
    copies = {name: stage for name, stage in built.items() if name.startswith("teacher@")}
    assert len(copies) == 15
    assert {stage.training.steps for stage in copies.values()} == {7}
    unet = copies["teacher@denoiser=unet_laptop,seed=0"]
    assert (unet.training.batch_size, unet.training.learning_rate) == (64, 3e-4)


def test_the_request_has_the_digest_of_every_file_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("stages: {demos: {uses: ingest}}\n")
    (tmp_path / "own.yaml").write_text("defaults: [base]\nstages: {}\n")
    files = read_recipe(str(tmp_path / "own.yaml")).request["files"]
    assert files == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (tmp_path / "own.yaml", tmp_path / "base.yaml")
    }


@pytest.mark.parametrize("task", available("world"))
def test_a_session_has_the_world_of_its_task(task: str) -> None:
    session, world = read_recipe(f"hil/{task}"), read_yaml(CONFIGS / "world" / f"{task}.yaml")
    fields = world["shared"]["env"]["observation_fields"]
    assert list(session.shared["env"]["observation_fields"]) == fields
    assert session.shared["env"]["task"] == task


@pytest.mark.parametrize("robot", available("robot"))
def test_a_session_takes_another_robot_by_one_line(tmp_path: Path, robot: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults: [hil/pick_cube, robot/{robot}]\n")
    found = options(str(file))
    assert found["demos"].env.robot == robot
    assert found["corrected"].env.robot == robot
    assert found["scores"].protocol.robot == robot


def test_a_part_of_a_recipe_is_no_recipe() -> None:
    with pytest.raises(HandoffError, match="no stages"):
        read_recipe(str(CONFIGS / "world" / "reach.yaml"))


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        ("drawer_expo", "teacher.algorithm.subset=20"),
        ("hil/pick_cube", "corrected.algorithm.sac.subset=20"),
    ],
)
def test_more_critics_in_a_target_than_there_are_is_refused(recipe: str, override: str) -> None:
    with pytest.raises(HandoffError, match=r"subset is 20, expected 1 to \d+ \(critics\)"):
        declared(recipe, [override])

"""Every kind of stage, algorithm and policy family with a camera: each takes pictures, or says in one
sentence why not. A new one has to be entered here."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from flows.runner.artifact import Artifact
from flows.runner.signature import find_kind, shipped_kinds
from flows.runner.stage import Stage, run_stage
from flows.session.config import HilEnvConfig
from flows.stages.learn.classify import cloned_policy
from flows.stages.learn.config import (
    ClassifyConfig,
    DistilPolicyConfig,
    OfflinePolicyConfig,
    ReinforcePolicyConfig,
)
from policies.checkpoint import read_card
from policies.policy_config import families
from policies.rl.finetuning.config import FinetuneMethodConfig
from real.deploy.onnx_policy import OnnxPolicy
from robots.config import classes_of
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.recipe_stages import declared

CAMERA = "image_front"
RECIPE = """
name: cameras
shared:
  task: reach
  protocol:
    uses: reach
    episodes: 2
    max_steps: 6
    options: &options {cameras: {names: [front], height: 32, width: 32}}
  num_envs: 2
  evaluate: {videos: 0, batch: 2}
stages:
  demos: {uses: scripted, with: {episodes: 6, demonstrate: {keep: all, mujoco: *options}}}
  faults: {uses: examine, inputs: {demos: demos}, with: {max_errors: null}}
  good: {uses: filter, inputs: {demos: demos}}
  both: {uses: merge, inputs: {stores: [demos, good]}}
  part: {uses: split, inputs: {demos: demos}}
  labelled: {uses: relabel, inputs: {demos: demos}, with: {reward: {kind: task}}}
  teacher:
    uses: pretrain
    inputs: {demos: demos}
    with:
      policy: &diffusion
        kind: diffusion
        observation_fields: [q, grasp_pose]
        image_fields: [image_front]
        anchor_field: null
        horizon: 4
        n_action_steps: 2
        train_timesteps: 10
        inference_steps: 2
        image_encoder: &encoder {channels: [16], keypoints: 4, features: 6}
        network: {width: 16, blocks: 1}
      training: &training {steps: 2, warmup_steps: 1, batch_size: 4, log_every: 1}
  flow:
    uses: pretrain
    inputs: {demos: demos}
    with: {policy: {<<: *diffusion, objective: flow}, training: *training}
  family:
    uses: pretrain
    inputs: {demos: demos}
    matrix:
      policy:
        act: &act
          kind: act
          observation_fields: [q, grasp_pose]
          image_fields: [image_front]
          anchor_field: null
          horizon: 4
          n_action_steps: 2
          width: 16
          heads: 2
          feedforward: 16
          latent: 4
        bc:
          kind: bc
          observation_fields: [q, grasp_pose]
          image_fields: [image_front]
          anchor_field: null
          horizon: 1
          n_action_steps: 1
          image_encoder: *encoder
        beso:
          kind: beso
          n_obs_steps: 1
          goal_fields: [q]
          layers: 1
          heads: 2
          width: 16
          observation_fields: [q, grasp_pose]
          image_fields: [image_front]
          anchor_field: null
          horizon: 4
          n_action_steps: 2
          image_encoder: *encoder
        token_vla: &vla
          kind: token_vla
          backbone: {scratch: {width: 16, layers: 1, heads: 2, feedforward: 24, vision_layers: 1}}
          train_backbone: all
          observation_fields: [q, grasp_pose]
          image_fields: [image_front]
          instruction: reach
          anchor_field: null
          horizon: 4
          n_action_steps: 4
    with: {training: *training}
  vla:
    uses: pretrain
    inputs: {demos: demos}
    with: {policy: {<<: *vla, kind: vla}, training: *training}
  one_step:
    uses: distill
    inputs: {teacher: teacher, demos: demos}
    with: {algorithm: {training: *training, targets: 16}}
  shortcut:
    uses: distill
    inputs: {teacher: flow, demos: demos}
    with: {algorithm: {kind: shortcut, training: *training, halvings: 1}}
  on_policy:
    uses: distill
    inputs: {teacher: teacher, student: teacher}
    with: {algorithm: {kind: on_policy, rollouts: 1, decisions: 2}}
  dppo:
    uses: finetune
    inputs: {policy: teacher}
    with: {rollouts: 1, decisions: 2, algorithm: {kind: dppo}}
  fpo:
    uses: finetune
    inputs: {policy: flow}
    with: {rollouts: 1, decisions: 2, algorithm: &losses {kind: fpo, samples: 2, critic: [8]}}
  vla_fpo:
    uses: finetune
    inputs: {policy: vla}
    with: {rollouts: 1, decisions: 2, algorithm: *losses}
  reinflow:
    uses: finetune
    inputs: {policy: flow}
    with: {rollouts: 1, decisions: 2, algorithm: {kind: reinflow, steps: 2, critic: [8]}}
  best_of_n:
    uses: finetune
    inputs: {policy: teacher}
    with:
      rollouts: 1
      decisions: 2
      algorithm: &selection
        kind: best_of_n
        updates: 1
        batch_size: 4
        warm_up: 0
        samples: 8
        critic: {hidden: [8]}
        imitation: *training
  expo:
    uses: finetune
    inputs: {policy: teacher, demos: labelled}
    with: {rollouts: 1, decisions: 2, algorithm: {<<: *selection, kind: expo}}
  q_chunking:
    uses: finetune
    inputs: {policy: flow, demos: labelled}
    with: {rollouts: 1, decisions: 2, algorithm: {<<: *selection, kind: q_chunking}}
  rl100:
    uses: finetune
    inputs: {policy: teacher, demos: labelled}
    with:
      rollouts: 1
      decisions: 2
      algorithm:
        kind: rl100
        iterations: 1
        critics: {critic: {hidden: [8]}, value_network: {hidden: [8]}}
        critic_updates: 1
        critic_batch: 4
        dynamics: &dynamics {members: 2, elites: 1, network: {hidden: [8]}, updates: 1, batch_size: 4}
        offline: &improved
          denoising: {steps: 2}
          updates: 1
          gate_every: 1
          chains: 8
          batch_size: 8
          judged_rows: 4
        imitation: *training
        critic: [8]
  dsrl:
    uses: finetune
    inputs: {policy: flow}
    with: {rollouts: 1, decisions: 2, algorithm: &noise {kind: dsrl, updates: 1, warm_up: 1, critic: {hidden: [8]}}}
  rl_token:
    uses: finetune
    inputs: {policy: flow}
    with:
      rollouts: 1
      decisions: 2
      algorithm: &refining
        kind: rl_token
        updates: 1
        warm_up: 1
        critic: {hidden: [8]}
        actor: {hidden: [8]}
        token: {width: 8, decisions: 2, training: {steps: 2, learning_rate: 1.0e-3, batch_size: 4, warmup_steps: 1}}
  vla_rl_token:
    uses: finetune
    inputs: {policy: vla}
    with: {rollouts: 1, decisions: 2, algorithm: *refining}
  vla_dsrl:
    uses: finetune
    inputs: {policy: vla}
    with: {rollouts: 1, decisions: 2, algorithm: *noise}
  vla_ppo:
    uses: finetune
    inputs: {policy: vla}
    with: {rollouts: 1, decisions: 2, algorithm: {kind: vla}}
  reinforced:
    uses: reinforce
    matrix:
      algorithm:
        ppo: &ppo
          kind: ppo
          rollouts: 1
          rollout_steps: 4
          batch_size: 4
          actor: {hidden: [8]}
          critic: {hidden: [8]}
        sac: &sac
          kind: sac
          collections: 3
          batch_size: 4
          capacity: 10
          learning_starts: 1
          learner: {critic: {hidden: [8]}, actor: {hidden: [8]}}
        fast_td3: {<<: *sac, kind: fast_td3}
        pql: {<<: *sac, kind: pql}
        mrq: {<<: *sac, kind: mrq, learner: {target_every: 2, policy_units: 8}}
    with: &seeing
      fields: [q, grasp_pose]
      image_fields: [image_front]
      image_features: &features {stride: 16, cells: [2, 2]}
  streamed:
    uses: reinforce
    with:
      <<: *seeing
      num_envs: 1
      algorithm: {kind: stream_ac, steps: 5, hidden: [8]}
  rlpd:
    uses: reinforce
    inputs: {demos: labelled}
    with: {<<: *seeing, algorithm: {<<: *sac, kind: rlpd, minibatches: 1}}
  cqn_as:
    uses: reinforce
    inputs: {demos: labelled}
    with:
      <<: *seeing
      algorithm:
        {kind: cqn_as, collections: 2, batch_size: 4, learner: {critic: {features: 8, units: 8}}}
  limited:
    uses: reinforce
    with:
      <<: *seeing
      protocol: {options: {contact_threshold: 2.0}}
      algorithm: {<<: *ppo, kind: ppo_lagrangian}
  offline:
    uses: offline
    inputs: {demos: labelled}
    matrix:
      algorithm:
        iql: &iql
          kind: iql
          observation_fields: [q, grasp_pose]
          image_fields: [image_front]
          image_features: *features
          updates: 2
          batch_size: 4
        xql: {<<: *iql, kind: xql}
        f_dvl: {<<: *iql, kind: f_dvl}
        cal_ql: {<<: *iql, kind: cal_ql}
        trajectory_weighting: {kind: trajectory_weighting, weighting: {kind: rw}, learner: *iql}
    with: {reward: {kind: store}}
  offline_ppo:
    uses: offline
    inputs: {demos: labelled, policy: teacher}
    with:
      algorithm:
        kind: offline_ppo
        critic_updates: 1
        critics: {critic: {hidden: [8]}, value_network: {hidden: [8]}}
        dynamics: *dynamics
        ppo: *improved
  scores: {uses: evaluate, inputs: {policy: teacher}}
  sees: {uses: evaluate, inputs: {policy: rlpd}}
  learned: {uses: evaluate, inputs: {policy: on_policy}}
  factors:
    uses: sensitivity
    inputs: {policies: teacher}
    with:
      factors:
        shift: {kind: appearance, what: camera_shift, low: 0.0, high: 0.02}
        light: {kind: appearance, what: light, values: [0.5]}
      design: {points: 2}
  members:
    uses: draw_family
    with:
      factors: &shift {shift: {kind: appearance, what: camera_shift, low: 0.0, high: 0.02}}
      design: {points: 1}
  worst:
    uses: worst_case
    inputs: {policy: teacher, family: members}
    with:
      factors: *shift
      search: {design: {points: 1}, corners: false, rounds: 0, episodes: 1, finalists: 1, final_episodes: 1}
  in_members: {uses: evaluate_family, inputs: {policies: teacher, family: worst}}
  compared: {uses: compare, inputs: {evaluations: [scores, sees]}}
  open: {uses: open_loop, inputs: {policy: teacher, episodes: demos}}
  recorded:
    uses: rollouts
    inputs: {policy: teacher}
    with: {episodes: 2, keep: all, least_success: 0.0}
  bundle:
    uses: export
    inputs: {policy: rlpd, demos: demos}
    with: {action_interface: cartesian_delta, golden: 4}
"""
ELSEWHERE = {
    "correct": "tests.flows.correction.test_correct",
    "demonstrate": "tests.flows.session.test_capture",
    "deploy": "tests.flows.deployment.cameras.test_seeing_task",
    "gate": "tests.flows.gating.test_cameras",
    "ingest": "tests.flows.gating.test_cameras",
    "robustness": "tests.flows.stages.test_robustness",
}
"""Kinds of stages whose cameras have tests of their own."""
WITHOUT = {
    "approve": "shows a person what its inputs hold",
    "classify": "a session; its clone is tested below",
    "excite": "records motions of joints, for `tune`",
    "play": "records play for world models, which imagine vectors",
    "compare_deployments": "compares the outcomes of starts",
    "compare_simulators": "compares the outcomes of episodes",
    "excite_arm": "records motions of joints",
    "tune": "fits the simulated arm to motions of joints",
    "world_model": "imagines vectors; its refusal is tested below",
}
"""Kinds of stages that are not part of the recipe, and why."""
REFUSED = {"edp"}
"""Algorithms that take no pictures; see `test_what_takes_no_pictures_says_so`."""


def algorithms() -> set[str]:
    """Kinds of all algorithms that take a policy or episodes."""
    unions: list[Any] = [
        get_type_hints(cls, include_extras=True)["algorithm"]
        for cls in (DistilPolicyConfig, OfflinePolicyConfig, ReinforcePolicyConfig)
    ]
    unions.append(FinetuneMethodConfig)
    return {cls.kind for union in unions for cls in classes_of(union)}  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("recipe") / "cameras.yaml"
    file.write_text(RECIPE)
    return str(file)


@pytest.fixture(scope="module")
def finished() -> dict[str, Artifact]:
    """Artifacts of the stages that have run."""
    return {}


@cache
def declared_once(recipe: str) -> dict[str, Stage]:
    """The stages of a recipe, whose file does not change."""
    return declared(recipe)


def made(name: str, recipe: str, finished: dict[str, Artifact]) -> Artifact:
    """The artifact of a stage, which runs after those that it needs."""
    if name not in finished:
        stage = declared_once(recipe)[name]
        inputs: dict[str, Any] = {
            key: made(source.name, recipe, finished) for key, source in stage.inputs.items()
        }
        root = Path(recipe).parent / "runs"
        finished[name] = run_stage(stage, inputs, root, no_progress, isolate=False).artifact
    return finished[name]


NAMES = [
    "demos",
    "faults",
    "good",
    "both",
    "part",
    "labelled",
    "teacher",
    "flow",
    "family@policy=act",
    "family@policy=bc",
    "family@policy=beso",
    "family@policy=token_vla",
    "vla",
    "one_step",
    "shortcut",
    "on_policy",
    "dppo",
    "fpo",
    "vla_fpo",
    "reinflow",
    "best_of_n",
    "expo",
    "q_chunking",
    "rl100",
    "dsrl",
    "vla_dsrl",
    "rl_token",
    "vla_rl_token",
    "vla_ppo",
    "reinforced@algorithm=ppo",
    "reinforced@algorithm=sac",
    "reinforced@algorithm=fast_td3",
    "reinforced@algorithm=pql",
    "reinforced@algorithm=mrq",
    "streamed",
    "rlpd",
    "cqn_as",
    "limited",
    "offline@algorithm=iql",
    "offline@algorithm=xql",
    "offline@algorithm=f_dvl",
    "offline@algorithm=cal_ql",
    "offline@algorithm=trajectory_weighting",
    "offline_ppo",
    "scores",
    "sees",
    "learned",
    "factors",
    "members",
    "worst",
    "in_members",
    "compared",
    "open",
    "recorded",
    "bundle",
]


@pytest.mark.parametrize("name", NAMES)
def test_it_takes_pictures(name: str, recipe: str, finished: dict[str, Artifact]) -> None:
    stage, artifact = declared_once(recipe)[name], made(name, recipe, finished)
    makes = find_kind(stage.uses).makes
    if makes == "policy":
        assert CAMERA in read_card(artifact.path).sensors
    elif makes == "bundle":
        assert CAMERA in OnnxPolicy(artifact.path / "policy.onnx").contract.sensors
    elif makes == "episodes":
        stores = sorted(artifact.path.rglob("store.zarr"))
        assert stores
        fields = EpisodeStore.open(stores[0]).schema.stream("policy").fields
        assert fields[CAMERA].unit == "u8"


def test_every_stage_of_the_recipe_is_run(recipe: str) -> None:
    assert sorted(declared_once(recipe)) == sorted(NAMES)


def test_every_kind_of_stage_is_entered(recipe: str) -> None:
    run = {stage.uses for stage in declared_once(recipe).values()}
    assert run | ELSEWHERE.keys() | WITHOUT.keys() == shipped_kinds().keys()
    assert not run & (ELSEWHERE.keys() | WITHOUT.keys())
    assert all(find_spec(module) is not None for module in ELSEWHERE.values())


def test_every_algorithm_and_family_is_entered(recipe: str) -> None:
    configs = [stage.config for stage in declared_once(recipe).values()]
    run = {config.algorithm.kind for config in configs if hasattr(config, "algorithm")}
    assert run | REFUSED == algorithms()
    assert not run & REFUSED
    trained = {type(config.policy) for config in configs if hasattr(config, "policy")}
    assert trained == {family for family in families() if family.pretrained}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            "{uses: offline, inputs: {demos: demos}, with: {algorithm: {kind: edp, policy: "
            "{image_fields: [image_front]}}}}",
            "edp: .* would leave encoders of pictures untrained",
        ),
        (
            "{uses: finetune, inputs: {policy: teacher, world_model: world}}",
            "a world model imagines vectors, not pictures",
        ),
    ],
)
def test_what_takes_no_pictures_says_so(stages: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "refused.yaml"
    world = "  world: {uses: world_model, inputs: {play: demos}, with: {fields: [q]}}\n"
    file.write_text(f"{RECIPE}{world}  refused: {stages}\n")
    with pytest.raises(HandoffError, match=message):
        declared(str(file))


def test_a_world_model_names_the_camera_that_it_does_not_imagine(
    recipe: str, finished: dict[str, Artifact]
) -> None:
    from policies.world_model.config import WorldModelConfig
    from policies.world_model.play import read_play

    config = WorldModelConfig(fields=("q", CAMERA))
    with pytest.raises(HandoffError, match=r"\['image_front'\] are images, expected vectors"):
        read_play(made("demos", recipe, finished).path / "store.zarr", config)


def test_a_clone_with_cameras_acts_on_their_pictures(
    recipe: str, finished: dict[str, Artifact]
) -> None:
    clone = made("family@policy=bc", recipe, finished).path
    config = ClassifyConfig(env=HilEnvConfig(task="reach", observation_fields=("q", "grasp_pose")))
    card = read_card(clone)
    fields = {**card.observation, **card.sensors}
    propose = cloned_policy(clone, config, fields)
    vectors = {name: np.zeros((1, *card.observation[name].shape)) for name in card.observation}
    actions = [
        propose({**vectors, CAMERA: np.full((1, 32, 32, 3), shade, np.uint8)}) for shade in (0, 255)
    ]
    assert actions[0].shape == (1, card.action_size)
    assert not np.array_equal(actions[0], actions[1])
    with pytest.raises(
        HandoffError, match=r"Set env\.cameras to the cameras of its demonstrations"
    ):
        cloned_policy(clone, config, card.observation)

"""The recipe for data sets of one's own: from NumPy arrays with two cameras to an exported policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.artifact import Artifact
from real.deploy.onnx_policy import OnnxPolicy
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError
from tests.flows.recipe_stages import run_all

SMALL = (
    "trained.training.steps=150",
    "trained.training.learning_rate=1e-3",
    "trained.training.batch_size=32",
    "trained.policy.width=32",
    "trained.policy.heads=2",
    "trained.policy.feedforward=64",
    "trained.policy.encoder_layers=1",
    "trained.policy.latent_layers=1",
    "trained.policy.horizon=8",
    "trained.policy.n_action_steps=4",
    "bundle.golden=4",
)
NUMBERS = "trained.policy.image_fields=[]"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve episodes of two joints that swing at the pace that their state tells."""
    rng = np.random.default_rng(0)
    episodes = []
    for length in rng.integers(30, 50, size=12):
        phase = rng.uniform(0, 6) + 0.4 * np.arange(length + 1)
        q = np.stack([np.sin(phase), np.cos(phase)], axis=1)
        picture = np.zeros((length, 20, 24, 3), np.uint8)
        picture[np.arange(length), (10 + 9 * q[:-1, 0]).astype(int), :, 0] = 255
        episodes.append(
            {
                "observation.state": q[:-1].astype(np.float32),
                "observation.images.front": picture,
                "observation/images/wrist": picture[:, ::-1],
                "action": q[1:].astype(np.float32),
            }
        )
    path = tmp_path_factory.mktemp("data") / "swing.zarr"
    units = {"observation.state": "rad", "action": "rad"}
    write_episodes(
        path,
        episodes,
        task="swing",
        rate_hz=10.0,
        units=units,
        instructions=["swing"] * len(episodes),
    )
    return path


@pytest.fixture(scope="module")
def artifacts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    overrides = (f"demos.data={data}", "held_out.fraction=0.2", "train.fraction=0.2", *SMALL)
    return run_all("own_data", (*overrides, NUMBERS), tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    ("overrides", "number"),
    [((), None), (("demos.max_episodes=1",), 1), (("demos.max_episodes=2",), None)],
)
def test_a_recipe_that_splits_a_single_episode_is_refused_before_it_runs(
    data: Path, overrides: tuple[str, ...], number: int | None
) -> None:
    recipe = read_recipe("own_data", (f"demos.data={data}", *overrides))
    if number is None:
        assert stages(recipe, fetch=False)
        return
    with pytest.raises(
        HandoffError,
        match="stage train: split: 1 episode, at least 2 needed: one to train, one held",
    ):
        stages(recipe, fetch=False)


def test_held_out_episodes_are_not_trained_on(artifacts: dict[str, Artifact]) -> None:
    parts = {}
    for name in ("train", "held_out"):
        store = EpisodeStore.open(artifacts[name].path / "store.zarr")
        parts[name] = {store.metadata(i)["source_episode"] for i in range(store.num_episodes)}
    assert [len(part) for part in parts.values()] == [9, 3]
    assert parts["train"] | parts["held_out"] == set(range(12))


def test_the_policy_predicts_held_out_actions_better_than_the_last_action_does(
    artifacts: dict[str, Artifact],
) -> None:
    metrics = artifacts["errors"].manifest["metrics"]
    assert metrics["episodes"] == 3
    assert set(metrics["entries"]) == {"entry 0", "entry 1"}
    assert metrics["difference"]["high"] < 0.0
    # Repeating the last action is worse, the farther ahead one looks within half a period.
    control = [entry["control"]["mean"] for entry in metrics["ahead"]]
    assert control[:6] == sorted(control[:6])
    folder = artifacts["errors"].path
    assert json.loads((folder / "open_loop.json").read_text()) == metrics
    page = (folder / "report.html").read_text()
    assert "better than repeating the last action" in page
    assert (folder / "ahead.png").stat().st_size > 10_000


def test_the_exported_policy_says_that_its_actions_are_as_recorded(
    artifacts: dict[str, Artifact],
) -> None:
    contract = OnnxPolicy(artifacts["bundle"].path / "policy.onnx").contract
    assert contract.action_interface == "as_recorded"
    assert (contract.task, contract.rate_hz) == ("swing", 10.0)


def test_pictures_of_any_name_reach_the_exported_file(data: Path, tmp_path: Path) -> None:
    overrides = (
        f"demos.data={data}",
        "demos.map.action_interface=joint_target",
        *SMALL,
        "trained.training.steps=2",
        "trained.training.batch_size=4",
    )
    bundle = run_all("own_data", overrides, tmp_path)["bundle"]
    contract = OnnxPolicy(bundle.path / "policy.onnx").contract
    assert set(contract.sensors) == {"observation.images.front", "observation/images/wrist"}
    assert contract.action_interface == "joint_target"


def test_the_data_must_be_given_and_have_the_fields_that_are_observed(data: Path) -> None:
    with pytest.raises(HandoffError, match="data: is not set"):
        run_all("own_data", (), Path("unused"), only=("demos",))
    named = (f"demos.data={data}", "trained.policy.observation_fields=[state]")
    with pytest.raises(HandoffError, match=r"has the field 'state'.* it has action, obs"):
        list(stages(read_recipe("own_data", named), fetch=False))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "image_fields=[observation.images.fornt]",
            r"image_fields has the field 'observation.images.fornt'.*did you mean 'observation.images.front'",
        ),
        ("image_fields=[rear*]", r"image_fields has the field 'rear\*'.*it has observation"),
        ("image_fields=[observation.state]", "image_fields has the field 'observation.state'"),
        ("point_fields=[cloud]", "point_fields has the field 'cloud'"),
        ("action_field=actoin", "action_field has the field 'actoin'.*did you mean 'action'"),
        ("observation_fields=[observation.state,observation.state]", "expected each name once"),
        ("memory.kind=gru", "memory is set, but n_obs_steps is 1"),
        ("width=100", "width 100 with 8 heads, expected a multiple"),
    ],
)
def test_what_the_data_lack_is_known_before_anything_is_read(
    option: str, message: str, data: Path
) -> None:
    with pytest.raises(HandoffError, match=message):
        list(stages(read_recipe("own_data", (f"demos.data={data}", f"trained.policy.{option}"))))


def test_channels_of_a_small_network_are_known_to_be_wrong_with_their_option() -> None:
    cnn = "teacher.policy.image_encoder={kind: cnn, channels: [8, 16]}"
    said = r"teacher\.policy\.image_encoder\.channels.*multiple of 16"
    with pytest.raises(HandoffError, match=said):
        list(stages(read_recipe("demo", ("teacher.policy=unet", cnn))))


def test_a_table_of_a_task_that_is_not_simulated_is_refused_before_anything_runs(
    tmp_path: Path, data: Path
) -> None:
    (tmp_path / "swing.yaml").write_text(
        "defaults: [own_data]\n"
        "stages: {twin: {uses: deploy, inputs: {bundle: bundle}, with: {table: {kind: task}}}}\n"
    )
    given = [f"demos.data={data}", NUMBERS]
    recipe = str(tmp_path / "swing.yaml")
    expected = (
        "stage twin: its table is that of the policy's task, and 'swing' .* is not simulated. Give the stage ingest "
        "map.task=TASK .*, or remove ~twin; there are reach, "
    )
    with pytest.raises(HandoffError, match=expected):
        stages(read_recipe(recipe, given))
    with pytest.raises(HandoffError, match="did you mean 'pick_cube'"):
        stages(read_recipe(recipe, [*given, "demos.map.task=pick_cub"]))
    assert stages(read_recipe(recipe, [*given, "demos.map.task=reach"]))
    assert stages(read_recipe(recipe, [*given, "~twin"]))

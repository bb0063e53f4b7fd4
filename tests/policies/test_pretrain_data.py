"""Pretraining from several stores, with images, instructions and goals, and from saved weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from policies.checkpoint import read_weights, save_policy
from policies.data.demonstrations import open_store, read_demonstrations, read_stores
from policies.data.frames import FrameStorage
from policies.data.windows import chunks, window_index
from policies.imitation.config import MixedStore, PretrainConfig
from policies.imitation.objective import (
    _windows,
    imitation_objective,
    prepare,
)
from policies.imitation.pretrain import pretrain
from policies.imitation.validation import validation_loss
from policies.networks.config import BackboneConfig, MlpConfig, PointEncoderConfig
from policies.policy_config import BesoConfig, VlaConfig
from policies.training.config import TrainingConfig
from policies.training.preflight import TwoStageBatch
from robots.config import validate
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.language.text import encode, text_field
from robots.spec import FieldSpec
from tests.policies.conftest import TINY, write_demonstrations
from tests.policies.kill import run_until_killed

TRAINING = TrainingConfig(
    steps=40,
    learning_rate=1e-2,
    batch_size=16,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
)
CONFIG = PretrainConfig(policy=TINY, training=TRAINING, validation_fraction=0.1)
CPU = torch.device("cpu")
FELT = replace(
    TINY,
    point_fields=("cloud",),
    point_encoder=PointEncoderConfig(widths=(4,), features=4),
    network=MlpConfig(width=8, blocks=1, time_embedding=8),
)
"""Point clouds lie where pictures do, and their encoder learns in no time."""
SEEING = replace(TINY, image_fields=("camera",))
FIELDS = {
    "goal": FieldSpec(shape=(2,), unit="m", frame="board"),
    "agent": FieldSpec(shape=(2,), unit="m", frame="board"),
    "action": FieldSpec(shape=(2,), unit="m", frame="board"),
}

CLOUD = FieldSpec(shape=(5, 3), unit="m", frame="base")


def write_store(
    demos: Path,
    lengths: Sequence[int],
    fields: dict[str, FieldSpec] = FIELDS,
    rate_hz: float = 10.0,
    metadata: Sequence[dict[str, Any]] | None = None,
    offset: float = 0.0,
    robot: str = "",
) -> Path:
    """Random episodes of `lengths` steps in the directory `demos`, every number of them at least
    `offset`."""
    demos.mkdir(parents=True)
    rng = np.random.default_rng(0)
    schema = EpisodeSchema(
        name="push_point",
        streams={"policy": StreamSpec(rate_hz=rate_hz, fields=fields)},
        robot=robot,
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for number, length in enumerate(lengths):
            values = {
                name: rng.integers(0, 256, (length, *spec.shape)).astype(np.uint8)
                if spec.unit == "u8"
                else offset + rng.random((length, *spec.shape))
                for name, spec in fields.items()
            }
            writer.append({"policy": values}, metadata[number] if metadata else {})
    return demos


def same_weights(one: Path, other: Path) -> bool:
    weights, others = read_weights(one), read_weights(other)
    return weights.keys() == others.keys() and all(
        torch.equal(weights[name], others[name]) for name in weights
    )


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes of other motions."""
    actions = [np.random.default_rng(number).random((15, 2)) for number in range(5)]
    return write_demonstrations(tmp_path_factory.mktemp("other"), actions)


@pytest.fixture(scope="module")
def sensor_demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes with a camera of 10x10 px and a point cloud."""
    camera = FieldSpec(shape=(10, 10, 3), dtype="uint8", unit="u8")
    fields = {**FIELDS, "camera": camera, "cloud": CLOUD}
    return write_store(
        tmp_path_factory.mktemp("seen") / "demos", (9, 12, 10, 11), fields, offset=2.0
    )


def mixed(path: Path, weight: float = 1.0) -> PretrainConfig:
    return replace(CONFIG, mixture=(MixedStore(path=str(path), weight=weight),))


def test_windows_of_every_store_are_counted(demos: Path, other: Path, tmp_path: Path):
    metrics = pretrain(mixed(other), demos, tmp_path, no_progress)
    # One of five episodes is held out, fifteen steps make fourteen windows.
    assert metrics["windows_per_store"][str(other)] == 4 * 14
    assert sum(metrics["windows_per_store"].values()) == metrics["windows"]


def test_held_out_episodes_and_order_of_the_first_store_are_as_without_a_mixture(
    demos: Path, other: Path
):
    alone, both = (prepare(config, demos, FrameStorage(), CPU) for config in (CONFIG, mixed(other)))
    count = len(alone.split.train)
    assert both.mixture.counts[0] == count
    assert torch.equal(alone.split.train.observation_NT, both.split.train.observation_NT[:count])


def test_a_batch_is_divided_by_the_weights(demos: Path, other: Path):
    setup = prepare(mixed(other, weight=3.0), demos, FrameStorage(), CPU)
    first = setup.mixture.counts[0]
    drawn = np.concatenate([setup.mixture.batch(16, step, 0) for step in range(10)])
    assert [(drawn < first).sum(), (drawn >= first).sum()] == [40, 120]


def test_the_store_itself_may_be_named(demos: Path, other: Path):
    config = mixed(other / "store.zarr")
    assert (
        prepare(config, demos, FrameStorage(), CPU).mixture
        == prepare(mixed(other), demos, FrameStorage(), CPU).mixture
    )


def test_normalisers_are_fitted_to_the_learned_episodes_of_all_stores(tmp_path: Path):
    first = write_store(tmp_path / "first", (9, 9))
    second = write_store(tmp_path / "second", (9,), offset=5.0)
    config = replace(
        mixed(second, weight=100.0),
        validation_fraction=0.0,
        policy=replace(TINY, anchor_field=None),
    )
    module = prepare(config, first, FrameStorage(), CPU).module
    parts = [EpisodeStore.open(path / "store.zarr") for path in (first, second)]
    agent = np.concatenate([store.column("policy", "agent") for store in parts])
    middle = (agent.min(axis=0) + agent.max(axis=0)) / 2
    np.testing.assert_allclose(module.normalize_observation.centre[2:].numpy(), middle, rtol=1e-6)
    # Two episodes of about 0.5, one of about 5.5: unweighted, their mean is near 13/6.
    assert float(module.normalize_action.centre.mean()) == pytest.approx(13 / 6, abs=0.1)


def test_held_out_episodes_do_not_count_for_the_normalisers(tmp_path: Path):
    demos = write_store(tmp_path / "demos", (9,) * 10)
    setup = prepare(replace(CONFIG, validation_fraction=0.5), demos, FrameStorage(), CPU)
    episodes = (setup.split.train.observation_NT[:, -1] // 9).unique()
    assert len(episodes) == 5
    agent = (
        EpisodeStore.open(demos / "store.zarr")
        .column("policy", "agent")
        .reshape(10, 9, 2)[episodes.numpy()]
    )
    agent = agent.reshape(-1, 2)
    expected = (agent.min(axis=0).astype(np.float64) + agent.max(axis=0)) / 2
    assert torch.equal(
        setup.module.normalize_observation.centre[2:], torch.from_numpy(expected).float()
    )


def test_chunks_are_normalised_by_the_moments_of_all_learned_windows(demos: Path):
    setup = prepare(replace(CONFIG, validation_fraction=0.0), demos, FrameStorage(), CPU)
    data = read_demonstrations(demos, TINY)
    index = window_index(data.ends_E, TINY.n_obs_steps, TINY.horizon, TINY.n_action_steps)
    values = chunks(index, data.observation_MO, data.action_MA, setup.module.anchor).astype(
        np.float64
    )
    mean, deviation = torch.from_numpy(values.mean(axis=0)), torch.from_numpy(values.std(axis=0))
    assert torch.equal(setup.module.normalize_action.centre, mean.float())
    assert torch.equal(setup.module.normalize_action.scale, (2 * deviation).float())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"action": FieldSpec(shape=(3,), unit="m", frame="board")},
            r"'action' has shape \(3,\), expected \(2,\)",
        ),
        (
            {"goal": FieldSpec(shape=(2,), unit="mm", frame="board")},
            "'goal' has unit 'mm', expected 'm'",
        ),
        (
            {"agent": FieldSpec(shape=(2,), unit="m", frame="base")},
            "'agent' has frame 'base', expected 'board'",
        ),
    ],
)
def test_a_store_that_disagrees_is_named_with_its_field(
    changes: dict[str, FieldSpec], words: str, demos: Path, tmp_path: Path
):
    path = write_store(tmp_path / "odd", (9,), {**FIELDS, **changes})
    with pytest.raises(HandoffError, match=f"odd: field {words} as in"):
        prepare(mixed(path), demos, FrameStorage(), CPU)


def test_a_store_without_a_field_is_named(demos: Path, tmp_path: Path):
    path = write_store(tmp_path / "odd", (9,), {name: FIELDS[name] for name in ("agent", "action")})
    with pytest.raises(HandoffError, match="odd: stream 'policy' has no field 'goal'"):
        prepare(mixed(path), demos, FrameStorage(), CPU)


def test_a_store_of_another_rate_is_named(demos: Path, tmp_path: Path):
    path = write_store(tmp_path / "odd", (9,), rate_hz=20.0)
    with pytest.raises(HandoffError, match="odd: 20 Hz, expected 10 Hz"):
        prepare(mixed(path), demos, FrameStorage(), CPU)


def test_a_mixture_and_its_frames_on_the_disk_survive_a_kill(sensor_demos: Path, tmp_path: Path):
    further = write_store(
        tmp_path / "further",
        (8, 9),
        {**FIELDS, "cloud": FieldSpec(shape=(5, 3), unit="m", frame="base")},
    )
    config = replace(
        CONFIG, policy=FELT, mixture=(MixedStore(path=str(further), weight=2.0),), memory_gb=0.0
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out in (whole, parts):
        out.mkdir()
    run_until_killed(27, pretrain, config, sensor_demos, parts)
    assert len(list(parts.glob("frames-*.bin"))) == 2
    calls = []
    # Less memory or more is no other training.
    pretrain(
        replace(config, memory_gb=1.0),
        sensor_demos,
        parts,
        lambda done, total, note="": calls.append(done),
    )
    assert calls[0] == 21
    pretrain(config, sensor_demos, whole, no_progress)
    assert same_weights(whole, parts)
    assert not list(tmp_path.rglob("*frames-*"))


def test_frames_that_are_laid_out_already_are_not_decoded_again(
    sensor_demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wanted, read = [], EpisodeStore.read

    def watched(
        store: EpisodeStore, episode: int, stream: str, fields: list[str]
    ) -> dict[str, np.ndarray]:
        wanted.append("camera" in fields)
        return read(store, episode, stream, fields)

    monkeypatch.setattr(EpisodeStore, "read", watched)
    stores = [open_store("seen", sensor_demos / "store.zarr", SEEING)]
    first, second = (
        read_stores(stores, FrameStorage(0.0, tmp_path)).sensors["camera"] for _ in range(2)
    )
    assert wanted == [True] * 4 + [False] * 4
    assert torch.equal(first.steps(torch.arange(42)), second.steps(torch.arange(42)))


def test_frames_of_a_store_that_grew_are_written_again(tmp_path: Path):
    camera = FieldSpec(shape=(4, 4, 3), dtype="uint8", unit="u8")
    demos = write_store(tmp_path / "demos", (9,), {**FIELDS, "camera": camera})
    lengths = []
    for _ in range(2):
        data = read_stores(
            [open_store("demos", demos / "store.zarr", SEEING)], FrameStorage(0.0, tmp_path)
        )
        lengths.append(len(data.sensors["camera"]))
        values = {
            name: np.zeros((3, *spec.shape), spec.dtype)
            for name, spec in {**FIELDS, "camera": camera}.items()
        }
        with EpisodeStore.open(demos / "store.zarr", "a") as store:
            store.append({"policy": values}, {})
    assert lengths == [9, 12]


def test_pictures_are_read_as_recorded(sensor_demos: Path, tmp_path: Path):
    stores = [open_store("seen", sensor_demos / "store.zarr", SEEING)] * 2
    data = read_stores(stores, FrameStorage(0.0, tmp_path))
    recorded = EpisodeStore.open(sensor_demos / "store.zarr").column("policy", "camera")
    found = data.sensors["camera"].steps(torch.arange(2 * len(recorded))).numpy()
    assert np.array_equal(found, np.concatenate([recorded, recorded]))


def test_points_are_normalised_by_the_range_of_the_learned_episodes(sensor_demos: Path):
    module = prepare(
        replace(CONFIG, policy=FELT, validation_fraction=0.0), sensor_demos, FrameStorage(), CPU
    ).module
    points = EpisodeStore.open(sensor_demos / "store.zarr").column("policy", "cloud").reshape(-1, 3)
    centre = module.state_dict()["encoder.normalize_points.cloud.centre"]
    np.testing.assert_allclose(
        centre.numpy(), (points.min(axis=0) + points.max(axis=0)) / 2, rtol=1e-6
    )


def instructions_of(demos: Path, instruction: str | None = None) -> tuple[str, ...]:
    model = VlaConfig(
        observation_fields=("goal", "agent"),
        backbone=BackboneConfig(folder="nowhere"),
        instruction=instruction,
    )
    """The instruction of each episode of nine steps."""
    data = read_demonstrations(demos, model)
    assert all(len(set(data.instruction_M[end - 9 : end])) == 1 for end in data.ends_E)
    return tuple(data.instruction_M[end - 1] for end in data.ends_E)


def test_instructions_come_from_episode_then_policy_then_task(tmp_path: Path):
    demos = write_store(
        tmp_path / "demos", (9, 9), metadata=[{"instruction": "push the point"}, {}]
    )
    assert instructions_of(demos) == ("push the point", "push point")
    assert instructions_of(demos, "go on") == ("push the point", "go on")


def test_recorded_instructions_rank_after_metadata_and_before_the_policys_default(
    tmp_path: Path,
):
    demos, words = tmp_path / "demos", text_field(16)
    demos.mkdir()
    schema = EpisodeSchema(
        name="push_point",
        streams={"policy": StreamSpec(rate_hz=10.0, fields={**FIELDS, "instruction": words})},
    )
    with EpisodeStore.create(demos / "store.zarr", schema) as store, store.writer() as writer:
        for said, metadata in (
            ("go left", {}),
            ("go right", {"instruction": "turn round"}),
            ("stop", {}),
        ):
            values = {name: np.zeros((9, *spec.shape), spec.dtype) for name, spec in FIELDS.items()}
            writer.append({"policy": values | {"instruction": encode([said] * 9, 16)}}, metadata)
    assert instructions_of(demos, "go on") == ("go left", "turn round", "stop")


def spoken_demos(demos: Path, words: list[str], metadata: dict[str, Any]) -> Path:
    """One episode with an instruction per step."""
    demos.mkdir()
    fields = {**FIELDS, "instruction": text_field(16)}
    streams = {"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    schema = EpisodeSchema(name="push_point", streams=streams)
    with EpisodeStore.create(demos / "store.zarr", schema) as store:
        steps = len(words)
        values = {name: np.zeros((steps, *spec.shape), spec.dtype) for name, spec in FIELDS.items()}
        store.append({"policy": values | {"instruction": encode(words, 16)}}, metadata)
    return demos


def test_an_instruction_that_changes_within_the_episode_is_that_of_each_step(tmp_path: Path):
    words = ["go left"] * 4 + ["", "stop", "go left"]
    demos = spoken_demos(tmp_path / "demos", words, {"instruction": "both"})
    model = VlaConfig(observation_fields=("goal",), backbone=BackboneConfig(folder="nowhere"))
    data = read_demonstrations(demos, model)
    assert data.instruction_M == ("go left",) * 4 + ("both", "stop", "go left")


def test_a_window_has_the_instruction_of_its_newest_observation(tmp_path: Path):
    words = ["go left"] * 6 + ["stop"] * 6
    demos = spoken_demos(tmp_path / "demos", words, {})
    model = VlaConfig(observation_fields=("goal",), backbone=BackboneConfig(folder="nowhere"))
    data = read_demonstrations(demos, model)
    index = window_index(data.ends_E, *model.window)
    module = SimpleNamespace(
        anchor=None, normalize_action=lambda chunk: chunk, device=torch.device("cpu")
    )
    observation = torch.from_numpy(data.observation_MO)
    windows = _windows(data, cast(Any, module), model, np.array([0]), observation)
    newest = index.observation_NT[:, -1]
    assert windows.instruction_N == tuple(words[step] for step in newest)
    assert {"go left", "stop"} == set(windows.instruction_N)


def test_instructions_are_not_read_for_a_policy_that_hears_nothing(demos: Path):
    assert read_demonstrations(demos, TINY).instruction_M == ()


@pytest.mark.parametrize("line", [7, "", None])
def test_an_instruction_that_is_no_sentence_is_refused(line: Any, tmp_path: Path):
    demos = write_store(tmp_path / "demos", (9,), metadata=[{"instruction": line}])
    with pytest.raises(HandoffError, match="instruction of episode 0 is"):
        instructions_of(demos)


def test_future_goals_are_a_pure_function_of_the_update(demos: Path):
    policy = BesoConfig(
        observation_fields=("goal", "agent"), goal_fields=("agent",), layers=1, heads=2, width=16
    )
    setup = prepare(replace(CONFIG, policy=policy), demos, FrameStorage(), CPU)
    train_windows = setup.split.train
    objective = imitation_objective(
        setup.module, train_windows, len(train_windows), 0, "fp32", setup.mixture
    )
    goals = [goal for step in (5, 5, 6) if (goal := objective.batch(step).obs.goal_BO) is not None]
    assert torch.equal(goals[0], goals[1])
    assert not torch.equal(goals[0], goals[2])
    assert np.isfinite(validation_loss(setup.module, setup.split.held_out, 0))


def test_preflight_can_tell_reading_from_putting_together(sensor_demos: Path):
    setup = prepare(replace(CONFIG, policy=FELT), sensor_demos, FrameStorage(), CPU)
    batches = imitation_objective(
        setup.module, setup.split.train, 16, 0, "fp32", setup.mixture
    ).batch
    assert isinstance(batches, TwoStageBatch)
    whole, parts = batches(3), batches.collate(batches.decode(3))
    assert torch.equal(whole.chunk_BHA, parts.chunk_BHA)
    assert torch.equal(whole.obs.sensors["cloud"], parts.obs.sensors["cloud"])
    assert set(batches.decode(3).frames) == {"cloud"}


def test_a_commanded_goal_is_not_drawn(demos: Path):
    policy = BesoConfig(
        observation_fields=("goal", "agent"),
        goal="field",
        goal_fields=("goal",),
        layers=1,
        heads=2,
        width=16,
    )
    assert (
        prepare(replace(CONFIG, policy=policy), demos, FrameStorage(), CPU).split.train.goal_end_N
        is None
    )


def test_training_starts_from_saved_weights_and_their_normalisers(
    demos: Path, other: Path, tmp_path: Path
):
    setup = prepare(replace(CONFIG, training=replace(TRAINING, seed=5)), demos, FrameStorage(), CPU)
    save_policy(tmp_path, setup.card, setup.module.state_dict())
    config = replace(CONFIG, initial=str(tmp_path))
    kept, refitted = (
        prepare(
            replace(config, keep_normalizers=keep), other, FrameStorage(), CPU
        ).module.state_dict()
        for keep in (True, False)
    )
    saved, fitted = (
        read_weights(tmp_path),
        prepare(CONFIG, other, FrameStorage(), CPU).module.state_dict(),
    )
    assert all(torch.equal(kept[name], saved[name]) for name in saved)
    for name in saved:
        expected = fitted if name.startswith("normalize_") else saved
        assert torch.equal(refitted[name], expected[name])
    assert not torch.equal(fitted["normalize_action.scale"], saved["normalize_action.scale"])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            replace(TINY, network=MlpConfig(width=24, blocks=1, time_embedding=8)),
            r"is \(16,\), expected \(24,\)",
        ),
        (replace(TINY, anchor_field=None), "relative to 'agent' .* expected 'None'"),
        (
            BesoConfig(observation_fields=("goal", "agent"), goal_fields=("goal",)),
            "family 'diffusion', expected 'beso'",
        ),
    ],
)
def test_weights_of_another_policy_are_refused(
    policy: Any, words: str, demos: Path, tmp_path: Path
):
    setup = prepare(CONFIG, demos, FrameStorage(), CPU)
    save_policy(tmp_path, setup.card, setup.module.state_dict())
    with pytest.raises(HandoffError, match=words):
        prepare(replace(CONFIG, policy=policy, initial=str(tmp_path)), demos, FrameStorage(), CPU)


def test_a_single_episode_is_learned_and_not_held_out(tmp_path: Path):
    setup = prepare(CONFIG, write_store(tmp_path / "demos", (9,)), FrameStorage(), CPU)
    assert (len(setup.split.train), len(setup.split.held_out)) == (8, 0)


def test_validation_loss_is_the_mean_over_all_rows(demos: Path):
    setup = prepare(replace(CONFIG, validation_fraction=0.9), demos, FrameStorage(), CPU)

    class Counted(torch.nn.Module):
        """Its loss is the mean number of the rows, so that slices of unequal size show."""

        device, rows = CPU, []

        def loss(self, batch: Any, draw: np.random.Generator) -> torch.Tensor:
            self.rows.append(len(batch.chunk_BHA))
            return batch.chunk_BHA[:, 0, 0].mean()

    held_out = setup.split.held_out
    found = validation_loss(Counted(), held_out, 0)  # type: ignore[arg-type]
    assert len(Counted.rows) > 1
    assert sum(Counted.rows) == 4 * len(held_out)
    assert found == pytest.approx(float(held_out.chunk_NHA[:, 0, 0].mean()), abs=1e-6)


def test_a_policy_without_its_kind_is_refused_by_name():
    with pytest.raises(HandoffError, match=r"'pretrain\.policy' .*kind"):
        validate(PretrainConfig, {"policy": {"n_obs_steps": 2}}, "pretrain")


def test_the_card_of_a_mixture_is_that_of_the_demonstrations(demos: Path, tmp_path: Path):
    further = write_store(tmp_path / "further", (9, 9))
    assert prepare(mixed(further), demos, FrameStorage(), CPU).card.task == "point"


def test_stores_of_different_robots_are_not_mixed(demos: Path, tmp_path: Path):
    panda, fr3 = (write_store(tmp_path / name, (9, 9), robot=name) for name in ("panda", "fr3"))
    setup = prepare(mixed(panda), demos, FrameStorage(), CPU)
    assert setup.card.robot == "panda", "of the only store that states one"
    with pytest.raises(HandoffError, match="with the robot 'fr3', expected 'panda'"):
        prepare(mixed(fr3), panda, FrameStorage(), CPU)

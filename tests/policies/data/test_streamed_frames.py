"""Frames that are read from the stores when a batch needs them."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.data import streamed_frames
from policies.data.demonstrations import DemonstrationArrays, open_store, read_stores
from policies.policy_config import DiffusionPolicyConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.segments.video_codec import Ffv1Config
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec

FIELDS = {
    "agent": FieldSpec(shape=(2,)),
    "action": FieldSpec(shape=(2,)),
    "camera": FieldSpec(shape=(6, 5, 3), dtype="uint8", unit="u8"),
    "cloud": FieldSpec(shape=(4, 3), dtype="float64"),
}
MODEL = DiffusionPolicyConfig(
    observation_fields=("agent",), image_fields=("camera",), point_fields=("cloud",)
)


def write(path: Path, lengths: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    schema = EpisodeSchema(name="seen", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)})
    with EpisodeStore.create(path, schema) as store:
        for length in lengths:
            values = {
                name: (255 * rng.random((length, *spec.shape))).astype(spec.dtype)
                for name, spec in FIELDS.items()
            }
            store.append({"policy": values}, {})


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.zarr", tmp_path / "two.zarr"]
    write(paths[0], (5, 9), seed=0)
    write(paths[1], (7,), seed=1)
    return paths


def read(paths: list[Path], streamed: bool) -> DemonstrationArrays:
    return read_stores([open_store(p.name, p, MODEL) for p in paths], streamed=streamed)


@pytest.mark.parametrize("field", ["camera", "cloud"])
def test_any_steps_are_those_of_the_copy(stores: list[Path], field: str):
    copied, streamed = (read(stores, streamed).sensors[field] for streamed in (False, True))
    assert (len(streamed), streamed.step_shape) == (len(copied), copied.step_shape)
    rng = np.random.default_rng(0)
    for shape in ((21,), (8, 2), (3, 4, 2), (0, 2)):
        rows = torch.from_numpy(rng.integers(21, size=shape))
        found, expected = streamed.steps(rows), copied.steps(rows)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_consecutive_steps_of_an_episode_are_read_at_once(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch
):
    camera, spans = read(stores, streamed=True).sensors["camera"], []
    plain = EpisodeStore.read_into

    def watched(
        store: EpisodeStore, episode: int, stream: str, field: str, steps: slice, into: Any
    ) -> None:
        spans.append((store.path.name, episode, steps.start, steps.stop))
        plain(store, episode, stream, field, steps, into)

    monkeypatch.setattr(EpisodeStore, "read_into", watched)
    # Steps 3 to 6 cross an episode's end, step 9 is alone, 14 is the first of the second store.
    camera.steps(torch.tensor([[14, 3], [4, 9], [5, 4], [6, 3]]))
    assert spans == [
        ("one.zarr", 0, 3, 5),
        ("one.zarr", 1, 0, 2),
        ("one.zarr", 1, 4, 5),
        ("two.zarr", 0, 0, 1),
    ]


def test_steps_of_a_video_are_decoded_to_their_places(tmp_path: Path):
    stream = StreamSpec(rate_hz=10.0, fields=FIELDS)
    schema = EpisodeSchema(
        name="seen", streams={"policy": stream}, videos={"policy/camera": Ffv1Config()}
    )
    pictures = np.random.default_rng(0).integers(256, size=(9, 6, 5, 3), dtype=np.uint8)
    values = {name: np.zeros((9, *spec.shape), spec.dtype) for name, spec in FIELDS.items()}
    with EpisodeStore.create(tmp_path / "v.zarr", schema) as store:
        store.append({"policy": {**values, "camera": pictures}}, {})
    rows = torch.tensor([[3, 4], [8, 3], [4, 5], [0, 0]])
    found = read([tmp_path / "v.zarr"], streamed=True).sensors["camera"].steps(rows)
    np.testing.assert_array_equal(found.numpy(), pictures[rows.numpy()])


def test_a_worker_reads_into_the_shared_memory_of_its_batch(
    stores: list[Path], monkeypatch: pytest.MonkeyPatch
):
    camera, rows = read(stores, streamed=True).sensors["camera"], torch.tensor([[14, 3], [4, 4]])
    expected = camera.steps(rows)
    monkeypatch.setattr(streamed_frames, "get_worker_info", lambda: object())
    found = camera.steps(rows)
    assert found.is_shared()
    assert not expected.is_shared()
    assert torch.equal(found, expected)
    assert camera.steps(rows[:0]).shape == (0, 2, 6, 5, 3)


def test_no_picture_is_read_before_a_batch(stores: list[Path], monkeypatch: pytest.MonkeyPatch):
    wanted, plain = set(), EpisodeStore.read

    def watched(store: EpisodeStore, episode: int, stream: str, fields: list[str]) -> Any:
        wanted.update(fields)
        return plain(store, episode, stream, fields)

    monkeypatch.setattr(EpisodeStore, "read", watched)
    read(stores, streamed=True)
    assert wanted == {"agent", "action", "cloud"}


def test_they_are_read_in_another_process_by_the_paths_of_the_stores(stores: list[Path]):
    camera = read(stores, streamed=True).sensors["camera"]
    expected = camera.steps(torch.arange(21))
    sent = pickle.dumps(camera)
    assert len(sent) < 2000
    assert torch.equal(pickle.loads(sent).steps(torch.arange(21)), expected)


def test_a_store_that_grew_gives_the_same_steps(stores: list[Path]):
    camera = read(stores, streamed=True).sensors["camera"]
    expected = read(stores, streamed=False).sensors["camera"].steps(torch.arange(21))
    with EpisodeStore.open(stores[0], "a") as store:
        values = {name: np.zeros((3, *spec.shape), spec.dtype) for name, spec in FIELDS.items()}
        store.append({"policy": values}, {})
    assert torch.equal(camera.steps(torch.arange(21)), expected)


def test_a_store_that_was_replaced_is_named(stores: list[Path]):
    camera = read(stores, streamed=True).sensors["camera"]
    shutil.rmtree(stores[1])
    write(stores[1], (6, 2), seed=2)
    with pytest.raises(HandoffError, match=r"two\.zarr: its first 1 episodes have other lengths"):
        camera.steps(torch.tensor([20]))
    assert camera.steps(torch.tensor([0])).shape == (1, 6, 5, 3)

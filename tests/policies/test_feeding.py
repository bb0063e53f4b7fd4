"""Training on a copy of the pictures, on streamed ones, and with worker processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from policies.data.frames import FrameStorage
from policies.imitation.config import MixedStore, PretrainConfig
from policies.imitation.objective import ImitationBatches, imitation_objective, prepare
from policies.imitation.pretrain import pretrain
from policies.networks.config import MlpConfig, PointEncoderConfig, ResnetEncoderConfig
from policies.policy import Batch
from policies.policy_config import BesoConfig
from policies.training.batch_workers import BatchWorkers
from policies.training.config import TrainingConfig
from policies.training.distributed import shard
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.nightly import in_every_run
from tests.policies.conftest import TINY
from tests.policies.kill import run_until_killed
from tests.policies.test_pretrain_data import CLOUD, FIELDS, same_weights, write_store

TRAINING = TrainingConfig(
    steps=40,
    learning_rate=1e-2,
    batch_size=16,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
)
CONFIG = PretrainConfig(
    policy=replace(
        TINY,
        point_fields=("cloud",),
        point_encoder=PointEncoderConfig(widths=(4,), features=4),
        network=MlpConfig(width=8, blocks=1, time_embedding=8),
    ),
    training=TRAINING,
    validation_fraction=0.1,
)
STREAMED = replace(CONFIG, frames="stream", workers=2)
SEEING = replace(
    TINY,
    image_fields=("camera",),
    image_encoder=ResnetEncoderConfig(crop=(8, 8), channels=(16, 16), keypoints=4, features=8),
)
CAMERA = FieldSpec(shape=(10, 10, 3), dtype="uint8", unit="u8")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes with a camera and a point cloud."""
    folder = tmp_path_factory.mktemp("seen") / "demos"
    fields = {**FIELDS, "camera": CAMERA, "cloud": CLOUD}
    return write_store(folder, (9, 12, 10, 11), fields, offset=2.0)


@pytest.fixture(scope="module")
def whole(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """An uninterrupted training on a copy in memory, without workers, and its metrics."""
    out = tmp_path_factory.mktemp("whole")
    return out, pretrain(CONFIG, demos, out, no_progress)


@contextmanager
def batches(demos: Path, config: PretrainConfig) -> Iterator[ImitationBatches]:
    """The batches of a training."""
    setup = prepare(config, demos, FrameStorage(config.memory_gb, demos.parent), CPU)
    workers = BatchWorkers(config.workers, config.prefetch, TRAINING.steps)
    with closing(workers):
        objective = imitation_objective(
            setup.module,
            setup.split.train,
            16,
            0,
            "fp32",
            setup.mixture,
            workers if config.workers else None,
        )
        assert isinstance(objective.batch, ImitationBatches)
        yield objective.batch


def assert_equal_batches(one: Batch, other: Batch) -> None:
    assert torch.equal(one.obs.vector_BTO, other.obs.vector_BTO)
    assert torch.equal(one.chunk_BHA, other.chunk_BHA)
    assert torch.equal(one.padded_BH, other.padded_BH)
    assert one.obs.sensors.keys() == other.obs.sensors.keys()
    assert all(
        torch.equal(frames, other.obs.sensors[name]) for name, frames in one.obs.sensors.items()
    )


@pytest.mark.parametrize(
    "changes",
    in_every_run(
        [
            {"frames": "stream"},
            {"workers": 1},
            {"memory_gb": 0.0, "workers": 3},
            {"frames": "stream", "workers": 3},
        ],
        {"frames": "stream"},
        {"frames": "stream", "workers": 3},
    ),
    ids=str,
)
def test_batches_are_those_of_a_copy_in_memory_without_workers(changes: dict, demos: Path):
    with batches(demos, CONFIG) as plain, batches(demos, replace(CONFIG, **changes)) as fed:
        for step in (0, 1, 2, 9, 10):
            assert_equal_batches(fed(step), plain(step))


def test_pictures_of_a_stream_are_those_of_the_copy(demos: Path):
    seeing = replace(CONFIG, policy=SEEING)
    with (
        batches(demos, seeing) as plain,
        batches(demos, replace(seeing, frames="stream", workers=1)) as fed,
    ):
        assert plain(3).obs.sensors["camera"].dtype == torch.uint8
        assert_equal_batches(fed(3), plain(3))


@pytest.mark.nightly
def test_goals_are_the_same_with_workers(demos: Path):
    policy = BesoConfig(
        observation_fields=("goal", "agent"), goal_fields=("agent",), layers=1, heads=2, width=16
    )
    config = replace(CONFIG, policy=policy)
    with batches(demos, config) as plain, batches(demos, replace(config, workers=2)) as fed:
        for step in (4, 5):
            goals = [made(step).obs.goal_BO for made in (plain, fed)]
            assert goals[0] is not None
            assert goals[1] is not None
            assert torch.equal(goals[0], goals[1])


@pytest.mark.nightly
def test_two_processes_together_see_what_one_sees(demos: Path):
    with (
        batches(demos, CONFIG) as alone,
        batches(demos, STREAMED) as first,
        batches(demos, STREAMED) as second,
    ):
        for step in (0, 1):
            parts = [shard(fed(step), process, 2) for process, fed in enumerate((first, second))]
            joined = torch.cat([part.obs.sensors["cloud"] for part in parts])
            assert torch.equal(joined, alone(step).obs.sensors["cloud"])
            chunks = torch.cat([part.chunk_BHA for part in parts])
            assert torch.equal(chunks, alone(step).chunk_BHA)


@pytest.mark.nightly
def test_a_streamed_training_with_workers_gives_the_very_weights(
    whole: tuple[Path, dict], demos: Path, tmp_path: Path
):
    out, metrics = whole
    streamed = pretrain(STREAMED, demos, tmp_path, no_progress)
    assert same_weights(out, tmp_path)
    for name in ("loss", "validation_loss"):
        assert streamed[name] == metrics[name]
    assert not list(tmp_path.glob("frames-*"))


@pytest.mark.nightly
def test_a_killed_training_with_workers_goes_on_to_the_very_weights(
    whole: tuple[Path, dict], demos: Path, tmp_path: Path
):
    run_until_killed(27, pretrain, STREAMED, demos, tmp_path)
    updates: list[int] = []
    pretrain(STREAMED, demos, tmp_path, lambda done, total, note="": updates.append(done))
    assert updates[0] == 21
    assert same_weights(whole[0], tmp_path)


def test_a_mixture_is_streamed_from_all_its_stores(demos: Path, tmp_path: Path):
    further = write_store(tmp_path / "further", (8, 9), {**FIELDS, "cloud": CLOUD})
    config = replace(CONFIG, mixture=(MixedStore(path=str(further), weight=2.0),))
    with batches(demos, config) as plain, batches(demos, replace(config, frames="stream")) as fed:
        for step in (0, 7):
            assert_equal_batches(fed(step), plain(step))


def test_damaged_pictures_end_a_training_with_workers_in_one_line(tmp_path: Path):
    fields = {**FIELDS, "camera": FieldSpec(shape=(40, 40, 3), dtype="uint8", unit="u8")}
    demos = write_store(tmp_path / "demos", (30, 30), fields)
    [shard_file] = (demos / "store.zarr" / "segments").glob("*/policy/camera/c.0.*")
    data = bytearray(shard_file.read_bytes())
    data[100:-200] = bytes(len(data) - 300)
    shard_file.write_bytes(data)
    config = replace(STREAMED, policy=SEEING)
    with batches(demos, config) as fed, pytest.raises(HandoffError) as caught:
        fed(0)
    message = str(caught.value)
    assert "camera: samples" in message
    assert "cannot be decoded" in message
    assert "\n" not in message


def test_the_time_spent_waiting_is_told(whole: tuple[Path, dict]):
    out, metrics = whole
    entries = [json.loads(line) for line in (out / "loss.jsonl").read_text().splitlines()]
    for fraction in (metrics["batch_wait"], *(entry["batch_wait"] for entry in entries)):
        assert 0.0 < fraction < 1.0


TRAIN = """
import sys
from pathlib import Path
from dataclasses import replace
from policies.imitation.pretrain import pretrain
from tests.policies.test_feeding import STREAMED, TRAINING

def progress(done, total, note=""):
    print(done, flush=True)

if __name__ == "__main__":
    config = replace(STREAMED, training=replace(TRAINING, steps=100_000))
    pretrain(config, Path(sys.argv[1]), Path(sys.argv[2]), progress)
"""


def running(group: int) -> list[list[str]]:
    """Commands of the processes of a group that have not ended."""
    commands = []
    for process in psutil.process_iter():
        # A process that ends while it is looked at is no longer running; neither is a zombie.
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group:
                commands.append(process.cmdline())
    return commands


def test_ctrl_c_ends_the_workers_and_saves_the_last_update(demos: Path, tmp_path: Path):
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    out = tmp_path / "out"
    out.mkdir()
    # A terminal sends Ctrl-C to all processes of the group.
    training = subprocess.Popen(
        [sys.executable, program, demos, out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert training.stdout is not None
    while int(training.stdout.readline()) < 13:
        pass
    os.killpg(training.pid, signal.SIGINT)
    _, errors = training.communicate(timeout=60)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1, "of the training alone"
    state = torch.load(out / "training.pt", weights_only=False)
    assert state["step"] >= 13
    # Python's tracker of shared memory ends a moment after the last process that uses it.
    until = time.monotonic() + 10.0
    while (left := running(training.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left

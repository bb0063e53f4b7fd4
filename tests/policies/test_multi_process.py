"""Two processes on one CPU compute the same training as one."""

import os
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from policies.policy import Batch, ObservationTensors
from policies.training.config import TrainingConfig
from policies.training.distributed import is_main_process, shard, stream_number
from policies.training.loop import Objective, resolve_device, rng, train
from robots.errors import HandoffError
from tests.forked_process import forked_process_context

ROWS = 12
CONFIG = TrainingConfig(
    steps=20, learning_rate=1e-2, warmup_steps=1, log_every=5, checkpoint_seconds=0.0, ema_power=0.5
)


class Pairs(NamedTuple):
    inputs: Tensor
    target: Tensor


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def pairs(step: int) -> Pairs:
    draw = rng(0, step)
    return Pairs(
        *(
            torch.from_numpy(draw.standard_normal((ROWS, width), dtype="float32"))
            for width in (3, 1)
        )
    )


def learn(config: TrainingConfig, out: Path, spoilt_from: int | None = None) -> dict[str, Any]:
    """Trains once; what this process received and its final state. The loss is NaN for draws from
    `spoilt_from` on."""
    model, numbers, rows, progress = network(), [], set(), []

    def loss(batch: Pairs, number: int) -> Tensor:
        numbers.append(number)
        rows.add(len(batch.inputs))
        error = (model(batch.inputs) - batch.target).square().mean()
        return error * (float("nan") if spoilt_from is not None and number >= spoilt_from else 1.0)

    trained = train(
        config,
        model,
        Objective(pairs, loss),
        "job",
        out,
        lambda done, total, note="": progress.append(done),
    )
    gradients = [parameter.grad for parameter in model.parameters()]
    return {
        "gradients": gradients,
        "average": trained.average,
        "loss": trained.loss,
        "numbers": numbers,
        "rows": rows,
        "progress": progress,
    }


def work(process: int, port: int, out: Path) -> None:
    os.environ |= {
        "RANK": str(process),
        "LOCAL_RANK": str(process),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    folders = {name: out / f"{name}-{process}" for name in ("one", "many", "spoilt")}
    for folder in folders.values():
        folder.mkdir()
    one_update = TrainingConfig(steps=1, learning_rate=1e-2, warmup_steps=1)
    results: dict[str, Any] = {
        "one": learn(one_update, folders["one"]),
        "many": learn(CONFIG, folders["many"]),
    }
    # Both read the checkpoint of the process that wrote one.
    results["again"] = learn(CONFIG, out / "many-0")
    try:
        learn(CONFIG, folders["spoilt"], spoilt_from=stream_number(3, 1))
    except HandoffError as error:
        results["stopped"] = str(error)
    results["main"] = is_main_process()
    torch.save(results, out / f"results-{process}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = forked_process_context()
    processes = [context.Process(target=work, args=(process, port, out)) for process in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    return out


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"results-{process}.pt") for process in range(2)]


def assert_close(one: list[Tensor], other: list[Tensor]) -> None:
    for tensor, expected in zip(one, other, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)


def test_two_processes_have_the_gradient_of_one(results: list[dict[str, Any]]):
    model = network()
    inputs, target = pairs(0)
    (model(inputs) - target).square().mean().backward()
    expected = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for result in results:
        assert_close(result["one"]["gradients"], expected)


def test_half_of_the_rows_have_another_gradient():
    model = network()
    inputs, target = pairs(0)
    whole = torch.autograd.grad((model(inputs) - target).square().mean(), list(model.parameters()))
    half = torch.autograd.grad(
        (model(inputs[:6]) - target[:6]).square().mean(), list(model.parameters())
    )
    with pytest.raises(AssertionError):
        assert_close(list(half), list(whole))


def test_two_processes_learn_the_weights_of_one(results: list[dict[str, Any]], tmp_path: Path):
    alone = learn(CONFIG, tmp_path)
    for result in results:
        assert_close(list(result["many"]["average"].values()), list(alone["average"].values()))
        assert result["many"]["loss"] == pytest.approx(alone["loss"], rel=1e-4)


def test_each_process_gets_its_half_and_its_own_random_numbers(results: list[dict[str, Any]]):
    assert [result["many"]["rows"] for result in results] == [{6}, {6}]
    assert results[0]["many"]["numbers"] == list(range(20))
    assert results[1]["many"]["numbers"] == [2**40 + step for step in range(20)]


def test_only_the_main_process_writes_and_reports(results: list[dict[str, Any]], folder: Path):
    assert [result["main"] for result in results] == [True, False]
    assert {path.name for path in (folder / "many-0").iterdir()} == {"loss.jsonl", "training.pt"}
    assert list((folder / "many-1").iterdir()) == []
    assert [len(result["many"]["progress"]) for result in results] == [20, 0]


def test_all_go_on_from_the_checkpoint_of_one(results: list[dict[str, Any]]):
    for result in results:
        assert result["again"]["numbers"] == []
        assert_close(
            list(result["again"]["average"].values()), list(results[0]["many"]["average"].values())
        )


def test_all_stop_when_the_loss_of_one_is_not_finite(results: list[dict[str, Any]]):
    for result in results:
        assert "loss is nan in the 5 updates before 5" in result["stopped"]


def test_rows_of_every_kind_are_shared():
    rows = torch.arange(4)
    obs = ObservationTensors(rows, {"camera": rows + 10}, ("a", "b", "c", "d"), None)
    mine = shard((Batch(obs, rows, rows), rows), 1, 2)
    assert isinstance(mine[0], Batch)
    assert isinstance(mine[0].obs, ObservationTensors)
    assert (
        mine[0].obs.vector_BTO.tolist() == mine[0].chunk_BHA.tolist() == mine[1].tolist() == [2, 3]
    )
    assert mine[0].obs.sensors["camera"].tolist() == [12, 13]
    assert mine[0].obs.instructions == ("c", "d")
    assert mine[0].obs.goal_BO is None


def test_no_sentences_are_shared_as_none():
    assert shard((), 0, 2) == ()


def test_one_process_has_the_very_rows():
    rows = torch.arange(3)
    assert shard(rows, 0, 1) is rows


def test_rows_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(HandoffError, match="5 rows per update cannot be divided evenly among 2"):
        shard(torch.arange(5), 0, 2)
    with pytest.raises(HandoffError, match="type float"):
        shard(1.0, 0, 2)


def test_every_process_takes_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert resolve_device("auto") == torch.device("cuda", 3)
    assert resolve_device("cpu") == torch.device("cpu")

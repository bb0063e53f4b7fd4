import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policies.card import PolicyCard
from policies.checkpoint import read_card, read_state, read_weights, save_policy, save_state
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.policies.conftest import TINY

POINT = FieldSpec(shape=(2,), unit="m", frame="board")
CARD = PolicyCard(
    task="point",
    rate_hz=10.0,
    observation={"goal": POINT, "agent": POINT},
    action=POINT,
    model=TINY,
)


def test_card_and_weights_come_back_as_saved(tmp_path: Path):
    weight = torch.randn(3, 2)
    save_policy(tmp_path, CARD, {"layer.weight": weight})
    assert read_card(tmp_path) == CARD
    assert torch.equal(read_weights(tmp_path)["layer.weight"], weight)


def test_the_card_keeps_the_order_of_the_observation(tmp_path: Path):
    save_policy(
        tmp_path,
        replace(CARD, observation={"zeta": POINT, "alpha": POINT}),
        {"weight": torch.zeros(1)},
    )
    assert list(read_card(tmp_path).observation) == ["zeta", "alpha"]


def test_a_folder_without_a_policy_is_named(tmp_path: Path):
    with pytest.raises(HandoffError, match="no policy is here"):
        read_card(tmp_path)


def test_a_misspelt_key_in_the_card_is_named(tmp_path: Path):
    save_policy(tmp_path, CARD, {"weight": torch.zeros(1)})
    card = tmp_path / "config.json"
    card.write_text(card.read_text().replace('"rate_hz"', '"rate"'))
    with pytest.raises(
        HandoffError, match=r"unknown key 'config.json.rate', did you mean 'rate_hz'\?"
    ):
        read_card(tmp_path)


def test_weights_cut_short_are_reported_as_damaged(tmp_path: Path):
    save_policy(tmp_path, CARD, {"weight": torch.zeros(100)})
    weights = tmp_path / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(HandoffError, match="damaged"):
        read_weights(tmp_path)


def test_missing_weights_are_named(tmp_path: Path):
    save_policy(tmp_path, CARD, {"weight": torch.zeros(1)})
    (tmp_path / "policy.safetensors").unlink()
    with pytest.raises(HandoffError, match=r"no policy\.safetensors"):
        read_weights(tmp_path)


def test_a_state_is_read_only_by_the_job_that_left_it(tmp_path: Path):
    save_state(tmp_path / "state.pt", {"identity": "mine", "step": 3})
    assert read_state(tmp_path / "state.pt", "mine") == {"identity": "mine", "step": 3}
    assert read_state(tmp_path / "state.pt", "other") is None
    assert read_state(tmp_path / "absent.pt", "mine") is None


def test_a_state_is_read_without_packages_of_other_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save_state(tmp_path / "state.pt", {"identity": "job", "weights": torch.ones(2)})
    monkeypatch.setitem(sys.modules, "tensordict", None)
    state = read_state(tmp_path / "state.pt", "job")
    assert state is not None
    assert state["weights"].tolist() == [1.0, 1.0]


def test_a_state_cut_short_is_reported_as_damaged(tmp_path: Path):
    file = tmp_path / "state.pt"
    save_state(file, {"identity": "mine", "weights": torch.zeros(1000)})
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(HandoffError, match=r"state\.pt: damaged"):
        read_state(file, "mine")


def test_a_state_that_would_run_code_is_refused(tmp_path: Path):
    torch.save({"identity": "mine", "loss": print}, tmp_path / "state.pt")
    with pytest.raises(HandoffError, match="damaged"):
        read_state(tmp_path / "state.pt", "mine")


def test_a_card_of_version_1_is_read_as_one_of_version_2(tmp_path: Path):
    save_policy(tmp_path, CARD, {"weight": torch.zeros(1)})
    values = json.loads((tmp_path / "config.json").read_text())
    sizes = values["model"].pop("network")
    assert sizes.pop("kind") == "mlp"
    values["model"] |= sizes
    (tmp_path / "config.json").write_text(json.dumps(values | {"version": 1}))
    assert read_card(tmp_path) == CARD


def test_a_state_with_visited_states_of_a_language_policy_is_read_by_a_new_process(tmp_path: Path):
    from tensordict import TensorDict

    met = TensorDict({"vector": torch.ones(3, 1, 2)}, batch_size=[3])
    save_state(tmp_path / "state.pt", {"identity": "run", "met": met})
    code = (
        "import pathlib, sys; from policies.checkpoint import read_state; "
        "state = read_state(pathlib.Path(sys.argv[1]), 'run'); print(len(state['met']))"
    )
    asked = [sys.executable, "-c", code, str(tmp_path / "state.pt")]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("3\n", 0), found.stderr

"""`handoff keys`, `handoff sign` and `handoff verify`: what they print, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.__main__ import main
from tests.flows.deployment.releases import MadeRuns

Call = Callable[..., str]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs `handoff` in a folder with the runs of a lab, expects an exit code, returns the text."""
    monkeypatch.setenv("HANDOFF_KEYS", str(tmp_path / "keys"))
    monkeypatch.delenv("HANDOFF_KEY_PASSPHRASE", raising=False)
    monkeypatch.chdir(tmp_path)
    MadeRuns(tmp_path / "runs")

    def call(line: str, code: int = 0) -> str:
        assert main(line.split()) == code
        output = capsys.readouterr()
        return output.out + output.err

    return call


def first_word(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


def test_the_way_from_a_new_key_to_a_verified_release(call: Call, tmp_path: Path) -> None:
    assert first_word(call("keys new ada")) == ["private", "public", "key"]
    call("sign runs/lab/approval --person Ada")
    unknown = call("verify runs/releases/lab", code=1)
    assert "files    all " in unknown
    assert "nobody trusted here has signed it" in unknown
    assert "verify: runs/releases/lab has a problem; a real arm refuses it." in unknown
    assert "Compare the fingerprint" in call("keys trust keys/ada.pub")
    said = call("verify runs/releases/lab")
    assert "signed   by Ada at 20" in said
    assert "key      ada (" in said
    assert "policy   lab, bundle " in said
    assert "gate     passed, " in said
    assert "approval by Grace at 2026-11-26T11:00:00Z" in said
    assert said.endswith("verified: it meets what a real arm asks of a release\n")
    assert (tmp_path / "runs" / "releases" / "lab" / "policy.onnx").is_file()


def test_every_problem_is_named(call: Call, tmp_path: Path) -> None:
    call("keys new ada")
    call("keys trust keys/ada.pub")
    call("sign runs/lab/approval")
    release = tmp_path / "runs" / "releases" / "lab"
    (release / "added.bin").write_bytes(b"x")
    (release / "golden.npz").unlink()
    call("keys revoke ada --reason stolen")
    said = call("verify runs/releases/lab", code=1)
    problems = [line for line in said.splitlines() if line.startswith("problem")]
    assert len(problems) == 3
    assert "revoked by" in problems[0]
    assert "golden.npz is missing" in problems[1]
    assert "added.bin was added" in problems[2]
    assert "has 3 problems; a real arm refuses it." in said


def test_a_release_without_an_approval_is_verified_for_a_simulated_arm(call: Call) -> None:
    call("keys new ada")
    call("keys trust keys/ada.pub")
    call("sign runs/lab/gate --name demo")
    said = call("verify runs/releases/demo")
    assert "verified, for a simulated arm alone: has no approval" in said


def test_a_key_can_be_trusted_for_one_verification(call: Call) -> None:
    call("keys new ada")
    call("sign runs/lab/approval")
    call("verify runs/releases/lab --key keys/ada.pub")
    call("keys new grace")
    assert "the unknown key" in call("verify runs/releases/lab --key keys/grace.pub", code=1)
    call("keys revoke ada --reason stolen")
    assert "revoked" in call("verify runs/releases/lab --key keys/ada.pub", code=1)


def test_keys_are_listed_with_their_standing(call: Call) -> None:
    assert call("keys list").startswith("no keys in ")
    call("keys new ada")
    call("keys new grace")
    call("keys trust keys/ada.pub --name lab")
    call("keys revoke grace --reason stolen --person Ada")
    lines = call("keys list").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["own", "ada"],
        ["own", "grace"],
        ["trusted", "lab"],
        ["revoked", "grace"],
    ]
    assert lines[-1].endswith("by Ada: stolen")


def test_a_passphrase_is_taken_from_the_environment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no terminal to ask for a passphrase" in call("keys new ada --passphrase", code=1)
    monkeypatch.setenv("HANDOFF_KEY_PASSPHRASE", "correct horse")
    assert "with a passphrase" in call("keys new ada --passphrase")
    call("sign runs/lab/approval")
    monkeypatch.setenv("HANDOFF_KEY_PASSPHRASE", "battery staple")
    assert "the passphrase is wrong" in call("sign runs/lab/approval --out again", code=1)
    monkeypatch.delenv("HANDOFF_KEY_PASSPHRASE")
    assert "no terminal to ask" in call("sign runs/lab/approval --out again", code=1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sign runs/lab/approval", "sign: 0 keys in "),
        ("sign runs/lab/approval --key ada", "no key 'ada' in "),
        ("verify runs/lab/nothing", "there is no such folder"),
        ("keys trust nothing.pub", "key nothing.pub: cannot be read"),
        ("keys revoke nobody --reason x", "keys: no key 'nobody', there are none."),
    ],
)
def test_what_is_missing_is_named(call: Call, line: str, message: str) -> None:
    said = call(line, code=1)
    assert message in said
    assert len(said.splitlines()) <= 3


def test_the_key_is_asked_for_where_there_are_several(call: Call) -> None:
    call("keys new ada")
    call("keys new grace")
    assert "choose one with --key: ada, grace" in call("sign runs/lab/approval", code=1)
    call("sign runs/lab/approval --key grace")
    assert "exists already. Give --out" in call("sign runs/lab/approval --key grace", code=1)


def test_a_revoked_key_signs_nothing(call: Call, tmp_path: Path) -> None:
    call("keys new ada")
    call("keys revoke ada --reason stolen")
    assert "key ada: was revoked by" in call("sign runs/lab/approval", code=1)
    assert not (tmp_path / "runs" / "releases").exists()


def test_signatures_are_in_the_audit(call: Call, tmp_path: Path) -> None:
    call("keys new ada")
    digest = call("sign runs/lab/approval").split("digest ")[1].split()[0]
    line = json.loads((tmp_path / "keys" / "audit.jsonl").read_text().splitlines()[-1])
    assert (line["event"], line["name"], line["release"]) == ("signed", "lab", digest)


def test_a_bundle_whose_file_would_lie_over_the_evidence_is_not_signed(
    call: Call, tmp_path: Path
) -> None:
    MadeRuns(tmp_path / "other", surplus="release.json")
    call("keys new ada")
    assert "release.json is a part of every release folder" in call("sign other/lab/gate", code=1)


def test_what_passed_no_gate_is_refused_before_a_key_is_asked_for(call: Call) -> None:
    said = call("sign runs/lab/bundle", code=1)
    assert "expected that of a passed gate" in said
    assert "key" not in said

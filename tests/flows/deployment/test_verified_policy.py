"""`handoff deploy --arm` moves a real arm by a signed and approved release alone.

Every refusal comes before anything is connected.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from flows.__main__ import main
from flows.deployment import session
from flows.deployment.approval import AUDIT
from flows.runner.artifact import json_digest
from flows.serve import open_policy, verified_path
from robots.errors import HandoffError
from robots.signing.certificates import certificate_pem
from robots.signing.folder import sign_folder
from robots.signing.key_files import private_pem, public_pem, read_private_key
from tests.flows.deployment.releases import MadeRuns
from tests.robots.signing.authorities import Lab, new_key

ARM = "172.16.0.2"


class Bench:
    """The computer of an arm, whose sessions only note with what they were started."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.keys = folder / "keys"
        self.release = self.runs / "releases" / "lab"
        self.started: list[bytes] = []
        """The policy's bytes of every session that was started."""
        self.about: list[dict[str, str]] = []
        """What the episodes of every session state about the release."""
        self._capsys = capsys

    def call(self, *words: str | Path, code: int = 0) -> str:
        """Runs `handoff`; returns what it prints."""
        assert main([str(word) for word in words]) == code
        output = self._capsys.readouterr()
        return output.out + output.err

    def sign(self, source: str = "lab/approval", *words: str) -> Path:
        self.call("sign", self.runs / source, "--person", "Ada", "--out", self.release, *words)
        return self.release

    def refused(self, path: Path | None = None) -> str:
        """What `handoff deploy` says that does not move the real arm."""
        started = len(self.started)
        said = self.call("deploy", path or self.release, "--arm", ARM, code=1)
        assert len(self.started) == started
        assert said.startswith("handoff: ")
        assert len(said.splitlines()) == 1
        return said

    def deployed(self, *words: str | Path) -> str:
        started = len(self.started)
        said = self.call("deploy", *words)
        assert len(self.started) == started + 1
        return said


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    """A bench with an approved policy of the run `lab`, whose signer ada is trusted."""
    bench = Bench(tmp_path, capsys)

    def note(_: Any, bundle: Path, *arguments: Any, **options: Any) -> int:
        bench.started.append((bundle / "policy.onnx").read_bytes())
        bench.about.append(options["about"])
        return 0

    monkeypatch.setattr(session, "deploy", note)
    monkeypatch.setenv("HANDOFF_KEYS", str(bench.keys))
    monkeypatch.chdir(tmp_path)
    MadeRuns(bench.runs)
    bench.call("keys", "new", "ada")
    bench.call("keys", "trust", bench.keys / "ada.pub")
    return bench


def test_an_arm_takes_a_signed_and_approved_release_without_a_warning(bench: Bench) -> None:
    said = bench.deployed(bench.sign(), "--arm", ARM)
    assert "warning" not in said
    assert bench.started == [(bench.release / "policy.onnx").read_bytes()]


def test_episodes_state_the_name_of_their_release_and_the_digest_that_was_signed(
    bench: Bench,
) -> None:
    path = bench.sign("lab/approval", "--name", "press line")
    bench.deployed(path, "--arm", ARM)
    about = bench.about[0]
    assert about["release"] == "press line"
    assert f"digest   {about['release_digest']}" in bench.call("verify", path)


def test_episodes_of_a_policy_that_is_in_no_release_name_none(bench: Bench) -> None:
    bench.deployed(bench.runs / "lab/gate")
    assert bench.about == [{}]


def test_a_release_works_wherever_it_is_copied_and_without_the_runs(bench: Bench) -> None:
    moved = shutil.copytree(bench.sign(), bench.folder / "usb" / "other name")
    shutil.rmtree(bench.runs)
    bench.deployed(moved, "--arm", ARM)


@pytest.mark.parametrize("source", ["lab/gate", "lab/approval"])
def test_an_arm_takes_no_gate_and_no_approval_that_is_not_signed(bench: Bench, source: str) -> None:
    said = bench.refused(bench.runs / source)
    assert f"fr3 at {ARM}: " in said
    assert "is not signed; a real arm takes a signed release alone" in said
    assert "warning" in bench.deployed(bench.runs / source)


def test_an_unsigned_release_is_refused_by_an_arm_and_warned_of_at_a_simulated_one(
    bench: Bench,
) -> None:
    (bench.sign() / "model.sig").unlink()
    assert "it is not signed: it has no model.sig" in bench.refused()
    said = bench.deployed(bench.release)
    assert said.count("warning") == 1
    assert "it is not signed" in said


FILES = (
    "policy.onnx",
    "golden.npz",
    "artifacts/bundle.json",
    "gate/artifact.json",
    "gate/gate.json",
    "gate/verdict.json",
    "approval/artifact.json",
    "approval/answer.json",
    "evaluations/scores@student-*/artifact.json",
    "evaluations/scores@student-*/episodes.json",
    "parents/demos-*.json",
    "parents/student-*.json",
    "release.json",
)


def in_release(bench: Bench, pattern: str) -> Path:
    (file,) = bench.release.glob(pattern)
    file.chmod(0o644)
    return file


@pytest.mark.parametrize("pattern", FILES)
def test_one_flipped_bit_is_refused_everywhere(bench: Bench, pattern: str) -> None:
    bench.sign()
    file = in_release(bench, pattern)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    expected = f"{file.relative_to(bench.release)} was altered after the signature"
    assert expected in bench.refused()
    assert expected in bench.call("deploy", bench.release, code=1)
    with pytest.raises(HandoffError, match="altered"), verified_path(bench.release, print):
        pass


def test_the_list_of_files_covers_every_kind_of_file_in_a_release(bench: Bench) -> None:
    bench.sign()
    covered = {file for pattern in FILES for file in bench.release.glob(pattern)}
    kinds = {(file.parent, file.suffix) for file in covered}
    present = {file for file in bench.release.rglob("*") if file.is_file()}
    others = {(file.parent, file.suffix) for file in present} - kinds
    assert {(folder.parent.name, ending) for folder, ending in others} == {
        ("releases", ".sig"),
        ("lab", ".html"),
        ("evaluations", ".html"),
    }


def test_a_flipped_bit_in_the_signature_is_refused(bench: Bench) -> None:
    bench.sign()
    file = in_release(bench, "model.sig")
    text = file.read_text()
    begin = text.index('"sig":"') + 30
    file.write_text(text[:begin] + ("A" if text[begin] != "A" else "B") + text[begin + 1 :])
    assert "model.sig was altered: its signature is not one of ada" in bench.refused()
    assert "model.sig was altered" in bench.call("deploy", bench.release, code=1)


def test_an_added_a_removed_and_a_renamed_file_are_refused(bench: Bench) -> None:
    added = bench.sign() / "weights.bin"
    added.write_bytes(b"external weights")
    assert "weights.bin was added or renamed after the signature" in bench.refused()
    assert "weights.bin was added" in bench.call("deploy", bench.release, code=1)
    added.unlink()
    verdict = bench.release / "gate" / "verdict.json"
    verdict.rename(bench.release / "gate" / "verdict2.json")
    assert "gate/verdict.json is missing: it was removed or renamed" in bench.refused()
    (bench.release / "gate" / "verdict2.json").unlink()
    assert "gate/verdict.json is missing" in bench.refused()


def test_a_link_is_refused(bench: Bench) -> None:
    policy = bench.sign() / "policy.onnx"
    policy.rename(bench.folder / "elsewhere.onnx")
    policy.symlink_to(bench.folder / "elsewhere.onnx")
    assert "policy.onnx is a link" in bench.refused()


def test_a_revoked_key_is_refused_everywhere_also_after_trusting_it_anew(bench: Bench) -> None:
    bench.sign()
    bench.call("keys", "revoke", "ada", "--reason", "the laptop was stolen", "--person", "Grace")
    assert "was revoked by Grace" in bench.refused()
    assert "the laptop was stolen" in bench.call("deploy", bench.release, code=1)
    bench.call("keys", "trust", bench.keys / "ada.pub", code=1)
    bench.refused()
    bench.call("keys", "trust", bench.keys / "ada.pub", "--again")
    bench.deployed(bench.release, "--arm", ARM)


def test_a_revoked_release_is_refused_though_its_key_is_trusted(bench: Bench) -> None:
    bench.sign()
    said = bench.call("verify", bench.release)
    (digest,) = [line.split()[1] for line in said.splitlines() if line.startswith("digest")]
    bench.call("keys", "revoke", digest, "--reason", "it hits the bin")
    assert "the release was revoked by" in bench.refused()


def test_an_unknown_key_is_refused_by_an_arm_and_warned_of_at_a_simulated_one(
    bench: Bench,
) -> None:
    bench.sign()
    (bench.keys / "trusted" / "ada.pem").unlink()
    assert "it is signed with the unknown key" in bench.refused()
    assert "nobody trusted here has signed it" in bench.deployed(bench.release)


def test_a_certificate_of_a_trusted_authority_is_accepted_until_it_expires(bench: Bench) -> None:
    lab = Lab()
    key = read_private_key(bench.keys / "ada.key", None)
    (bench.keys / "trusted" / "ada.pem").unlink()
    (bench.folder / "root.pem").write_bytes(certificate_pem(lab.root))
    chain = certificate_pem(lab.signer("Ada", key)) + certificate_pem(lab.middle)
    (bench.folder / "chain.pem").write_bytes(chain)
    bench.sign("lab/approval", "--certificate", str(bench.folder / "chain.pem"))
    assert "the certificate of CN=Ada" in bench.refused()
    bench.call("keys", "trust", bench.folder / "root.pem", "--name", "lab")
    bench.deployed(bench.release, "--arm", ARM)


def test_an_expired_certificate_is_refused_everywhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, key = Lab(), read_private_key(bench.keys / "ada.key", None)
    monkeypatch.setattr("robots.signing.folder.check_usable", lambda chain, now: None)
    old = lab.signer("Ada", key, begin=-3.0, end=-1.0)
    (bench.folder / "root.pem").write_bytes(certificate_pem(lab.root))
    (bench.folder / "chain.pem").write_bytes(certificate_pem(old) + certificate_pem(lab.middle))
    bench.call("keys", "trust", bench.folder / "root.pem")
    bench.sign("lab/approval", "--certificate", str(bench.folder / "chain.pem"))
    monkeypatch.undo()
    monkeypatch.setenv("HANDOFF_KEYS", str(bench.keys))
    monkeypatch.setattr(session, "deploy", lambda *_, **__: pytest.fail("a session was started"))
    assert "certificate CN=Ada: its validity ended on" in bench.refused()
    assert "certificate CN=Ada: its validity ended on" in bench.call(
        "deploy", bench.release, code=1
    )


def test_an_ed25519_key_neither_signs_nor_is_trusted(bench: Bench) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    file = bench.folder / "ed.key"
    file.touch(0o600)
    pkcs8 = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *pkcs8))
    words = ("sign", bench.runs / "lab" / "approval", "--key", file, "--out", bench.release)
    assert "ed.key: is an Ed25519 key, expected ECDSA on the curve P-256" in bench.call(
        *words, code=1
    )
    assert not bench.release.exists()
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, public)
    (bench.folder / "ed.pub").write_bytes(pem)
    assert "is an Ed25519 key" in bench.call("keys", "trust", bench.folder / "ed.pub", code=1)
    # Someone else's tool may have put it among the trusted keys.
    bench.sign()
    (bench.keys / "trusted" / "ed.pem").write_bytes(pem)
    assert "key ed: is an Ed25519 key" in bench.refused()


def test_a_gate_that_failed_is_neither_signed_nor_deployed(bench: Bench) -> None:
    failed = bench.folder / "failed"
    MadeRuns(failed, passed=False)
    words = ("sign", failed / "lab" / "gate", "--out", bench.release)
    assert "expected that of a passed gate" in bench.call(*words, code=1)
    assert not bench.release.exists()
    assert "expected that of a passed gate" in bench.refused(failed / "lab" / "gate")


def test_a_signed_release_whose_gate_failed_is_refused(bench: Bench) -> None:
    """Whoever has the key can sign anything; an arm looks at the verdict itself."""
    manifest = json.loads((bench.sign() / "gate" / "artifact.json").read_text())
    manifest["metrics"]["passed"] = False
    forge(bench, "gate/artifact.json", manifest)
    assert "the policy did not pass its gate" in bench.refused()
    assert "the policy did not pass its gate" in bench.call("deploy", bench.release, code=1)


def forge(bench: Bench, name: str, manifest: dict[str, Any] | None) -> None:
    """Replaces a manifest, with digests of its own, or removes it, and signs the release again."""
    file = in_release(bench, name)
    file.unlink()
    if manifest is not None:
        manifest.pop("manifest_digest")
        file.write_text(json.dumps({**manifest, "manifest_digest": json_digest(manifest)}))
    sign_folder(bench.release, read_private_key(bench.keys / "ada.key", None), "Ada")


def test_an_arm_takes_no_release_that_nobody_has_approved(bench: Bench) -> None:
    bench.sign("lab/gate")
    assert "has no approval: no person has released it for an arm" in bench.refused()
    assert "warning" not in bench.deployed(bench.release)


def test_an_expired_approval_is_refused_by_an_arm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sign()
    monkeypatch.setattr("flows.deployment.approval.time.time", lambda: 4e9)
    assert "the approval by Grace was valid until" in bench.refused()


def test_a_gate_with_looser_limits_releases_for_simulated_arms_alone(bench: Bench) -> None:
    lenient = bench.folder / "lenient"
    MadeRuns(lenient, looser=["min_success is 0.1, default 0.5"])
    bench.call("sign", lenient / "lab" / "approval", "--out", bench.release)
    expected = "limits were looser than the defaults: min_success is 0.1, default 0.5"
    assert expected in bench.refused()
    assert "verified, for a simulated arm alone: released for" in bench.call(
        "verify", bench.release
    )
    bench.deployed(bench.release)


def test_a_withdrawn_approval_is_not_signed(bench: Bench) -> None:
    approval = json.loads((bench.runs / "lab" / "approval" / "artifact.json").read_text())
    line = {
        "event": "answered",
        "about": approval["metrics"]["about"],
        "decision": "rejected",
        "by": "Grace",
        "time": "later",
        "reason": "it hits the bin",
    }
    (bench.runs / AUDIT).write_text(json.dumps(line) + "\n")
    words = ("sign", bench.runs / "lab" / "approval", "--out", bench.release)
    assert "the policy was rejected afterwards by Grace" in bench.call(*words, code=1)
    assert not bench.release.parent.exists()


def test_an_altered_artifact_is_not_signed(bench: Bench) -> None:
    bundle = bench.runs / "artifacts" / "bundle" / "golden.npz"
    bundle.chmod(0o644)
    bundle.write_bytes(b"gilded")
    words = ("sign", bench.runs / "lab" / "approval", "--out", bench.release)
    assert "golden.npz has sha256" in bench.call(*words, code=1)
    assert "golden.npz has sha256" in bench.call("deploy", bench.runs / "lab" / "gate", code=1)


def replaced_gate(bench: Bench) -> None:
    other = MadeRuns(bench.folder / "other", surplus="extra.txt")
    shutil.rmtree(bench.release / "gate")
    shutil.copytree(other.gate.path, bench.release / "gate")


def dropped_parent(bench: Bench) -> None:
    in_release(bench, "parents/demos-*.json").unlink()


def stray_file(bench: Bench) -> None:
    (bench.release / "gate" / "notes.txt").write_text("good")


def renamed_release(bench: Bench) -> None:
    file = in_release(bench, "release.json")
    about = json.loads(file.read_text())
    about["approved"]["by"] = "Nobody"
    file.write_text(json.dumps(about))


def other_layout(bench: Bench) -> None:
    file = in_release(bench, "release.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 2}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced_gate, "the gate is of another bundle than the one beside it"),
        (dropped_parent, "the manifest of input 'demos' of"),
        (stray_file, "1 files belong to none of its artifacts, e.g. 'gate/notes.txt'"),
        (renamed_release, "release.json does not agree with the artifacts beside it"),
        (other_layout, "version 2, this build reads 'handoff release', version 1"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused_though_they_are_signed(
    bench: Bench, change: Callable[[Bench], None], message: str
) -> None:
    bench.sign()
    change(bench)
    sign_folder(bench.release, read_private_key(bench.keys / "ada.key", None), "Ada")
    assert message in bench.refused()
    assert message in bench.call("deploy", bench.release, code=1)


def test_the_policy_that_runs_is_the_one_that_was_verified(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is replaced after the check, before it is loaded, changes nothing."""
    bench.sign()
    verified = (bench.release / "policy.onnx").read_bytes()
    taken: list[bytes] = []

    def swap(_: Any, bundle: Path, *arguments: Any, **options: Any) -> int:
        in_release(bench, "policy.onnx").write_bytes(b"EVIL")
        taken.append((bundle / "policy.onnx").read_bytes())
        return 0

    monkeypatch.setattr(session, "deploy", swap)
    bench.call("deploy", bench.release, "--arm", ARM)
    assert taken == [verified]


def test_a_served_release_is_verified_and_warned_of_if_nobody_trusted_signed_it(
    bench: Bench,
) -> None:
    said: list[str] = []
    with verified_path(bench.sign(), said.append) as folder:
        assert open_policy(folder)[1].task == "push_t"
    assert said == []
    (bench.release / "model.sig").unlink()
    with verified_path(bench.release, said.append):
        assert len(said) == 1


def test_the_same_content_is_the_same_release_whoever_signs_it(bench: Bench) -> None:
    first = bench.call("verify", bench.sign())
    key = new_key()
    file = bench.folder / "other.key"
    file.touch(0o600)
    file.write_bytes(private_pem(key, None))
    (bench.folder / "other.pub").write_bytes(public_pem(key.public_key()))
    again = bench.folder / "again"
    source = bench.runs / "lab" / "approval"
    bench.call("sign", source, "--key", file, "--person", "Grace", "--out", again)
    second = bench.call("verify", again, "--key", bench.folder / "other.pub")
    digests = [line for line in (first + second).splitlines() if line.startswith("digest")]
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert "signed   by Grace at" in second

"""OpenSSF's own tool verifies what Handoff signs, and Handoff what the tool signs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from robots.signing.certificates import certificate_pem
from robots.signing.folder import examine_folder, sign_folder
from robots.signing.key_files import private_pem, public_pem
from robots.signing.trust_store import TrustStore, read_trusted
from tests.robots.signing.authorities import Lab, new_key

pytestmark = [pytest.mark.peers, pytest.mark.needs("index"), pytest.mark.timeout(600)]
# Version 1.1.1 imports OpenSSL without asking for it.
PACKAGES = ("model-signing==1.1.1", "pyopenssl")


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `model_signing`, in an environment of its own."""
    folder = tmp_path_factory.mktemp("peer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *PACKAGES], check=True)
    return folder / "bin" / "model_signing"


class Signing:
    """A folder, a key with its certificates, and the files of both."""

    def __init__(self, folder: Path) -> None:
        lab = Lab()
        self.key = new_key()
        self.chain = [lab.signer("Ada", self.key), lab.middle]
        self.release = folder / "release"
        self.signature = self.release / "model.sig"
        for name in ("policy.onnx", "gate/gate.json", "gate-b.json", "gate.json", "a b/é.txt"):
            file = self.release / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(name.encode() * 1000)
        self.private = folder / "ada.key"
        self.public = folder / "ada.pub"
        self.certificate, self.middle, self.root = (
            folder / f"{name}.pem" for name in ("ada", "middle", "root")
        )
        self.private.write_bytes(private_pem(self.key, None))
        self.public.write_bytes(public_pem(self.key.public_key()))
        self.certificate.write_bytes(certificate_pem(self.chain[0]))
        self.middle.write_bytes(certificate_pem(lab.middle))
        self.root.write_bytes(certificate_pem(lab.root))

    def sign_arguments(self, method: str) -> list[str | Path]:
        chain = ["--signing_certificate", self.certificate, "--certificate_chain", self.middle]
        keys: list[str | Path] = ["--private_key", self.private]
        return [*keys, *(chain if method == "certificate" else [])]

    def verify_arguments(self, method: str) -> list[str | Path]:
        if method == "certificate":
            return ["--certificate_chain", self.root]
        return ["--public_key", self.public]

    def trusted(self, method: str) -> TrustStore:
        file = self.root if method == "certificate" else self.public
        entry = read_trusted(file.read_bytes(), "ada")
        return TrustStore({entry.fingerprint: entry})


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    return Signing(tmp_path)


def run(tool: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("method", ["key", "certificate"])
def test_the_tool_verifies_our_signature_and_no_altered_file(
    tool: Path, signing: Signing, method: str
) -> None:
    chain = signing.chain if method == "certificate" else ()
    sign_folder(signing.release, signing.key, "Ada", chain)
    command = [
        *("verify", method, signing.release, "--signature", signing.signature),
        *signing.verify_arguments(method),
    ]
    done = run(tool, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout
    (signing.release / "policy.onnx").write_bytes(b"another")
    altered = run(tool, *command)
    assert altered.returncode == 1
    assert "Hash mismatch for 'policy.onnx'" in altered.stdout + altered.stderr


@pytest.mark.parametrize("method", ["key", "certificate"])
def test_we_verify_the_tools_signature_and_no_altered_file(
    tool: Path, signing: Signing, method: str
) -> None:
    command = ["sign", method, signing.release, "--signature", signing.signature]
    done = run(tool, *command, *signing.sign_arguments(method))
    assert done.returncode == 0, done.stdout + done.stderr
    examined = examine_folder(signing.release, signing.trusted(method))
    assert examined.problems == ()
    assert examined.signer is not None
    assert examined.signer.name == "ada"
    (signing.release / "policy.onnx").write_bytes(b"another")
    (problem,) = examine_folder(signing.release, signing.trusted(method)).problems
    assert problem.startswith("policy.onnx was altered after the signature")


def test_both_make_the_same_list_of_files_and_the_same_digest(tool: Path, signing: Signing) -> None:
    ours = sign_folder(signing.release, signing.key, "Ada")
    signing.signature.unlink()
    command = ["sign", "key", signing.release, "--signature", signing.signature]
    run(tool, *command, *signing.sign_arguments("key"))
    theirs = examine_folder(signing.release, signing.trusted("key")).statement
    assert theirs is not None
    assert (theirs.files, theirs.digest) == (ours.files, ours.digest)

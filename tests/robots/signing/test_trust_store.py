"""Key pairs, trusted and revoked keys of a user."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from robots.errors import HandoffError
from robots.signing.certificates import certificate_pem
from robots.signing.key_files import fingerprint, private_pem, public_pem, read_private_key
from robots.signing.trust_store import (
    keys_folder,
    make_key,
    own_keys,
    read_trust_store,
    revoke,
    trust,
)
from tests.robots.signing.authorities import Lab, new_key

PEM = public_pem(new_key().public_key())


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def events(keys: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (keys / "audit.jsonl").read_text().splitlines()]


def test_a_new_private_key_is_for_its_owner_alone_and_can_be_read_back(keys: Path) -> None:
    made = make_key(keys, "ada", None)
    file = keys / "ada.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert fingerprint(read_private_key(file, None).public_key()) == made.fingerprint
    assert own_keys(keys) == [made]


def test_a_private_key_that_others_may_read_is_refused(keys: Path) -> None:
    make_key(keys, "ada", None)
    (keys / "ada.key").chmod(0o640)
    with pytest.raises(HandoffError, match=r"others may read it \(mode 0640\).*chmod 600"):
        read_private_key(keys / "ada.key", None)


def test_a_passphrase_protects_a_key(keys: Path) -> None:
    assert make_key(keys, "ada", "correct horse").encrypted
    file = keys / "ada.key"
    read_private_key(file, "correct horse")
    with pytest.raises(HandoffError, match="the passphrase is wrong"):
        read_private_key(file, "battery staple")
    with pytest.raises(HandoffError, match="needs a passphrase"):
        read_private_key(file, None)


def test_no_key_is_replaced(keys: Path) -> None:
    first = make_key(keys, "ada", None)
    with pytest.raises(HandoffError, match="exists already"):
        make_key(keys, "ada", None)
    assert own_keys(keys) == [first]


@pytest.mark.parametrize("name", ["", "../ada", "a/b", ".hidden", "a\nb", "x" * 65])
def test_names_that_lead_elsewhere_are_refused(keys: Path, name: str) -> None:
    with pytest.raises(HandoffError, match="keys: the name is"):
        make_key(keys, name, None)
    with pytest.raises(HandoffError, match="keys: the name is"):
        trust(keys, PEM, name)


def test_a_folder_that_does_not_exist_trusts_nobody(keys: Path) -> None:
    assert read_trust_store(keys).trusted == {}


def test_a_trusted_key_is_found_by_its_fingerprint(keys: Path) -> None:
    entry = trust(keys, PEM, "ada")
    assert read_trust_store(keys).trusted.keys() == {entry.fingerprint}
    trust(keys, PEM, "ada")
    other = public_pem(new_key().public_key())
    with pytest.raises(HandoffError, match="key ada: another key of this name is trusted"):
        trust(keys, other, "ada")


def test_the_certificate_of_an_authority_can_be_trusted(keys: Path) -> None:
    lab = Lab()
    entry = trust(keys, certificate_pem(lab.root), "lab")
    assert entry.fingerprint == fingerprint(lab.root_key.public_key())
    assert read_trust_store(keys).trusted[entry.fingerprint].certificate == lab.root


def ed25519_pem() -> bytes:
    return (
        ed25519.Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ed25519_pem(), "is an Ed25519 key, expected ECDSA on the curve P-256"),
        (private_pem(new_key(), None), "is a private key. Give its public key"),
        (b"hello", "has no certificates in PEM"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "is not a public key"),
        (certificate_pem(Lab().root) * 2, "has 2 certificates, expected the one"),
    ],
)
def test_what_is_no_public_key_is_not_trusted(keys: Path, data: bytes, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        trust(keys, data, "ada")
    assert read_trust_store(keys).trusted == {}


def test_a_revoked_key_stays_revoked_until_it_is_trusted_again_in_so_many_words(
    keys: Path,
) -> None:
    entry = trust(keys, PEM, "ada")
    revoke(keys, "ada", "Grace", " stolen ")
    revoked = read_trust_store(keys).revoked[entry.fingerprint]
    assert (revoked.person, revoked.reason, revoked.name) == ("Grace", "stolen", "ada")
    with pytest.raises(HandoffError, match=r"was revoked by Grace at 20.*: stolen.*--again"):
        trust(keys, PEM, "ada")
    with pytest.raises(HandoffError, match="--again"):
        trust(keys, PEM, "another_name")
    assert read_trust_store(keys).revoked.keys() == {entry.fingerprint}
    trust(keys, PEM, "ada", again=True)
    assert read_trust_store(keys).revoked == {}


def test_a_key_is_revoked_by_name_by_fingerprint_or_unseen(keys: Path) -> None:
    entry = trust(keys, PEM, "ada")
    own = make_key(keys, "grace", None)
    revoke(keys, entry.fingerprint[:12], "Grace", "stolen")
    revoke(keys, "grace", "Grace", "lost")
    revoke(keys, "0" * 64, "Grace", "seen in a mail")
    assert read_trust_store(keys).revoked.keys() == {
        entry.fingerprint,
        own.fingerprint,
        "0" * 64,
    }
    with pytest.raises(HandoffError, match="is revoked already"):
        revoke(keys, "ada", "Grace", "again")
    with pytest.raises(HandoffError, match=r"no key 'adda', did you mean 'ada'\?"):
        revoke(keys, "adda", "Grace", "typo")
    with pytest.raises(HandoffError, match="no key '000000000000'"):
        revoke(keys, "0" * 12, "Grace", "too short for one that is not known")


@pytest.mark.parametrize("reason", ["", "  ", "x" * 1001])
def test_a_revocation_needs_a_reason(keys: Path, reason: str) -> None:
    trust(keys, PEM, "ada")
    with pytest.raises(HandoffError, match="keys: the reason has"):
        revoke(keys, "ada", "Grace", reason)
    assert read_trust_store(keys).revoked == {}


def test_every_change_is_in_the_audit(keys: Path) -> None:
    make_key(keys, "own", None)
    trust(keys, PEM, "ada")
    revoke(keys, "ada", "Grace", "stolen")
    trust(keys, PEM, "ada", again=True)
    lines = events(keys)
    assert [line["event"] for line in lines] == ["new", "trusted", "revoked", "trusted again"]
    assert all(line["time"] and line["login"] and line["computer"] for line in lines)
    assert (lines[2]["by"], lines[2]["reason"]) == ("Grace", "stolen")


@pytest.mark.parametrize("place", ["", "trusted", "trusted/ada.pem", "revoked.json"])
def test_a_store_that_others_may_write_trusts_nobody(keys: Path, place: str) -> None:
    trust(keys, PEM, "ada")
    revoke(keys, "0" * 64, "Grace", "stolen")
    (keys / place).chmod(0o777)
    with pytest.raises(HandoffError, match=r"others may write .*anybody could add a key"):
        read_trust_store(keys)


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", '[{"fingerprint": "0"}]', '[{"fingerprint": 1}]', "null"]
)
def test_a_damaged_list_of_revocations_is_an_error_not_an_empty_list(keys: Path, text: str) -> None:
    trust(keys, PEM, "ada")
    (keys / "revoked.json").write_text(text)
    with pytest.raises(HandoffError, match=r"revoked\.json"):
        read_trust_store(keys)


def test_the_folder_is_that_of_the_users_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HANDOFF_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys_folder() == tmp_path / "handoff" / "keys"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys_folder() == tmp_path / ".config" / "handoff" / "keys"
    monkeypatch.setenv("HANDOFF_KEYS", str(tmp_path / "usb"))
    assert keys_folder() == tmp_path / "usb"

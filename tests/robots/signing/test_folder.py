"""A signed folder: what is signed is what is accepted, and nothing else."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robots.errors import HandoffError
from robots.signing.certificates import certificate_der, certificate_pem, read_certificate
from robots.signing.envelope import Envelope, write_envelope
from robots.signing.folder import examine_folder, sign_folder
from robots.signing.key_files import checked_public_key, fingerprint, public_pem, sign
from robots.signing.statement import Statement, read_statement, write_statement
from robots.signing.trust_store import Revocation, TrustStore, read_trusted
from tests.robots.signing.authorities import Lab, certificate, new_key

KEY = new_key()
LAB = Lab()
MARK = fingerprint(KEY.public_key())


def trusting(pem: bytes, name: str = "ada") -> TrustStore:
    entry = read_trusted(pem, name)
    return TrustStore({entry.fingerprint: entry})


STORE = trusting(public_pem(KEY.public_key()))
AUTHORITY = trusting(certificate_pem(LAB.root), "lab")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with three files, not signed."""
    folder = tmp_path / "release"
    (folder / "gate").mkdir(parents=True)
    (folder / "policy.onnx").write_bytes(b"weights")
    (folder / "gate" / "gate.json").write_text("{}")
    (folder / "gate-notes.txt").write_text("passed")
    return folder


@pytest.fixture
def signed(release: Path) -> Path:
    """The same folder, signed by a trusted key."""
    sign_folder(release, KEY, "Ada Lovelace")
    return release


def problems(folder: Path, store: TrustStore = STORE) -> str:
    return "; ".join(examine_folder(folder, store).problems)


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edits `model.sig`."""
    file = folder / "model.sig"
    bundle = json.loads(file.read_bytes())
    change(bundle)
    file.write_text(json.dumps(bundle))


def resign(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edits the statement and signs it, as only the owner of the key can."""
    file = folder / "model.sig"
    bundle = json.loads(file.read_bytes())
    statement: dict[str, Any] = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    envelope = Envelope(payload, b"", fingerprint=MARK)
    signature = sign(KEY, envelope.signed_bytes)
    file.write_bytes(write_envelope(Envelope(payload, signature, fingerprint=MARK)))


def test_a_signed_folder_has_no_problems_and_says_who_signed_when(signed: Path) -> None:
    examined = examine_folder(signed, STORE)
    assert examined.problems == ()
    examined.require_trusted()
    assert examined.signer is not None
    assert examined.signer.text == f"ada ({MARK[:12]})"
    assert examined.statement is not None
    assert examined.statement.signed["person"] == "Ada Lovelace"
    assert examined.statement.signed["time"].startswith("20")


def test_equal_content_has_equal_digests_whatever_the_folder_is_called(signed: Path) -> None:
    first = examine_folder(signed, STORE).statement
    moved = signed.rename(signed.with_name("renamed"))
    assert problems(moved) == ""
    again = sign_folder(moved, new_key(), "Grace")
    assert first is not None
    assert again.digest == first.digest


@pytest.mark.parametrize("name", ["policy.onnx", "gate/gate.json", "gate-notes.txt"])
def test_one_flipped_bit_in_any_file_is_named(signed: Path, name: str) -> None:
    data = bytearray((signed / name).read_bytes())
    data[0] ^= 1
    (signed / name).write_bytes(data)
    assert problems(signed).startswith(f"{name} was altered after the signature (sha256 ")


def test_an_added_a_removed_and_a_renamed_file_are_named(signed: Path) -> None:
    (signed / "weights.bin").write_bytes(b"more")
    assert problems(signed) == (
        "weights.bin was added or renamed after the signature: it is not in the signed list"
    )
    (signed / "weights.bin").unlink()
    (signed / "gate" / "gate.json").rename(signed / "gate" / "other.json")
    renamed = problems(signed)
    assert "gate/gate.json is missing: it was removed or renamed after the signature" in renamed
    assert "gate/other.json was added or renamed" in renamed
    (signed / "gate" / "other.json").unlink()
    assert problems(signed) == (
        "gate/gate.json is missing: it was removed or renamed after the signature"
    )


def test_files_that_git_or_other_tools_leave_are_no_exception(signed: Path) -> None:
    resign(
        signed,
        lambda statement: statement["predicate"]["serialization"].update(ignore_paths=[".git"]),
    )
    assert problems(signed) == ""
    (signed / ".git").write_text("hidden")
    assert problems(signed).startswith(".git was added or renamed")


def test_links_and_pipes_are_refused_before_and_after_the_signature(signed: Path) -> None:
    (signed / "gate-notes.txt").unlink()
    (signed / "gate-notes.txt").symlink_to("policy.onnx")
    assert "gate-notes.txt is a link" in problems(signed)
    with pytest.raises(HandoffError, match=r"gate-notes\.txt is a link"):
        sign_folder(signed, KEY, "Ada")
    (signed / "gate-notes.txt").unlink()
    os.mkfifo(signed / "gate-notes.txt")
    assert "gate-notes.txt is neither a file nor a folder" in problems(signed)


def test_a_signature_that_is_a_link_is_refused(signed: Path) -> None:
    (signed / "model.sig").rename(signed.parent / "elsewhere.sig")
    (signed / "model.sig").symlink_to(signed.parent / "elsewhere.sig")
    assert "model.sig is a link" in problems(signed)


def test_an_unsigned_folder_is_not_damaged_but_trusted_by_nobody(release: Path) -> None:
    examined = examine_folder(release, STORE)
    examined.require_intact()
    with pytest.raises(HandoffError, match=r"release .*: it is not signed: it has no model\.sig"):
        examined.require_trusted()


def test_an_unknown_key_is_told_apart_from_an_altered_file(signed: Path) -> None:
    examined = examine_folder(signed, TrustStore())
    examined.require_intact()
    with pytest.raises(HandoffError, match=f"unknown key '{MARK[:12]}': nobody trusted here"):
        examined.require_trusted()
    (signed / "policy.onnx").write_bytes(b"other")
    with pytest.raises(HandoffError, match="altered after"):
        examine_folder(signed, TrustStore()).require_intact()


def test_a_signature_of_another_key_under_the_name_of_a_trusted_one_is_refused(
    release: Path,
) -> None:
    sign_folder(release, new_key(), "Mallory")
    edit(
        release,
        lambda bundle: bundle["verificationMaterial"].update(publicKey={"hint": MARK}),
    )
    assert problems(release).startswith("model.sig was altered: its signature is not one of ada")


def test_a_revoked_key_is_refused_with_person_time_and_reason(signed: Path) -> None:
    entry = Revocation(MARK, "ada", "2026-11-26T10:00:00Z", "Grace", "the laptop was stolen")
    store = TrustStore(STORE.trusted, {MARK: entry})
    examined = examine_folder(signed, store)
    with pytest.raises(
        HandoffError,
        match=r"the key ada .* was revoked by Grace at 2026-11-26T10:00:00Z: the laptop was stolen",
    ):
        examined.require_intact()


def test_one_release_can_be_revoked_by_its_digest(signed: Path) -> None:
    statement = examine_folder(signed, STORE).statement
    assert statement is not None
    entry = Revocation(statement.digest, "", "2026-11-26T10:00:00Z", "Grace", "it hits the bin")
    store = TrustStore(STORE.trusted, {statement.digest: entry})
    assert problems(signed, store).startswith("the release was revoked by Grace")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (ed25519.Ed25519PrivateKey.generate(), "an Ed25519 key"),
        (ec.generate_private_key(ec.SECP384R1()), "an ECDSA key on the curve secp384r1"),
        (ec.generate_private_key(ec.SECP256K1()), "an ECDSA key on the curve secp256k1"),
    ],
)
def test_other_keys_are_refused_by_name(key: Any, name: str) -> None:
    with pytest.raises(HandoffError, match=f"is {name}, expected ECDSA on the curve P-256"):
        checked_public_key(key.public_key(), "key x")


def test_what_is_examined_is_what_is_copied(signed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    examined = examine_folder(signed, STORE, copy)
    (signed / "policy.onnx").write_bytes(b"swapped after the check")
    assert (copy / "policy.onnx").read_bytes() == b"weights"
    assert sorted(examined.files) == ["gate-notes.txt", "gate/gate.json", "policy.onnx"]


# Certificates


def by_certificate(release: Path, **options: Any) -> Path:
    chain = [LAB.signer("Ada", KEY, **options), LAB.middle]
    sign_folder(release, KEY, "Ada", chain)
    return release


def test_a_certificate_of_a_trusted_authority_is_accepted_and_its_owner_named(
    release: Path,
) -> None:
    examined = examine_folder(by_certificate(release), AUTHORITY)
    assert examined.problems == ()
    assert examined.signer is not None
    assert examined.signer.text == f"CN=Ada ({MARK[:12]}, trusted by lab)"


def test_an_authority_may_have_a_key_of_rsa(release: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    root = certificate("Company root", key, authority=True)
    sign_folder(release, KEY, "Ada", [certificate("Ada", KEY, (root, key))])
    assert problems(release, trusting(certificate_pem(root))) == ""


def test_a_certificate_has_one_spelling(release: Path) -> None:
    """Bits of its outer form that no signature covers do not go unnoticed."""
    der = certificate_der(LAB.root)
    at = len(der) - len(LAB.root.signature) - 1
    with pytest.raises(HandoffError, match="is not a certificate"):
        read_certificate(der[:at] + b"\1" + der[at + 1 :], "model.sig")
    assert read_certificate(der, "model.sig") == LAB.root


def test_a_certificate_without_an_authority_is_accepted_where_it_is_trusted(release: Path) -> None:
    own = certificate("Ada alone", KEY)
    sign_folder(release, KEY, "Ada", [own])
    assert problems(release, trusting(certificate_pem(own))) == ""
    assert "leads to none that is trusted here" in problems(release, AUTHORITY)


def test_an_expired_certificate_is_refused_with_its_end(release: Path) -> None:
    by_certificate(release)
    later = examine_folder(
        release, AUTHORITY, now=LAB.root.not_valid_after_utc + timedelta(days=1)
    ).problems
    assert later[0].startswith("certificate CN=Ada: its validity ended on")
    early = examine_folder(
        release, AUTHORITY, now=LAB.root.not_valid_before_utc - timedelta(days=1)
    ).problems
    assert "its validity begins on" in early[0]


def test_an_expired_certificate_signs_nothing(release: Path) -> None:
    with pytest.raises(HandoffError, match="certificate CN=Ada: its validity ended on"):
        by_certificate(release, begin=-3.0, end=-1.0)
    assert not (release / "model.sig").exists()


def test_a_certificate_for_something_else_is_refused(release: Path) -> None:
    with pytest.raises(HandoffError, match="CN=Ada: is not for signatures"):
        by_certificate(release, usage=False)
    by_certificate(release, usage=False, code_signing=True)
    assert problems(release, AUTHORITY) == ""


@pytest.mark.parametrize("stated", [None, False])
@pytest.mark.parametrize("usage", [True, False])
def test_the_certificate_of_a_signer_issues_none(
    release: Path, stated: bool | None, usage: bool
) -> None:
    """A signer is no authority, even one whom an authority has certified."""
    mallory = new_key()
    own = LAB.signer("Ada", KEY, authority=stated, usage=usage)
    forged = certificate("Mallory", mallory, (own, KEY))
    sign_folder(release, mallory, "Mallory", [forged, own, LAB.middle])
    assert "leads to none that is trusted here" in problems(release, AUTHORITY)


def test_an_authority_that_may_not_sign_certificates_issues_none(release: Path) -> None:
    key, mallory = new_key(), new_key()
    weak = certificate("Weak", key, (LAB.root, LAB.root_key), authority=True, certifies=False)
    sign_folder(release, mallory, "M", [certificate("Mallory", mallory, (weak, key)), weak])
    assert "leads to none that is trusted here" in problems(release, AUTHORITY)


def test_a_certificate_of_another_key_is_refused(release: Path) -> None:
    with pytest.raises(HandoffError, match="CN=Ada: is not that of the key"):
        sign_folder(release, new_key(), "Ada", [LAB.signer("Ada", KEY), LAB.middle])


@pytest.mark.parametrize("revoked", ["signer", "authority"])
def test_revoking_a_signer_or_their_authority_refuses_the_certificate(
    release: Path, revoked: str
) -> None:
    by_certificate(release)
    keys = {"signer": KEY, "authority": LAB.middle_key}
    mark = fingerprint(keys[revoked].public_key())
    entry = Revocation(mark, "", "2026-11-26T10:00:00Z", "Grace", "left")
    assert "was revoked by Grace" in problems(release, TrustStore(AUTHORITY.trusted, {mark: entry}))


# Files that are no signatures


def material(**entries: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda bundle: bundle.update(verificationMaterial=entries)


def envelope(**entries: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda bundle: bundle["dsseEnvelope"].update(entries)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bundle: bundle.pop("dsseEnvelope"), "model.sig has no 'dsseEnvelope'"),
        (lambda bundle: bundle.update(extra=1), "model.sig has the unknown key 'extra'"),
        (lambda bundle: bundle.update(mediaType="x"), "mediaType is 'x', expected 'application"),
        (envelope(payloadType="text/plain"), "payloadType is 'text/plain', expected"),
        (envelope(signatures=[]), "has 0 signatures, expected one"),
        (envelope(signatures=[{"sig": "AA=="}] * 2), "has 2 signatures, expected one"),
        (envelope(payload="AAA"), "payload is not base64"),
        (envelope(payload="AB=="), "payload is not the base64 of 1 bytes: it has stray bits"),
        (envelope(payload=7), "payload is a int, expected a str"),
        (material(publicKey={}), "publicKey has no 'hint'"),
        (material(certificate={"rawBytes": "AA=="}), "of a signature by an identity"),
        (material(), "of a signature by no method"),
        (material(publicKey={"hint": MARK}, tlogEntries=[{}]), "entries of a transparency log"),
        (material(x509CertificateChain={"certificates": []}), "has 0 certificates, expected 1"),
        (
            material(x509CertificateChain={"certificates": [{"rawBytes": "AA=="}]}),
            "model.sig: is not a certificate",
        ),
    ],
)
def test_another_bundle_is_refused_in_a_line_that_names_what_is_wrong(
    signed: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edit(signed, change)
    assert message in problems(signed)
    assert "\n" not in problems(signed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(_type="x"), "_type is 'x'"),
        (lambda s: s.update(predicateType="x"), "predicateType is 'x'"),
        (lambda s: s["subject"].append(s["subject"][0]), "subject has 2 entries, expected one"),
        (lambda s: s["predicate"]["resources"].pop(), "computed from its list of files"),
        (
            lambda s: s["predicate"]["serialization"].update(method="shards"),
            "serialization method is 'shards', expected 'files'",
        ),
        (
            lambda s: s["predicate"]["serialization"].update(hash_type="blake2b"),
            "hash_type is 'blake2b'",
        ),
        (
            lambda s: s["predicate"]["resources"][0].update(name="../outside"),
            "'../outside', which is no path below the folder",
        ),
        (
            lambda s: s["predicate"]["resources"][0].update(name="/etc/passwd"),
            "which is no path below the folder",
        ),
        (
            lambda s: s["predicate"]["resources"].append(s["predicate"]["resources"][0]),
            "twice",
        ),
        (
            lambda s: s["predicate"]["resources"][0].update(digest="ABC"),
            "'ABC', expected the 64 digits",
        ),
    ],
)
def test_a_statement_that_says_something_else_is_refused_though_it_is_signed(
    signed: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    resign(signed, change)
    assert message in problems(signed)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"{", b"[]", b"null", b"[" * 100_000, b'{"a":1,"a":2}', b'{"a":NaN}'],
)
def test_files_that_are_no_bundle_are_refused_in_one_line(signed: Path, data: bytes) -> None:
    (signed / "model.sig").write_bytes(data)
    text = problems(signed)
    assert text.startswith("model.sig")
    assert "\n" not in text


def test_a_statement_survives_its_json() -> None:
    statement = Statement("x", {"b": "0" * 64, "a/c": "1" * 64}, {"person": "Ada", "time": "now"})
    assert read_statement(write_statement(statement)) == statement


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, bytes, TrustStore]]:
    """A folder signed by key and one by certificate: folder, signature, and who is trusted."""
    found = []
    for store, chain in ((STORE, []), (AUTHORITY, [LAB.signer("Ada", KEY), LAB.middle])):
        folder = tmp_path_factory.mktemp("fuzzed")
        (folder / "policy.onnx").write_bytes(b"weights")
        sign_folder(folder, KEY, "Ada", chain)
        assert problems(folder, store) == ""
        found.append((folder, (folder / "model.sig").read_bytes(), store))
    return found


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_of_a_signature_verifies_or_raises_another_error(
    both: list[tuple[Path, bytes, TrustStore]], data: st.DataObject
) -> None:
    folder, whole, store = data.draw(st.sampled_from(both))
    flipped = bytearray(whole)
    flips = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255)), min_size=1)
    for place, bits in data.draw(flips):
        flipped[place] ^= bits
    assume(flipped != whole)
    (folder / "model.sig").write_bytes(flipped)
    text = problems(folder, store)
    assert text
    assert text.isprintable()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_cut_or_prolonged_signature_verifies(
    both: list[tuple[Path, bytes, TrustStore]], data: st.DataObject
) -> None:
    folder, whole, store = data.draw(st.sampled_from(both))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    added = data.draw(st.binary(min_size=1, max_size=9).filter(lambda end: end.strip(b" \t\r\n")))
    (folder / "model.sig").write_bytes(data.draw(st.sampled_from([cut, whole + added])))
    assert problems(folder, store)

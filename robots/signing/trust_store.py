"""Keeps a user's key pairs, the keys and certificates that they trust, and those that are revoked.

    ~/.config/handoff/keys/
        ada.key         private key (PEM), for its owner alone
        ada.pub         its public key, to be given away
        trusted/        public keys and certificates whose releases may move an arm, NAME.pem
        revoked.json    revoked keys and releases, with time, person and reason
        audit.jsonl     one line per change and per signature, never changed

Whoever may write into the folder decides what an arm runs, so one that others may write is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from robots.errors import HandoffError, suggest
from robots.processes import login
from robots.signing.certificates import (
    certificate_fingerprint,
    certificate_pem,
    is_authority,
    read_chain_file,
    signer_key,
)
from robots.signing.key_files import (
    fingerprint,
    is_encrypted,
    is_public_key,
    new_private_key,
    private_pem,
    public_pem,
    read_public_key,
    read_secret,
)
from robots.signing.strict_json import expect, expect_map, parse
from robots.storage.durable import append_line, write_atomically

FOLDER_VARIABLE = "HANDOFF_KEYS"
"""Environment variable with the folder of the keys."""
PASSPHRASE_VARIABLE = "HANDOFF_KEY_PASSPHRASE"
"""Environment variable with the passphrase of a private key."""
PRIVATE = ".key"
PUBLIC = ".pub"
PEM = ".pem"
TRUSTED = "trusted"
REVOKED = "revoked.json"
AUDIT = "audit.jsonl"
LOCK = ".lock"
TIME = "%Y-%m-%dT%H:%M:%SZ"
"""Format of times, UTC."""
LONGEST_REASON = 1000
"""Longest reason of a revocation [characters]."""
SHORTEST_PREFIX = 12
"""Fewest digits by which a fingerprint can be named."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FINGERPRINT = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True)
class TrustedKey:
    """A public key, or a certificate, whose signatures count."""

    name: str
    fingerprint: str
    key: ec.EllipticCurvePublicKey | None = None
    certificate: x509.Certificate | None = None
    """Certificate of a signer, or of an authority that issues theirs."""


@dataclass(frozen=True)
class Revocation:
    """A key, or one release, that does not count any more."""

    fingerprint: str
    """Fingerprint of the key, or digest of the release."""
    name: str
    """Name under which the key was known here; empty if it was not."""
    time: str
    person: str
    reason: str


@dataclass(frozen=True)
class TrustStore:
    """Trusted and revoked keys."""

    trusted: Mapping[str, TrustedKey] = field(default_factory=dict)
    """By fingerprint."""
    revoked: Mapping[str, Revocation] = field(default_factory=dict)
    """By fingerprint."""

    def trusting_only(self, key: TrustedKey) -> TrustStore:
        """Returns a store that trusts one key alone, with the same revocations."""
        return replace(self, trusted={key.fingerprint: key})


@dataclass(frozen=True)
class OwnKey:
    """A key pair in the folder."""

    name: str
    fingerprint: str
    encrypted: bool
    """Whether a passphrase protects it."""


def keys_folder() -> Path:
    """Returns the folder of the keys: `$HANDOFF_KEYS`, or `handoff/keys` in `$XDG_CONFIG_HOME`, by
    default `~/.config`."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration) / "handoff" / "keys"


def read_trust_store(folder: Path) -> TrustStore:
    """Reads the trusted and the revoked keys of a folder; one that does not exist trusts nobody.

    Raises:
        HandoffError: others may write it, or an entry is damaged.
    """
    _check_writers(folder)
    trusted = [_read_trusted(file) for file in sorted((folder / TRUSTED).glob(f"*{PEM}"))]
    return TrustStore({entry.fingerprint: entry for entry in trusted}, _read_revoked(folder))


def read_trusted(data: bytes, name: str) -> TrustedKey:
    """Reads a public key or a certificate (PEM) that is to be trusted.

    Raises:
        HandoffError: neither of both, a private key, several certificates, or a key of another kind
            than ECDSA on P-256.
    """
    where = f"key {name}"
    if b"PRIVATE KEY-----" in data:
        raise HandoffError(
            f"{where}: is a private key. Give its public key, NAME{PUBLIC}, and keep the private one to yourself."
        )
    if is_public_key(data):
        key = read_public_key(data, where)
        return TrustedKey(name, fingerprint(key), key=key)
    certificates = read_chain_file(data, where)
    if len(certificates) != 1:
        raise HandoffError(
            f"{where}: has {len(certificates)} certificates, expected the one that is to be trusted."
        )
    certificate = certificates[0]
    if not is_authority(certificate):
        signer_key(certificate)
    return TrustedKey(name, certificate_fingerprint(certificate), certificate=certificate)


def own_keys(folder: Path) -> list[OwnKey]:
    """Returns the key pairs of a folder, by name."""
    return [
        OwnKey(
            file.stem,
            fingerprint(read_public_key(file.with_suffix(PUBLIC).read_bytes(), str(file))),
            is_encrypted(read_secret(file)),
        )
        for file in sorted(folder.glob(f"*{PRIVATE}"))
        if file.with_suffix(PUBLIC).is_file()
    ]


def make_key(folder: Path, name: str, passphrase: str | None) -> OwnKey:
    """Makes a key pair, whose private key only the user may read.

    Raises:
        HandoffError: an impossible name, or one that is taken.
    """
    _check_name(name)
    _make_folder(folder)
    key = new_private_key()
    file = folder / f"{name}{PRIVATE}"
    if file.exists() or file.with_suffix(PUBLIC).exists():
        raise HandoffError(f"keys: {file} exists already. Choose another name.")
    # The mode is given at creation: nobody can open the file before it is private.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(private_pem(key, passphrase))
        stream.flush()
        os.fsync(stream.fileno())
    write_atomically(file.with_suffix(PUBLIC), public_pem(key.public_key()))
    file.with_suffix(PUBLIC).chmod(0o644)
    made = OwnKey(name, fingerprint(key.public_key()), bool(passphrase))
    audit(folder, "new", name=name, fingerprint=made.fingerprint)
    return made


def trust(folder: Path, data: bytes, name: str, *, again: bool = False) -> TrustedKey:
    """Adds a public key or a certificate to the trusted ones.

    Args:
        folder: folder of the keys.
        data: PEM of the key or the certificate.
        name: name under which it is known here.
        again: lifts the revocation of the key.

    Raises:
        HandoffError: not such a key, one that was revoked, or a name that another key has.
    """
    _check_name(name)
    entry = read_trusted(data, name)
    _make_folder(folder)
    with _one_writer(folder):
        _trust(folder, entry, again=again)
    return entry


def _trust(folder: Path, entry: TrustedKey, *, again: bool) -> None:
    name = entry.name
    store = read_trust_store(folder)
    revocation = store.revoked.get(entry.fingerprint)
    if revocation is not None and not again:
        raise HandoffError(
            f"key {name} ({entry.fingerprint[:SHORTEST_PREFIX]}): was revoked by {revocation.person} at "
            f"{revocation.time}: {revocation.reason}. If that is over: handoff keys trust FILE --again"
        )
    same = [known for known in store.trusted.values() if known.name == name]
    if same and same[0].fingerprint != entry.fingerprint:
        raise HandoffError(
            f"key {name}: another key of this name is trusted, {same[0].fingerprint[:SHORTEST_PREFIX]}. Give --name."
        )
    if revocation is not None:
        rest = {mark: old for mark, old in store.revoked.items() if mark != entry.fingerprint}
        _write_revoked(folder, rest)
    file = folder / TRUSTED / f"{name}{PEM}"
    pem = public_pem(entry.key) if entry.key is not None else b""
    write_atomically(file, certificate_pem(entry.certificate) if entry.certificate else pem)
    file.chmod(0o644)
    event = "trusted again" if revocation is not None else "trusted"
    audit(folder, event, name=name, fingerprint=entry.fingerprint)


def revoke(folder: Path, subject: str, person: str, reason: str) -> Revocation:
    """Revokes a key: nothing that it has signed is accepted here any more. One release can be
    revoked by its digest.

    Args:
        folder: folder of the keys.
        subject: name of a trusted key or of an own one; a fingerprint; or the digest of a release.
        person: name of the person who revokes it.
        reason: reason, not empty.

    Raises:
        HandoffError: no such key, or no reason.
    """
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise HandoffError(
            f"keys: the reason has {len(reason.strip())} characters, expected 1 to {LONGEST_REASON}."
        )
    _make_folder(folder)
    with _one_writer(folder):
        return _revoke(folder, subject, person, reason.strip())


def _revoke(folder: Path, subject: str, person: str, reason: str) -> Revocation:
    store = read_trust_store(folder)
    named = {own.name: own.fingerprint for own in own_keys(folder)}
    named |= {entry.name: mark for mark, entry in store.trusted.items()}
    mark = _find_fingerprint(subject, named)
    name = next((known for known, digits in named.items() if digits == mark), "")
    moment = time.strftime(TIME, time.gmtime())
    entry = Revocation(mark, name, moment, person, reason)
    if mark in store.revoked:
        raise HandoffError(f"keys: {subject} is revoked already, since {store.revoked[mark].time}.")
    _write_revoked(folder, {**store.revoked, mark: entry})
    audit(folder, "revoked", name=name, fingerprint=mark, by=person, reason=entry.reason)
    return entry


def audit(folder: Path, event: str, **entry: str) -> None:
    """Adds a line to the audit: time, login, computer, and what happened."""
    line = {
        "time": time.strftime(TIME, time.gmtime()),
        "event": event,
        **entry,
        "login": login(),
        "computer": platform.node(),
    }
    append_line(folder / AUDIT, json.dumps(line))


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Waits until no other process changes the folder, so that no revocation is lost."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _find_fingerprint(subject: str, named: Mapping[str, str]) -> str:
    if subject in named:
        return named[subject]
    digits = subject.lower()
    known = [mark for mark in named.values() if mark.startswith(digits)]
    if _FINGERPRINT.fullmatch(digits) and len(set(known)) == 1:
        return known[0]
    if _FINGERPRINT.fullmatch(digits) and len(digits) == 64:
        return digits
    names = suggest(subject, named) if named else "there are none"
    raise HandoffError(
        f"keys: no key '{subject}', {names}. A key that is not known here is revoked by its whole fingerprint."
    )


def _read_trusted(file: Path) -> TrustedKey:
    _check_writers(file)
    return read_trusted(file.read_bytes(), file.stem)


def _read_revoked(folder: Path) -> dict[str, Revocation]:
    file = folder / REVOKED
    if not file.exists():
        return {}
    _check_writers(file)
    entries = expect(parse(file.read_bytes(), str(file)), list, str(file))
    names = ("fingerprint", "name", "time", "person", "reason")
    tables = [expect_map(entry, names, (), f"{file}: an entry") for entry in entries]
    for table in tables:
        for name in names:
            expect(table[name], str, f"{file}: '{name}'")
    return {table["fingerprint"]: Revocation(**table) for table in tables}


def _write_revoked(folder: Path, revoked: Mapping[str, Revocation]) -> None:
    text = json.dumps([asdict(entry) for entry in revoked.values()], indent=1)
    write_atomically(folder / REVOKED, f"{text}\n".encode())
    (folder / REVOKED).chmod(0o644)


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / TRUSTED).mkdir(exist_ok=True, mode=0o700)
    _check_writers(folder)


def _check_writers(path: Path) -> None:
    """Refuses a file or folder into which others may write."""
    for one in (path, *([path / TRUSTED] if path.is_dir() else [])):
        mode = one.stat().st_mode if one.exists() else 0
        if mode & 0o022:
            raise HandoffError(
                f"keys: others may write {one} (mode {mode & 0o777:04o}), so anybody could add a key. Look at what is "
                f"in it, then: chmod go-w {one}"
            )


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise HandoffError(
            f"keys: the name is {name!r:.80}, expected letters, digits, '_', '.' and '-', at most 64, e.g. ada-2026."
        )

"""Signs a folder, and examines a signed one: by whom it was signed, and whether its files are those
that were signed."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from robots.errors import HandoffError
from robots.signing.certificates import (
    certificate_der,
    certificate_fingerprint,
    check_usable,
    leads_to,
    read_certificate,
    signer_key,
    subject,
)
from robots.signing.envelope import (
    LARGEST_SIGNATURE,
    SIGNATURE_FILE,
    Envelope,
    pre_authentication_encoding,
    read_envelope,
    write_envelope,
)
from robots.signing.key_files import fingerprint, sign, signs
from robots.signing.statement import Statement, read_statement, write_statement
from robots.signing.trust_store import SHORTEST_PREFIX, TIME, Revocation, TrustStore
from robots.storage.durable import entries_below, write_atomically

_PIECE = 1 << 20
"""Bytes that are read, hashed and copied at once."""


@dataclass(frozen=True)
class Signer:
    """The key of a signature."""

    fingerprint: str
    name: str = ""
    """Name of the trusted key or certificate; empty if it is not trusted here."""
    subject: str = ""
    """Name in the signer's certificate; empty for a signature by key."""

    @property
    def text(self) -> str:
        """The signer in words, e.g. `ada (3f9c0a1b2c4d)`."""
        mark = self.fingerprint[:SHORTEST_PREFIX]
        if not self.subject:
            return f"{self.name or 'unknown key'} ({mark})"
        return f"{self.subject} ({mark}{f', trusted by {self.name}' if self.name else ''})"


@dataclass(frozen=True)
class Examination:
    """What is known about a folder after its files were read once."""

    folder: Path
    files: Mapping[str, str]
    """sha256 (hex) of every file as it was read, by its path below the folder."""
    statement: Statement | None = None
    """What was signed; None if the folder has no signature that can be read."""
    signer: Signer | None = None
    damage: tuple[str, ...] = ()
    """Why nothing of the folder may be used: it was altered, or its signature is not valid."""
    doubt: str = ""
    """Why it is not known who made it; empty if a trusted key signed it."""

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong, each a phrase."""
        return (*self.damage, *([self.doubt] if self.doubt else []))

    def require_intact(self) -> None:
        """Refuses a damaged folder; a trusted signature is not asked for.

        Raises:
            HandoffError: names up to three problems.
        """
        if self.damage:
            more = f"; and {len(self.damage) - 3} more" if len(self.damage) > 3 else ""
            raise HandoffError(f"release {self.folder}: {'; '.join(self.damage[:3])}{more}.")

    def require_trusted(self) -> None:
        """Refuses a folder that no trusted key has signed, or that is damaged.

        Raises:
            HandoffError: names what is wrong.
        """
        self.require_intact()
        if self.doubt:
            raise HandoffError(f"release {self.folder}: {self.doubt}.")


def sign_folder(
    folder: Path,
    key: ec.EllipticCurvePrivateKey,
    person: str,
    chain: Sequence[x509.Certificate] = (),
) -> Statement:
    """Signs all files of a folder; writes `model.sig`, or replaces it, as the last step.

    Args:
        folder: the folder.
        key: key of the signer.
        person: name of the person who signs; the signature covers it.
        chain: certificates for a signature by certificate: that of the key, then any others.

    Raises:
        HandoffError: a link in the folder, or a certificate that is not the key's or not valid.
    """
    if chain:
        check_usable(chain, datetime.now(UTC))
        if fingerprint(signer_key(chain[0])) != fingerprint(key.public_key()):
            raise HandoffError(f"certificate {subject(chain[0])}: is not that of the key.")
    files, irregular = read_files(folder)
    if irregular:
        raise HandoffError(f"release {folder}: {irregular[0]}.")
    signed = {"time": time.strftime(TIME, time.gmtime()), "person": person}
    statement = Statement(folder.resolve().name, files, signed)
    payload = write_statement(statement)
    envelope = Envelope(
        payload=payload,
        signature=sign(key, pre_authentication_encoding(payload)),
        fingerprint="" if chain else fingerprint(key.public_key()),
        chain=tuple(certificate_der(certificate) for certificate in chain),
    )
    write_atomically(folder / SIGNATURE_FILE, write_envelope(envelope))
    return statement


def examine_folder(
    folder: Path, store: TrustStore, copy: Path | None = None, now: datetime | None = None
) -> Examination:
    """Reads all files of a folder once, and compares them with its signature.

    Args:
        folder: the folder.
        store: keys that are trusted and revoked.
        copy: folder into which every file is copied as it is read, so that what was examined can be
            used whatever happens to `folder` afterwards.
        now: time at which certificates must be valid; None takes the present.

    Raises:
        HandoffError: no such folder, or a file that cannot be read.
    """
    if not folder.is_dir():
        raise HandoffError(f"release {folder}: there is no such folder.")
    files, irregular = read_files(folder, copy)
    damage = list(irregular)
    try:
        data = _read_signature(folder)
    except HandoffError as error:
        return Examination(folder, files, damage=(*damage, _phrase(error)))
    if data is None:
        doubt = (
            f"it is not signed: it has no {SIGNATURE_FILE}. Sign it where it was made: handoff sign"
        )
        return Examination(folder, files, damage=tuple(damage), doubt=doubt)
    try:
        envelope = read_envelope(data)
        statement = read_statement(envelope.payload)
    except HandoffError as error:
        return Examination(folder, files, damage=(*damage, _phrase(error)))
    signed = _Judged()
    _judge(envelope, statement, store, now or datetime.now(UTC), signed)
    damage += [*signed.damage, *_differences(statement.files, files)]
    return Examination(folder, files, statement, signed.signer, tuple(damage), signed.doubt)


def read_files(folder: Path, copy: Path | None = None) -> tuple[dict[str, str], list[str]]:
    """Reads all files of a folder but its signature.

    Args:
        folder: the folder.
        copy: folder into which they are copied.

    Returns:
        The sha256 (hex) of every file by its path below the folder, and a phrase for every entry
        that is neither a file nor a folder.
    """
    digests: dict[str, str] = {}
    irregular: list[str] = []
    for name, problem in sorted((name, kind) for name, _, kind in entries_below(folder)):
        if problem:
            irregular.append(f"{_shown(name)} is {problem}; a release has files and folders only")
        elif name != SIGNATURE_FILE:
            digests[name] = copied_digest(folder / name, None if copy is None else copy / name)
    return digests, irregular


def copied_digest(file: Path, copy: Path | None = None) -> str:
    """Returns the sha256 (hex) of a file's bytes, and writes the same bytes to `copy`.

    Raises:
        HandoffError: it is no file (any more), or cannot be read.
    """
    digest = hashlib.sha256()
    if copy is not None:
        copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A link or a pipe that took the place of the file since it was listed is not followed.
        source = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(source, "rb") as stream, open(copy or os.devnull, "wb") as target:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise HandoffError(f"{file}: is not a file.")
            while piece := stream.read(_PIECE):
                digest.update(piece)
                target.write(piece)
    except OSError as error:
        raise HandoffError(
            f"{error.filename or file}: {error.strerror}, expected a file."
        ) from None
    return digest.hexdigest()


@dataclass
class _Judged:
    """What a signature is worth."""

    signer: Signer | None = None
    damage: list[str] = field(default_factory=list)
    doubt: str = ""


def _judge(
    envelope: Envelope, statement: Statement, store: TrustStore, now: datetime, judged: _Judged
) -> None:
    """Fills `judged`: the signer, whether the signature is valid and whether it is trusted."""
    try:
        if envelope.chain:
            _judge_chain(envelope, store, now, judged)
        else:
            _judge_key(envelope, store, judged)
    except HandoffError as error:
        judged.damage.append(_phrase(error))
    withdrawn = store.revoked.get(statement.digest)
    if withdrawn is not None:
        judged.damage.append(f"the release was revoked by {_revocation_text(withdrawn)}")


def _judge_key(envelope: Envelope, store: TrustStore, judged: _Judged) -> None:
    mark = envelope.fingerprint
    known, revocation = store.trusted.get(mark), store.revoked.get(mark)
    judged.signer = Signer(mark, known.name if known else "")
    if revocation is not None:
        judged.signer = Signer(mark, revocation.name)
        judged.damage.append(_revoked(judged.signer, revocation))
    elif known is None or known.key is None:
        judged.doubt = (
            f"it is signed with the unknown key {mark[:SHORTEST_PREFIX]!r:.40}: nobody trusted here has signed it. Ask "
            "whose key it is, compare the fingerprint, then: handoff keys trust FILE"
        )
    elif not signs(known.key, envelope.signature, envelope.signed_bytes):
        judged.damage.append(_invalid(judged.signer))


def _judge_chain(envelope: Envelope, store: TrustStore, now: datetime, judged: _Judged) -> None:
    chain = [read_certificate(data, SIGNATURE_FILE) for data in envelope.chain]
    key = signer_key(chain[0])
    judged.signer = Signer(fingerprint(key), subject=subject(chain[0]))
    if not signs(key, envelope.signature, envelope.signed_bytes):
        judged.damage.append(_invalid(judged.signer))
        return
    check_usable(chain, now)
    certificates = [one.certificate for one in store.trusted.values() if one.certificate]
    end = leads_to(chain, certificates, now)
    for certificate in chain if end is None else [*chain, end]:
        mark = certificate_fingerprint(certificate)
        if mark in store.revoked:
            revoked = Signer(mark, subject=subject(certificate))
            judged.damage.append(_revoked(revoked, store.revoked[mark]))
            return
    own = store.trusted.get(judged.signer.fingerprint)
    if end is None and own is None:
        judged.doubt = (
            f"the certificate of {judged.signer.text} leads to none that is trusted here: nobody trusted here has "
            "signed it. Ask whose it is, then: handoff keys trust FILE"
        )
        return
    name = own.name if own is not None else ""
    if end is not None:
        name = store.trusted[certificate_fingerprint(end)].name
    judged.signer = Signer(judged.signer.fingerprint, name, judged.signer.subject)


def _revoked(signer: Signer, revocation: Revocation) -> str:
    return f"the key {signer.text} was revoked by {_revocation_text(revocation)}"


def _revocation_text(revocation: Revocation) -> str:
    return f"{revocation.person} at {revocation.time}: {revocation.reason}"


def _invalid(signer: Signer) -> str:
    return f"{SIGNATURE_FILE} was altered: its signature is not one of {signer.text} under its list of files"


def _read_signature(folder: Path) -> bytes | None:
    file = folder / SIGNATURE_FILE
    try:
        if file.lstat().st_size > LARGEST_SIGNATURE:
            raise HandoffError(f"{SIGNATURE_FILE} is larger than {LARGEST_SIGNATURE} bytes.")
        source = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HandoffError(f"{SIGNATURE_FILE} cannot be read ({error.strerror}).") from None
    with os.fdopen(source, "rb") as stream:
        return stream.read(LARGEST_SIGNATURE)


def _differences(signed: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """Yields a phrase for every file that is not as it was signed."""
    for name, digest in sorted(signed.items()):
        if name not in present:
            yield f"{_shown(name)} is missing: it was removed or renamed after the signature"
        elif present[name] != digest:
            yield f"{_shown(name)} was altered after the signature (sha256 {present[name]:.12}, signed {digest:.12})"
    for name in sorted(present.keys() - signed.keys()):
        yield f"{_shown(name)} was added or renamed after the signature: it is not in the signed list"


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _phrase(error: HandoffError) -> str:
    return str(error).removesuffix(".")

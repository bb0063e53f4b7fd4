"""Reads and makes keys: ECDSA on the curve P-256 in PEM files, the only kind that Handoff signs
with.

OpenSSF's tools also take P-384 and P-521; of Ed25519 and of RSA they make no signature.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from robots.errors import HandoffError

CURVE = "secp256r1"
_PUBLIC = b"-----BEGIN PUBLIC KEY-----"
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


def new_private_key() -> ec.EllipticCurvePrivateKey:
    """Makes a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey, passphrase: str | None) -> bytes:
    """Returns the PEM (PKCS 8) of a private key, encrypted if there is a passphrase."""
    encryption = (
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def public_pem(key: PublicKeyTypes) -> bytes:
    """Returns the PEM of a public key."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(key: PublicKeyTypes) -> str:
    """Returns the sha256 (hex) of a public key's PEM, by which a signature names its key."""
    return hashlib.sha256(public_pem(key)).hexdigest()


def is_public_key(data: bytes) -> bool:
    """Whether a PEM file has a public key, and not a certificate."""
    return _PUBLIC in data


def is_encrypted(data: bytes) -> bool:
    """Whether a PEM file has a private key that a passphrase protects."""
    return _ENCRYPTED in data


def read_public_key(data: bytes, where: str) -> ec.EllipticCurvePublicKey:
    """Reads the PEM of a public key.

    Raises:
        HandoffError: not a public key, or one of another kind.
    """
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise HandoffError(f"{where}: is not a public key in PEM ({error!s:.80}).") from None
    return checked_public_key(key, where)


def read_private_key(file: Path, passphrase: str | None) -> ec.EllipticCurvePrivateKey:
    """Reads the PEM file of a private key.

    Raises:
        HandoffError: no such file, one that others may read, a wrong passphrase, or a key of
            another kind.
    """
    data = read_secret(file)
    try:
        key = serialization.load_pem_private_key(data, passphrase.encode() if passphrase else None)
    except TypeError:
        needs = "no passphrase, but one was given" if passphrase else "a passphrase"
        raise HandoffError(f"key {file}: needs {needs}.") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        wrong = (
            "the passphrase is wrong" if is_encrypted(data) else "it is not a private key in PEM"
        )
        raise HandoffError(f"key {file}: {wrong} ({error!s:.60}).") from None
    checked_public_key(key.public_key(), f"key {file}")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def read_secret(file: Path) -> bytes:
    """Reads a file that only its owner may read.

    Raises:
        HandoffError: no such file, or one that others may read.
    """
    try:
        mode = file.stat().st_mode
        if mode & 0o077:
            raise HandoffError(
                f"key {file}: others may read it (mode {mode & 0o777:04o}). If nobody has: chmod 600 {file}. Else make "
                "a new key and revoke this one."
            )
        return file.read_bytes()
    except OSError as error:
        raise HandoffError(f"key {file}: cannot be read ({error.strerror}).") from None


def checked_public_key(key: Any, where: str) -> ec.EllipticCurvePublicKey:
    """Returns a key on P-256.

    Raises:
        HandoffError: a key of another kind, named.
    """
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == CURVE:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey):
        kind = f"an ECDSA key on the curve {key.curve.name}"
    else:
        name = type(key).__name__.removesuffix("PublicKey").removeprefix("_")
        kind = f"an {name} key" if name[:1] in "AEIORSX" else f"a {name} key"
    raise HandoffError(
        f"{where}: is {kind}, expected ECDSA on the curve P-256 ({CURVE}). Make one: handoff keys new NAME"
    )


def signs(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    """Whether a signature (DER) of data was made with the private half of a key."""
    try:
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Returns the signature (DER) of data."""
    return key.sign(data, ec.ECDSA(hashes.SHA256()))

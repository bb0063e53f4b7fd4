"""Reads X.509 certificates, and checks a signer's chain up to a trusted certificate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509 import verification

from robots.errors import HandoffError
from robots.signing.key_files import checked_public_key, fingerprint

_BAD_CERTIFICATE = (
    CryptographyDeprecationWarning,
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


def read_chain_file(data: bytes, where: str) -> list[x509.Certificate]:
    """Reads the certificates of a PEM file.

    Raises:
        HandoffError: there is none, or a damaged one.
    """
    try:
        with _warnings_as_errors():
            return x509.load_pem_x509_certificates(data)
    except _BAD_CERTIFICATE as error:
        raise HandoffError(f"{where}: has no certificates in PEM ({error!s:.80}).") from None


def read_certificate(data: bytes, where: str) -> x509.Certificate:
    """Reads one certificate (DER).

    Raises:
        HandoffError: it is damaged, or not in the only spelling that it has.
    """
    try:
        with _warnings_as_errors():
            certificate = x509.load_der_x509_certificate(data)
            signed, signature = certificate.tbs_certificate_bytes, certificate.signature
    except _BAD_CERTIFICATE as error:
        raise HandoffError(f"{where}: is not a certificate ({error!s:.80}).") from None
    # Nothing signs what lies around the signed part: the algorithm, which must be repeated in that
    # part, and the bit string of the signature, which has no unused bits.
    _, _, behind = data.partition(signed)
    bits = b"\x03" + _der_length(len(signature) + 1) + b"\0" + signature
    if not behind.endswith(bits) or behind.removesuffix(bits) not in signed:
        raise HandoffError(f"{where}: is not a certificate (it has stray bits).")
    return certificate


def certificate_der(certificate: x509.Certificate) -> bytes:
    """Returns the DER of a certificate, as `model.sig` has it."""
    return certificate.public_bytes(serialization.Encoding.DER)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Returns the PEM of a certificate."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """Returns the fingerprint of a certificate's key, so that all certificates of one key share it.

    Raises:
        HandoffError: the key cannot be read.
    """
    try:
        return fingerprint(certificate.public_key())
    except _BAD_CERTIFICATE as error:
        raise HandoffError(
            f"certificate {subject(certificate)}: its key cannot be read ({error!s:.80})."
        ) from None


def subject(certificate: x509.Certificate) -> str:
    """Returns the name of the owner of a certificate, such as `CN=Ada,O=Lab`.

    Raises:
        HandoffError: the name is damaged.
    """
    try:
        name = certificate.subject.rfc4514_string()
    except _BAD_CERTIFICATE as error:
        raise HandoffError(f"certificate: has a damaged name ({error!s:.80}).") from None
    return name if name.isprintable() else ascii(name)


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate is one of an authority, which issues those of others.

    Raises:
        HandoffError: its extensions are damaged.
    """
    values = _extensions(certificate)
    return any(isinstance(value, x509.BasicConstraints) and value.ca for value in values)


def signer_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Returns the public key of a signer's certificate.

    Raises:
        HandoffError: a key of another kind than ECDSA on P-256, or a damaged certificate.
    """
    where = f"certificate {subject(certificate)}"
    try:
        key = certificate.public_key()
    except _BAD_CERTIFICATE as error:
        raise HandoffError(f"{where}: its key cannot be read ({error!s:.80}).") from None
    return checked_public_key(key, where)


def check_usable(chain: Sequence[x509.Certificate], now: datetime) -> None:
    """Checks that all certificates are valid now, and that the first one may sign.

    Raises:
        HandoffError: one has expired or is not valid yet, or the first is not for signatures.
    """
    for certificate in chain:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not begin <= now <= end:
            when = (
                f"ended on {end:%Y-%m-%d %H:%M}"
                if now > end
                else f"begins on {begin:%Y-%m-%d %H:%M}"
            )
            raise HandoffError(
                f"certificate {subject(certificate)}: its validity {when} UTC, now is {now:%Y-%m-%d %H:%M}. Let the "
                "release be signed again with a valid one, or set this computer's clock."
            )
    if not _may_sign(chain[0]):
        raise HandoffError(
            f"certificate {subject(chain[0])}: is not for signatures; it needs the key usage 'digital signature' or "
            "the extended key usage 'code signing'."
        )


def leads_to(
    chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate], now: datetime
) -> x509.Certificate | None:
    """Returns the trusted certificate to which a chain leads; None if there is none.

    Args:
        chain: certificate of the signer, then any others.
        trusted: trusted certificates, of authorities or of signers themselves.
        now: time at which the certificates must be valid.
    """
    if not trusted:
        return None
    # Whether basic constraints name an authority is checked by the verifier itself.
    authorities = (
        verification.ExtensionPolicy.permit_all()
        .require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, None)
        .may_be_present(x509.KeyUsage, verification.Criticality.AGNOSTIC, _check_issuer)
    )
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store(list(trusted)))
        .time(now)
        .extension_policies(
            ca_policy=authorities, ee_policy=verification.ExtensionPolicy.permit_all()
        )
        .build_client_verifier()
    )
    try:
        return verifier.verify(chain[0], list(chain[1:])).chain[-1]
    except (verification.VerificationError, *_BAD_CERTIFICATE):
        return None


def _der_length(size: int) -> bytes:
    """Length of a DER value [bytes], encoded."""
    if size < 128:
        return bytes([size])
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([128 | len(digits)]) + digits


@contextmanager
def _warnings_as_errors() -> Iterator[None]:
    """What the library still reads, with a warning, of certificates against the standard is
    refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CryptographyDeprecationWarning)
        yield


def _check_issuer(
    policy: verification.Policy, certificate: x509.Certificate, extension: x509.KeyUsage | None
) -> None:
    if extension is not None and not extension.key_cert_sign:
        raise ValueError("not for signing certificates")


def _may_sign(certificate: x509.Certificate) -> bool:
    """As OpenSSF's tool asks: the usage 'digital signature', else 'code signing'."""
    return any(
        (isinstance(value, x509.KeyUsage) and value.digital_signature)
        or (
            isinstance(value, x509.ExtendedKeyUsage)
            and x509.oid.ExtendedKeyUsageOID.CODE_SIGNING in value
        )
        for value in _extensions(certificate)
    )


def _extensions(certificate: x509.Certificate) -> list[x509.ExtensionType]:
    try:
        return [extension.value for extension in certificate.extensions]
    except _BAD_CERTIFICATE as error:
        raise HandoffError(
            f"certificate {subject(certificate)}: has damaged extensions ({error!s:.80})."
        ) from None

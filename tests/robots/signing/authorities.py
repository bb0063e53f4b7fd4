"""Certificates for tests: an authority, one between, and signers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def certificate(
    name: str,
    key: Key,
    issuer: tuple[x509.Certificate, Key] | None = None,
    *,
    authority: bool | None = None,
    usage: bool = True,
    certifies: bool = True,
    code_signing: bool = False,
    begin: float = -1.0,
    end: float = 10.0,
) -> x509.Certificate:
    """Makes a certificate; `begin` and `end` of its validity in days from now. It says whether it
    is of an authority, unless `authority` is None."""
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer[0].subject if issuer else own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=begin))
        .not_valid_after(now + timedelta(days=end))
    )
    if authority is not None:
        builder = builder.add_extension(x509.BasicConstraints(authority, None), critical=True)
    if usage:
        flags = x509.KeyUsage(
            digital_signature=not authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=bool(authority) and certifies,
            crl_sign=bool(authority),
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(flags, critical=True)
    if code_signing:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256())


class Lab:
    """A root, an authority under it, and the keys of both."""

    def __init__(self) -> None:
        self.root_key = new_key()
        self.root = certificate("Lab root", self.root_key, authority=True)
        self.middle_key = new_key()
        self.middle = certificate(
            "Lab people", self.middle_key, (self.root, self.root_key), authority=True
        )

    def signer(self, name: str, key: Key, **options: float | bool | None) -> x509.Certificate:
        return certificate(name, key, (self.middle, self.middle_key), **options)  # type: ignore[arg-type]

"""Reads and writes `model.sig`: a Sigstore bundle (version 0.3) with a DSSE envelope.

Sources: the specification of OpenSSF Model Signing, DSSE 1.0 and Sigstore's bundle format. The
reader is stricter than they ask for, so that one signature has one spelling: unknown keys and
base64 with stray bits are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from robots.errors import HandoffError
from robots.signing.strict_json import expect, expect_map, expect_text, parse

SIGNATURE_FILE = "model.sig"
"""Name of the signature in a signed folder."""
LARGEST_SIGNATURE = 64_000_000
"""Largest `model.sig` that is read [bytes]; one that lists 100,000 files has a third of it."""
MOST_CERTIFICATES = 10
"""Longest chain of certificates."""
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_NO_KEY_METHOD = {
    "certificate": "by an identity (Sigstore's keyless method)",
    "publicKey": "by key",
    "x509CertificateChain": "by certificate",
}


@dataclass(frozen=True)
class Envelope:
    """Content of `model.sig`, not yet verified."""

    payload: bytes
    """JSON of the statement."""
    signature: bytes
    """ECDSA signature (DER) of `signed_bytes`."""
    fingerprint: str = ""
    """Fingerprint of the key, for a signature by key."""
    chain: tuple[bytes, ...] = ()
    """Certificates (DER), that of the signer first, for a signature by certificate."""

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that are signed; see `pre_authentication_encoding`."""
        return pre_authentication_encoding(self.payload)


def pre_authentication_encoding(payload: bytes) -> bytes:
    """Returns DSSE's encoding of type and payload, which is what is signed."""
    kind = PAYLOAD_TYPE.encode()
    return b" ".join([b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload])


def write_envelope(envelope: Envelope) -> bytes:
    """Returns the content of `model.sig`. It has no spaces: every byte of it counts."""
    if envelope.chain:
        chain = [{"rawBytes": _encoded(certificate)} for certificate in envelope.chain]
        material: dict[str, Any] = {"x509CertificateChain": {"certificates": chain}}
    else:
        material = {"publicKey": {"hint": envelope.fingerprint}}
    bundle = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {**material, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": _encoded(envelope.payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": _encoded(envelope.signature), "keyid": ""}],
        },
    }
    return json.dumps(bundle, separators=(",", ":")).encode()


def read_envelope(data: bytes) -> Envelope:
    """Parses `model.sig`; nothing is verified.

    Raises:
        HandoffError: not such a bundle, or one of a method other than key and certificate.
    """
    bundle = expect_map(
        parse(data, SIGNATURE_FILE),
        ("mediaType", "verificationMaterial", "dsseEnvelope"),
        (),
        SIGNATURE_FILE,
    )
    expect_text(bundle["mediaType"], [MEDIA_TYPE], f"{SIGNATURE_FILE}: mediaType")
    where = f"{SIGNATURE_FILE}: dsseEnvelope"
    signed = expect_map(bundle["dsseEnvelope"], ("payload", "payloadType", "signatures"), (), where)
    expect_text(signed["payloadType"], [PAYLOAD_TYPE], f"{where}.payloadType")
    signatures = expect(signed["signatures"], list, f"{where}.signatures")
    if len(signatures) != 1:
        raise HandoffError(f"{where} has {len(signatures)} signatures, expected one.")
    signature = expect_map(signatures[0], ("sig",), ("keyid",), f"{where}.signatures[0]")
    expect_text(signature.get("keyid", ""), [""], f"{where}.signatures[0].keyid")
    fingerprint, chain = _read_material(bundle["verificationMaterial"])
    return Envelope(
        payload=_decoded(signed["payload"], f"{where}.payload"),
        signature=_decoded(signature["sig"], f"{where}.signatures[0].sig"),
        fingerprint=fingerprint,
        chain=chain,
    )


def _read_material(value: Any) -> tuple[str, tuple[bytes, ...]]:
    """Returns the fingerprint of the key, or the chain of certificates."""
    where = f"{SIGNATURE_FILE}: verificationMaterial"
    material = expect_map(value, (), (*_NO_KEY_METHOD, "tlogEntries"), where)
    if expect(material.pop("tlogEntries", []), list, f"{where}.tlogEntries"):
        raise HandoffError(f"{where} has entries of a transparency log, which are not supported.")
    if material.keys() == {"publicKey"}:
        key = expect_map(material["publicKey"], ("hint",), (), f"{where}.publicKey")
        return expect(key["hint"], str, f"{where}.publicKey.hint"), ()
    if material.keys() != {"x509CertificateChain"}:
        given = " and ".join(_NO_KEY_METHOD[name] for name in material) or "by no method"
        raise HandoffError(f"{where} is of a signature {given}, expected by key or certificate.")
    where += ".x509CertificateChain"
    table = expect_map(material["x509CertificateChain"], ("certificates",), (), where)
    entries = expect(table["certificates"], list, f"{where}.certificates")
    if not 1 <= len(entries) <= MOST_CERTIFICATES:
        raise HandoffError(
            f"{where} has {len(entries)} certificates, expected 1 to {MOST_CERTIFICATES}."
        )
    certificates = [
        expect_map(entry, ("rawBytes",), (), f"{where}.certificates[{i}]")
        for i, entry in enumerate(entries)
    ]
    return "", tuple(
        _decoded(entry["rawBytes"], f"{where}.certificates[{i}].rawBytes")
        for i, entry in enumerate(certificates)
    )


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(value: Any, where: str) -> bytes:
    text = expect(value, str, where)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HandoffError(f"{where} is not base64 ({error!s:.80}).") from None
    if _encoded(data) != text:
        raise HandoffError(f"{where} is not the base64 of {len(data)} bytes: it has stray bits.")
    return data

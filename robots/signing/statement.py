"""Makes and reads the statement that is signed: an in-toto statement (version 1) with the sha256 of
every file, whose predicate is that of OpenSSF Model Signing 1.0."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from robots.errors import HandoffError
from robots.signing.envelope import SIGNATURE_FILE
from robots.signing.strict_json import expect, expect_map, expect_text, parse

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
SIGNED = "signed"
"""Key of the predicate with time and person of the signature; other tools ignore it."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WHERE = f"{SIGNATURE_FILE}: the statement"


@dataclass(frozen=True)
class Statement:
    """The digests of all files of a folder, and who signed them when."""

    name: str
    """Name of the folder when it was signed; it may have another one by now."""
    files: Mapping[str, str]
    """sha256 (hex) of every file, by its path below the folder with forward slashes."""
    signed: Mapping[str, str] = field(default_factory=dict)
    """`time` (UTC) and `person` of the signature, as the signer states them; empty if another tool
    signed."""

    @property
    def digest(self) -> str:
        """sha256 (hex) over the digests of all files: equal content has equal digests."""
        return root_digest(self.files)


def root_digest(files: Mapping[str, str]) -> str:
    """Returns the sha256 (hex) over the concatenated digests of the files, in the order of the
    names."""
    digests = [bytes.fromhex(files[name]) for name in sorted(files, key=PurePosixPath)]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def write_statement(statement: Statement) -> bytes:
    """Returns the JSON of a statement, the payload of its envelope."""
    names = sorted(statement.files, key=PurePosixPath)
    value = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": statement.name, "digest": {"sha256": statement.digest}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE_FILE],
            },
            "resources": [
                {"name": name, "algorithm": "sha256", "digest": statement.files[name]}
                for name in names
            ],
            SIGNED: dict(statement.signed),
        },
    }
    return json.dumps(value, indent=1).encode()


def read_statement(payload: bytes) -> Statement:
    """Reads the payload of an envelope.

    Paths that the signer ignored are not returned: whoever examines the folder refuses every file
    that is not listed.

    Raises:
        HandoffError: another kind of statement, another hash or serialization, a name that leads
            out of the folder, or digests that do not agree.
    """
    value = expect_map(
        parse(payload, _WHERE), ("_type", "subject", "predicateType", "predicate"), (), _WHERE
    )
    expect_text(value["_type"], [STATEMENT_TYPE], f"{_WHERE}'s _type")
    expect_text(value["predicateType"], [PREDICATE_TYPE], f"{_WHERE}'s predicateType")
    predicate = expect_map(
        value["predicate"], ("serialization", "resources"), (SIGNED,), f"{_WHERE}'s predicate"
    )
    _check_serialization(predicate["serialization"])
    files: dict[str, str] = {}
    for entry in expect(predicate["resources"], list, f"{_WHERE}'s list of files"):
        name, digest = _read_resource(entry)
        if name in files:
            raise HandoffError(f"{_WHERE} lists {name} twice.")
        files[name] = digest
    name, stated = _read_subject(value["subject"])
    computed = root_digest(files)
    if stated != computed:
        raise HandoffError(
            f"{_WHERE} has the digest {stated:.12}, computed from its list of files {computed:.12}."
        )
    return Statement(name, files, _read_signed(predicate.get(SIGNED, {})))


def _check_serialization(value: Any) -> None:
    where = f"{_WHERE}'s serialization"
    table = expect_map(
        value, ("method", "hash_type"), ("allow_symlinks", "ignore_paths", "shard_size"), where
    )
    expect_text(table["method"], ["files"], f"{where} method")
    expect_text(table["hash_type"], ["sha256"], f"{where} hash_type")


def _read_resource(value: Any) -> tuple[str, str]:
    where = f"{_WHERE}'s list of files"
    entry = expect_map(value, ("name", "algorithm", "digest"), (), where)
    expect_text(entry["algorithm"], ["sha256"], f"{where}: algorithm")
    return _path(entry["name"]), _sha256(entry["digest"], where)


def _read_subject(value: Any) -> tuple[str, str]:
    where = f"{_WHERE}'s subject"
    subjects = expect(value, list, where)
    if len(subjects) != 1:
        raise HandoffError(f"{where} has {len(subjects)} entries, expected one.")
    subject = expect_map(subjects[0], ("name", "digest"), (), where)
    digest = expect_map(subject["digest"], ("sha256",), (), f"{where} digest")["sha256"]
    return expect(subject["name"], str, f"{where} name"), _sha256(digest, where)


def _read_signed(value: Any) -> dict[str, str]:
    where = f"{_WHERE}'s '{SIGNED}'"
    table = expect_map(value, (), ("time", "person"), where)
    for key, text in table.items():
        if not expect(text, str, f"{where} {key}").isprintable():
            raise HandoffError(f"{where} {key} is {text!r:.80}, expected printable text.")
    return table


def _path(value: Any) -> str:
    """A path below the folder, in its only spelling."""
    name = expect(value, str, f"{_WHERE}'s list of files: name")
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or {"", ".", ".."} & set(parts):
        raise HandoffError(f"{_WHERE} lists {name!r:.80}, which is no path below the folder.")
    if name == SIGNATURE_FILE:
        raise HandoffError(f"{_WHERE} lists {name} itself.")
    return name


def _sha256(value: Any, where: str) -> str:
    digest = expect(value, str, where)
    if not _DIGEST.fullmatch(digest):
        raise HandoffError(f"{where} has {digest!r:.80}, expected the 64 digits of a sha256.")
    return digest

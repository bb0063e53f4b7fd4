"""Implements `handoff keys`, `handoff sign` and `handoff verify`: signed releases of policies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from getpass import getpass
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.deployment.release import released_bundle
from flows.deployment.release_folder import Release, assemble, check_release
from flows.deployment.verified_policy import PREFIX
from flows.reports.dataset_text import counted
from flows.runner.stage import PARTIAL
from robots.errors import HandoffError, suggest
from robots.processes import login
from robots.signing.certificates import certificate_fingerprint, read_chain_file
from robots.signing.folder import Examination, examine_folder, sign_folder
from robots.signing.key_files import fingerprint, is_encrypted, read_private_key, read_secret
from robots.signing.statement import Statement
from robots.signing.trust_store import (
    PASSPHRASE_VARIABLE,
    PRIVATE,
    PUBLIC,
    SHORTEST_PREFIX,
    audit,
    keys_folder,
    make_key,
    own_keys,
    read_trust_store,
    read_trusted,
    revoke,
    trust,
)
from robots.storage.durable import remove_tree, sync_path

Say = Callable[[str], None]
_FOR_AN_ARM = "it meets what a real arm asks of a release"


def new_key_command(name: str, *, passphrase: bool, say: Say) -> None:
    """Runs `handoff keys new`.

    Args:
        name: name of the key.
        passphrase: asks for a passphrase, unless the environment has one.
        say: prints a line.

    Raises:
        HandoffError: an impossible name, or one that is taken; no passphrase.
    """
    folder = keys_folder()
    secret = os.environ.get(PASSPHRASE_VARIABLE) or (_new_passphrase() if passphrase else None)
    key = make_key(folder, name, secret)
    guard = "with a passphrase" if key.encrypted else "without a passphrase"
    say(f"private  {folder / name}{PRIVATE}, {guard}; keep it to yourself")
    say(
        f"public   {folder / name}{PUBLIC}; where its releases run: handoff keys trust {name}{PUBLIC}"
    )
    say(f"key      {key.fingerprint}")


def trust_key_command(file: Path, *, name: str | None, again: bool, say: Say) -> None:
    """Runs `handoff keys trust`.

    Args:
        file: public key or certificate (PEM).
        name: name under which it is known here; None takes that of the file.
        again: lifts a revocation.
        say: prints a line.

    Raises:
        HandoffError: not such a file, or a key that was revoked.
    """
    entry = trust(keys_folder(), _read(file), name or file.stem, again=again)
    kind = "certificate" if entry.certificate is not None else "key"
    say(f"trusted  {kind} {entry.name}, {entry.fingerprint}")
    say(
        "Compare the fingerprint with the one that its owner reads out, by another way than the file came."
    )


def revoke_key_command(subject: str, *, reason: str, person: str | None, say: Say) -> None:
    """Runs `handoff keys revoke`.

    Args:
        subject: name or fingerprint of a key, or digest of a release.
        reason: why.
        person: name of the person; None takes the login.
        say: prints a line.

    Raises:
        HandoffError: no such key, or no reason.
    """
    entry = revoke(keys_folder(), subject, person or login(), reason)
    say(f"revoked  {f'{entry.name}, ' if entry.name else ''}{entry.fingerprint}: {entry.reason}")


def list_keys_command(say: Say) -> None:
    """Runs `handoff keys list`: own key pairs, trusted keys and revoked ones."""
    folder = keys_folder()
    store = read_trust_store(folder)
    lines = [
        f"own      {key.name}  {key.fingerprint}{'' if key.encrypted else '  no passphrase'}"
        f"{'  revoked' if key.fingerprint in store.revoked else ''}"
        for key in own_keys(folder)
    ]
    lines += [
        f"trusted  {entry.name}  {mark}{'  certificate' if entry.certificate is not None else ''}"
        for mark, entry in store.trusted.items()
        if mark not in store.revoked
    ]
    lines += [
        f"revoked  {entry.name or '(unknown here)'}  {mark}  {entry.time} by {entry.person}: {entry.reason}"
        for mark, entry in store.revoked.items()
    ]
    for line in lines or [f"no keys in {folder}; make one: handoff keys new NAME"]:
        say(line)


def sign_command(
    source: Path,
    *,
    key: str | None,
    certificate: Path | None,
    name: str | None,
    person: str | None,
    out: Path | None,
    say: Say,
) -> None:
    """Runs `handoff sign`: assembles a release folder and signs it; on an error there is none.

    Args:
        source: gate or approval of a run.
        key: name of an own key, or path of a private key; None takes the only one.
        certificate: certificates (PEM) for a signature by certificate, the key's own first.
        name: name of the release; None takes that of the run.
        person: name of the person who signs; None takes the login.
        out: folder of the release; None takes `runs/releases/NAME`.
        say: prints a line.

    Raises:
        HandoffError: see `flows.deployment.release_folder.assemble`; no such key, or a revoked one;
            or the folder exists already.
    """
    # What cannot be released is said before a key, and its passphrase, are asked for.
    released_bundle(source)
    folder = keys_folder()
    file = _private_key_file(folder, key)
    private = read_private_key(file, _passphrase(file))
    chain = read_chain_file(_read(certificate), str(certificate)) if certificate else []
    mark = fingerprint(private.public_key())
    _check_not_revoked(folder, [mark, *map(certificate_fingerprint, chain)])
    given = name or (source.absolute().parent.name if source.is_symlink() else source.name)
    target = out or Path("runs") / "releases" / given
    if target.exists():
        raise HandoffError(f"sign: {target} exists already. Give --out, or delete it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}{PARTIAL}")
    try:
        assemble(source, given, partial)
        statement = sign_folder(partial, private, person or login(), chain)
        os.rename(partial, target)
        sync_path(target.parent)
    finally:
        if partial.exists():
            remove_tree(partial)
    if folder.is_dir():
        audit(folder, "signed", name=given, release=statement.digest, fingerprint=mark)
    say(f"release  {target}, {counted(len(statement.files), 'file')}, digest {statement.digest}")
    say(f"signed   {_signature_text(statement)} with {file.stem} ({mark[:SHORTEST_PREFIX]})")


def verify_command(folder: Path, *, key: Path | None, say: Say) -> None:
    """Runs `handoff verify`: prints by whom a release was signed and what it is, and all that is
    wrong with it.

    Args:
        folder: the release folder.
        key: public key or certificate (PEM) that is trusted in place of those of this user.
        say: prints a line.

    Raises:
        HandoffError: it was altered, its signature is not valid, or no trusted key made it.
    """
    store = read_trust_store(keys_folder())
    if key is not None:
        store = store.trusting_only(read_trusted(_read(key), key.stem))
    note = ""
    with TemporaryDirectory(prefix=PREFIX) as copy:
        examination = examine_folder(folder, store, Path(copy))
        problems = list(examination.problems)
        lines = list(_signature_lines(examination))
        try:
            release = check_release(Path(copy), examination.files, folder)
            lines += _release_lines(release)
            note = _arm_problem(release)
        except HandoffError as error:
            # Where files were altered, the signature names them better.
            problems += [] if examination.damage else [_phrase(error, folder)]
    for line in [*lines, *(f"problem  {text}" for text in problems)]:
        say(line if line.isprintable() else ascii(line))
    if problems:
        count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
        raise HandoffError(f"verify: {folder} has {count}; a real arm refuses it.")
    say(f"verified, for a simulated arm alone: {note}" if note else f"verified: {_FOR_AN_ARM}")


def _arm_problem(release: Release) -> str:
    """Says why a real arm does not take a release although it is signed; empty if it does."""
    try:
        release.check_for_arm()
    except HandoffError as error:
        return _phrase(error, release.folder)
    return ""


def _phrase(error: HandoffError, folder: Path) -> str:
    return str(error).removeprefix(f"release {folder}: ")


def _signature_lines(examination: Examination) -> Iterator[str]:
    statement, signer = examination.statement, examination.signer
    yield f"release  {examination.folder}, {counted(len(examination.files), 'file')}"
    if statement is not None:
        yield f"digest   {statement.digest}"
        yield f"signed   {_signature_text(statement)}"
        agree = f"all {len(statement.files)} are those that were signed"
        yield f"files    {agree if statement.files == examination.files else 'see below'}"
    if signer is not None:
        yield f"key      {signer.text}{'' if not examination.problems else ', see below'}"


def _release_lines(release: Release) -> Iterator[str]:
    about = release.about
    digests, approved = about["digests"], about["approved"]
    yield f"policy   {about['name']}, bundle {digests['bundle'][:12]}, commit {about['commit']}"
    yield f"gate     passed, {digests['gate'][:12]}, by {about['person']} at {about['time']}"
    if approved is not None:
        yield f"approval by {approved['by']} at {approved['time']}, {digests['approval'][:12]}"


def _signature_text(statement: Statement) -> str:
    signed = statement.signed
    return (
        f"by {signed.get('person', 'an unnamed person')} at {signed.get('time', 'an unknown time')}"
    )


def _check_not_revoked(folder: Path, marks: Sequence[str]) -> None:
    revoked = read_trust_store(folder).revoked
    for entry in [revoked[mark] for mark in marks if mark in revoked]:
        raise HandoffError(
            f"key {entry.name or entry.fingerprint[:SHORTEST_PREFIX]}: was revoked by {entry.person} at {entry.time}: "
            f"{entry.reason}. Make a new one: handoff keys new NAME"
        )


def _private_key_file(folder: Path, key: str | None) -> Path:
    """The file of the key to sign with."""
    revoked = read_trust_store(folder).revoked
    own = own_keys(folder)
    names = [each.name for each in own if each.fingerprint not in revoked or each.name == key]
    # A revoked key that is the only one is named by the check behind this.
    names = names or [each.name for each in own]
    if key is None and len(names) == 1:
        return folder / f"{names[0]}{PRIVATE}"
    if key is None:
        hint = f"choose one with --key: {', '.join(names)}" if names else "handoff keys new NAME"
        raise HandoffError(
            f"sign: {len(names)} keys in {folder} that are not revoked, expected one; {hint}."
        )
    if key in names:
        return folder / f"{key}{PRIVATE}"
    if not Path(key).is_file():
        hint = suggest(key, names) if names else "there are none"
        raise HandoffError(f"sign: no key '{key}' in {folder}, and no file of that name; {hint}.")
    return Path(key)


def _passphrase(file: Path) -> str | None:
    """The passphrase of a key that has one, from the environment or the terminal."""
    if not is_encrypted(read_secret(file)):
        return None
    return os.environ.get(PASSPHRASE_VARIABLE) or _asked(f"Passphrase of {file.name}: ")


def _new_passphrase() -> str:
    first = _asked("Passphrase of the new key: ")
    if _asked("Once more: ") != first:
        raise HandoffError("keys: the two passphrases differ.")
    return first


def _asked(question: str) -> str:
    if not sys.stdin.isatty():
        raise HandoffError(
            f"keys: no terminal to ask for a passphrase. Set {PASSPHRASE_VARIABLE} for this command."
        )
    answer = getpass(question)
    if not answer:
        raise HandoffError("keys: the passphrase is empty.")
    return answer


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise HandoffError(f"key {file}: cannot be read ({error.strerror}).") from None

"""Defines the commands for signed releases: `keys`, `sign`, `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands import completers
from flows.commands.parameters import Debug, Flag

SignedBy = Annotated[
    str | None, Parameter(help="Name of the person, which is recorded; default: the login.")
]


def keys_new(name: str, /, *, passphrase: Flag = False, debug: Debug = False) -> None:
    """Make a key pair to sign releases with: ECDSA on the curve P-256.

    The keys are in ~/.config/handoff/keys, or in $HANDOFF_KEYS.

    Args:
        name: Name of the key, e.g. that of the person.
        passphrase: Protect the private key with a passphrase, which is asked for, or taken from
            $HANDOFF_KEY_PASSPHRASE.

    Examples:
        handoff keys new ada
        handoff keys new ada-2027 --passphrase
    """
    from flows.releasing import new_key_command

    new_key_command(name, passphrase=passphrase, say=_print)


def keys_trust(
    file: Path, /, *, name: str | None = None, again: Flag = False, debug: Debug = False
) -> None:
    """Trust a public key, or a certificate, whose releases may then move an arm of this computer.

    Args:
        file: Public key or certificate, as a PEM file.
        name: Name under which it is known here; default: that of the file.
        again: Lift the revocation of the key.

    Examples:
        handoff keys trust ada.pub
        handoff keys trust lab_root.pem --name lab
    """
    from flows.releasing import trust_key_command

    trust_key_command(file, name=name, again=again, say=_print)


def keys_revoke(
    key: str,
    /,
    *,
    reason: str,
    person: SignedBy = None,
    debug: Debug = False,
) -> None:
    """Revoke a key, or one release: this computer refuses all that the key has signed.

    Args:
        key: Name or fingerprint of a key, or the digest of a release.
        reason: Reason, which is recorded and shown.

    Examples:
        handoff keys revoke ada --reason "the laptop was stolen"
        handoff keys revoke 3f9c0a1b2c4d --reason "left the lab" --person grace
    """
    from flows.releasing import revoke_key_command

    revoke_key_command(key, reason=reason, person=person, say=_print)


def keys_list(*, debug: Debug = False) -> None:
    """List own, trusted and revoked keys with their fingerprints.

    Examples:
        handoff keys list
    """
    from flows.releasing import list_keys_command

    list_keys_command(_print)


def sign(
    source: Annotated[Path, Parameter(completer=completers.artifacts)],
    /,
    *,
    key: str | None = None,
    certificate: Path | None = None,
    name: str | None = None,
    person: SignedBy = None,
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Assemble a release folder from a gate or an approval, and sign it.

    The folder has the policy and the evidence for it; it is what is copied to the computer of an
    arm.

    Args:
        source: Approval of a run, e.g. runs/demo_approved/approval, or a gate, whose release a
            simulated arm alone takes.
        key: Name of an own key, or path of a private key; default: the only own key.
        certificate: Certificates for a signature by certificate, as a PEM file: that of the key,
            then those of its authorities except the root.
        name: Name of the release; default: that of the run.
        out: Folder of the release; default: runs/releases/NAME.

    Examples:
        handoff sign runs/demo_approved/approval
        handoff sign runs/demo_approved/approval --key ada --out /media/usb/demo
    """
    from flows.releasing import sign_command

    sign_command(
        source,
        key=key,
        certificate=certificate,
        name=name,
        person=person,
        out=out,
        say=_print,
    )


def verify(folder: Path, /, *, key: Path | None = None, debug: Debug = False) -> None:
    """Verify a release folder: who signed it and when, what it is, and all that is wrong with it.

    The exit code is 1 unless a trusted key has signed it and nothing is wrong.

    Args:
        folder: The release folder.
        key: Public key or certificate that is trusted in place of those of `handoff keys list`.

    Examples:
        handoff verify runs/releases/demo_approved
        handoff verify /media/usb/demo --key ada.pub
    """
    from flows.releasing import verify_command

    verify_command(folder, key=key, say=_print)


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)

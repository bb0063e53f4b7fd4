"""Seals the order in which policies act: drawn before the first episode, kept in a file that tells
nobody anything by its looks, and revealed when the comparison is over.

The file has a secret text, from which the order of every pair is computed, and the SHA-256 of that
text, which is announced at the start: whoever noted it can check at the end that the order was not
changed. The orders of pairs are independent and all equally likely, so that earlier pairs say
nothing about the next one, and so that the test's exchanges within a pair are draws that might have
been made.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flows.deployment.blinded.config import BlindedConfig
from robots.config import to_plain
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

FILE = "sealed.json"
"""File of the sealed order in the folder of a session."""


class ComparedPolicy(NamedTuple):
    """A policy that is compared."""

    name: str
    """Release or artifact, as it was named on the command line."""
    digest: str
    """SHA-256 of its ONNX file."""


class SealedOrder(NamedTuple):
    """The hidden order of the policies."""

    secret: str
    """Text from which the orders are computed."""
    policies: tuple[ComparedPolicy, ...]
    """The compared policies, as they were named on the command line."""
    config: BlindedConfig
    """Options of the comparison."""

    @property
    def commitment(self) -> str:
        """SHA-256 of the secret, in hexadecimal digits."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def order(self, pair: int) -> tuple[int, ...]:
        """Indices of the policies in the order in which they act in a pair, counted from 0."""
        digest = hashlib.sha256(f"{self.secret} {pair}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "big"))
        return tuple(int(policy) for policy in rng.permutation(len(self.policies)))


def open_order(
    folder: Path, policies: Sequence[ComparedPolicy], config: BlindedConfig
) -> SealedOrder:
    """The order of the comparison in `folder`, which is drawn and sealed by the first session.

    Args:
        folder: existing folder of the session.
        policies: two or more policies.
        config: options of the comparison.

    Raises:
        HandoffError: another comparison was begun in this folder, or its file was changed.
    """
    if (folder / FILE).exists():
        begun = read_order(folder)
        given = SealedOrder(begun.secret, tuple(policies), config)
        _check_same(folder, begun, given)
        return begun
    order = SealedOrder(_secret(config.seed), tuple(policies), config)
    content = {
        "commitment": order.commitment,
        "secret": order.secret,
        "policies": [policy._asdict() for policy in order.policies],
        "config": to_plain(config),
    }
    write_atomically(folder / FILE, (json.dumps(content, indent=2) + "\n").encode())
    os.chmod(folder / FILE, 0o600)
    return order


def read_order(folder: Path) -> SealedOrder:
    """Reads the order of the comparison in `folder`.

    Raises:
        HandoffError: no comparison was begun there, or the file does not match its commitment.
    """
    from robots.config import validate

    path = folder / FILE
    try:
        content: Mapping[str, Any] = json.loads(path.read_bytes())
        policies = tuple(ComparedPolicy(**entry) for entry in content["policies"])
        options = validate(BlindedConfig, content["config"], str(path))
        order = SealedOrder(str(content["secret"]), policies, options)
        commitment = content["commitment"]
    except FileNotFoundError:
        raise HandoffError(
            f"blinded: {folder} has no {FILE}, so no comparison was begun there. Is --out right?"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise HandoffError(f"blinded: cannot read {path} ({error}). Was it edited?") from None
    if order.commitment != commitment:
        raise HandoffError(
            f"blinded: the secret in {path} has the SHA-256 {order.commitment[:12]}, the file states "
            f"{str(commitment)[:12]}. Was it edited? Begin anew in another --out."
        )
    return order


def _secret(seed: int | None) -> str:
    if seed is None:
        return secrets.token_hex(32)
    return hashlib.sha256(f"order of a blinded comparison, seed {seed}".encode()).hexdigest()


def _check_same(folder: Path, begun: SealedOrder, given: SealedOrder) -> None:
    """Refuses a session that would go on with other policies or options."""
    if begun.policies != given.policies:
        names = [policy.name for policy in begun.policies]
        changed = [
            then.name
            for then, now in zip(begun.policies, given.policies, strict=False)
            if then.name == now.name and then.digest != now.digest
        ]
        problem = f"was begun with {names[0]} --against {' --against '.join(names[1:])}"
        if changed:
            problem += f", and the policy of {', '.join(changed)} is another one since"
        raise HandoffError(
            f"blinded: the comparison in {folder} {problem}. Give the same, in the same order, or another --out."
        )
    before, now = (to_plain(order.config) for order in (begun, given))
    stated = [_option(name, value) for name, value in before.items() if value != now[name]]
    if stated:
        raise HandoffError(
            f"blinded: the comparison in {folder} was begun {', '.join(stated)}. Give the same, or another --out."
        )


def _option(name: str, value: Any) -> str:
    """An option of a comparison as it was given on the command line."""
    if value is True:
        return f"with --{name}"
    return f"without --{name}" if value in (False, None) else f"with --{name} {value}"

"""Proves to both ends of a connection that the other one has the token, which itself is not sent.

Each end sends a random challenge, and answers the other's by an HMAC-SHA256 of both under the
token. The frames after that are neither encrypted nor signed: use a private network, or a tunnel
such as `ssh -L`.
"""

from __future__ import annotations

import hmac
import os

from robots.errors import HandoffError
from robots.wire.policy import TOKEN_VARIABLE
from sim.servers.channel import FIRST_FRAME, Channel

CHALLENGE_BYTES = 32
BUSY = "busy"
"""Answer to a connection beyond the listener's number of servers."""
SECONDS = 10.0
"""Time limit for each message of the proof [s]."""


class BusyListenerError(HandoffError):
    """The listener runs as many servers as it may."""


def prove_as_client(channel: Channel, token: str, address: str) -> None:
    """Proves the token to a listener, and checks the listener's proof.

    Args:
        channel: newly connected channel.
        token: the token.
        address: address of the listener, for messages.

    Raises:
        HandoffError: one of the ends has another token, or the other end is no listener.
    """
    own = os.urandom(CHALLENGE_BYTES)
    theirs = _challenge(channel, address)
    channel.send({"challenge": own, "proof": _proof(token, b"client", own, theirs)})
    answer, _ = channel.receive(SECONDS)
    if "refused" in answer or not _equal(
        answer.get("proof"), _proof(token, b"server", own, theirs)
    ):
        raise HandoffError(
            f"environment server {address}: it has another token. Set ${TOKEN_VARIABLE} to that of the listener."
        )


def prove_as_listener(channel: Channel, token: str) -> bool:
    """Checks a client's proof, and proves the token to it.

    Args:
        channel: newly accepted channel.
        token: the token.

    Returns:
        Whether the client has the token; it is refused otherwise.
    """
    largest = channel.largest
    channel.largest = FIRST_FRAME
    own = os.urandom(CHALLENGE_BYTES)
    channel.send({"challenge": own})
    answer, _ = channel.receive(SECONDS)
    theirs = _bytes(answer.get("challenge"))
    proof = _proof(token, b"client", theirs, own)
    if len(theirs) != CHALLENGE_BYTES or not _equal(answer.get("proof"), proof):
        channel.send({"refused": "token"})
        return False
    channel.send({"proof": _proof(token, b"server", theirs, own)})
    channel.largest = largest
    return True


def _challenge(channel: Channel, address: str) -> bytes:
    message, _ = channel.receive(SECONDS)
    challenge = _bytes(message.get("challenge"))
    if message.get("refused") == BUSY:
        raise BusyListenerError(
            "it runs as many servers as it may. Start the listener with a larger --most, or close others."
        )
    if len(challenge) != CHALLENGE_BYTES:
        raise HandoffError(
            f"environment server {address}: no listener answers there, expected `python -m sim.servers.listen`."
        )
    return challenge


def _proof(token: str, side: bytes, client: bytes, listener: bytes) -> bytes:
    return hmac.digest(token.encode(), side + client + listener, "sha256")


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _equal(value: object, expected: bytes) -> bool:
    return hmac.compare_digest(_bytes(value), expected)

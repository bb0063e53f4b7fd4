"""Implements `handoff deploy RELEASE --against RELEASE`: a person judges policies without knowing
which one acts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.deployment.blinded.blinded_run import ORDINALS, BlindedRun
from flows.deployment.blinded.config import BlindedConfig
from flows.deployment.blinded.result import PAGE, RESULT, STORE, reveal
from flows.deployment.blinded.sealed_order import FILE, ComparedPolicy, open_order
from flows.deployment.config import DeploySession, DeployTaskSession
from flows.deployment.safety import is_real
from flows.deployment.session import Mode, check_policy, deploy, session_options, slowed
from flows.runner.artifact import file_digest
from robots.contract import CONTRACT_KEY, ONNX_FILE, Contract
from robots.errors import HandoffError
from robots.storage.onnx_file import onnx_metadata

if TYPE_CHECKING:
    from real.console.server import ConsoleConfig

ALIKE = (
    "task",
    "robot",
    "observation",
    "sensors",
    "instruction",
    "action",
    "action_interface",
    "rate_hz",
    "steps",
    "dynamics",
    "impedance",
)
"""Entries of the contracts in which compared policies agree: the table, the recording and the arm's
law are the same for all, so that none of them tells a policy."""


def compare(
    session: DeploySession | DeployTaskSession,
    releases: Sequence[str],
    bundles: Sequence[Path],
    config: BlindedConfig,
    out: Path,
    console: ConsoleConfig,
    *,
    person: str = "",
    episodes: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any] | None:
    """Goes on with a comparison until it is over or the person ends the session; returns its
    figures, or None if it is not over.

    Args:
        session: options of arm, limits and rates.
        releases: names of the policies.
        bundles: directories with their `policy.onnx`.
        config: options of the comparison.
        out: folder of the comparison; a later session goes on in it.
        console: address and port of the console.
        person: see `flows.deployment.session.deploy`.
        episodes: see there.
        say: see there.

    Raises:
        HandoffError: see `check_comparison` and `flows.deployment.session.deploy`; or another
            comparison, or another kind of session, was begun in this folder.
    """
    from real.deploy.onnx_policy import OnnxPolicy

    files = [bundle / ONNX_FILE for bundle in bundles]
    contracts = [_contract(file) for file in files]
    check_comparison(session, releases, contracts)
    if (out / RESULT).exists():
        say(f"The comparison in {out} is over; begin another one in another --out.")
        return json.loads((out / RESULT).read_bytes())
    out.mkdir(parents=True, exist_ok=True)
    if (out / STORE).exists() and not (out / FILE).exists():
        raise HandoffError(f"blinded: {out} has episodes of another session. Give another --out.")
    digests = [file_digest(file) for file in files]
    compared = [ComparedPolicy(*each) for each in zip(releases, digests, strict=True)]
    order = open_order(out, compared, config)
    say(f"order    sealed, SHA-256 {order.commitment}")
    make_run = partial(
        BlindedRun,
        order,
        [OnnxPolicy(file) for file in files[1:]],
        [slowed(contract, session.speed) for contract in contracts],
        out,
    )
    deploy(
        session,
        bundles[0],
        out,
        console,
        person=person,
        episodes=episodes,
        say=say,
        make_run=make_run,
        # Both episodes of a pair are told the same.
        instructable=False,
    )
    return reveal(out)


def compare_command(
    releases: Sequence[Path],
    overrides: Sequence[str],
    config: BlindedConfig,
    out: Path,
    console: ConsoleConfig,
    *,
    arm: str | None,
    trackers: Sequence[str],
    cameras: Sequence[str],
    instruction: str | None,
    mode: Mode,
    recording: Path | None,
    person: str,
    episodes: int | None,
    reveal_now: bool,
) -> None:
    """Runs `handoff deploy` with `--against`, whose parameters `flows.commands.sessions.deploy`
    describes.

    Raises:
        HandoffError: see `compare`.
    """
    from rich.console import Console

    from flows.deployment.verified_policy import verified_policy

    say = partial(Console().print, highlight=False, soft_wrap=True, markup=False)
    if reveal_now:
        report(reveal(out, early=True), out, say)
        return
    session = session_options(
        releases[0],
        overrides,
        arm=arm,
        trackers=trackers,
        cameras=cameras,
        instruction=instruction,
        mode=mode,
        recording=recording,
        warn=say,
    )
    robot = f"{session.arm.robot} at {session.host}" if is_real(session) else None
    with ExitStack() as stack:
        bundles = [
            stack.enter_context(verified_policy(release, arm=robot, warn=say))
            for release in releases
        ]
        names = [str(release) for release in releases]
        result = compare(
            session,
            names,
            bundles,
            config,
            out,
            console,
            person=person,
            episodes=episodes,
            say=say,
        )
    report(result, out, say)


def report(result: dict[str, Any] | None, out: Path, say: Callable[[str], None]) -> None:
    """Says what a comparison came to, or how it goes on."""
    if result is None:
        say(
            "The comparison is not over, and nothing is revealed: the same command goes on with it;"
        )
        say("--reveal ends it with what was played.")
        return
    say(result["outcome"])
    say(f"result   {out / PAGE}")


def check_comparison(
    session: DeploySession | DeployTaskSession,
    releases: Sequence[str],
    contracts: Sequence[Contract],
) -> None:
    """Checks that policies can be compared without telling them apart.

    Raises:
        HandoffError: too few or too many policies, one that is named twice or does not fit the
            arm, contracts that differ in `ALIKE`, options that are of one policy only, or a real
            arm without a camera that keeps the start.
    """
    if not 2 <= len(releases) <= len(ORDINALS):
        raise HandoffError(
            f"blinded: {len(releases)} policies, expected 2 to {len(ORDINALS)}. Name others by --against."
        )
    if len(set(releases)) != len(releases):
        raise HandoffError(
            f"blinded: {', '.join(releases)} names a policy twice, expected different ones."
        )
    if session.recording or session.shadow or session.hints.sources:
        raise HandoffError(
            "blinded: recorded actions, a policy that only thinks, and hints would tell which policy acts, or need one "
            "policy. Leave out recording, shadow and hints."
        )
    for name, contract in zip(releases, contracts, strict=True):
        check_policy(session, contract)
        differing = [
            entry for entry in ALIKE if getattr(contract, entry) != getattr(contracts[0], entry)
        ]
        if differing:
            raise HandoffError(
                f"blinded: {name} and {releases[0]} differ in {', '.join(differing)} of their contracts. Compared "
                "policies observe, act and are run alike."
            )
    if is_real(session) and not session.cameras:
        raise HandoffError(
            "blinded: at a real arm the person puts the objects back as a picture of the start shows: add --camera "
            "NAME=SOURCE."
        )


def _contract(file: Path) -> Contract:
    return Contract.from_json(onnx_metadata(file.read_bytes())[CONTRACT_KEY])

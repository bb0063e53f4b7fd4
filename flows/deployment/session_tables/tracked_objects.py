"""Checks that trackers and constants provide what a policy observes of the objects at an arm."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config.overrides import quoted
from flows.deployment.config import DeployTaskSession
from flows.deployment.safety import is_real
from flows.deployment.session_tables.gripper_table import object_fields
from real.deploy.field_trackers import check_trackers, is_computed
from real.deploy.tracked_field import RemoteTrackerConfig
from robots.contract import Contract
from robots.control.relations import measured_for
from robots.errors import HandoffError
from robots.franka import find_robot


def check_objects(session: DeployTaskSession, contract: Contract) -> None:
    """Checks that everything that a policy observes of objects is measured, once.

    Args:
        session: options of the session.
        contract: contract of the policy.

    Raises:
        HandoffError: a field of no tracker at an arm that is not simulated, or of two; one that the
            policy does not observe; or a limit of time that is looser than its default at a real
            arm.
    """
    objects = object_fields(contract, find_robot(session.arm.robot))
    check_trackers(session.trackers, session.constants, contract, objects)
    missing = unmeasured(session, contract)
    if session.host and missing:
        wanted = _to_measure(session, contract, missing)
        raise HandoffError(
            f"deploy: the policy observes {', '.join(missing)}, which the arm does not measure. Add trackers of "
            f"{', '.join(wanted)}, such as --tracker {wanted[0]}=ws://host:port, or values that do not change, "
            f"constants.{wanted[0]}=[..]; or train a policy that observes cameras in their place, as "
            "configs/pick_cube_cameras.yaml does."
        )
    if not is_real(session):
        return
    usual = RemoteTrackerConfig().max_age
    for name, tracker in session.trackers.items():
        for field, limits in tracker.fields.items():
            age = tracker.max_age if limits.max_age is None else limits.max_age
            if age > usual:
                raise HandoffError(
                    f"trackers.{name}: max_age of {field} is {age} s, at most {usual} at a real arm: its limits can be "
                    "tightened, not loosened."
                )


def unmeasured(session: DeployTaskSession, contract: Contract) -> list[str]:
    """Fields of a contract that neither the arm nor its gripper nor a tracker measures, that are no
    constants, and that do not follow from what is measured."""
    given = _given(session)
    objects = object_fields(contract, find_robot(session.arm.robot))
    return [
        name
        for name in objects
        if name not in given and not is_computed(contract.observation[name], given)
    ]


def _given(session: DeployTaskSession) -> set[str]:
    """Fields of the session's trackers and constants."""
    tracked = {name for tracker in session.trackers.values() for name in tracker.fields}
    return tracked | {*session.constants}


def _to_measure(
    session: DeployTaskSession, contract: Contract, missing: Sequence[str]
) -> list[str]:
    """What would have to be measured for missing fields to be known: themselves, or what they are
    computed from."""
    given = _given(session)
    wanted: dict[str, None] = {}
    for name in missing:
        sources = measured_for(contract.observation[name]) or [name]
        wanted |= dict.fromkeys(source for source in sources if source not in given)
    return [*wanted]


def tracker_overrides(arguments: Sequence[str], task: str | None) -> list[str]:
    """The arguments `--tracker URI`, of push-T's T, or `--tracker FIELD[,FIELD..]=URI` as overrides
    of a session's options.

    Args:
        arguments: the arguments.
        task: task of the policy; None is one that is not known.

    Raises:
        HandoffError: names where the T is tracked, several trackers of it, no names elsewhere, or a
            name that is given twice.
    """
    board = task in ("push_t", None)
    chosen: list[str] = []
    known: set[str] = set()
    for argument in arguments:
        names, _, uri = (
            argument.rpartition("=") if "=" in argument.partition("://")[0] else ("", "", argument)
        )
        fields = [name.strip() for name in names.split(",") if name.strip()]
        if board and (fields or chosen):
            raise HandoffError(
                f"--tracker {argument}: push-T has one tracker, of the T, e.g. ws://10.0.0.5:9000."
            )
        if board:
            chosen.append(f"tracker.uri={quoted(uri)}")
            continue
        if not fields or known & {*fields}:
            raise HandoffError(
                f"--tracker {argument}: expected the observed fields that it sends, each of them once, and its "
                "address, e.g. cube_position,cube_quaternion=ws://10.0.0.5:9000."
            )
        known |= {*fields}
        name = fields[0]
        chosen.append(f"trackers.{name}.uri={quoted(uri)}")
        chosen += [f"trackers.{name}.fields.{field}={{}}" for field in fields]
    return chosen

"""Opens the trackers of a policy's observation, each of them with fields of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from real.deploy.object_tracker import RemoteTracker, check_tracker_address
from real.deploy.tracked_field import (
    RESERVED,
    FieldTrackerConfig,
    contract_fields,
    trackable_fields,
)
from robots.contract import Contract
from robots.control.relations import GRASP_POSE, measured_for, related
from robots.control.training_range import RangeCheck
from robots.errors import HandoffError, SafetyError, suggest
from robots.interfaces import Observation
from robots.spec import FieldSpec

Constants = Mapping[str, Sequence[float]]
"""Values of observed fields that do not change."""


class FieldTrackers:
    """The newest values of all tracked fields, the constant ones, and those that follow from them
    and from the place of the gripper."""

    def __init__(
        self, trackers: Mapping[str, RemoteTracker], contract: Contract, constants: Constants
    ) -> None:
        """Prepares to read.

        Args:
            trackers: open tracker by the name of the field.
            contract: contract of the policy.
            constants: values by field.
        """
        self._trackers = trackers
        self._specs = contract.observation
        self._constants = {
            name: np.array(value, dtype=np.float64) for name, value in constants.items()
        }
        given = {*trackers, *constants}
        self._computed = {
            name: spec.relations
            for name, spec in contract.observation.items()
            if name not in given and is_computed(spec, given)
        }

    def observe(self, grasp_pose: np.ndarray) -> Observation:
        """The fields without a leading dimension, in the shapes and number types of the contract.

        Args:
            grasp_pose: (6,) the gripper's pose now, position and rotation vector [m, rad]. What is
                relative to it is computed with the newest values of what is tracked.

        Raises:
            SafetyError: a value is too old.
        """
        values = {name: tracker.read(name) for name, tracker in self._trackers.items()}
        known = {**values, **self._constants, GRASP_POSE: grasp_pose}
        known |= {name: related(parts, known) for name, parts in self._computed.items()}
        return {
            name: known[name].reshape(spec.shape).astype(spec.dtype)
            for name, spec in self._specs.items()
            if name in known and name != GRASP_POSE
        }


def check_trackers(
    trackers: Mapping[str, FieldTrackerConfig],
    constants: Constants,
    contract: Contract,
    objects: Sequence[str],
) -> None:
    """Checks that trackers and constants together provide fields of a policy, each of them once.

    Args:
        trackers: trackers by name.
        constants: values of fields that do not change.
        contract: contract of the policy.
        objects: fields of the contract that neither the arm nor its gripper measures.

    Fields from which others are computed, see `robots.spec.Relation`, may be given although the
    policy does not observe them itself.

    Raises:
        HandoffError: a tracker without a WebSocket address or fields, a field that the policy does
            not observe or that the arm measures itself, one that is given twice, bounds or
            values of another size than the field's, or a constant far outside the training data.
    """
    given = dict.fromkeys(constants, "constants")
    for tracker, config in trackers.items():
        check_tracker_address(f"trackers.{tracker}", config.uri)
        for field in config.fields:
            if field in given:
                raise HandoffError(
                    f"trackers.{tracker}: the field '{field}' is given by {given[field]} as well. Leave one out."
                )
            given[field] = f"trackers.{tracker}"
    specs = trackable_fields(contract)
    known = [*objects, *(name for name in specs if name not in contract.observation)]
    for field, source in given.items():
        if field in RESERVED or field not in known:
            raise HandoffError(
                f"{source}: the policy observes no field '{field}' that the arm does not measure itself, "
                f"{suggest(field, known)}"
            )
    for tracker, config in trackers.items():
        contract_fields(tracker, config, contract)
    for name, value in constants.items():
        size = int(np.prod(specs[name].shape))
        if len(value) != size:
            raise HandoffError(
                f"constants.{name}: {len(value)} values, the field has {size} entries "
                f"[{specs[name].unit}]."
            )
        try:
            RangeCheck({name: specs[name]}, contract.training_range)(np.array(value))
        except SafetyError as far:
            # The policy would refuse it too, when the person has pressed Start.
            raise HandoffError(f"constants.{name}: {str(far).removeprefix('policy: ')}") from None


def is_computed(spec: FieldSpec, given: Collection[str]) -> bool:
    """Whether a field follows from fields that are given, and from the gripper's pose."""
    return bool(spec.relations) and all(name in given for name in measured_for(spec))


@contextmanager
def field_trackers(
    trackers: Mapping[str, FieldTrackerConfig], constants: Constants, contract: Contract
) -> Iterator[FieldTrackers]:
    """Connects to all trackers while the context lasts.

    Args:
        trackers: trackers by name, checked by `check_trackers`.
        constants: values of fields that do not change.
        contract: contract of the policy.

    Raises:
        HandoffError: an unusable token, or a field without a value in time.
    """
    with ExitStack() as stack:
        opened: dict[str, RemoteTracker] = {}
        for name, config in trackers.items():
            fields = contract_fields(name, config, contract)
            tracker = stack.enter_context(RemoteTracker(config, fields))
            opened |= dict.fromkeys(config.fields, tracker)
        yield FieldTrackers(opened, contract, constants)

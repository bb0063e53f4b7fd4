"""Joins several success classifiers to one that is as pessimistic as the least certain of them.

The score is the minimum of the members' probabilities, so a step counts as success only where all
members agree at the threshold. A policy that is rewarded by a classifier finds the states at which
the classifier is wrong; members of other initial weights and minibatches are wrong at others, and
the minimum leaves only the states at which all are. The minimum is the worst-case optimisation of
reward ensembles (Coste et al., arXiv 2310.02743), and has no constant to choose, unlike the mean
less k deviations. As the sigmoid is monotone, it is the same of logits and of probabilities.

Shape suffixes: E members, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from policies.rewards.success_classifier import SuccessClassifier, TrunkImageEncoder
from robots.errors import HandoffError


class SuccessEnsemble(nn.Module):
    """Maps observations, as fields `(B, ...)` by name, to the least of its members' logits `(B,)`.

    Members whose images a frozen trunk encodes share the trunk of the first, which encodes each
    image once.

    Args:
        members: at least two classifiers of the same observation.

    Raises:
        HandoffError: fewer than two members, or different observations.
    """

    def __init__(self, members: Sequence[SuccessClassifier]) -> None:
        super().__init__()
        observations = [member.observation for member in members]
        if len(members) < 2 or any(one != observations[0] for one in observations):
            raise HandoffError(
                f"success ensemble: {len(members)} members with the fields {[sorted(one) for one in observations]}, "
                "expected at least 2 members with the same fields."
            )
        first = members[0]
        self.observation = first.observation
        self.images = first.images
        self.shared = [
            name for name in first.images if isinstance(first.encoders[name], TrunkImageEncoder)
        ]
        """Images that the shared trunk encodes."""
        for member in members[1:]:
            for name in self.shared:
                _trunk_encoder(member, name).trunk = _trunk_encoder(first, name).trunk
        self.members = nn.ModuleList(members)

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        """Least logits `(B,)`; the fields are those of `SuccessClassifier`."""
        encoded = dict(fields)
        first = cast(SuccessClassifier, self.members[0])
        for name in self.shared:
            if fields[name].dtype == torch.uint8:
                image_BCHW = fields[name].permute(0, 3, 1, 2).float() / 255.0
                encoded[name] = _trunk_encoder(first, name).trunk(image_BCHW)
        logit_EB = torch.stack([member(encoded) for member in self.members])
        return logit_EB.amin(dim=0)

    def own_state(self) -> dict[str, Tensor]:
        """The `state_dict` with the shared trunk once."""
        return {
            name: tensor for name, tensor in self.state_dict().items() if not self._repeated(name)
        }

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores an `own_state`.

        Raises:
            RuntimeError: names or shapes do not match, as torch's `load_state_dict`.
        """
        repeated = {
            name: state[_in_first(name)]
            for name in self.state_dict()
            if self._repeated(name) and _in_first(name) in state
        }
        self.load_state_dict({**state, **repeated})

    def _repeated(self, name: str) -> bool:
        """Whether a weight is of the trunk in a member after the first."""
        return bool(self.shared) and ".trunk." in name and not name.startswith("members.0.")


SuccessModel = SuccessClassifier | SuccessEnsemble
"""A classifier, or several with one score."""


def pessimistic(members: Sequence[SuccessClassifier]) -> SuccessModel:
    """The ensemble of the members; a single one is returned unchanged."""
    return members[0] if len(members) == 1 else SuccessEnsemble(members)


def _trunk_encoder(member: SuccessClassifier, name: str) -> TrunkImageEncoder:
    return cast(TrunkImageEncoder, member.encoders[name])


def _in_first(name: str) -> str:
    """The name of a member's weight in the first member."""
    _, _, rest = name.removeprefix("members.").partition(".")
    return f"members.0.{rest}"

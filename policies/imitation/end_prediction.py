"""Predicts from the encoded observation how fields change until the episode's end, beside the
actions.

Actions say in which direction a thing lies that has to be seen, hardly how far: far away they are
at their limits, and near it the arm's own state tells enough. Where the demonstrator arrived is
known of every recorded step, in simulation and in a lab alike, and its difference from the present
has the whole distance in it. Auxiliary targets of an image encoder are those of Levine et al. (JMLR
2016, arXiv 1504.00702), who train theirs on poses before the policy; targets in hindsight are those
of Andrychowicz et al. (NeurIPS 2017). The network that predicts is not part of the policy.

Shape suffixes: B batch, N windows, M recorded steps, T observed steps, O observation, G predicted
entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from policies.data.windows import Windows
from policies.imitation.auxiliary_loss import recording_outputs
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import Batch, ChunkPolicy
from robots.errors import HandoffError, suggest

NAME = "end_prediction"
"""Name of the predictor among the policy's modules while it is trained."""
WIDTH = 256
"""Hidden units of the predictor."""
_SMALLEST = 1e-4
"""Smallest standard deviation of a change, in units of half the range of its entry."""


class EndPrediction(nn.Module):
    """A predictor of the changes, trained with the encoder of a policy; an `AuxiliaryLoss`.

    Args:
        encoder: encoder of the policy, whose output it takes.
        weight_G: weight of the mean absolute error of every predicted entry.
    """

    def __init__(self, encoder: ObservationEncoder, weight_G: Tensor) -> None:
        super().__init__()
        self.head = nn.Sequential(
            nn.Linear(encoder.steps * encoder.outputs, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, len(weight_G)),
        )
        self.register_buffer("weight_G", weight_G, persistent=False)
        self._encoded: list[Tensor] = []
        # A tuple: as a member the encoder would be a part of this module, too.
        self._encoder = (encoder,)

    def listening(self) -> AbstractContextManager[None]:
        """See `AuxiliaryLoss`."""
        return recording_outputs(self._encoder[0], self._encoded)

    def loss(self, batch: Batch) -> Tensor:
        """The weighted mean absolute error, given what the encoder has just returned.

        Args:
            batch: batch with `ending_BG`, whose policy loss was just computed.
        """
        assert batch.ending_BG is not None
        predicted_BG = self.head(self._encoded[0].float().flatten(1))
        return ((predicted_BG - batch.ending_BG).abs() * self.weight_G).mean(dim=0).sum()


def with_end_prediction(
    module: ChunkPolicy,
    windows: Windows,
    end_N: np.ndarray,
    weights: Mapping[str, float],
    entries: Mapping[str, tuple[int, int]],
    seed: int,
) -> tuple[Windows, EndPrediction | None]:
    """Adds a predictor to a policy in training, and its targets to the windows; without fields
    nothing is added.

    Args:
        module: the policy, which gets the member `end_prediction`.
        windows: windows of the training.
        end_N: index after the last step of every window's episode.
        weights: weight of the error, by field.
        entries: start and end of every observed field, see `Shapes.entries`.
        seed: seed of the initial weights.

    Raises:
        HandoffError: a field that the policy does not observe, or a policy without an encoder of
            observations.
    """
    if not weights:
        return windows, None
    for name in weights:
        if name not in entries:
            raise HandoffError(
                f"pretrain: predict_end names '{name}', which the policy does not observe; "
                f"{suggest(name, entries, 'observed are')}"
            )
    encoders = [part for part in module.modules() if isinstance(part, ObservationEncoder)]
    if len(encoders) != 1:
        raise HandoffError(
            f"pretrain: predict_end needs a family with one encoder of observations; {module.config.kind} has "
            f"{len(encoders)}. Leave it out."
        )
    index = np.concatenate([np.arange(*entries[name]) for name in weights])
    weight = np.concatenate([np.full(np.diff(entries[name]), weights[name]) for name in weights])
    newest_NG = windows.observation_MO[
        windows.observation_NT[:, -1].to(windows.observation_MO.device)
    ]
    last_N = torch.from_numpy(end_N - 1).to(windows.observation_MO.device)
    change_NG = (windows.observation_MO[last_N] - newest_NG)[:, torch.from_numpy(index)]
    scale_G = change_NG.std(dim=0, unbiased=False).clamp_min(_SMALLEST)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        predictor = EndPrediction(encoders[0], torch.from_numpy(weight).float() / len(weight))
    predictor = predictor.to(change_NG.device)
    module.add_module(NAME, predictor)
    return replace(windows, ending_NG=change_NG / scale_G), predictor


def without_end_prediction(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a policy without those of the predictor."""
    return {name: value for name, value in weights.items() if not name.startswith(f"{NAME}.")}

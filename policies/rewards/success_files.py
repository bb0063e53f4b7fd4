"""Saves, loads and exports success classifiers.

A single classifier is saved and exported as one network, without a word of an ensemble, so that its
files are those of builds that had no ensembles.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from policies.rewards.config import SuccessCard
from policies.rewards.success_classifier import SuccessClassifier
from policies.rewards.success_ensemble import SuccessEnsemble, SuccessModel, pessimistic
from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, write_atomically
from robots.success import SUCCESS_KEY, SuccessContract, without_single_member

if TYPE_CHECKING:
    import onnx

CARD, WEIGHTS = "success.json", "success.safetensors"


def save_classifier(path: Path, card: SuccessCard, classifier: SuccessModel) -> None:
    """Writes the classifier into the directory `path`; the card is written last, so that a folder
    with a card is complete."""
    from safetensors.torch import save

    whole = isinstance(classifier, SuccessEnsemble)
    named = classifier.own_state() if whole else classifier.state_dict()
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
    plain = without_single_member(to_plain(card))
    if card.model.activation == "relu":
        del plain["model"]["activation"]
    with explain_write_errors(path, "the success classifier was not saved"):
        write_atomically(path / WEIGHTS, save(state))
        write_atomically(path / CARD, json.dumps(plain, indent=2).encode())


def load_classifier(
    path: Path, encoders: Mapping[str, nn.Module] | None = None
) -> tuple[SuccessModel, SuccessCard]:
    """Loads a saved classifier, in evaluation mode, on the CPU.

    Args:
        path: directory of the classifier.
        encoders: modules with the architecture of those passed in training; their weights are
            replaced.

    Raises:
        HandoffError: the classifier is missing, damaged or of another version, or the encoders do
            not match.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        card = validate(SuccessCard, json.loads((path / CARD).read_text()), CARD)
        weights = load_file(path / WEIGHTS)
    except FileNotFoundError as error:
        raise HandoffError(
            f"{path}: no {Path(str(error.filename or WEIGHTS)).name}. Did the training finish?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise HandoffError(
            f"{path}: damaged classifier ({error}). Was a file cut short by a copy?"
        ) from None
    if card.version != 1:
        raise HandoffError(
            f"{path / CARD}: version {card.version}, this build reads 1. Train it again."
        )
    given = sorted(encoders or ())
    if given != sorted(card.foreign_encoders):
        raise HandoffError(
            f"{path}: encoders are given for {given}, expected {list(card.foreign_encoders)}."
        )
    classifier = _new_model(card, encoders)
    try:
        _load_weights(classifier, weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise HandoffError(f"{path / WEIGHTS}: weights do not match {CARD} ({reason}).") from None
    return classifier.eval(), card


def _new_model(card: SuccessCard, encoders: Mapping[str, nn.Module] | None) -> SuccessModel:
    """The networks of a card, whose weights are to be loaded; each member has its own encoders."""
    given = [encoders, *(copy.deepcopy(encoders) for _ in range(1, card.members))]
    return pessimistic([SuccessClassifier(card.observation, card.model, own) for own in given])


def _load_weights(classifier: SuccessModel, weights: Mapping[str, Tensor]) -> None:
    if isinstance(classifier, SuccessEnsemble):
        classifier.load_own_state(weights)
    else:
        classifier.load_state_dict(weights)


def classifier_to_onnx(
    classifier: SuccessModel, card: SuccessCard, opset: int = 21
) -> onnx.ModelProto:
    """Exports a classifier on the CPU to one graph: fields by name in, `probability` (B,) out, with
    a dynamic batch; of an ensemble, the least of the members' probabilities.

    The metadata contain the `SuccessContract`.
    """
    import logging
    import warnings

    # Example inputs.
    batch = torch.export.Dim("batch", min=1)
    example = {
        name: torch.zeros(
            2, *spec.shape, dtype=torch.uint8 if name in classifier.images else torch.float32
        )
        for name, spec in classifier.observation.items()
    }
    # Export without warnings.
    exporter = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # warns about missing torchvision
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations, and inputs with a common batch axis
            program = torch.onnx.export(
                _Probability(classifier).eval(),
                kwargs={"fields": example},
                dynamo=True,
                input_names=list(example),
                output_names=["probability"],
                dynamic_shapes={"fields": {name: {0: batch} for name in example}},
                opset_version=opset,
                verbose=False,
            )
    finally:
        exporter.setLevel(level)
    assert program is not None
    # Add the contract.
    model = program.model_proto
    entry = model.metadata_props.add()
    contract = SuccessContract(
        task=card.task,
        rate_hz=card.rate_hz,
        observation=card.observation,
        detector=card.detector,
        training_data=card.training_data,
        members=card.members,
    )
    entry.key = SUCCESS_KEY
    entry.value = contract.to_json()
    return model


class _Probability(nn.Module):
    def __init__(self, classifier: SuccessModel) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        return torch.sigmoid(self.classifier(fields))

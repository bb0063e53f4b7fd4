"""Names the kinds of artifacts that stages exchange.

A stage's function declares them in its signature: the kinds that it takes are the types of its
keyword arguments, the kind that it makes is the type of its result. A package outside Handoff
declares a further kind as another `NewType` of `Path`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NewType, TypeVar

Episodes = NewType("Episodes", Path)
"""Folder with an episode store, `store.zarr`."""
Examination = NewType("Examination", Path)
"""Folder with the faults that were found in episodes."""
Policy = NewType("Policy", Path)
"""Checkpoint folder of a policy, with its card."""
WorldModel = NewType("WorldModel", Path)
"""Folder of a world model."""
Classifier = NewType("Classifier", Path)
"""Folder of a success classifier."""
Dynamics = NewType("Dynamics", Path)
"""Folder with tuned parameters of a simulated robot."""
Evaluation = NewType("Evaluation", Path)
"""Folder with the result of an evaluation under a protocol."""
OpenLoop = NewType("OpenLoop", Path)
"""Folder with the errors of a policy's actions against recorded ones."""
Comparison = NewType("Comparison", Path)
"""Folder with a comparison of evaluations."""
Robustness = NewType("Robustness", Path)
"""Folder with the success of policies under displaced cameras, other light and distractors."""
Sensitivity = NewType("Sensitivity", Path)
"""Folder with the success of policies as a function of parameters of the environments."""
Family = NewType("Family", Path)
"""Folder with a family of environments: the parameters of every member."""
FamilyScores = NewType("FamilyScores", Path)
"""Folder with the success of policies in every member of a family of environments."""
Bundle = NewType("Bundle", Path)
"""Folder with an exported policy, its contract and golden examples."""
Gate = NewType("Gate", Path)
"""Folder with the report of a release gate that passed."""
Approval = NewType("Approval", Path)
"""Folder with a person's answer to the question whether a policy may move an arm."""

K = TypeVar("K")


@dataclass(frozen=True)
class Output(Generic[K]):
    """Result of a stage; its type parameter is the kind of the artifact that the stage wrote."""

    metrics: dict[str, Any]
    """Metrics for the manifest and the summary, JSON-ready."""


def kind_name(hint: Any) -> str:
    """Returns the name of a kind of artifact in manifests and messages, e.g. `world_model`."""
    name: str = hint.__name__
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))

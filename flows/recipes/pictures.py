"""Checks what the image encoders of a policy see of the pictures of the recipe's data sets, before
anything is read.

Pictures are those of data sets that a recipe names, and of simulated cameras, as far as
`flows.recipes.observed` knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from flows.recipes.observed import POLICY_INPUTS, environment_fields, recorded_fields
from flows.runner.stage import Stage
from policies.chunk_policy_config import ChunkPolicyConfig, EncodedPolicyConfig
from policies.networks.images.image_size import (
    EncodedSize,
    encoded_sizes,
    small_crop_note,
    small_crops,
)
from robots.errors import HandoffError

Size = tuple[int, int]
"""Height and width [px]."""


def check_crops(stage: Stage, *, data: bool = True) -> None:
    """Checks that the crops of the policy that a stage trains fit into the pictures of its
    episodes.

    Args:
        stage: the stage.
        data: whether data sets that the recipe names are opened for their fields.

    Raises:
        HandoffError: a crop is larger than the pictures of a camera.
    """
    if data:
        _cameras(stage)


def check_sizes(stage: Stage, *, data: bool = True) -> None:
    """Checks that the cameras of a stage's environments draw pictures of the size in which the
    policy has imitated them; otherwise it would be refused after its training.

    Args:
        stage: the stage.
        data: whether data sets that the recipe names are opened for their fields.

    Raises:
        HandoffError: a camera has another size.
    """
    given = environment_fields(stage.config)
    trained = _trained(stage) if data and given is not None and given.pictures else None
    if given is None or trained is None:
        return
    for name, recorded in _pictures(trained, trained.config.policy.image_fields).items():
        drawn = given.pictures.get(name, recorded)
        if drawn != recorded:
            raise HandoffError(
                f"stage {stage.name}: {name} of its environments ({given.of}) is {_text(drawn)} px, but {trained.name} "
                f"learns from {_text(recorded)} px. Give options.cameras of the protocol this height and width."
            )


def _trained(stage: Stage) -> Stage | None:
    """The stage whose policy with cameras a stage evaluates or trains further; None if it has none,
    or one that is not known."""
    source = next((stage.inputs[name] for name in POLICY_INPUTS if name in stage.inputs), None)
    if source is None:
        return None
    if isinstance(getattr(source.config, "policy", None), EncodedPolicyConfig):
        return source
    return _trained(source)


def crop_lines(declared: Sequence[Stage]) -> Iterator[str]:
    """Yields what a policy sees of every camera, and a note on crops that cover less than half of a
    picture.

    Raises:
        HandoffError: a crop is larger than the pictures of a camera.
    """
    for stage in declared:
        cameras, whole = _cameras(stage), _uncropped(stage)
        if cameras or whole:
            yield ""
        for name, recorded in whole.items():
            yield f"{stage.name}: sees all of {name} ({_text(recorded)})"
        for name, (recorded, size) in cameras.items():
            resized = f", resized to {_text(size.resized)}" if size.resized != recorded else ""
            yield f"{stage.name}: sees {_text(size.crop)} px of {name} ({_text(recorded)}{resized})"
        note = small_crop_note(small_crops({name: size for name, (_, size) in cameras.items()}))
        if note:
            yield f"{stage.name}: {note}"


def _cameras(stage: Stage) -> dict[str, tuple[Size, EncodedSize]]:
    """The recorded size of the pictures, and what is seen of them, of every camera whose pictures
    the policy of a stage crops."""
    model = getattr(stage.config, "policy", None)
    if not isinstance(model, EncodedPolicyConfig):
        return {}
    pictures = _pictures(stage, model.image_fields)
    try:
        sizes = encoded_sizes(replace(model, image_fields=tuple(pictures)), pictures)
    except HandoffError as error:
        raise HandoffError(f"stage {stage.name}: {error}") from None
    return {name: (pictures[name], size) for name, size in sizes.items()}


def _uncropped(stage: Stage) -> dict[str, Size]:
    """The recorded size of the pictures of every camera that the policy of a stage does not
    crop."""
    model = getattr(stage.config, "policy", None)
    if not isinstance(model, ChunkPolicyConfig) or isinstance(model, EncodedPolicyConfig):
        return {}
    return _pictures(stage, model.image_fields)


def _pictures(stage: Stage, names: Sequence[str]) -> dict[str, Size]:
    """The recorded size of the pictures of the cameras that have the names, or match the patterns,
    in the episodes that a stage reads."""
    if not names:
        return {}
    pictures: dict[str, Size] = {}
    for source in stage.inputs.values():
        recorded = recorded_fields(source) if source.kind == "episodes" else None
        if recorded is not None:
            pictures = {**recorded.pictures, **pictures}
    return {name: pictures[name] for name in _expanded(names, pictures)}


def _expanded(names: Sequence[str], pictures: Mapping[str, Size]) -> tuple[str, ...]:
    """Cameras of the data set that have the names, or match the patterns, in their order."""
    matching = [each for name in names for each in pictures if fnmatchcase(each, name)]
    return tuple(dict.fromkeys(matching))


def _text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"

"""Prepares the pictures of a correction session: checks them, and provides the frozen trunk that
encodes them."""

from __future__ import annotations

from pathlib import Path

from flows.correction.config import CorrectConfig
from policies.networks.config import TrunkConfig
from policies.rl.hil.config import HilJsrlConfig, HilRlpdConfig, HilSerlConfig
from real.hil.trunk import OnnxTrunk
from robots.episodes.corrections import FINAL
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

TRUNK = "trunk.onnx"
"""File with the frozen trunk in the folder of a session, while it runs."""


def check_pictures(config: CorrectConfig) -> None:
    """Refuses pictures that the session does not render or the algorithm does not read.

    Raises:
        HandoffError: such pictures, or `blind` or a `trunk` without pictures.
    """
    pictures = config.actor.pictures
    if not pictures:
        for name, given in (("blind", config.blind), ("trunk", config.trunk != TrunkConfig())):
            if given:
                raise HandoffError(
                    f"correct: {name} is set, but actor.pictures is empty. Name the pictures that it is for."
                )
        return
    if not isinstance(config.algorithm, HilSerlConfig | HilRlpdConfig | HilJsrlConfig):
        raise HandoffError(
            f"correct: actor.pictures is {list(pictures)}, but {config.algorithm.kind} reads vectors only; hil_serl, "
            "rlpd and jsrl read pictures."
        )
    cameras = config.env.cameras
    rendered = [] if cameras is None else [f"image_{name}" for name in cameras.names]
    missing = sorted(set(pictures) - set(rendered))
    if missing:
        raise HandoffError(
            f"correct: actor.pictures names {missing}, the session renders {rendered}. Set env.cameras."
        )


def write_trunk(config: CorrectConfig, demonstrations: Path, folder: Path) -> None:
    """Writes the trunk of a session with pictures to its folder, unless it is there.

    Args:
        config: options of the session.
        demonstrations: artifact of the demonstrations, whose pictures have the size of the
            session's.
        folder: folder of the session.

    Raises:
        HandoffError: the demonstrations have no such pictures.
    """
    path = folder / TRUNK
    if not config.actor.pictures or path.exists():
        return
    from policies.export.trunk import trunk_to_onnx
    from policies.networks.images.efficientnet_lite import pretrained_trunk

    fields = EpisodeStore.open(demonstrations / "store.zarr").schema.stream(FINAL).fields
    missing = [name for name in config.actor.pictures if name not in fields]
    if missing:
        raise HandoffError(
            f"correct: the demonstrations have no pictures {missing}, only {sorted(fields)}. Were they recorded "
            "without env.cameras?"
        )
    height, width, _ = fields[config.actor.pictures[0]].shape
    model = trunk_to_onnx(pretrained_trunk(config.trunk.stride), height, width)
    write_atomically(path, model.SerializeToString())


def session_trunk(config: CorrectConfig, folder: Path) -> OnnxTrunk | None:
    """The trunk of a session, from its folder; None without pictures."""
    if not config.actor.pictures:
        return None
    return OnnxTrunk(folder / TRUNK, config.actor.pictures, blind=config.blind)

"""Keeps pictures of the start of a pair, by which a person puts the objects back for the episodes
that follow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from flows.deployment.cameras.pictures import PictureSource

FOLDER = "starts"
"""Folder of the pictures in that of the session."""
PREFIX = "start: "
"""Beginning of the names of these pictures on the pages, which know them by it."""


class StartPictures:
    """Pictures of the starts, one per camera and pair, in files that survive a kill.

    Args:
        folder: folder of the session.
        cameras: newest picture by name of the camera; without any there are no pictures.
        show: called with a picture for the pages, see
            `real.console.console_operator.ConsoleOperator.show_still`.
    """

    def __init__(
        self, folder: Path, cameras: Mapping[str, PictureSource], show: Callable[[bytes], None]
    ) -> None:
        self._folder = folder / FOLDER
        self._cameras = cameras
        self._show = show

    def known(self, pair: int) -> bool:
        """Whether the start of a pair has pictures."""
        return any(self._file(pair, name).is_file() for name in self._cameras)

    def keep(self, pair: int) -> None:
        """Takes the pictures of a start, of every camera that has sent one; those of a start that
        has pictures stay."""
        from PIL import Image

        if self.known(pair):
            return
        for name, source in self._cameras.items():
            picture = source.read()
            if picture is None:
                continue
            packed = io.BytesIO()
            Image.fromarray(picture.image).save(packed, "JPEG", quality=90)
            self._folder.mkdir(exist_ok=True)
            write_atomically(self._file(pair, name), packed.getvalue())

    def show(self, pair: int) -> None:
        """Shows the pictures of a start on the pages, and takes those of another one away."""
        for name in self._cameras:
            file = self._file(pair, name)
            head = f"{PREFIX}{name}"[:60].encode("ascii", "replace")
            content = file.read_bytes() if file.is_file() else b""
            self._show(bytes([len(head)]) + head + content)

    def _file(self, pair: int, camera: str) -> Path:
        # The name of a camera may have any character.
        return self._folder / f"{pair + 1:04d}-{camera.encode().hex()}.jpg"

"""Makes the ChArUco board with which cameras are calibrated, and finds its corners in pictures.

A ChArUco board is a chessboard with markers in its white squares: every corner has a number, so
that a view counts in which a part of the board is hidden (Garrido-Jurado et al. 2014).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from robots.config import config
from robots.errors import HandoffError
from robots.extras import install_hint

SQUARE_PIXELS = 420
"""Side of a square in the picture for printing [px]; the cells of a marker then are whole
pixels."""
MARGIN_PIXELS = 120
"""White margin around the board in that picture [px]; the markers need one."""
METRES_PER_INCH = 0.0254
FEWEST_CORNERS = 8
"""Smallest number of corners of a view; a pose needs four."""


@config
class BoardConfig:
    """A ChArUco board."""

    columns: Annotated[int, Field(ge=3, le=20)] = 7
    """Number of squares along the width."""
    rows: Annotated[int, Field(ge=3, le=20)] = 5
    """Number of squares along the height."""
    square: Annotated[float, Field(ge=0.005, le=0.5)] = 0.035
    """Side of a square [m], as measured on the print."""

    @property
    def marker(self) -> float:
        """Side of a marker [m]."""
        return 0.75 * self.square


class BoardView(NamedTuple):
    """The corners of the board in one picture."""

    numbers: np.ndarray
    """(N,) int32 numbers of the corners, ascending."""
    corners: np.ndarray
    """(N, 2) float32 positions, along width and height [px]; the pixel (0, 0) has its centre at
    0, 0, as OpenCV counts."""


def opencv() -> Any:
    """OpenCV's module.

    Raises:
        HandoffError: it is not installed, or lacks a library of the system.
    """
    try:
        import cv2
    except ModuleNotFoundError:
        hint = install_hint("opencv-python")
        raise HandoffError(f"camera: {hint}") from None
    except ImportError as error:
        raise HandoffError(
            f"camera: OpenCV cannot be loaded ({error}). Install the system's libgl1 and libglib2.0-0."
        ) from None
    return cv2


def charuco_board(board: BoardConfig) -> Any:
    """OpenCV's object of a board."""
    aruco = opencv().aruco
    dictionary = aruco.getPredefinedDictionary(aruco.DICT_5X5_250)
    return aruco.CharucoBoard(
        (board.columns, board.rows), float(board.square), float(board.marker), dictionary
    )


def board_picture(board: BoardConfig) -> np.ndarray:
    """(height, width) uint8 picture of a board, `SQUARE_PIXELS` per square, without a margin."""
    size = (board.columns * SQUARE_PIXELS, board.rows * SQUARE_PIXELS)
    return charuco_board(board).generateImage(size)


def save_board(board: BoardConfig, path: Path) -> str:
    """Writes a board for printing, with its size stated below it.

    Args:
        board: the board.
        path: file to write, `.pdf` or `.png`.

    Returns:
        What to know when it is printed, one line.

    Raises:
        HandoffError: another kind of file, or a file that cannot be written.
    """
    from PIL import Image, ImageDraw, ImageFont

    if path.suffix.lower() not in (".pdf", ".png"):
        raise HandoffError(f"camera board: {path} is neither .pdf nor .png.")
    picture = board_picture(board)
    height, width = picture.shape
    page = Image.new("L", (width + 2 * MARGIN_PIXELS, height + 3 * MARGIN_PIXELS), 255)
    page.paste(Image.fromarray(picture), (MARGIN_PIXELS, MARGIN_PIXELS))
    words = f"{board.columns} x {board.rows} squares of {1e3 * board.square:g} mm"
    ImageDraw.Draw(page).text(
        (MARGIN_PIXELS, height + 1.6 * MARGIN_PIXELS),
        f"Handoff: ChArUco, {words}. Print at 100 %, and measure a square.",
        fill=0,
        font=ImageFont.load_default(size=50),
    )
    dots_per_inch = SQUARE_PIXELS / (board.square / METRES_PER_INCH)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".pdf":
        page.save(path, "PDF", resolution=dots_per_inch)
    else:
        page.save(path, "PNG", dpi=(dots_per_inch, dots_per_inch))
    wide, high = (1e3 * side / SQUARE_PIXELS * board.square for side in page.size)
    return f"{path}: {words}, on a page of {wide:.0f} x {high:.0f} mm. Print it at 100 %, and measure a square."


class BoardFinder:
    """Finds the corners of a board in pictures.

    Args:
        board: the board.
    """

    def __init__(self, board: BoardConfig) -> None:
        self._cv2 = opencv()
        self._detector = self._cv2.aruco.CharucoDetector(charuco_board(board))

    def view(self, image: np.ndarray) -> BoardView | None:
        """The corners of the board in a picture (height, width, 3) uint8 RGB; None if fewer than
        `FEWEST_CORNERS` are found."""
        grey = self._cv2.cvtColor(image, self._cv2.COLOR_RGB2GRAY)
        corners, numbers, *_ = self._detector.detectBoard(grey)
        if numbers is None or len(numbers) < FEWEST_CORNERS:
            return None
        order = np.argsort(numbers.ravel())
        return BoardView(
            numbers.ravel()[order].astype(np.int32),
            corners.reshape(-1, 2)[order].astype(np.float32),
        )

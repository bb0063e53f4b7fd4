"""The guide names every key of the field map, every option of `ingest`, and every form of rotation."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from robots.control.rotations import SIZES, UNITS, RotationForm
from robots.episodes.config import FieldMapConfig, FieldRule, RotationRule
from robots.episodes.ingest import IngestConfig

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "data.md"


@pytest.fixture(scope="module")
def section() -> str:
    text = GUIDE.read_text()
    start = text.index("## Say what the arrays mean")
    return text[start : text.index("## From the data to a policy")]


@pytest.mark.parametrize("options", [FieldMapConfig, FieldRule, RotationRule, IngestConfig])
def test_every_key_is_in_the_guide(section: str, options: type) -> None:
    keys = [key.name for key in fields(options)]
    assert [key for key in keys if f"`{key}`" not in section and f"`{key}:" not in section] == []


@pytest.mark.parametrize("form", get_args(RotationForm))
def test_every_form_of_rotation_is_in_the_guide(section: str, form: RotationForm) -> None:
    assert f"| `{form}` | {SIZES[form]} | {UNITS[form]} |" in section

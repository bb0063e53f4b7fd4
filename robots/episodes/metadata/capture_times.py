"""Names and describes the fields with capture times.

A source that is sampled on its own clock, such as a camera, has a second field beside its samples:
`image_front_time` holds the capture time of every `image_front` in seconds of the episode's clock,
which is 0 at the first observation. A picture that two steps share has the same time twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from robots.spec import FieldSpec

_SUFFIX = "_time"


def capture_time_name(source: str) -> str:
    """Name of the field with the capture times of the field `source`."""
    return source + _SUFFIX


def capture_time_field(source: str) -> FieldSpec:
    """Specification of the capture times of the field `source`, which no policy observes."""
    return FieldSpec(
        shape=(),
        dtype="float64",
        unit="s",
        about=f"capture time of {source}, since the first observation of the episode",
        role="other",
    )


def capture_times(fields: Mapping[str, FieldSpec]) -> dict[str, str]:
    """Names of the fields with capture times, by the field whose samples were captured then."""
    names = {source: capture_time_name(source) for source in fields}
    return {
        source: name
        for source, name in names.items()
        if name in fields and fields[name].unit == "s" and fields[name].shape == ()
    }

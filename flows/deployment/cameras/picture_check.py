"""Compares the newest pictures of an arm's cameras with the training data of the policy, before it
acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows.deployment.cameras.pictures import ArmPictures
from robots.control.training_pictures import PictureVerdict, TrainingPictures, judge_picture


class PictureCheck:
    """Compares pictures with statistics of the training data.

    Args:
        statistics: statistics of the training pictures by sensor.
        sources: names of the sensors by camera.
        pictures: the cameras.
    """

    def __init__(
        self,
        statistics: Mapping[str, TrainingPictures],
        sources: Mapping[str, str],
        pictures: ArmPictures,
    ) -> None:
        self._statistics = {
            name: statistics[sensor] for name, sensor in sources.items() if sensor in statistics
        }
        self._pictures = pictures
        self._unknown = [name for name in sources if name not in self._statistics]
        self.distances: dict[str, float] = {}
        """Distance of the newest picture by camera, in units of the limit."""

    def report_unknown(self, say: Callable[[str], None]) -> None:
        """Says whose training pictures are not known, as a bundle of an older version has none."""
        if self._unknown:
            say(
                f"pictures  the bundle has no statistics of its training pictures of "
                f"{', '.join(self._unknown)}, so today's are not compared; export the policy again"
            )

    def unlike(self) -> list[str]:
        """Compares the newest pictures; returns a line for every camera whose picture looks unlike
        the training data."""
        newest = self._pictures.first()
        verdicts = {
            name: judge_picture(statistics, newest[name].image)
            for name, statistics in self._statistics.items()
        }
        self.distances = {name: round(each.distance, 3) for name, each in verdicts.items()}
        return [verdict_line(name, each) for name, each in verdicts.items() if each.words]


def verdict_line(name: str, verdict: PictureVerdict) -> str:
    """What a person is told of a camera whose picture looks unlike the training data."""
    return (
        f"{name}: {verdict.distance:.1f} of 1.0 (limit): looks unlike the training data: "
        f"{verdict.words}"
    )

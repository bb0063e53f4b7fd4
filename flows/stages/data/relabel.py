"""Stage `relabel`: copies a store of episodes with another reward and success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from flows.artifacts import Classifier, Episodes, Output
from policies.rewards.config import (
    ClassifierRewardConfig,
    ImageTextRewardConfig,
    SuccessRewardConfig,
)
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress
from sim.recording.config import TaskRewardConfig

if TYPE_CHECKING:
    from policies.rewards.labels import EpisodeLabels
    from robots.episodes.store import EpisodeStore
    from sim.recording.task_rewards import TaskRewards


RelabelReward = Annotated[
    SuccessRewardConfig | ClassifierRewardConfig | ImageTextRewardConfig | TaskRewardConfig,
    Field(discriminator="kind"),
]


@config
class RelabelConfig:
    """Copy of a store with another reward and success."""

    reward: RelabelReward = field(default_factory=SuccessRewardConfig)
    """Source of reward and success."""
    stream: str = "policy"
    """Stream of the steps."""
    cut: bool = True
    """Whether an episode ends with its first solved step."""


def external(config: RelabelConfig, fetch: bool) -> dict[str, str]:
    """Returns the sha256 of the image-text model of the reward, if there is one."""
    from robots.episodes.sources import Source, source_digest

    if not isinstance(config.reward, ImageTextRewardConfig):
        return {}
    path = Path(config.reward.folder)
    return {"image-text model": source_digest(Source(kind="argument", path=path, line="model"))}


def check(config: RelabelConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a missing classifier, and one that the reward does not take."""
    takes = config.reward.kind == "classifier"
    if ("classifier" in sources) != takes:
        found, wanted = ("is missing", "needs one") if takes else ("is given", "takes none")
        raise HandoffError(
            f"relabel: the input classifier {found}, but the reward '{config.reward.kind}' {wanted}."
        )


def run(
    config: RelabelConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
    classifier: Classifier | None = None,
) -> Output[Episodes]:
    """Writes a copy of `demos` to `out/store.zarr` with reward and success by `classifier`, by
    images and text, by the simulated task, or sparse from the recorded success. An interrupted
    attempt restarts.

    Raises:
        HandoffError: the store lacks what the reward needs.
    """
    from policies.rewards.relabel import relabel
    from robots.episodes.store import EpisodeStore

    source = EpisodeStore.open(demos / "store.zarr")
    destination = out / "store.zarr"
    if isinstance(config.reward, TaskRewardConfig):
        from sim.recording.task_rewards import TaskRewards

        with closing(TaskRewards(config.reward, source, config.stream)) as rewards:
            label = _by_task(rewards)
            metrics = relabel(source, destination, label, config.stream, config.cut, progress)
    else:
        from policies.rewards.labels import new_labeller

        labeller = new_labeller(config.reward, classifier)
        metrics = relabel(
            source,
            destination,
            lambda episode: labeller(source, config.stream, episode),
            config.stream,
            config.cut,
            progress,
        )
    return Output({**metrics, "source": "relabelled", "source_line": _line(config, source)})


def _by_task(rewards: TaskRewards) -> Callable[[int], EpisodeLabels]:
    from policies.rewards.labels import EpisodeLabels, first_success_only

    def label(episode: int) -> EpisodeLabels:
        replayed = rewards(episode)
        return EpisodeLabels(replayed.reward_T, first_success_only(replayed.solved_T))

    return label


def _line(config: RelabelConfig, source: EpisodeStore) -> str:
    return f"{source.num_episodes} episodes of {source.schema.name} with the reward '{config.reward.kind}'"

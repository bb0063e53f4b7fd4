"""Finds what the stages of a recipe need and this machine lacks: packages, a GPU, OpenGL or Vulkan,
data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows.doctor.graphics import lacking_cuda, lacking_opengl, lacking_vulkan
from flows.orchestration.ray_pool import RAY
from flows.runner.stage import Stage
from policies.language.config import SentenceEncoderConfig, require_folder
from robots.episodes.ingest import IngestConfig
from robots.errors import HandoffError
from robots.extras import install_hint, install_hints
from robots.storage.location import bucket_of
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol
from sim.scene.cameras import CamerasConfig
from sim.servers.config import ServerConfig
from sim.servers.venvs import check_place, server_python

MODULES = {
    "engine": {
        "mujoco": ("mujoco",),
        "warp": ("mujoco_warp",),
        "maniskill": ("mani_skill",),
        "gym": ("gymnasium",),
    },
    "kind": {
        "vla": ("transformers", "tokenizers", "peft", "tensordict"),
        "token_vla": ("transformers", "tokenizers", "peft", "tensordict"),
        "spacemouse": ("pyspacemouse",),
    },
    "loggers": {"tensorboard": ("tensorboard",), "wandb": ("wandb",)},
}
"""Modules that a value of an option needs, by the name of the option."""
SERVER = "server"
"""Option of environments that names an environment server."""
LEARNING = ("flows.stages.learn.", "flows.stages.release.evaluate", "flows.stages.release.export")
"""Beginnings of the modules of stages that need torch."""


def missing(stages: Sequence[Stage]) -> dict[str, list[str]]:
    """Returns what this machine lacks, one sentence each, with the names of the stages that need
    it."""
    lacking: dict[str, list[str]] = {}
    for stage in stages:
        for sentence in dict.fromkeys(_needs(stage)):
            lacking.setdefault(sentence, []).append(stage.name)
    return lacking


def _needs(stage: Stage) -> Iterator[str]:
    """Yields what a stage needs and this machine lacks."""
    if stage.module.startswith(LEARNING):
        yield from _lacking_modules(("torch",))
    if stage.pool == RAY:
        yield from _lacking_modules(("ray",))
    if isinstance(stage.config, IngestConfig):
        yield from _lacking_data(stage.config)
    for name, value in _values("", stage.config):
        match name, value:
            case "device", "cuda":
                yield from _sentences(lacking_cuda())
            case "engine", "maniskill":
                yield from _sentences(lacking_vulkan())
            case _, CamerasConfig():
                yield from _sentences(lacking_opengl())
            case _, EvaluateConfig() if value.videos > 0:
                yield from _sentences(lacking_opengl())
            case _, SentenceEncoderConfig():
                yield from _lacking_modules(("transformers", "tokenizers"))
                # A folder that is named and missing is found as other options of the name.
                if value.folder is None:
                    yield from _lacking_folder(value)
            case "cluster", object() if value is not None:
                yield from _lacking_modules(("ray",))
            case (("data" | "folder"), str()) if _is_absent(value):
                yield f"data: {value} does not exist."
            case _, str():
                yield from _lacking_modules(MODULES.get(name, {}).get(value, ()))
    # Versions of a protocol's packages are part of every result.
    for _, protocol in _values("", stage.config):
        if isinstance(protocol, Protocol):
            if protocol.server is not None:
                yield from _lacking_server(protocol.server)
            else:
                yield from (hint for name in protocol.packages if (hint := _uninstalled(name)))


def _lacking_server(server: ServerConfig) -> Iterator[str]:
    try:
        check_place(server)
        if not server.address:
            server_python(server)
    except HandoffError as error:
        yield str(error)


def _lacking_folder(options: SentenceEncoderConfig) -> Iterator[str]:
    try:
        require_folder(options)
    except HandoffError as error:
        yield str(error)


def _is_absent(place: str) -> bool:
    """Whether a path does not exist; what is in a bucket is left to the run."""
    return bool(place) and bucket_of(place) is None and not Path(place).expanduser().exists()


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields every option below a value, with its name."""
    yield name, value
    if is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from _values(entry.name, getattr(value, entry.name))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            # The engine of an environment server needs its packages in another place.
            if key != SERVER:
                yield from _values(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values(name, inner)


def _lacking_modules(modules: Sequence[str]) -> Iterator[str]:
    yield from install_hints([module for module in modules if find_spec(module) is None])


def _uninstalled(distribution: str) -> str | None:
    try:
        version(distribution)
    except PackageNotFoundError:
        # As the module that another option needs, so that it is said once.
        name = distribution.replace("-", "_")
        return install_hint(name) or f"{name} is not installed."
    return None


def _sentences(sentence: str | None) -> Iterator[str]:
    if sentence is not None:
        yield sentence


def _lacking_data(config: IngestConfig) -> Iterator[str]:
    from flows.stages.data.ingest import locate_demonstrations

    try:
        line = locate_demonstrations(config, fetch=False).line
    except HandoffError as error:
        yield str(error)
        return
    if config.download and config.data is None and line.startswith("Handoff's own"):
        yield "demonstrations: none here; 'run' downloads the published ones, or uses Handoff's own."

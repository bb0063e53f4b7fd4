"""Checks a virtual environment: the versions of its packages, its imports, and a trial of its
environments through a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flows.virtual_envs.create import read_state
from flows.virtual_envs.program import run_program
from flows.virtual_envs.recipe import VenvRecipe, recipe_digest, trial_config
from robots.errors import HandoffError
from sim.make import make_vec_env
from sim.servers.config import ServerConfig
from sim.servers.packages import installed_versions
from sim.servers.venvs import python_of

IMPORT_SECONDS = 300.0
"""Time limit for importing a module [s]."""
TRIAL_ENVS = 2
"""Number of environments of the trial."""
TRIAL_STEPS = 5
"""Number of steps of the trial, with random actions."""


class Line(NamedTuple):
    """Result of one check."""

    ok: bool
    text: str


def check_venv(name: str, recipe: VenvRecipe, folder: Path) -> Iterator[Line]:
    """Yields the result of each check; later ones need the earlier ones.

    Args:
        name: name in messages.
        recipe: recipe of the virtual environment.
        folder: its folder.
    """
    remedy = f"handoff envs create {name}"
    state = read_state(folder)
    if state is None:
        yield Line(False, f"{folder} does not exist: {remedy}")
        return
    if state.digest != recipe_digest(recipe):
        yield Line(False, f"{folder} was made from other packages: {remedy} --again")
        return
    if not state.complete:
        yield Line(False, f"{state.finished} of {state.steps} steps are installed: {remedy}")
        return
    yield Line(True, f"{folder}, {state.steps} of {state.steps} steps installed")
    yield _packages(recipe, folder)
    for module in recipe.imports:
        yield _import(folder, module)
    if recipe.trial:
        yield _trial(recipe, folder)


def _packages(recipe: VenvRecipe, folder: Path) -> Line:
    from packaging.requirements import Requirement

    listed = [Requirement(text) for step in recipe.install for text in step.packages]
    pins = [pin for pin in listed if pin.marker is None or pin.marker.evaluate()]
    there = installed_versions(ServerConfig(venv=str(folder)), [pin.name for pin in pins])
    other = [
        f"{pin.name} {there[pin.name] or 'is missing'}, expected {pin.specifier}"
        for pin in pins
        if not there[pin.name] or not pin.specifier.contains(there[pin.name], prereleases=True)
    ]
    return Line(not other, "; ".join(other) or f"{len(pins)} packages have the pinned versions")


def _import(folder: Path, module: str) -> Line:
    command = [str(python_of(folder)), "-s", "-c", f"import {module}"]
    try:
        run_program(command, IMPORT_SECONDS, folder=folder)
    except HandoffError as error:
        return Line(False, f"import {module}: {error}")
    return Line(True, f"import {module}")


def _trial(recipe: VenvRecipe, folder: Path) -> Line:
    config = trial_config(recipe, folder)
    began = time.monotonic()
    try:
        env = make_vec_env(config, TRIAL_ENVS)
        try:
            made = time.monotonic()
            env.reset(range(TRIAL_ENVS))
            low, high = np.clip([env.action_spec.low, env.action_spec.high], -1.0, 1.0)
            rng = np.random.default_rng(0)
            for _ in range(TRIAL_STEPS):
                env.step(rng.uniform(low, high, (TRIAL_ENVS, env.action_spec.size)))
            ended = time.monotonic()
        finally:
            env.close()
    except HandoffError as error:
        return Line(False, f"{config.task}: {error}")
    return Line(
        True,
        f"{config.task}: {TRIAL_ENVS} environments made in {made - began:.1f} s, {TRIAL_STEPS} steps in "
        f"{ended - made:.1f} s",
    )

"""Isaac Lab itself, on a server, does what every engine must do; each set of environments has a
process of its own, since Isaac Lab has one simulation per process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.virtual_envs.create import read_state
from robots.interfaces import VecEnv
from sim.engines.isaac_lab import IsaacLabConfig
from sim.make import EnvConfig, make_vec_env
from sim.servers.config import ServerConfig
from sim.servers.venvs import venvs_folder
from tests.sim import conformance
from tests.sim.conformance import Check, checks_of
from tests.sim.conformance_entries import Entry, OnEnd

STATE = read_state(venvs_folder() / "isaaclab")
pytestmark = [
    pytest.mark.peers,
    # A start compiles or loads kernels, which takes a minute and more.
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        STATE is None or not STATE.complete, reason="no Isaac Lab: handoff envs create isaaclab"
    ),
]


def make(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    config = EnvConfig(
        engine="server",
        task="tests.sim.servers.isaac_cube:Handoff-Cube-Direct",
        on_end=on_end,
        max_steps=max_steps,
        isaaclab=IsaacLabConfig(device="cpu"),
        server=ServerConfig(venv="isaaclab", engine="isaaclab", start_s=1200, response_s=600),
    )
    return make_vec_env(config, num_envs)


# Environments stand at other places among three than among two, and its numbers are float32. A direct
# task reports no success.
CUBE = Entry(
    "isaaclab_cube",
    make,
    save=False,
    exact=False,
    tolerance=1e-3,
    reuse=True,
)


@pytest.fixture(scope="module", autouse=True)
def shared_envs() -> Iterator[None]:
    yield
    conformance.close_idle()


@pytest.mark.parametrize("check", checks_of(CUBE), ids=lambda check: check.__name__)
def test_isaac_lab_conforms(check: Check) -> None:
    check(CUBE)

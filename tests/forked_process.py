"""Child processes that tests kill, forked from a single-threaded process that has torch and Zarr
already imported: a tenth of the time of a spawned process."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

PRELOADED = ["torch", "zarr", "diffusers", "diffusers.schedulers.scheduling_ddim", "mujoco"]


def forked_process_context() -> ForkServerContext:
    """The context for `Process` and `Pipe`.

    Every process has the environment variables that stood when the first one was started.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context

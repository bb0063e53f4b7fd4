"""Keeps a run alive whose output nobody reads any more.

The output of a run goes to its worker through pipes. When the worker dies, the next line would end
the run with a broken pipe, though it needs the worker for nothing; the log goes to Prefect's server
as well.
"""

from __future__ import annotations

import os
import select
import stat
import threading

OUTPUTS = (1, 2)
"""Standard output and standard error."""


def outlive_readers() -> None:
    """Discards the output of this process from the moment at which nobody reads it; does nothing
    for output that is no pipe."""
    for number in OUTPUTS:
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            threading.Thread(
                target=_discard_later, args=(number,), name="output", daemon=True
            ).start()


def _discard_later(number: int) -> None:
    pipe = select.poll()
    # Without a reader, a pipe reports an error, whatever is asked for.
    pipe.register(number, 0)
    pipe.poll()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)

"""Is the entry of the program `handoff`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from flows.commands import app
from robots.signals import ENDING_SIGNALS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of the command line, or `arguments`; returns the exit code.

    The program itself does not return after a signal: it ends at once, because a person waits.
    """
    code = app.main(arguments)
    if arguments is None and code - 128 in (signal.SIGINT, *ENDING_SIGNALS):
        from robots.processes import exit_at_once

        exit_at_once(code)
    return code


if __name__ == "__main__":
    sys.exit(main())

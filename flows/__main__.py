"""Is the entry of the program `handoff`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of the command line, or `arguments`; returns the exit code.

    The program itself does not return after a signal: it ends at once, because a person waits.
    """
    try:
        # The commands take a part of a second to import, and Ctrl-C ends that in a sentence, too.
        from flows.commands import app
        from robots.signals import ENDING_SIGNALS

        code = app.main(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("handoff: interrupted.\n")
        return 128 + signal.SIGINT
    if arguments is None and code - 128 in (signal.SIGINT, *ENDING_SIGNALS):
        from robots.processes import exit_at_once

        exit_at_once(code)
    return code


if __name__ == "__main__":
    sys.exit(main())

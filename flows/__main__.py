"""Is the entry of the program `handoff`."""

import sys

from flows.commands.app import main

if __name__ == "__main__":
    sys.exit(main())

"""Is the first file that the Python of an environment server runs; it needs no package.

It makes the packages `robots` and `sim` of Handoff importable, and no other package that is
installed beside them, and checks this Python. Its syntax is that of old versions, so that these get
a message instead of a syntax error.

    PYTHON sim/servers/start.py SOCKET LIFELINE KIND

SOCKET is the descriptor of the connected socket, LIFELINE that of a pipe whose other end the parent
holds, and KIND is `shared` or `remote`.
"""

import os
import select
import signal
import sys
import time
from importlib import import_module
from importlib.machinery import PathFinder

OLDEST = (3, 11)
"""Oldest version of Python that runs Handoff."""
UNFIT = 3
"""Exit code if this Python cannot run a server."""
GRACE_SECONDS = 5.0
"""Time between the death of the parent and the end of this process by SIGKILL [s]."""
LOOK_SECONDS = 0.5
"""Time between two looks at whether the server still runs [s]."""


class OwnPackages:
    """Finder of some packages of a folder that may hold others.

    Args:
        root: the folder.
        names: names of the packages.
    """

    def __init__(self, root, names=("robots", "sim")):
        self._root = root
        self._names = names

    def find_spec(self, name, path=None, target=None):
        """The specification of one of the packages; None for all others."""
        return PathFinder.find_spec(name, [self._root]) if name in self._names else None


def main():
    """Serves the environments of the connection, and ends with the parent."""
    lifeline = int(sys.argv[2])
    folder = os.path.dirname(os.path.abspath(__file__))
    # The first place to search is the folder of this file, whose modules would hide others.
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or os.curdir) != folder]
    check_version()
    watch(lifeline)
    check_packages()
    # Engines print; the output is where a parent looks for the cause of a failure.
    os.dup2(2, 1)
    sys.meta_path.insert(0, OwnPackages(os.path.dirname(os.path.dirname(folder))))
    # By name, because `serve` uses the finder of this module.
    import_module("sim.servers.serve").serve(int(sys.argv[1]), sys.argv[3])


def check_version():
    """Ends this process, with a message, if its Python is too old."""
    if sys.version_info[:2] < OLDEST:
        own, oldest = [".".join(map(str, v)) for v in (sys.version_info[:2], OLDEST)]
        fail("is Python " + own + ", a server needs " + oldest + " or later.")


def check_packages():
    """Ends this process, with a message, if it lacks the two packages that a server needs."""
    for name in ("numpy", "msgpack"):
        try:
            __import__(name)
        except ImportError as error:
            remedy = sys.executable + " -m pip install numpy msgpack"
            fail("cannot import " + name + " (" + str(error) + "): " + remedy)


def fail(reason):
    """Ends this process with a message."""
    sys.stderr.write(sys.executable + " " + reason + "\n")
    sys.stderr.flush()
    sys.exit(UNFIT)


def watch(lifeline):
    """Starts a process that ends this one, and all that it has started, when the parent has died.

    It is a process of its own because an engine may hang in compiled code, where no thread of this
    process runs.
    """
    server = os.getpid()
    if os.fork() != 0:
        os.close(lifeline)
        return
    try:
        keep_only(lifeline)
        while os.getppid() == server and not select.select([lifeline], [], [], LOOK_SECONDS)[0]:
            pass
        deadline = time.monotonic() + GRACE_SECONDS
        while os.getppid() == server and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)
        # A wrapper around this Python gets the time to pass its exit code on.
        time.sleep(LOOK_SECONDS)
        os.killpg(os.getpgrp(), signal.SIGKILL)
    finally:
        os._exit(0)


def keep_only(descriptor):
    """Closes all file descriptors but one: an open socket would hide the server's end."""
    highest = os.sysconf("SC_OPEN_MAX")
    os.closerange(0, descriptor)
    os.closerange(descriptor + 1, min(highest, 65536) if highest > 0 else 65536)


if __name__ == "__main__":
    main()

"""Runs a Prefect server for a laptop or a lab: all recipes are deployed, a worker runs what is
asked for, and the results are served, until the command is ended.

The server and the workers are Prefect's own programs in processes that end with this one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

from flows.orchestration import served_results
from flows.orchestration.flow import HEARTBEAT, HEARTBEAT_SECONDS
from flows.orchestration.serving import lost_runs, registration
from flows.orchestration.serving.results_app import APPROVALS, AUTH, results_app
from robots.errors import HandoffError
from robots.processes import END_SECONDS, end, spawn

START_SECONDS = 120.0
"""Time limit for the server's first answer [s]; it needs 10 to 20 on a laptop."""
POLL_SECONDS = 0.5
"""Interval at which the processes are watched [s]."""
SERVER = "server"
"""Name of the server among the programs."""
MOST_RESTARTS = 5
"""Number of times within `RESTART_SECONDS` that a program that ended is started again."""
RESTART_SECONDS = 600.0
"""Period of `MOST_RESTARTS` [s]: a server that runs for months survives a death now and then."""
SILENCE = timedelta(seconds=100)
"""Time after the start of the server without a heartbeat of a run that began before, after which it
counts as crashed: three heartbeats, and the time of a computer to find the server again."""
LOG_LINES = 12
"""Lines of a log that an error repeats."""


@dataclass(frozen=True)
class ServerOptions:
    """Addresses and extent of a server."""

    host: str = "127.0.0.1"
    port: int = 4200
    """Port of Prefect's server and web page."""
    results_port: int = 4201
    """Port at which the folder of the runs is served."""
    folder: Path = Path()
    """Folder in which the recipes run, and which has `runs`."""
    recipes: Sequence[str] = ()
    """Paths of recipes of one's own, in addition to those of Handoff."""
    robots: Sequence[str] = ()
    """Names of robots whose computer is this one."""
    limit: int | None = None
    """Number of recipes that a work pool runs at once; see
    `flows.orchestration.serving.registration`."""
    workers: bool = True
    """Whether this computer runs what is asked for; otherwise other computers do."""


def serve_prefect(options: ServerOptions, say: Callable[[str], None]) -> None:
    """Runs the server until it is interrupted.

    Args:
        options: addresses and extent.
        say: receives what a person must know, line by line.

    Raises:
        HandoffError: a port is taken, an address that others reach has no password, a recipe
            cannot be read, or one of the processes ended again and again.
    """
    _check_access(options)
    address = f"http://{options.host}:{options.port}"
    environment = _environment(options, address)
    # Prefect reads these when it is imported, here as well as in the processes.
    os.environ.update(environment)
    logs = log_folder()
    logs.mkdir(parents=True, exist_ok=True)
    programs = _Programs(logs)
    say(f"starting Prefect's server at {address} and its workers; their logs are in {logs}")
    try:
        words = ("server", "start", "--host", options.host, "--port", str(options.port))
        programs.start(SERVER, words)
        _await_server(address, programs)
        names = registration.named_recipes(options.recipes)
        pools, deployments = registration.register(
            options.folder.resolve(), names, options.robots, options.limit
        )
        working = _local_pools(pools) if options.workers else []
        for pool in working:
            # A limit of the worker itself ends it when a suspended run goes on (Prefect 3.8).
            programs.start(f"worker-{pool}", ("worker", "start", "--pool", pool))
        left = lost_runs.LeftRuns({f"worker-{pool}": pool for pool in working})
        start_results(options)
        say(f"server   {address}  (in other terminals: export PREFECT_API_URL={address}/api)")
        results = f"http://{options.host}:{options.results_port}"
        say(f"results  {results}  serves {_runs(options)}")
        say(f"approve  {results}/{APPROVALS}  asks for approvals that wait")
        stated = [
            f"{pool} ({'a worker is here' if pool in working else 'no worker here'})"
            for pool in pools
        ]
        say(f"pools    {', '.join(stated)}")
        say(
            f"recipes  {len(deployments)} deployments: prefect deployment run handoff/smoke --watch"
        )
        say(f"logs     {logs}; Ctrl-C ends the server, its workers and their runs")
        began, checked = datetime.now(UTC), False
        while True:
            for name in programs.watch(say):
                left.worker_died(name)
            left.look(say)
            if not checked and datetime.now(UTC) - began > SILENCE:
                checked = True
                _end_lost(lambda: lost_runs.silent_runs(began), "Nothing was heard of it.", say)
            time.sleep(POLL_SECONDS)
    finally:
        _stop(programs, say)


def _stop(programs: _Programs, say: Callable[[str], None]) -> None:
    """Ends the workers and their runs, then the server, to which the runs report their ends."""
    try:
        runs = lost_runs.runs_below(os.getpid())
        programs.end_workers()
        if runs:
            _end_lost(lambda: runs, "The server was stopped.", say)
    finally:
        programs.end()


def _end_lost(find: Callable[[], Collection[str]], reason: str, say: Callable[[str], None]) -> None:
    """Marks runs that nobody carries out any more; an error of the server ends nothing."""
    import httpx

    try:
        names = lost_runs.end_runs(find(), f"{reason} Run it again: finished stages are cached.")
    except httpx.HTTPError as error:
        say(f"runs that ended could not be marked ({error!r})")
        return
    for name in names:
        say(f"crashed  {name}: run it again, its finished stages are cached")


class _Programs:
    """Prefect's programs, each in a process that ends with this one."""

    def __init__(self, logs: Path) -> None:
        """`logs` is the folder of their logs."""
        self._logs = logs
        self._processes: dict[str, BaseProcess] = {}
        self._words: dict[str, tuple[str, ...]] = {}
        self._restarts: dict[str, list[float]] = {}

    def start(self, name: str, words: tuple[str, ...]) -> None:
        """Starts `prefect WORDS`, whose log is added to that of an earlier start."""
        command = [sys.executable, "-m", "prefect", *words]
        arguments = (command, dict(os.environ), self._logs / name)
        self._words[name] = words
        self._processes[name] = spawn(f"handoff-{name}", _run_program, arguments, daemon=False)

    def check(self) -> None:
        """Checks that none has ended.

        Raises:
            HandoffError: one has.
        """
        for name, process in self._processes.items():
            if not process.is_alive():
                raise HandoffError(f"the {name} ended; the end of its log {self.log_end(name)}")

    def watch(self, say: Callable[[str], None]) -> list[str]:
        """Starts again what has ended, a few times, and returns its names. Workers wait for a
        server that starts again; its database outlives it.

        Raises:
            HandoffError: one of them ended too often.
        """
        started = []
        for name, process in list(self._processes.items()):
            if process.is_alive():
                continue
            earlier = self._restarts.get(name, [])
            now = time.monotonic()
            self._restarts[name] = [*(at for at in earlier if now - at < RESTART_SECONDS), now]
            if len(self._restarts[name]) > MOST_RESTARTS:
                raise HandoffError(
                    f"the {name} ended {MOST_RESTARTS + 1} times within {RESTART_SECONDS:g} s; "
                    f"the end of its log {self.log_end(name)}"
                )
            say(f"the {name} ended and is started again; its log: {self._logs / name}")
            self.start(name, self._words[name])
            started.append(name)
        return started

    def log_end(self, name: str) -> str:
        """Returns the path of a log and its last lines."""
        log = self._logs / name
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return f"{log}:\n" + "\n".join(lines[-LOG_LINES:])

    def end_workers(self) -> None:
        """Ends the workers, and what they started."""
        workers = {name: one for name, one in self._processes.items() if name != SERVER}
        end(list(workers.values()), 2 * END_SECONDS)
        for name in workers:
            del self._processes[name]

    def end(self) -> None:
        """Ends all of them, and what they started."""
        end(list(self._processes.values()), 2 * END_SECONDS)


def log_folder() -> Path:
    """Returns the folder of the logs of server and workers."""
    from prefect.settings import PREFECT_HOME

    return Path(PREFECT_HOME.value()) / "handoff-logs"


def start_results(options: ServerOptions) -> None:
    """Serves the folder of the runs, and the page of approvals, in a thread.

    Videos can be played from any position; with a password set, it is asked for here as well.
    """
    import threading

    import uvicorn

    from robots.wire.web_server import guarded, limited_protocols

    settings = uvicorn.Config(
        guarded(results_app(_runs(options))),
        host=options.host,
        port=options.results_port,
        log_level="error",
        **limited_protocols(),
    )
    server = uvicorn.Server(settings)
    # Signals belong to the main thread, which ends the whole program.
    threading.Thread(target=server.run, name="results", daemon=True).start()


def _runs(options: ServerOptions) -> Path:
    return options.folder / "runs"


def _check_access(options: ServerOptions) -> None:
    """Checks the addresses before anything is started."""
    from robots.wire.addresses import is_loopback

    if not is_loopback(options.host) and not os.environ.get(AUTH):
        raise HandoffError(
            f"host {options.host}: other computers reach it, and a worker runs whatever Prefect's server is asked to. "
            f"Set {AUTH}=USER:PASSWORD, here and as PREFECT_API_AUTH_STRING on the other computers."
        )
    for port in (options.port, options.results_port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.host, port))
            except OSError as error:
                raise HandoffError(
                    f"{options.host}:{port} cannot be listened at ({error.strerror}). Is another server running? "
                    "--port and --results-port name other ports."
                ) from None


def _environment(options: ServerOptions, address: str) -> dict[str, str]:
    """Environment variables of the server, of the workers and of their runs."""
    found = {
        "PREFECT_API_URL": f"{address}/api",
        # Without it, the page asks port 4200 whatever the port of the server is.
        "PREFECT_UI_API_URL": f"{address}/api",
        # By default any page in a browser may give orders to the server.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        HEARTBEAT: str(HEARTBEAT_SECONDS),
        served_results.URL: f"http://{options.host}:{options.results_port}",
        served_results.FOLDER: str(_runs(options).resolve()),
    }
    if AUTH in os.environ:
        found["PREFECT_API_AUTH_STRING"] = os.environ[AUTH]
    return found


def _local_pools(pools: Sequence[str]) -> list[str]:
    """The work pools for which this computer has a worker."""
    has_gpu = shutil.which("nvidia-smi") is not None
    return [pool for pool in pools if pool != registration.GPU or has_gpu]


def _run_program(words: list[str], environment: Mapping[str, str], log: Path) -> None:
    """Main function of a process: runs a program until it ends, or ends it with all that it
    started."""
    import psutil

    with log.open("a") as file:
        program = psutil.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        # A terminal sends these to all its processes at once; the order of their ends is the
        # parent's, which sends SIGTERM.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            code = program.wait()
        finally:
            started = [program, *program.children(recursive=True)] if program.is_running() else []
            for process in started:
                process.terminate()
            _, left = psutil.wait_procs(started, timeout=END_SECONDS / 2)
            for process in left:
                process.kill()
    # The parent says that it has ended.
    raise SystemExit(code)


def _await_server(address: str, programs: _Programs) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        programs.check()
        try:
            with urllib.request.urlopen(f"{address}/api/health", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it asks for a password
        except OSError:
            time.sleep(POLL_SECONDS)
        if time.monotonic() > deadline:
            raise HandoffError(
                f"Prefect's server at {address}: no answer within {START_SECONDS:g} s. The end of its "
                f"log {programs.log_end(SERVER)}"
            )

"""A Prefect server with a worker, as `handoff server` starts it, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240.0
"""Time limit for the server to be ready [s]."""
RUN_SECONDS = 1500.0
"""Time limit of a command of Prefect [s]."""


@dataclass(frozen=True)
class PrefectServer:
    """A running server."""

    folder: Path
    """Folder in which its worker runs recipes."""
    address: str
    results: str
    environment: dict[str, str]
    """Environment of a person at another terminal."""
    log: Path
    process: subprocess.Popen[bytes]
    client: Any
    """Prefect's client, kept because a new one reads the certificates of all authorities and asks
    the server for its version."""

    def prefect(self, *words: str) -> str:
        """What a command of Prefect prints, as a person gives it who has only set the address."""
        result = subprocess.run(
            [sys.executable, "-m", "prefect", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert result.returncode == 0, f"{result.stdout[-3000:]}\n{self.logs()}"
        return result.stdout

    def start(
        self, deployment: str, parameters: Mapping[str, Any], state: Any | None = None
    ) -> Any:
        """Asks for a run of a deployment, which a worker then starts; or makes one in a state."""
        from prefect.states import Scheduled

        found = self.client.read_deployment_by_name(deployment)
        return self.client.create_flow_run_from_deployment(
            found.id, parameters=dict(parameters), state=state or Scheduled()
        )

    def state(self, run: str) -> Any:
        """State of a run by its id; None if the server does not answer."""
        import httpx

        try:
            return self.client.read_flow_run(run).state
        except httpx.HTTPError:
            return None

    def cancel(self, run: str) -> None:
        """Cancels a run by its id, as the button of Prefect's page does."""
        from prefect.states import Cancelling

        self.client.set_flow_run_state(run, Cancelling())

    def flow_runs(self) -> Sequence[Any]:
        return self.client.read_flow_runs()

    @contextmanager
    def worker(self, pool: str, variables: Mapping[str, str]) -> Iterator[Path]:
        """Another computer's worker until the end of the block, with variables of its own; gives
        its log."""
        log = self.folder / f"{pool}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool],
                cwd=self.folder,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(60)

    def artifacts(self) -> dict[str, str]:
        """The newest artifact of every key."""
        response = self.client.request("POST", "/artifacts/latest/filter", json={"limit": 200})
        return {entry["key"]: str(entry["data"]) for entry in response.json()}

    def logs(self) -> str:
        """The ends of all logs."""
        files = [self.log, *sorted((self.folder / "prefect" / "handoff-logs").glob("*"))]
        return "\n".join(f"{file.name}: {file.read_text()[-3000:]}" for file in files)


@contextmanager
def prefect_server_at_work(
    folder: Path, *options: str, variables: Mapping[str, str] | None = None
) -> Iterator[PrefectServer]:
    """Runs `handoff server` until the end of the block, with further variables of the
    environment."""
    from prefect.client.orchestration import SyncPrefectClient

    port, results_port = _free_ports()
    address = f"http://127.0.0.1:{port}"
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    environment = {
        **own,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **(variables or {}),
    }
    words = ["server", "--port", str(port), "--results-port", str(results_port), *options]
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    person = {**environment, "PREFECT_API_URL": f"{address}/api"}
    results = f"http://127.0.0.1:{results_port}"
    client = SyncPrefectClient(f"{address}/api")
    server = PrefectServer(folder, address, results, person, log, process, client)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Ctrl-C ends" not in log.read_text():
            assert process.poll() is None, server.logs()
            assert time.monotonic() < deadline, server.logs()
            time.sleep(0.2)
        with client:
            yield server
    finally:
        process.terminate()
        process.wait(60)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return int(first.getsockname()[1]), int(second.getsockname()[1])

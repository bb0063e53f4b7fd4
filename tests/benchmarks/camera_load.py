"""Measures the share of a core that recorder, console and policy server take with two cameras.

    python -m tests.benchmarks.camera_load --json
    python -m tests.benchmarks.camera_load --json --exact

Two cameras of 480 x 640 at 30 Hz are shown at the console, whose page is open once, and recorded at
30 steps per second beside states at 1 kHz, as `handoff record` does: as H.264, or without loss
(`--exact`). At the same time a robot program sends the pictures of both cameras to a policy server
(`handoff serve`) 30 times a second, for a policy of pictures of 96 px that answers at once. The
cameras are films of raw YUYV pictures, as a USB camera sends them, with the noise of a sensor.

share: processor time of all processes of the product per second of wall time. Limit: 0.5.
shares: the same by process: `recorder` (the session), `console` (the server of the page),
    `cameras` (one process per camera, which takes the camera's pictures, shares them and codes them
    for the page), `server` (the policy server).
per_s: pictures of both cameras that the page received, steps that were recorded, and requests that
    were answered, per second.
age_ms_p95: age of a picture when it is observed, 95th percentile.

Shares are medians over `--repeats` stretches of `--seconds`. The page, the robot program and this
benchmark's own making of states and pictures count for nothing but the callbacks of the states.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from tests.benchmarks.recording import BANK, CAMERA_HZ, CAMERAS, PICTURE, pictures

if TYPE_CHECKING:
    from robots.contract import Contract
    from robots.interfaces import PolicyInput

LIMIT = 0.5
"""Largest share of a core."""
ROBOT, TASK = "fr3", "pick_cube"
FILM_SECONDS = 60
SEEN = 96
"""Height and width of the pictures of the served policy [px]."""
STREAM_HZ = 200.0
STATES_PER_STEP = 33
TOKEN = "benchmark-of-cameras"


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one stretch")
    parser.add_argument("--repeats", type=int, default=5, help="stretches")
    parser.add_argument("--exact", action="store_true", help="record without loss")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.seconds, arguments.repeats, exact=arguments.exact)
    for name, value in found.items():
        print(f"{name:12s} {value}")
    if arguments.json:
        print(json.dumps(found))


def measure(folder: Path, seconds: float, repeats: int, *, exact: bool) -> dict[str, Any]:
    """All figures, by name."""
    from flows.deployment.cameras.pictures import ArmPictures
    from real.cameras.camera_process import camera_streams
    from real.cameras.config import CameraConfig
    from real.console.process import open_console
    from real.console.server import ConsoleConfig

    height = PICTURE[0]
    films = {name: film(folder / f"{name}.avi", seed) for seed, name in enumerate(CAMERAS)}
    configs = {
        name: CameraConfig(source=str(path), height=height, rate_hz=CAMERA_HZ, again=0.0)
        for name, path in films.items()
    }
    with ExitStack() as stack:
        opened = stack.enter_context(open_console(ConsoleConfig(port=0), folder / "console"))
        newest = stack.enter_context(camera_streams(configs, opened))
        cameras = [
            child.pid
            for child in multiprocessing.active_children()
            if child.name in {f"handoff-{name}" for name in CAMERAS}
        ]
        arm = ArmPictures(newest, dict.fromkeys(newest, 5.0))
        arm.first()
        server, requests = stack.enter_context(serving())
        frames = stack.enter_context(page_frames(opened))
        recorder = stack.enter_context(recording(folder / "store.zarr", arm, exact=exact))
        processes = {
            "recorder": [psutil.Process()],
            "console": [psutil.Process(opened.process.pid)],
            "cameras": [psutil.Process(pid) for pid in cameras],
            "server": [psutil.Process(server)],
        }
        counts = {"pictures": frames, "steps": recorder, "requests": requests}
        while not all(count.value for count in counts.values()):
            time.sleep(0.1)
        time.sleep(2.0)
        found = stretches(processes, counts, seconds, repeats)
        ages = [1e3 * age for age in arm.ages]
    return {
        **found,
        "limit": LIMIT,
        "age_ms_p95": round(float(np.percentile(ages, 95)), 1),
        "codec": "none" if exact else "h264",
    }


def stretches(
    processes: Mapping[str, list[psutil.Process]],
    counts: Mapping[str, Any],
    seconds: float,
    repeats: int,
) -> dict[str, Any]:
    """Medians of the shares and rates of several stretches."""
    shares: dict[str, list[float]] = {name: [] for name in processes}
    rates: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(repeats):
        began, used = time.monotonic(), spent(processes)
        before = {name: count.value for name, count in counts.items()}
        time.sleep(seconds)
        after, passed = spent(processes), time.monotonic() - began
        for name in processes:
            shares[name].append((after[name] - used[name]) / passed)
        for name, count in counts.items():
            rates[name].append((count.value - before[name]) / passed)
    totals = [sum(part) for part in zip(*shares.values(), strict=True)]
    return {
        "share": round(statistics.median(totals), 3),
        "shares": {name: round(statistics.median(each), 3) for name, each in shares.items()},
        "stretches": {name: [round(one, 3) for one in each] for name, each in shares.items()},
        "per_s": {name: round(statistics.median(each), 1) for name, each in rates.items()},
    }


def spent(processes: Mapping[str, list[psutil.Process]]) -> dict[str, float]:
    """Processor time of the processes [s]."""
    found = {}
    for name, each in processes.items():
        times = [process.cpu_times() for process in each]
        found[name] = sum(one.user + one.system for one in times)
    return found


def film(path: Path, seed: int) -> Path:
    """A film of raw YUYV pictures, as a USB camera sends them."""
    import av

    height, width, _ = PICTURE
    bank = [av.VideoFrame.from_ndarray(image, format="rgb24") for image in pictures(seed)]
    raw = [frame.reformat(format="yuyv422") for frame in bank]
    with av.open(str(path), "w", format="avi") as container:
        stream: Any = container.add_stream("rawvideo", rate=round(CAMERA_HZ))
        stream.height = height
        stream.width = width
        stream.pix_fmt = "yuyv422"
        for number in range(FILM_SECONDS * round(CAMERA_HZ)):
            frame = raw[number % BANK]
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def contract() -> Contract:
    """The contract of the recording."""
    from flows.deployment.demonstrations.config import (
        DemonstrationSession,
        demonstration_contract,
    )
    from robots.franka import find_robot

    session = DemonstrationSession(rate_hz=CAMERA_HZ)
    return demonstration_contract(session, TASK, find_robot(ROBOT))


def seeing_contract() -> Contract:
    """The contract of a policy that observes both cameras."""
    from robots.spec import FieldSpec

    picture = FieldSpec(shape=(SEEN, SEEN, 3), dtype="uint8", unit="u8")
    sensors = {f"image_{name}": picture for name in CAMERAS}
    return replace(contract(), sensors=sensors, policy="0" * 64)


@contextmanager
def recording(path: Path, arm: Any, *, exact: bool) -> Iterator[Any]:
    """Records an episode at 30 steps per second in a thread of this process while the context
    lasts; yields the number of its steps."""
    ending = threading.Event()
    count = SimpleNamespace(value=0)
    thread = threading.Thread(target=_record, args=(path, arm, exact, ending, count))
    thread.start()
    try:
        yield count
    finally:
        ending.set()
        thread.join()


def _record(path: Path, arm: Any, exact: bool, ending: threading.Event, count: Any) -> None:
    from real.deploy.episode_recorder import LoopRecord, RecordWriter, add_row, deploy_schema
    from real.franka.state_recorder import StateRecorder
    from real.motion.stream import StreamConfig
    from robots.control.actions import CartesianDelta
    from robots.episodes.corrections import open_corrections
    from robots.episodes.running_episode import RunningEpisode
    from robots.episodes.schema import with_videos
    from robots.episodes.segments.video_codec import H264Config
    from robots.franka import find_robot

    robot, stated = find_robot(ROBOT), contract()
    assert isinstance(stated.steps, CartesianDelta)
    schema = deploy_schema(
        stated,
        arm.fields(),
        StreamConfig(stream_hz=STREAM_HZ),
        robot,
        "base",
        coordinates=len(stated.steps.axes),
    )
    schema = with_videos(schema, None if exact else H264Config())
    action = np.zeros(stated.action.shape)
    vector = {name: np.zeros(spec.shape) for name, spec in stated.observation.items()}
    tick = {name: np.zeros(spec.shape) for name, spec in schema.streams["reference"].fields.items()}
    states = StateRecorder(3600.0, robot.num_joints)
    record, begun = LoopRecord(), time.monotonic()
    with open_corrections(path, schema) as store:
        sink = RunningEpisode(store, sync_seconds=1.0)
        writer = RecordWriter(record, sink)
        due = begun
        while not ending.is_set():
            now = time.monotonic() - begun
            _add_states(states, robot.num_joints, count.value)
            row = {**vector, **arm.observe(SimpleNamespace(time=now), 0.0)}
            add_row(record.policy, {**row, "action": action, "action_proposed": action})
            for _ in range(round(STREAM_HZ / CAMERA_HZ)):
                add_row(record.reference, tick)
            record.end = (count.value + 1) * STATES_PER_STEP * 1e-3
            writer.write(states)
            count.value += 1
            due = max(due + 1.0 / CAMERA_HZ, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))
        sink.discard()


def _add_states(states: Any, joints: int, step: int) -> None:
    """Adds the states of a step, as franky's thread does one by one."""
    q, pose = [0.0] * joints, np.eye(4)
    for number in range(STATES_PER_STEP):
        ms = float(step * STATES_PER_STEP + number + 1)
        state = SimpleNamespace(
            time=SimpleNamespace(to_msec=lambda ms=ms: ms),
            q=q,
            dq=q,
            q_d=q,
            tau_J=q,
            tau_J_d=q,
            tau_ext_hat_filtered=q,
            O_T_EE=SimpleNamespace(matrix=pose),
            control_command_success_rate=1.0,
        )
        states(state, None, None, None, None)


def still(observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
    """A policy that answers at once."""
    return np.zeros(noise.shape, np.float32)


@contextmanager
def serving() -> Iterator[tuple[int, Any]]:
    """Runs a policy server and a robot program that asks it; yields the server's process id and the
    number of answered requests."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(there,), daemon=True)
    server.start()
    port = here.recv()
    count = context.Value("q", 0, lock=False)
    robot = context.Process(target=_ask, args=(port, count), daemon=True)
    robot.start()
    assert server.pid is not None
    try:
        yield server.pid, count
    finally:
        for process in (robot, server):
            process.terminate()
            process.join()


def _serve(pipe: Connection) -> None:
    from policies.serve import ServeConfig, serve

    serve(still, seeing_contract(), ServeConfig(port=0), TOKEN, pipe.send)


def _ask(port: int, count: Any) -> None:
    from real.deploy.remote_policy import RemoteConfig, RemotePolicy
    from robots.interfaces import PolicyInput

    policy = RemotePolicy(RemoteConfig(uri=f"ws://127.0.0.1:{port}"), TOKEN)
    stated = policy.contract
    vector = np.zeros((1, stated.n_obs_steps, stated.observation_size), np.float32)
    noise = np.zeros((1, stated.horizon, int(np.prod(stated.action.shape))), np.float32)
    banks = {f"image_{name}": pictures(seed) for seed, name in enumerate(CAMERAS)}
    due = time.monotonic()
    while True:
        seen = {name: bank[count.value % BANK][None, None] for name, bank in banks.items()}
        policy(PolicyInput(vector, seen), noise)
        count.value += 1
        due = max(due + 1.0 / CAMERA_HZ, time.monotonic() - 0.1)
        time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def page_frames(opened: Any) -> Iterator[Any]:
    """Opens a page in a process of its own; yields the number of pictures that it has received."""
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0, lock=False)
    # The server's process cannot be handed over, and the page does not need it.
    viewer = context.Process(target=_view, args=(opened._replace(process=None), count), daemon=True)
    viewer.start()
    try:
        yield count
    finally:
        viewer.terminate()
        viewer.join()


def _view(opened: Any, count: Any) -> None:
    from tests.real.console.pages import Page

    page = Page(opened)
    while True:
        page.frame()
        count.value += 1


if __name__ == "__main__":
    main()

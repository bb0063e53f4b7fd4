"""SIGTERM and SIGHUP leave contexts as Ctrl-C does, once, and never while something is written."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from robots import signals
from robots.errors import HandoffError, error_text
from robots.signals import (
    ENDING_SIGNALS,
    TerminatedError,
    announced_end,
    blocked_interrupt,
    delayed_signals,
    exit_code,
    raising_signals,
)


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_raises_in_the_main_thread(number):
    before = signal.getsignal(number)
    with (
        pytest.raises(TerminatedError, match=f"ended by {number.name}") as raised,
        raising_signals(),
    ):
        signal.raise_signal(number)
    assert raised.value.number == number
    assert exit_code(raised.value) == 128 + number
    assert signal.getsignal(number) is before


def test_a_signal_is_no_exception_that_a_program_would_hold():
    assert not issubclass(TerminatedError, Exception)
    assert exit_code(KeyboardInterrupt()) == 130


def test_a_wait_of_the_main_thread_ends():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(TerminatedError), raising_signals():
        threading.Event().wait(30.0)


def test_signals_that_follow_at_once_do_not_break_off_the_clean_up():
    cleaned = []

    @raising_signals()
    def session():
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            cleaned.append(True)

    with pytest.raises(TerminatedError, match="SIGHUP"):
        session()
    assert cleaned


def test_a_clean_up_that_hangs_can_be_broken_off_later(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.02)

    @raising_signals()
    def session():
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            time.sleep(0.05)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(TerminatedError, match="SIGTERM"):
        session()


def test_what_fails_on_the_way_out_is_noted_on_what_ended_the_process():
    @raising_signals()
    def session():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise HandoffError("the terminal is gone.")

    with pytest.raises(TerminatedError) as raised:
        session()
    assert error_text(raised.value) == "ended by SIGTERM. the terminal is gone."


def test_an_error_without_a_signal_goes_on_as_it_is():
    with pytest.raises(HandoffError, match=r"^limit$"), raising_signals():
        raise HandoffError("limit")


def test_what_is_ignored_stays_ignored():
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raising_signals():
            signal.raise_signal(signal.SIGHUP)
        with delayed_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING_SIGNALS])
@pytest.mark.parametrize("fails", [False, True])
def test_a_block_is_not_left_half_way(number, fails):
    done = []

    @raising_signals()
    @delayed_signals()
    def write():
        signal.raise_signal(number)
        done.append(True)
        if fails:
            raise HandoffError("full")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert done


def test_other_threads_are_left_alone():
    handlers = []

    def look():
        with raising_signals(), delayed_signals():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_process_runs_its_finally_blocks(number):
    code = (
        "import time\n"
        "from robots.signals import raising_signals\n"
        "with raising_signals():\n"
        "    try:\n"
        "        print('running', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned', flush=True)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "running\n"
        running.send_signal(number)
        said, _ = running.communicate(timeout=30.0)
    assert said == "cleaned\n"


def test_words_are_the_text_and_the_notes_of_one_line():
    error = ValueError("nine")
    error.add_note("Traceback\n  of another process")
    assert error_text(error) == "ValueError: nine"
    for _ in range(2):
        error.add_note("The file is open still.")
    assert error_text(error) == "ValueError: nine. The file is open still."
    assert error_text(HandoffError("limit 3. Too many?")) == "limit 3. Too many?"
    assert error_text(KeyboardInterrupt()) == "interrupted"
    assert error_text(KeyError()) == "KeyError"


def test_a_signal_does_not_break_off_the_clean_up_after_ctrl_c():
    """Ctrl-C reaches a child as well, which its parent then ends by SIGTERM."""
    cleaned = []

    @raising_signals()
    def session():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            try:
                raise OSError("a further error of the clean-up")
            except OSError:
                signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt) as raised:
        session()
    assert cleaned == [True]
    assert not isinstance(raised.value, TerminatedError)


def test_a_blocked_interrupt_comes_behind_the_block():
    reached = []

    @blocked_interrupt()
    def block():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert reached == [True]


def test_a_process_that_starts_in_the_block_is_not_interrupted():
    script = "import time; print('begun', flush=True); time.sleep(30.0)"
    with blocked_interrupt():
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.terminate()
    assert process.returncode == -signal.SIGTERM


FIRST = """
import multiprocessing, signal, time
from robots.signals import blocked_interrupt
process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0.0,))
with blocked_interrupt():
    process.start()
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
process.join()
"""


def test_the_first_process_of_a_program_does_not_lift_the_block():
    """Python starts a second one with it, and unblocks Ctrl-C for that."""
    run = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True, timeout=60.0
    )
    assert run.stdout == "True\n"


def test_an_end_is_announced_once_while_signals_are_delayed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    said = ""
    with pytest.raises(TerminatedError), raising_signals(), announced_end("stopping"):  # noqa: PT012
        limit = time.monotonic() + 20.0
        with delayed_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            while not said and time.monotonic() < limit:
                time.sleep(0.01)
                said = capfd.readouterr().err
    assert said == "stopping\n"
    assert capfd.readouterr().err == ""
    assert signal.set_wakeup_fd(-1) == before


def test_a_signal_that_is_ignored_announces_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with announced_end("stopping"):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert capfd.readouterr().err == ""


def test_another_thread_announces_nothing() -> None:
    entered: list[bool] = []

    def run() -> None:
        with announced_end("stopping"):
            entered.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert entered == [True]

"""Keeps the faults of an arm on disk until a person clears them.

Each arm has a file of JSON lines, to which its faults and their clearing are appended: the file is
the arm's history. A fault is kept if it is the last line, or if the last line cannot be read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real.franka.slot import clock_time, robot_address
from robots.errors import HandoffError, SafetyError, error_text, suggest
from robots.processes import command_line, login
from robots.storage.durable import explain_write_errors, open_shared, sync_path

SHARED = Path("/var/lib/handoff/faults")
"""Folder for a computer with several users; used if an administrator has created it."""
ENDING = ".jsonl"
FAULT = "fault"
CLEARED = "cleared"


def faults_folder() -> Path:
    """The folder of the files: `SHARED` if it exists, else `$XDG_STATE_HOME/handoff/faults`, by
    default `~/.local/state/handoff/faults`."""
    if SHARED.is_dir():
        return SHARED
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "handoff" / "faults"


def faults_file(host: str) -> Path:
    """The file of the arm at `host`."""
    return faults_folder() / f"{robot_address(host)}{ENDING}"


def keep_fault(host: str, name: str, fault: str) -> None:
    """Keeps a fault of the arm `name` at `host`.

    Args:
        host: name or address of the robot's control.
        name: name of the robot.
        fault: what stopped the arm, as a phrase.

    Raises:
        HandoffError: the file cannot be written.
    """
    _append(host, {"what": FAULT, "robot": name, "fault": fault, "command": command_line()})


def try_to_keep(error: HandoffError, host: str, name: str, fault: str) -> None:
    """Keeps a fault as `keep_fault` does; a file that cannot be written is a note on `error`, the
    fault that is to be raised."""
    try:
        keep_fault(host, name, fault)
    except HandoffError as second:
        error.add_note(f"The fault is not kept for later connections: {error_text(second)}")


def kept_fault(host: str) -> SafetyError | None:
    """The error that refuses to move the arm at `host`, or None.

    Raises:
        SafetyError: the file cannot be read.
    """
    file = faults_file(host)
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SafetyError(
            f"arm at {host}: its faults in {file} cannot be read ({error.strerror}). May this user read the file?"
        ) from None
    record = _record(lines[-1] if lines else "")
    if record.get("what") == CLEARED:
        return None
    about = (
        f"{record['robot']} at {host}: stopped ({record['fault']}) at {clock_time(record['time'])} in "
        f"'{record['command']}' of {record['user']}"
        if record
        else f"arm at {host}: the last line of {file} cannot be read, which may be a fault"
    )
    return SafetyError(
        f"{about}, and nobody has cleared it. Find the cause, clear the workspace, then: handoff clear-fault {host}"
    )


def clear_fault(host: str, who: str, cause: str) -> None:
    """Clears the kept fault of the arm at `host`.

    Args:
        host: name or address of the robot's control.
        who: the person who found the cause.
        cause: the cause.

    Raises:
        HandoffError: no fault is kept, the person or the cause is missing, or the file cannot be
            written.
    """
    if kept_fault(host) is None:
        known = arms_with_faults()
        hint = suggest(host, known, "faults are kept of") if known else "no arm has one"
        raise HandoffError(
            f"arm at {host}: no fault is kept; {hint}{'' if hint.endswith('?') else '.'}"
        )
    if not who.strip() or not cause.strip():
        raise HandoffError(
            f"arm at {host}: its fault is cleared by '{who}' for the cause '{cause}', expected a name and a cause."
        )
    _append(host, {"what": CLEARED, "who": who.strip(), "cause": cause.strip()})


def arms_with_faults() -> list[str]:
    """Addresses of the arms of which a fault is kept."""
    hosts = sorted(file.stem for file in faults_folder().glob(f"*{ENDING}"))
    return [host for host in hosts if kept_fault(host) is not None]


def _append(host: str, record: Mapping[str, Any]) -> None:
    """Appends a line with time and login, and waits for the disk."""
    file = faults_file(host)
    line = json.dumps({"time": time.time(), **record, "user": login()}) + "\n"
    with explain_write_errors(file, f"the {record['what']} line is not stored"):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_shared(file, 0o666 if file.parent == SHARED else 0o644)
        try:
            size = os.fstat(descriptor).st_size
            # A line that a crash cut short must not take the new one with it.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = f"\n{line}"
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_path(file.parent)


def _record(line: str) -> Mapping[str, Any]:
    """The record in a line; empty if it is none."""
    try:
        record = json.loads(line)
        if record["what"] == CLEARED:
            return {"what": CLEARED}
        texts = {
            key: " ".join(str(record[key]).split()) for key in ("robot", "fault", "command", "user")
        }
        return {"what": FAULT, "time": float(record["time"]), **texts}
    except (ValueError, TypeError, KeyError):
        return {}

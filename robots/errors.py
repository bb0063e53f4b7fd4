"""Defines the errors that are printed as one line, and the hints in their messages."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED_NAMES = 20
"""Largest number of names in a hint."""

_PATH_ERRORS = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
)
"""Errors of a path that a person has most likely given."""


class HandoffError(Exception):
    """Invalid input or a failed component. The message names the thing, the value, the limit and
    the likely cause.

    The command line prints only the message and exits with 1; `--debug` prints the traceback as
    well.
    """


class GateError(HandoffError):
    """A release gate failed: the artifact must not run on the arm."""


class ApprovalNeededError(HandoffError):
    """A person must approve what the stage waits for; the run goes on when it is started again."""


class ApprovalRejectedError(HandoffError):
    """A person has rejected what the stage waits for; another answer replaces theirs."""


class SafetyError(HandoffError):
    """A motion was refused or stopped for safety: limits, non-finite targets or stale data."""


def error_text(error: BaseException) -> str:
    """The message of an error, followed by its notes, such as errors during the clean-up.

    Notes of several lines, such as the traceback of another process, are omitted.
    """
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        text = text or "interrupted"
    elif not isinstance(error, HandoffError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    sentences = dict.fromkeys([text, *notes])
    if len(sentences) == 1:
        return text
    return " ".join(line if line.endswith((".", "?")) else f"{line}." for line in sentences)


def describe(error: Exception) -> str:
    """One line for any error; it says if the disk is full, and which pip extra installs a missing
    package."""
    if isinstance(error, HandoffError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full while writing {error.filename or 'a stage output'}. Free some space and run again: "
            "finished artifacts are untouched and the stage resumes."
        )
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS and error.filename:
        return f"{error.filename}: {error.strerror}. Is the path right, and may it be written?"
    if isinstance(error, ModuleNotFoundError):
        from robots.extras import install_hint

        hint = install_hint(error.name or "")
        if hint is not None:
            return hint
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where)"


def suggest(name: str, known: Iterable[str], prefix: str = "there are") -> str:
    """The hint of an error about an unknown name.

    Args:
        name: the unknown name.
        known: all valid names.
        prefix: text before the list of valid names, which is given if none of them is similar.

    Returns:
        `did you mean 'x'?` with the most similar name, or `there are a, b, c`.
    """
    names = list(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return f"{prefix} {', '.join(names[:MAX_LISTED_NAMES])}{more}"

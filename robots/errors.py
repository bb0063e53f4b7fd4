"""The one error type that reaches a person as a single clear line."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches

LISTED = 20
"""Names that a hint lists at most."""


class HandoffError(Exception):
    """Bad input or a failed part. Its text names the thing, the value, the limit and the likely
    cause.

    The command line prints the text alone and exits with 1; `--debug` shows the traceback as well.
    """


class GateError(HandoffError):
    """A release gate was not passed: the artifact must not go on to the arm."""


class SafetyError(HandoffError):
    """A motion was refused or stopped before it could harm: limits, non-finite targets, stale
    data."""


def words(error: BaseException) -> str:
    """The text of an error, and after it the notes of what else failed because of it.

    Notes of several lines, such as the traceback of another process, are left out.
    """
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        text = text or "interrupted"
    elif not isinstance(error, HandoffError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    told = dict.fromkeys([text, *notes])
    return (
        " ".join(one if one.endswith((".", "?")) else f"{one}." for one in told)
        if len(told) > 1
        else text
    )


def describe(error: Exception) -> str:
    """One clear line for any failure; a full disk is named as such, and for a package that is not
    installed the extra that brings it."""
    if isinstance(error, HandoffError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full while writing {error.filename or 'a stage output'}. Free some space and run again: "
            "finished artifacts are untouched and the stage resumes."
        )
    if isinstance(error, ModuleNotFoundError):
        from robots.extras import install_hint

        hint = install_hint(error.name or "")
        if hint is not None:
            return hint
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where)"


def suggest(name: str, known: Iterable[str], before: str = "there are") -> str:
    """The hint of an error about a `name` that is none of those that are `known`.

    Args:
        name: what was asked for.
        known: the names that would have been understood.
        before: the words before a list of them, where none comes near.

    Returns:
        `did you mean 'x'?`, with the nearest name, or `there are a, b, c`.
    """
    names = list(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{before} {', '.join(names[:LISTED])}{more}"

"""The one error type that reaches a person as a single clear line."""


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

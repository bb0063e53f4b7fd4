"""The one error type that reaches a person as a single clear line."""


class HandoffError(Exception):
    """Bad input or a failed part. Its text names the thing, the value, the limit and the likely cause.

    The command line prints the text alone and exits with 1; `--debug` shows the traceback as well.
    """


class GateError(HandoffError):
    """A release gate was not passed: the artifact must not go on to the arm."""


class SafetyError(HandoffError):
    """A motion was refused or stopped before it could harm: limits, non-finite targets, stale data."""

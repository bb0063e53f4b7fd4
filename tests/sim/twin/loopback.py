"""Loopback addresses for twins: the FCI fixes the port, so whatever runs at the same time needs its
own address."""

import os


def address(number: int) -> str:
    """The `number`-th address (1..254) of this process; other test processes have others."""
    pid = os.getpid()
    return f"127.{1 + pid // 250 % 250}.{1 + pid % 250}.{number}"

"""Tells addresses that only this computer can reach from others."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach `host`: a name or an IP address, IPv6 without
    brackets."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

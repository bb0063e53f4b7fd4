"""Writes files that survive a crash.

- `durable`: files that are whole or absent, and one writer at a time.
- `append_log`: numbered records in files that only grow.
"""

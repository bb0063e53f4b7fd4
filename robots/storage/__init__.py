"""Writes files that survive a crash.

- `durable`: atomic writes, and a lock for a single writer.
- `append_log`: an append-only log of numbered records.
- `parsed_sources`: a cache of parsed source files.
"""

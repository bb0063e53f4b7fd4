"""Writes files that survive a crash.

- `durable`: atomic writes, and a lock for a single writer.
- `onnx_file`: metadata and digest of an ONNX file.
- `append_log`: an append-only log of numbered records.
- `parsed_sources`: a cache of parsed source files.
"""

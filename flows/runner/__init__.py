"""Runs every stage once, in a separate process, and keeps its artifact.

- `stage`: stages, their cache keys and their execution.
- `artifact`: directories with a manifest, either complete or absent.
- `plan`: which stages a run would execute, without executing them.
- `isolate`: the child process of a stage.
- `lock`: file locks, so that one run alone writes an artifact.
- `memory`: peak memory of a run.
- `display`: progress on a terminal.
"""

"""Runs stages once, each in a process of its own, and keeps what they make.

- `stage`: a stage, its cache key, and its run.
- `artifact`: directories with a manifest, complete or absent.
- `plan`: what a run would do, without doing it.
- `isolate`: the process of a stage.
- `lock`: one run makes an artifact, and its processes alone write to it.
- `memory`: peak memory of a run.
- `display`: progress on a terminal.
"""

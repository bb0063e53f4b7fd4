"""Runs every stage once, in a separate process, and keeps its artifact.

- `signature`: kinds of stages, read from the signatures of their functions.
- `stage`: stages, their cache keys and their execution.
- `artifact`: directories with a manifest, either complete or absent.
- `content`: checks of the files of finished artifacts.
- `provenance`: seeds, person, environment and packages of a computation.
- `outside_code`: versions of modules outside Handoff that options name.
- `stage_code`: whether an artifact is of the present code.
- `estimates`: time, memory and disk of stages, from earlier artifacts.
- `plan`: which stages a run would execute, without executing them.
- `isolate`: the child process of a stage.
- `lock`: file locks: one run alone writes an artifact, one stage alone measures latencies.
- `schedule`: the order of the stages of a run, and how many run at once.
- `run_end`: the end of a run, as the threads that wait for its stages see it.
- `memory`: peak memory of a run and of its stages.
- `display`: progress on a terminal.
"""

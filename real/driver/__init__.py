"""Drives an arm in a process of its own, which brings it to rest whatever happens to the process of
the policy.

- `messages`: what the two processes send each other.
- `driver_process`: the process: connection, stream of references, limits, watchdog, faults.
- `channel`: that process's end of the pipe.
- `driver`: starts that process, and notices how it ends.
- `driven_arm`: an arm, as the process of the policy sees it.
- `driven_stream`: the stream of references, as the process of the policy sees it.
"""

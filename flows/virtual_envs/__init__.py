"""Makes the virtual environments of engines that cannot be installed beside Handoff.

- `recipe`: a file of pinned packages, and the trial of its environments.
- `create`: makes a virtual environment, or finishes one.
- `check`: what a virtual environment has, and a trial of its environments.
- `program`: runs a short program of another Python.
- `usd`: an arm as USD, converted in a virtual environment.
- `command`: implements `handoff envs`.
"""

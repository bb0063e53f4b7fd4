"""Defines push-T, in gym-pusht and on the arm.

- `geometry`: the T, its coverage and its frames.
- `task`: the task on the arm.
- `expert`: the scripted expert.
"""

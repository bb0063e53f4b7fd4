"""Policies at a table: start by start at the twin, or with a person beside an arm.

- `config`: starts at the twin, and sessions at an arm.
- `twin`: what every table of the twin shares: place, observe, record, summarise.
- `push_t_table`: the table of push-T.
- `task_table`: the table of a simulated task, with the gripper.
- `release`: the bundle that passed a gate.
- `arms`: an arm and its table for a session: simulated, or real.
- `session`: the command: episodes with a person at the console.
"""

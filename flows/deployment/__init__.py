"""Runs policies on the twin, or on an arm supervised by a person.

- `config`: options of deployments to the twin and of sessions at an arm.
- `twin`: runs and records episodes on the twin; interface of its tables.
- `starts`: results of finished starts, from which an interrupted deployment goes on.
- `push_t_table`: the push-T table.
- `task_table`: the table of a simulated task, with the gripper.
- `approval`: a person's approval of a policy, and the record of it.
- `release`: finds the bundle that passed a gate, and was approved.
- `release_folder`: assembles and checks release folders, which are copied to an arm's computer.
- `verified_policy`: opens a policy after checking what it is and who signed it.
- `robot_limit`: one holder per arm, on this computer and among several.
- `fault_clearing`: implements `handoff clear-fault`.
- `arms`: holds the arm of a session, and waits for the person.
- `safety`: checks the options of a session before anything moves.
- `deployed_episode`: outcome and metadata of an episode of a session.
- `session_tables`: the tables of a session: push-T's board, and any other task's with a gripper.
- `session`: implements `handoff deploy`: episodes supervised at the console.
- `blinded`: several policies that a person judges without knowing which one acts.
"""

"""Tables of a session at an arm: what lies there, how the arm gets to its start, and when an
episode is over.

- `session_table`: the interface of a table, and the pictures beside it.
- `board`: push-T's board with a simulated or a real arm.
- `gripper_table`: the table of any other task, whose arm has a gripper.
- `hosts`: a simulated and a real arm with a gripper.
- `open_table`: opens the table of a policy.
- `reset_phase`: home, hand guiding and the person's start between two episodes.
- `supervised_run`: a policy at a table with a person beside it, one episode after another.
- `instructions`: what the policy is told, at the begin and by the person at the console.
- `tracked_objects`: what trackers and constants must provide, and `--tracker`.
- `replayed_run`: recorded actions in the policy's place, compared with the recorded motion.
"""

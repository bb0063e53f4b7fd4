"""Decides whether an exported policy is released: what the file does must be as good as what was
trained.

- `config`: conditions of a release and their limits.
- `conditions`: one condition with its value, limit and verdict.
- `ancestry`: the policy that was exported, its teacher, and their evaluations.
- `robot_agent`: an agent of an evaluation that runs the robot's inference code.
- `parity`: equal actions of training, evaluation, ONNX Runtime and the robot's process.
- `closed_loop`: episodes played with the exported file, and paired differences.
- `twin_limits`: episodes at the twin against the robot's limits.
- `outcome`: what a gate was given and what it measured.
- `gate`: the gate as a function: measures, judges, writes the verdict.
- `side_by_side`: videos of one start by every policy.
- `changes`: what changed since the release that is replaced.
- `checks`: inputs with which a gate cannot pass.
- `page`: the release page.
- `command`: `handoff gate`.
"""

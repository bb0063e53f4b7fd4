"""Drives a Franka arm and its gripper through franky 2.0.0.

- `config`: connection, controller and collision behaviour of an arm.
- `arm`: the arm under impedance control, with its faults and its recovery.
- `late_arm`: an arm whose targets arrive late.
- `connection`: connecting, converting states, and checking which robot is connected.
- `slot`: one process of the computer per arm.
- `kept_faults`: faults on disk until a person clears them.
- `recovery`: recovering an arm on the word of a person.
- `preflight`: the checks before an arm moves.
- `impedance`: configuration of the impedance laws.
- `joint_limits`: bounds on the joints' positions and velocities.
- `gripper`: the gripper, and its target during an episode.
- `realtime`: real-time priority for the 1 kHz loop alone.
- `state_recorder`: recording of every 1 kHz robot state.
"""

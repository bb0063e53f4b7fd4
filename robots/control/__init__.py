"""Turns actions into targets of the arm and of the gripper.

- `actions`: action spaces, and the targets that their numbers mean.
- `agent_reference`: the motion of push-T's agent, sampled at any time.
- `gripper_commands`: close, hold and open, and their entry in an action.
- `impedance`: spring and damper laws about a pose or a posture.
- `noise`: the noise of a chunk by seed and number.
- `temporal_ensemble`: one action from all chunks that predicted the step.
"""

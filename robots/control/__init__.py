"""Converts actions to targets of the arm and of the gripper.

- `actions`: action spaces, and the conversion of actions to targets.
- `agent_reference`: the motion of push-T's agent as a continuous reference.
- `gripper_commands`: the commands close, hold and open, and the gripper's entry of an action.
- `impedance`: impedance laws about a pose or about joint positions.
- `noise`: the noise of a chunk by seed and index.
- `proprioception`: the fields that an arm and its gripper measure.
- `relations`: fields of one thing relative to another, computed from both.
- `rotations`: forms of rotations, converted to one another.
- `temporal_ensemble`: the weighted mean of all chunks that predicted a step.
- `training_pictures`: whether a picture looks like those of the training data.
- `training_range`: the range of the training data, and the refusal of inputs far outside it.
"""

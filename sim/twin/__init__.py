"""Simulates a robot that speaks its own network protocol.

- `twin`: the process.
- `server`: the command and state connections.
- `protocol`: the messages.
- `commands`: requests and their answers.
- `control_unit`: modes, errors and limits of the robot.
- `checks`: the checks of a reference.
- `link`: loss and delay of the network.
- `state`: the robot's state message.
- `gripper`: the gripper's own server.
- `arm_model`: kinematics and dynamics for clients.
- `urdf`: the robot's URDF.
- `world`: what the twin simulates.
- `arm_world`: an arm alone.
- `push_t_world`: an arm at the push-T table.
- `task_world`: an arm at a task's table.
"""

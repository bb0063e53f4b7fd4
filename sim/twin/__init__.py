"""Simulates a robot behind the robot's own network protocol.

- `twin`: the twin's process.
- `server`: the command and state connections.
- `protocol`: the messages.
- `commands`: requests and their replies.
- `unit`: the robot's control unit without its network.
- `exchange`: states and commands in a cycle of a motion, lost and late ones.
- `link`: sockets of the connections.
- `motion_log`: times and states of motions.
- `keep_alive`: repeats the last state of a twin that its computer delays.
- `state`: the robot's state message.
- `gripper`: the gripper's server.
- `world`: the interface of the simulated physics.
- `arm_world`: an arm without a gripper.
- `disturbances`: joint friction, pushes and payloads.
- `push_t_world`: an arm at the push-T table.
- `task_world`: an arm at a task's table.
"""

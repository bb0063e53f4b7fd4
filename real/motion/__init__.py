"""Turns targets into the motion of an arm: a governed stream of references, tick by tick.

- `action_space`: the coordinates of actions, and steps of a gripper's pose.
- `planar_space`: targets of a pusher on a board.
- `joint_space`: positions of the joints as targets.
- `step_spaces`: the coordinates that belong to a policy's actions.
- `governor`: the keep-in box, and limits of speed, acceleration and jerk.
- `reference_bounds`: bounds on a reference by velocities, torques and torque rates of the joints.
- `fence`: places that elbow, wrist, flange and tool keep out of.
- `fenced_path`: the way of a joint motion, checked against the fence before it begins.
- `hand_guiding`: an arm that yields to a hand, within bounds on its speed.
- `force_guard`: limits of contact forces, below the robot's own reflex.
- `energy_tank`: bounds the energy that a reference puts into the arm.
- `watchdog`: the age of the newest action.
- `stream`: the stream of one episode.
"""

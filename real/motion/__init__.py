"""Turns targets into the motion of an arm: a governed stream of references, tick by tick.

- `action_space`: the coordinates of actions, and steps of a gripper's pose.
- `planar_space`: targets of a pusher on a board.
- `governor`: the keep-in box, and limits of speed, acceleration and jerk.
- `reference_bounds`: bounds on a reference by velocities, torques and torque rates of the joints.
- `fence`: places that elbow, wrist, flange and tool keep out of.
- `fenced_path`: the way of a joint motion, checked against the fence before it begins.
- `force_guard`: limits of contact forces, below the robot's own reflex.
- `energy_tank`: bounds the energy that a reference puts into the arm.
- `stream`: the stream of one episode.
"""

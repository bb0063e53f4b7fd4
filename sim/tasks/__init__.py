"""Defines the tasks, one module each.

- `task`: the parts of a task.
- `terms`: evaluation of observation and reward terms.
- `fixture`: articulated fixtures.
- `grasping`: terms of grasping.
- `reach`: a point in the air.
- `reach_by_name`: one of four markers, named by an instruction.
- `lift_cube`: a cube lifted off the table.
- `pick_cube`: a cube lifted to a goal.
- `pick_by_name`: one of four cubes, named by an instruction.
- `stack_cube`: a cube on another.
- `peg_insert`: a peg into a hole.
- `open_drawer`: a drawer.
- `flip_switch`: a switch.
- `cable_route`: a cable into a clip.
- `push_t`: the T on a board.
"""

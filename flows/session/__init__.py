"""Provides environments, operators, episodes and views for sessions with a person.

- `config`: options of the environment and of the operator.
- `simulated_arm`: options of a simulated arm at which a session takes place.
- `environment`: creates both from these options.
- `capture`: capture times of simulated cameras.
- `episodes`: runs and records episodes in which a person can intervene.
- `viewer`: a process that renders the environment for the console.
- `viewed_scene`: the scene as a person sees it, with a camera over the shoulder.
- `scene_3d`: the 3-D scene that the console shows.
- `arm_supervisor`: the person at the console as the loop of an arm sees them.
- `hints`: recorded hints to the person, and how useful they were.
- `latency`: how late inference, pictures and commands of a session at an arm were.
- `standalone_twin`: simulated arms behind the robot's protocol, for programs of others.
- `twin_faults`: what happens to such an arm, from a file.
"""

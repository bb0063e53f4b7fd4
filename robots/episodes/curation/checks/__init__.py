"""Checks an episode store for faults, from a summary of fixed size per episode.

- `layout`: the fields of a stream by their kind.
- `usual_values`: usual ranges of the entries, and the observation that follows each action.
- `summary`: one episode as numbers.
- `pairs`: an action and the observation that follows it as numbers.
- `pictures`: the pictures of one episode as numbers.
- `captures`: the capture times of one episode's pictures as numbers.
- `evidence`: the summaries of all episodes, and the wording of findings.
- `episodes`: duplicates, lengths, rest, padding, equal fields and times.
- `labels`: success, instructions and rewards.
- `signals`: dead, frozen, jumping, saturated and misplaced values.
- `control`: lag, units and order of actions and observations.
- `cameras`: stuck and blank pictures.
- `joints`: limits of the robot, gripper and quaternions.
"""

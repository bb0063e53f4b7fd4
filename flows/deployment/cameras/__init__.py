"""Pictures of an arm's cameras, as a policy observes them and as a recording keeps them.

- `pictures`: the newest picture of every camera beside the arm's state, with its capture time.
- `policy_cameras`: the cameras that a policy observes at an arm.
- `picture_check`: compares pictures with the training data.
- `calibrate`: implements `handoff camera calibrate`.
- `twin_cameras`: the cameras of a simulated table, and the one above the push-T board.
"""

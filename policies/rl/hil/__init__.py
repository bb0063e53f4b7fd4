"""Trains policies online while a person corrects the robot.

- `config`: options; imports no torch.
- `algorithms`: sets up the algorithm of a session: learner, buffers, updates and rewards.
- `make_learner`: builds the SAC learner and its data from the options of a session.
- `learner`: the training loop of the learner process.
- `server`: the websocket server of the learner process.
- `message_log`: messages of actors, logged to disk and applied exactly once.
- `rlif`: RLIF, rewards from interventions.
- `judged_success`: rewards by the newest version of the success classifier.
- `hg_dagger`: HG-DAgger, imitation of corrections.
"""

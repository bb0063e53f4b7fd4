"""Runs human-in-the-loop sessions: a person demonstrates and corrects while a policy learns.

- `config`: all options of a session.
- `compose`: composes a session's file with overrides and derives the seeds of its stages.
- `session`: implements `handoff hil`; the graph of its stages.
- `demonstrate`: stage `demonstrations`: records demonstrations.
- `classify`: stage `classifier`: trains a success classifier.
- `correct`: stage `train`: RL with corrections, in an actor and a learner process.
- `actor_process`: actor process: environment, operator and newest policy.
- `learner_process`: learner process: replay buffers and updates.
- `processes`: starts, monitors and ends both processes.
- `rollouts`: stage `rollouts`: records successful episodes of the trained policy.
- `report`: results of a session, as JSON and as an HTML page.
"""

"""Human-in-the-loop sessions: a person demonstrates and corrects while a policy learns.

- `config`: everything that a session can be told.
- `compose`: a session's file with overrides, and its seed in every stage.
- `session`: the command, and the graph of its stages.
- `demonstrate`: stage `demonstrations`.
- `classify`: stage `classifier`: detects success.
- `correct`: stage `train`: two processes, an actor and a learner.
- `actor_process`: the actor's: environment, person and newest policy.
- `learner_process`: the learner's: replay buffers and updates.
- `processes`: both processes started, heard and ended.
- `rollouts`: stage `rollouts`: successful episodes of the learned policy.
- `report`: results of a session, as JSON and as a page.
"""

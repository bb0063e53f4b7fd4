"""Runs the actor of human-in-the-loop training, which never waits for its learner.

- `actor`: the loop that proposes, lets a person overrule, executes and records.
- `actor_policy`: the learner's actor in NumPy.
- `hints`: hints to the person, from the learner's critics and the success classifier.
- `interfaces`: the actor's interfaces: parameters, actions, observation vectors and time.
- `journal`: the write-ahead log of steps.
- `learner_client`: the connection to the learner.
- `rewards`: rewards by the environment or by a success classifier.
- `trunk`: the frozen trunk of the learner's image encoder.
"""

"""Trains a policy by RL while a person corrects it, in an actor and a learner process,
and with a classifier process where the success classifier is trained further.

- `config`: options of the training.
- `actor_process`: actor process: environment, operator and newest policy.
- `learner_process`: learner process: replay buffers and updates.
- `refresh_process`: classifier process: further training of the success classifier.
- `versions`: versions of the classifier, in folders of the session.
- `pictures`: checks the pictures of a session, and provides the trunk that encodes them.
- `success_reward`: reward of the success classifier, and which version of it judged.
- `guide`: a saved policy that guides episodes (JSRL).
- `hints`: hints to the person when the policy is likely to fail, and how useful they were.
- `processes`: starts, monitors, restarts and ends the processes.
"""

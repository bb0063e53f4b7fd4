"""Encodes messages between processes as msgpack maps with NumPy arrays, never pickle.

- `policy`: messages between a policy server and its clients.
- `learner`: messages between actor and learner.
- `addresses`: which addresses only this computer can reach.
- `steps`: batches of steps that an actor sends to a learner.
"""

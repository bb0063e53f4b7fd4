"""Encodes messages between processes as msgpack maps with NumPy arrays, never pickle.

- `policy`: policy server and its clients.
- `learner`: actor and learner.
- `steps`: steps of episodes on their way to a learner.
"""

"""Encodes messages between processes as msgpack maps with NumPy arrays, never pickle.

- `policy`: messages between a policy server and its clients.
- `adapt`: requests of programs that were written for another policy server.
- `learner`: messages between actor and learner.
- `actor_card`: the architecture of a published policy.
- `shared_pictures`: sends every picture of an episode once.
- `web_server`: limits of a web server: names, origins, connections, first messages.
- `addresses`: which addresses only this computer can reach.
- `steps`: batches of steps that an actor sends to a learner.
"""

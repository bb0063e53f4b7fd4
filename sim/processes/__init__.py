"""Environments that are simulated in processes of their own, on this machine or on others.

- `vec_env`: a vectorised environment over several processes, in parts that are stepped apart.
- `env_server`: the environments of one process, and the protocol by which they are asked.
- `process`: a simulator that is a process of this machine; arrays go through shared memory.
- `ray_process`: a simulator that is an actor of a Ray cluster, made up for when its machine is
  lost.
- `cluster`: the room that a Ray cluster has for simulators.
- `shared_memory`: arrays that two processes share.
- `config`: which processes simulate.
"""

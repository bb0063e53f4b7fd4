"""Simulates environments in separate processes, on this machine or on others.

- `vec_env`: a vectorised environment over several processes, in parts that are stepped separately.
- `env_server`: the environments of one process, and the client's interface.
- `process`: a simulator process on this machine, with shared memory.
- `ray_process`: a simulator actor in a Ray cluster, replaced when its machine is lost.
- `cluster`: resources for simulators in a Ray cluster.
- `shared_memory`: arrays that two processes share.
- `config`: configuration of the simulator processes.
"""

"""Runs an engine in another virtual environment or on another machine, behind the same `VecEnv`.

The modules of the other side, `start`, `serve`, `engines`, `channel` and `authentication`, need
NumPy and msgpack only, and Python 3.11 or later; `listen` needs no more.

- `config`: the place of the other side, and its engine.
- `venvs`: virtual environments by name.
- `packages`: the versions of packages on the other side.
- `vec_env`: a vectorised environment over environment servers.
- `client`: the client of one environment server, on this machine or another.
- `recovery`: replaces a server that was lost, without a change of results.
- `child`: a server process of another Python: its start, its output, and how it ended.
- `channel`: messages with arrays over a socket, through shared memory or inside the frame.
- `authentication`: the proof of the token, for both ends of a connection.
- `start`: the first file that the other Python runs.
- `serve`: makes the environments and answers requests until the connection is closed.
- `engines`: makes the requested engine.
- `listen`: accepts connections from other machines, and starts a server for each.
"""

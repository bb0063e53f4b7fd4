"""Defines the command `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import LOOPBACK, Debug, Host, Port

Count = Parameter(validator=Number(gte=1))


def serve(
    policy: Annotated[Path, Parameter(completer=completers.artifacts)],
    /,
    *,
    host: Host = LOOPBACK,
    port: Port = 8000,
    clients: Annotated[int, Count] = 16,
    queue: Annotated[int, Count] = 8,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 0,
    action_interface: str | None = None,
    map: Annotated[tuple[str, ...], Parameter(name="--map")] = (),
    debug: Debug = False,
) -> None:
    """Serve action chunks over a websocket, compatible with openpi's client.

    Args:
        policy: Release folder, folder of a policy or of a bundle, or ONNX file.
        clients: Maximum number of simultaneous connections.
        queue: Maximum number of waiting requests.
        seed: Seed of the noise for requests without noise.
        action_interface: Action interface of a saved policy; an ONNX file states its own.
        map: NAME=FIELD: what a name in requests means; NAME= ignores it; may be repeated.

    Examples:
        handoff serve runs/demo/bundle
        handoff serve runs/demo/teacher --port 9000 --action-interface pd_target
        handoff serve release --map observation/joint_position=q --map observation/wrist_image=
    """
    from flows.serve import serve_command

    serve_command(
        policy,
        host=host,
        port=port,
        clients=clients,
        queue=queue,
        seed=seed,
        action_interface=action_interface,
        names=map,
    )

"""`handoff serve`: a trained or exported policy, answering over a websocket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from robots.contract import Contract
from robots.control.actions import PD_TARGET
from robots.errors import HandoffError
from robots.interfaces import Policy, SeeingPolicy

if TYPE_CHECKING:
    from argparse import Namespace

TOKEN = "HANDOFF_TOKEN"
"""Environment variable of the token; an argument would show in every list of processes."""
ONNX = "policy.onnx"


def serve_command(options: Namespace) -> None:
    """`handoff serve`: serves until it is interrupted; the token comes from the environment or is
    made up and shown."""
    from policies.serve import ServeConfig, choose_token, serve

    config = ServeConfig(
        host=options.host,
        port=options.port,
        clients=options.clients,
        queue=options.queue,
        seed=options.seed,
    )
    given = os.environ.get(TOKEN) or None
    token = choose_token(config.host, given)
    policy, contract = open_policy(options.policy, options.action_interface)

    def ready(port: int) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        _say(
            f"{contract.task}, {contract.sampler}, policy {contract.policy[:12]}: ws://{host}:{port}"
        )
        if given is None:
            _say(f"token {token}")

    serve(policy, contract, config, token, ready)


def open_policy(
    path: Path, action_interface: str | None = None
) -> tuple[Policy | SeeingPolicy, Contract]:
    """The policy at `path`, with its contract.

    Args:
        path: ONNX file with a contract, a folder with `policy.onnx`, or the directory of a saved
            policy.
        action_interface: what its actions mean, for a saved policy, which does not say; None takes
            `pd_target`.

    Raises:
        HandoffError: nothing of the kind there, or it is damaged.
    """
    onnx = path / ONNX if (path / ONNX).is_file() else path
    if onnx.suffix == ".onnx":
        from real.deploy.onnx_policy import OnnxPolicy

        exported = OnnxPolicy(onnx)
        return exported, exported.contract
    if not path.is_dir():
        raise HandoffError(
            f"serve: {path} is neither an .onnx file nor a directory. Is the path right?"
        )
    from policies.checkpoint import WEIGHTS, digest_file, read_card
    from policies.export.onnx import contract_of
    from policies.load import load_policy

    card, policy = read_card(path), load_policy(path)
    digest = digest_file(path / WEIGHTS)
    interface = action_interface or PD_TARGET
    return policy, contract_of(
        card,
        interface,
        card.model.sampler_name(card.model.sampler_steps),
        policy=digest,
        training_data="",
    )


def _say(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)

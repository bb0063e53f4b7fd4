"""Implements `handoff serve`: a websocket server for a trained or exported policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flows.reports.results import sampler_text
from flows.stages.release.export import task_of
from robots.contract import ONNX_FILE, Contract
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, Policy
from robots.wire.policy import TOKEN_VARIABLE


def serve_command(
    path: Path,
    *,
    host: str,
    port: int,
    clients: int,
    queue: int,
    seed: int,
    action_interface: str | None,
    names: Sequence[str] = (),
) -> None:
    """Runs `handoff serve` until it is interrupted; prints a generated token if the environment has
    none.

    Args:
        path: see `open_policy`.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        clients: maximum number of connections.
        queue: maximum number of waiting requests.
        seed: seed of the noise for requests without noise.
        action_interface: see `open_policy`.
        names: `NAME=FIELD`, what names in requests mean.
    """
    from policies.serve import ServeConfig, choose_token, serve

    config = ServeConfig(
        host=host, port=port, clients=clients, queue=queue, seed=seed, names=dict(_pairs(names))
    )
    known_token = os.environ.get(TOKEN_VARIABLE) or None
    token = choose_token(config.host, known_token)
    with verified_path(path, _print) as verified:
        policy, contract = open_policy(verified, action_interface)

    def announce(port: int) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        _print(
            f"{contract.task}, {sampler_text(contract.sampler)}, policy {contract.policy[:12]}: ws://{host}:{port}"
        )
        if known_token is None:
            _print(f"token {token}")

    serve(policy, contract, config, token, announce)
    _print("stopped; the connections are closed.")


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for given in names:
        name, separator, field = given.partition("=")
        if not name or not separator:
            raise HandoffError(
                f"--map {given}: expected NAME=FIELD, such as observation/state=state; NAME= ignores a name."
            )
        yield name, field


@contextmanager
def verified_path(path: Path, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yields a private, verified copy of a release folder; any other path as it is.

    Args:
        path: see `open_policy`.
        warn: called with one line if no trusted key has signed the release.

    Raises:
        HandoffError: the release was altered or revoked.
    """
    from flows.deployment.release_folder import is_release
    from flows.deployment.verified_policy import verified_policy

    if is_release(path):
        with verified_policy(path, arm=None, warn=warn) as copy:
            yield copy
    else:
        yield path


def open_policy(
    path: Path, action_interface: str | None = None
) -> tuple[Policy | MultimodalPolicy, Contract]:
    """Opens the policy at `path`, with its contract.

    Args:
        path: ONNX file with a contract, a folder with `policy.onnx` such as a release, or the
            directory of a saved policy.
        action_interface: action interface of a saved policy; None takes the one that its recorded
            actions or its simulated task state.

    Raises:
        HandoffError: `path` contains no policy, a damaged one, or one whose actions have an unknown
            meaning.
    """
    onnx = path / ONNX_FILE if (path / ONNX_FILE).is_file() else path
    if onnx.suffix == ".onnx":
        from real.deploy.onnx_policy import OnnxPolicy

        exported = OnnxPolicy(onnx)
        return exported, exported.contract
    if not path.is_dir():
        raise HandoffError(
            f"serve: {path} is neither an .onnx file nor a directory. Is the path right?"
        )
    from policies.checkpoint import WEIGHTS, digest_file, read_card
    from policies.export.contract import ActionMeaning, contract_of, stated_interface
    from policies.load import load_policy

    card, policy = read_card(path), load_policy(path)
    digest = digest_file(path / WEIGHTS)
    task = task_of(card.task, card.rate_hz, card.robot)
    if task is not None and not card.action.interface:
        card = replace(card, action=replace(card.action, interface=task.actions.kind))
    return policy, contract_of(
        card,
        ActionMeaning(stated_interface(action_interface, card)),
        card.model.sampler_name(card.model.sampler_steps),
        policy=digest,
        training_data="",
    )


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)

"""Defines the command `completion`."""

from __future__ import annotations

from typing import Literal

from flows.commands.parameters import Debug, Flag


def completion(
    shell: Literal["bash", "zsh", "fish"], /, *, install: Flag = False, debug: Debug = False
) -> None:
    """Print the completion script of a shell.

    Args:
        shell: The shell.
        install: Write it to the shell's folder of completions, with a line in its start-up file.

    Examples:
        handoff completion bash > ~/.local/share/bash-completion/completions/handoff
        handoff completion zsh --install
    """
    from rich.console import Console

    from flows.commands.app import program

    app = program()
    if install:
        path = app.install_completion(shell=shell)
        Console().print(f"completion  {path}; open a new terminal", highlight=False, soft_wrap=True)
        return
    # Written as it is: a console would wrap and colour it.
    print(app.generate_completion(shell=shell))

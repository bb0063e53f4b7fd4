"""Defines the program `handoff`: its commands, how arguments are parsed, and how errors are
printed."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.argument import ArgumentCollection

from flows.commands import (
    episodes,
    evaluation,
    lineage,
    listing,
    machine,
    new,
    pipelines,
    releasing,
    sessions,
)
from flows.commands.parameters import Debug, Flag
from robots.errors import HandoffError, describe, error_text
from robots.signals import announced_end, exit_code, raising_signals

USAGE = 2
"""Exit code of arguments that are not understood."""
UNREAD = 128 + signal.SIGPIPE
"""Exit code of output that nobody reads."""
ABOUT_GROUPS = {
    "camera": "Calibrate cameras by views of a printed board.",
    "envs": "Make virtual environments of engines that cannot be installed beside Handoff.",
    "episodes": "Look at data sets of any format, review, examine, import, edit and export them.",
    "keys": "Make, trust, revoke and list the keys that sign releases.",
    "new": "Write a commented recipe, task or stage that runs as it is.",
}
WITH_STAGES = (pipelines.run, sessions.hil, evaluation.tune)
"""Commands that resume when they are started again."""


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
    added = BASH_WORDS if shell == "bash" else ""
    if install:
        path = program().install_completion(shell=shell)
        path.write_text(path.read_text() + added)
        print(f"completion  {path}; open a new terminal")
    else:
        print(program().generate_completion(shell=shell) + added)


BASH_WORDS = """
# Bash takes KEY=VALUE for three words. The program completes it as one, and its key is then left out.
_handoff_words() {
  local -a words=()
  local word n=-1
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ $n -ge 0 && -n $word && ${words[n]} != -* && ( $word == "=" || ${words[n]} == *= ) ]]; then
      words[n]+=$word
    else
      words+=("$word")
      n=$((n + 1))
    fi
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$n
  _handoff
  if [[ ${words[n]} == *=* && ${words[n]} != -* && $COMP_WORDBREAKS == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${words[n]%=*}="}")
  fi
  # A folder, or an option without its value, is not the end of the word.
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then
    compopt -o nospace 2>/dev/null
  fi
}

complete -F _handoff_words handoff
"""
"""Is added to the completion script of Bash."""


COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Recipes": {
        "list": listing.list_known,
        "plan": pipelines.plan,
        "run": pipelines.run,
        "show": pipelines.show,
        "profile": pipelines.profile,
    },
    "Prefect": {
        "server": pipelines.server,
        "register": pipelines.register,
    },
    "New files": {
        "new recipe": new.new_recipe,
        "new task": new.new_task,
        "new stage": new.new_stage,
    },
    "Artifacts": {
        "explain": lineage.explain,
        "reproduce": lineage.reproduce,
        "rollouts": evaluation.rollouts,
        "fetch": lineage.fetch,
        "gc": lineage.gc,
    },
    "Data": {
        "episodes info": episodes.show_info,
        "episodes ls": episodes.list_episodes,
        "episodes view": episodes.view,
        "episodes review": episodes.review,
        "episodes doctor": episodes.examine,
        "episodes stats": episodes.stats,
        "episodes import": episodes.import_data,
        "episodes delete": episodes.delete,
        "episodes trim": episodes.trim,
        "episodes relabel": episodes.relabel,
        "episodes merge": episodes.merge,
        "episodes split": episodes.split,
        "episodes weights": episodes.weights,
        "episodes export": episodes.export,
    },
    "Policies": {
        "evaluate": evaluation.evaluate,
        "compare": evaluation.compare,
        "robustness": evaluation.robustness,
        "sensitivity": evaluation.sensitivity,
        "worst-case": evaluation.worst_case,
        "evaluate-family": evaluation.evaluate_family,
        "gate": evaluation.gate,
        "serve": evaluation.serve,
    },
    "Releases": {
        "keys new": releasing.keys_new,
        "keys trust": releasing.keys_trust,
        "keys revoke": releasing.keys_revoke,
        "keys list": releasing.keys_list,
        "sign": releasing.sign,
        "verify": releasing.verify,
    },
    "People and robots": {
        "record": sessions.record,
        "hil": sessions.hil,
        "console": sessions.console,
        "approve": sessions.approve,
        "deploy": sessions.deploy,
        "twin": sessions.twin,
        "clear-fault": sessions.clear_fault,
        "camera board": machine.camera_board,
        "camera calibrate": machine.camera_calibrate,
        "tune": evaluation.tune,
    },
    "This machine": {
        "doctor": machine.doctor,
        "envs create": machine.envs_create,
        "envs list": machine.envs_list,
        "envs check": machine.envs_check,
        "envs usd": machine.envs_usd,
        "envs listen": machine.envs_listen,
        "completion": completion,
    },
}
"""Functions of the commands, by heading and name."""


class CommandLineError(HandoffError):
    """Arguments that are not understood."""


@dataclass(frozen=True)
class ParsedCommand:
    """One command with its arguments."""

    function: Callable[..., Any]
    bound: inspect.BoundArguments

    @property
    def values(self) -> dict[str, Any]:
        """The given arguments, by the name of the parameter."""
        return dict(self.bound.arguments)

    def given(self, parameter: str) -> Any:
        """The argument for a parameter, or the parameter's default."""
        return self.values.get(parameter, self.bound.signature.parameters[parameter].default)

    def run(self) -> None:
        """Runs the command."""
        self.function(*self.bound.args, **self.bound.kwargs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. An error is printed as one line, with `--debug`
    followed by a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        command = parse(words)
    except CommandLineError as error:
        return _fail(str(error), error, debug=False, code=USAGE)
    debug = bool(command.values.get("debug", False))
    try:
        with raising_signals(), _announced(command):
            command.run()
    except HandoffError as error:
        return _fail(error_text(error), error, debug)
    except KeyboardInterrupt as error:
        message = f"{error_text(error).removesuffix('.')}. {_kept(command)}".rstrip()
        return _fail(message, error, debug, code=exit_code(error))
    except BrokenPipeError:
        # The reader of a pipe, such as head, has seen enough; nor can what is left be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:  # noqa: BLE001  a person gets one line instead of a traceback
        return _fail(describe(error), error, debug)
    return 0


def _announced(command: ParsedCommand) -> AbstractContextManager[None]:
    """Says at once that a signal ends a session, whose end takes a moment; runs say it themselves
    (`flows.runner.run_end`)."""
    at_arm = command.function is sessions.record and command.values.get("arm") is not None
    if command.function is sessions.deploy or at_arm:
        words = "the arm comes to rest, and an episode that runs is stored"
    elif command.function is sessions.console:
        words = "an episode that runs is stored"
    else:
        return nullcontext()
    return announced_end(f"stopping: {words}")


def _kept(command: ParsedCommand) -> str:
    """What an interrupted command leaves, and how it goes on, as a sentence; empty for nothing."""
    if command.function in WITH_STAGES:
        return "Finished stages are kept; run the same command to resume."
    if command.function is lineage.reproduce and (
        command.given("claim") or command.given("within")
    ):
        return "Finished stages are kept; run the same command to resume."
    if command.function is sessions.record:
        return "What was recorded is kept; run the same command to go on."
    if command.function is episodes.review:
        return "All changes are kept; run the same command to go on."
    if command.function is not sessions.deploy:
        return ""
    store = command.given("out") / "store.zarr"
    if not store.exists():
        return ""
    if command.given("against"):
        return f"The episodes so far are in {store}; the same command goes on with the comparison."
    return f"The episodes so far are in {store}."


def parse(arguments: Sequence[str]) -> ParsedCommand:
    """Parses the words behind `handoff`; without words, the command is the help.

    Raises:
        CommandLineError: an unknown command or option, or a missing or invalid value.
    """
    try:
        function, bound, _ = program().parse_args(
            list(arguments), exit_on_error=False, print_error=False
        )
    except CycloptsError as error:
        raise CommandLineError(_message(error, arguments)) from error
    return ParsedCommand(function, bound)


@cache
def program() -> App:
    """Returns the program with all its commands."""
    app = App(
        name="handoff",
        help="Takes a robot skill from demonstrations to a Franka arm.",
        help_epilogue="'handoff COMMAND --help' explains a command, with examples.",
        help_format="plaintext",
        version=_version,
        default_parameter=Parameter(negative=()),
    )
    for position, (heading, commands) in enumerate(COMMANDS.items()):
        group = Group(heading, sort_key=position)
        for name, function in commands.items():
            parent, (*outer, last) = app, name.split()
            for word in outer:
                if word not in parent:
                    parent.command(App(name=word, help=ABOUT_GROUPS[word], group=group))
                parent = parent[word]
            epilogue = examples(function)
            parent.command(
                function, name=last, group=() if outer else group, help_epilogue=epilogue
            )
    return app


def named_commands() -> dict[str, Callable[..., None]]:
    """Returns the function of every command, by its name."""
    return {name: function for group in COMMANDS.values() for name, function in group.items()}


def command_arguments(name: str) -> ArgumentCollection:
    """Returns the arguments of a command, with their descriptions."""
    command = program()
    for word in name.split():
        command = command[word]
    return command.assemble_argument_collection(parse_docstring=True)


def examples(function: Callable[..., None]) -> str:
    """Returns the section `Examples:` of a command's docstring."""
    text = inspect.getdoc(function) or ""
    found = re.search(r"^Examples:\n(?:    .+\n?)+", text, re.MULTILINE)
    return found[0].rstrip() if found else ""


def _version() -> str:
    try:
        return version("handoff")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _message(error: CycloptsError, arguments: Sequence[str]) -> str:
    """One line for arguments that are not understood, with the help that explains them."""
    text = " ".join(str(error).split())
    words = [word for word in arguments if not word.startswith("-")]
    known = [name for name in named_commands() if words[: len(name.split())] == name.split()]
    helped = " ".join(["handoff", *known, "--help"])
    end = "" if text.endswith((".", "?")) else "."
    return f"{text[:1].lower()}{text[1:]}{end} '{helped}' explains it."


def _fail(message: str, error: BaseException | None, debug: bool, code: int = 1) -> int:
    print(f"handoff: {message}", file=sys.stderr)
    if debug and error is not None:
        traceback.print_exception(error)
    return code

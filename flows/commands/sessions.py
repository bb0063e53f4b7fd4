"""Defines the commands with a person in the loop: `record`, `hil`, `console`, `deploy`, and
`clear-fault`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import (
    LOOPBACK,
    Debug,
    Flag,
    Host,
    OperatorName,
    Person,
    Port,
    RecipeOverride,
    RunPath,
    Until,
)
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.attended import ConsoleAddress

CONSOLE_PORT = 8700
"""Default port of the console."""
SpaceMouse = Annotated[Flag, Parameter(help="The console also reads a SpaceMouse at this machine.")]
Seconds = Annotated[
    float | None,
    Parameter(
        help="Longest attempt of a person in simulation [s]; default: 60.",
        validator=Number(gt=0.0),
    ),
]
Episodes = Annotated[
    int | None,
    Parameter(
        help="Number of episodes in the store that ends the session; default: until the person "
        "ends it.",
        validator=Number(gte=1),
    ),
]


def hil(
    task: Annotated[str, Parameter(completer=completers.sessions)],
    /,
    *overrides: RecipeOverride,
    operator: OperatorName | None = None,
    host: Host = LOOPBACK,
    port: Port = CONSOLE_PORT,
    spacemouse: SpaceMouse = False,
    person: Person = None,
    seconds: Seconds = None,
    steps: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    seed: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    until: Until = None,
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Train with a person in the loop, from demonstrations to a gated policy.

    A short name for the recipe hil/TASK, run in this terminal.

    Args:
        task: Name of a recipe in configs/hil, e.g. pick_cube, or path of a YAML file.
        operator: Operator who demonstrates and corrects; default: that of the recipe.
        steps: Number of environment steps of training; default: that of the recipe.
        seed: Seed of the whole session; default: that of the recipe.
        out: Folder of the session; default: runs/hil/TASK.

    Examples:
        handoff hil reach --operator simulated
        handoff hil pick_cube corrected.algorithm.sac.critics=10 --operator console --port 8701
        handoff hil pick_cube --operator spacemouse --person ada --until corrected
    """
    from rich.console import Console

    from flows.attended import ConsoleAddress, run_attended
    from flows.config.files import hil_recipe
    from flows.config.overrides import quoted
    from flows.recipes.recipe import read_recipe

    recipe = read_recipe(hil_recipe(task), overrides)
    # Stages may state an operator of their own, beside the one that they share.
    own = [name for name, entry in recipe.stages.items() if "operator" in entry.options]
    given: dict[str, object] = {"corrected.steps": steps, "seed": seed}
    name = None if person is None else quoted(person)
    for place in ("shared", *own):
        given |= {f"{place}.operator.kind": operator, f"{place}.operator.person": name}
        given |= {f"{place}.operator.seconds": seconds}
    chosen = [f"{key}={value}" for key, value in given.items() if value is not None]
    if out is not None:
        chosen += [f"runs={quoted(out.parent)}", f"name={quoted(out.name)}"]
    path = run_attended(
        hil_recipe(task),
        [*overrides, *chosen],
        until=until,
        address=ConsoleAddress(host=host, port=port, spacemouse=spacemouse),
    )
    Console().print(
        f"summary  {path}\nreport   {path.with_name('report.html')}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def record(
    task: Annotated[str, Parameter(completer=completers.tasks)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Changes of the options of hil/record, with --arm of configs/deploy/record.",
            completer=completers.recording_overrides,
        ),
    ],
    operator: OperatorName = "console",
    episodes: Annotated[int, Parameter(validator=Number(gte=1))] = 20,
    arm: str | None = None,
    camera: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    instruction: str | None = None,
    cameras: Flag = False,
    video: Flag = False,
    person: Person = None,
    seconds: Seconds = None,
    host: Host = LOOPBACK,
    port: Port = CONSOLE_PORT,
    spacemouse: SpaceMouse = False,
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Record demonstrations by a person, in simulation or at an arm; the same command adds to them.

    Successful episodes are where the last line says; 'handoff run own_data' trains on them.

    Args:
        task: Name of a simulated task; at a real arm any name.
        operator: Device of the person, or a simulated one.
        episodes: Number of successful demonstrations.
        arm: Address of an arm's control unit, or twin: a simulated arm behind its protocol.
        camera: Camera at the arm that is recorded, NAME=SOURCE; may be repeated.
        instruction: What is demonstrated, in words.
        cameras: Record the simulated cameras front and wrist, too.
        video: The same, as H.264 video instead of without loss.
        out: Folder of all that is recorded; default: runs/record/TASK.

    Examples:
        handoff record reach --episodes 10
        handoff record pick_cube --operator spacemouse --cameras --person ada
        handoff record fold_towel --arm 172.16.0.2 --camera front=0 --camera wrist=2
    """
    from flows.attended import ConsoleAddress

    folder = out or Path("runs") / "record" / task
    if arm is None:
        if camera:
            raise HandoffError(
                "--camera is at an arm; in simulation give --cameras, or --arm as well."
            )
        chosen = {
            "shared.env.task": task,
            "shared.env.cameras": "{}" if cameras or video else None,
            "shared.env.video": "{kind: h264}" if video else None,
            "shared.env.instruction": instruction,
            "shared.operator.kind": operator,
            "shared.operator.person": person,
            "shared.operator.seconds": None if seconds is None else str(seconds),
            "demos.episodes": str(episodes),
        }
        address = ConsoleAddress(host=host, port=port, spacemouse=spacemouse)
        _record_in_simulation(folder, chosen, overrides, address)
        return
    if seconds is not None:
        raise HandoffError(
            "--seconds are those of an attempt in simulation; at an arm a label ends it."
        )
    if cameras:
        raise HandoffError("--cameras are the simulated ones; at an arm give --camera NAME=SOURCE.")
    from flows.deployment.demonstrations.command import record_arm_command
    from real.console.server import ConsoleConfig

    record_arm_command(
        task,
        overrides,
        folder,
        arm=arm,
        cameras=camera,
        video=video,
        instruction=instruction,
        operator=operator,
        episodes=episodes,
        person=person or "",
        console=ConsoleConfig(host=host, port=port, spacemouse=spacemouse),
    )


def _record_in_simulation(
    folder: Path,
    chosen: Mapping[str, str | None],
    overrides: Sequence[str],
    address: ConsoleAddress,
) -> None:
    """Runs the recipe hil/record, with all that it writes below one folder, and links `demos` there
    to the newest recording.

    Args:
        folder: folder of the recording.
        chosen: values of options by their path; None leaves an option as it is.
        overrides: further overrides.
        address: address of the console.
    """
    from rich.console import Console

    from flows.attended import run_attended
    from flows.config.overrides import quoted
    from flows.reports.summary import place_link
    from sim.make import find_task

    find_task(str(chosen["shared.env.task"]))
    words = ("shared.operator.person", "shared.env.instruction")
    values = [
        f"runs={quoted(folder)}",
        "name=session",
        *(
            f"{path}={quoted(value) if path in words else value}"
            for path, value in chosen.items()
            if value is not None
        ),
    ]
    summary = run_attended("hil/record", [*values, *overrides], address=address)
    demos = summary.parent / "demos"
    # An override of `runs` may have put them elsewhere, such as in a storage.
    if folder in demos.parents:
        place_link(folder / "demos", demos.resolve())
        demos = folder / "demos"
    Console().print(
        f"demos    {demos / 'store.zarr'}", highlight=False, markup=False, soft_wrap=True
    )


def console(
    task: Annotated[str, Parameter(completer=completers.tasks)] = "pick_cube",
    /,
    *,
    policy: Annotated[str, Parameter(completer=completers.console_policies)] = "still",
    person: Person = None,
    host: Host = LOOPBACK,
    port: Port = CONSOLE_PORT,
    spacemouse: SpaceMouse = False,
    seconds: Seconds = None,
    episodes: Episodes = None,
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Control a simulated arm from a browser; episodes are recorded.

    Args:
        task: Name of a task on the FR3.
        policy: Policy that acts unless a person takes over: still, expert, random, or a path.
        out: Folder of the session; default: runs/console/TASK.

    Examples:
        handoff console pick_cube
        handoff console push_t
        handoff console reach --policy expert --episodes 10 --port 8701
    """
    from flows.console import console_command
    from real.console.server import ConsoleConfig

    config = ConsoleConfig(host=host, port=port, spacemouse=spacemouse)
    folder = out or Path("runs") / "console" / task
    console_command(task, policy, folder, config, person or "", episodes, seconds)


def deploy(
    release: Annotated[Path, Parameter(completer=completers.releases)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Changes of the session's options in configs/deploy, e.g. loop.max_steps=600.",
            completer=completers.deployment_overrides,
        ),
    ],
    arm: str | None = None,
    tracker: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    camera: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    instruction: str | None = None,
    mode: Literal["live", "dry-run", "shadow", "replay"] = "live",
    recording: Annotated[Path | None, Parameter(completer=completers.recordings)] = None,
    against: Annotated[
        tuple[Path, ...], Parameter(show_default=False, completer=completers.releases)
    ] = (),
    pairs: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    alpha: Annotated[float | None, Parameter(validator=Number(gt=0.0, lt=1.0))] = None,
    seed: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    preference: Flag = False,
    reveal: Flag = False,
    person: Person = None,
    host: Host = LOOPBACK,
    port: Port = CONSOLE_PORT,
    spacemouse: SpaceMouse = False,
    episodes: Episodes = None,
    out: Path = Path("runs/deploy"),
    debug: Debug = False,
) -> None:
    """Run a released policy on an arm, supervised by a person at the console.

    With --against the person judges two or more policies without knowing which one acts.

    Args:
        release: Release folder, signed and approved (`handoff sign`); without --arm also a gate,
            e.g. runs/demo/gate, or an approval.
        arm: Address of the arm's control unit; default: starts a simulated arm.
        tracker: Address of the tracker of push-T's T, ws://..; elsewhere the observed fields that a
            tracker sends, and its address, FIELD[,FIELD..]=ws://..; may be repeated. An arm needs
            one of each field that it does not measure itself.
        camera: Camera that the policy observes, or that the console shows, NAME=SOURCE; may be
            repeated. A simulated arm draws what is not given.
        instruction: What a language-conditioned policy is told; default: the sentence of the
            simulated task, at an arm that of the policy.
        mode: live: the policy acts. dry-run: at a tenth of its speed. shadow: it only thinks, and
            what it would do is recorded beside what the person does. replay: the actions of
            --recording take its place, and the motion is compared with the recorded one.
        recording: Folder of an earlier session, or its store, with --mode replay.
        against: Another release, with which RELEASE is compared in pairs of episodes from the same
            start, in a hidden order; may be repeated. The same command goes on with a comparison.
        pairs: Largest number of pairs; a sequential test may end the comparison earlier.
            Default: 30.
        alpha: Probability of calling policies different that are equal; default: 0.05.
        seed: Seed of the hidden order, from which anybody can compute it; default: one that nobody
            knows.
        preference: Also ask after every pair which episode was better.
        reveal: End the comparison in --out with what was played, and reveal the order.
        out: Folder of the session.

    Examples:
        handoff deploy runs/demo/gate
        handoff deploy runs/pick_cube_cameras/gate --mode dry-run
        handoff deploy runs/demo/gate --mode replay --recording runs/deploy --out runs/replay
        handoff deploy runs/demo/gate supervision.speed=0.1 --episodes 5
        handoff deploy runs/releases/demo_approved --arm 172.16.0.2 --tracker ws://10.0.0.5:9000
        handoff deploy runs/releases/pick --arm 172.16.0.2 --tracker cube_position=ws://10.0.0.5:9000
        handoff deploy runs/demo/gate --camera front=0 --camera wrist=/dev/video2
        handoff deploy runs/demo/gate --against runs/other/gate --pairs 30 --out runs/blinded
    """
    from flows.deployment import session

    # Imported as a module: tests replace the function.
    from real.console.server import ConsoleConfig

    console = ConsoleConfig(host=host, port=port, spacemouse=spacemouse)
    options = {"pairs": pairs, "alpha": alpha, "seed": seed, "preference": preference or None}
    chosen = {name: value for name, value in options.items() if value is not None}
    shared: dict[str, Any] = {
        "arm": arm,
        "trackers": tracker,
        "cameras": camera,
        "instruction": instruction,
        "mode": mode,
        "recording": recording,
        "person": person or "",
        "episodes": episodes,
    }
    if against:
        from flows.deployment.blinded import command as blinded

        releases, config = (release, *against), blinded.BlindedConfig(**chosen)
        blinded.compare_command(
            releases, overrides, config, out, console, reveal_now=reveal, **shared
        )
        return
    if chosen or reveal:
        raise HandoffError(
            "--pairs, --alpha, --seed, --preference and --reveal are of a comparison: add --against."
        )
    session.deploy_command(release, overrides, out, console, **shared)


def twin(
    task: Annotated[str, Parameter(completer=completers.tasks)] = "reach",
    /,
    *,
    robot: Annotated[str, Parameter(help="Name of the arm.", completer=completers.robots)] = "fr3",
    host: Annotated[
        str, Parameter(help="Address of this computer, 127.0.0.x; the protocol fixes the ports.")
    ] = "127.0.0.2",
    clock: Literal["paced", "lockstep", "real"] = "paced",
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    friction: Literal["none", "published"] = "none",
    deviations: Path | None = None,
    robots: Annotated[int, Parameter(validator=Number(gte=1, lte=16))] = 1,
    faults: Path | None = None,
    debug: Debug = False,
) -> None:
    """Simulate arms behind the robot's network protocol, for any program of the robot.

    Programs of libfranka, pylibfranka and franky run unmodified at their addresses; Ctrl-C ends it.

    Args:
        task: Name of a task, whose table the arm has.
        clock: paced waits for its client, lockstep does so and is as fast as it can, real waits
            for nobody.
        seed: Seed of the start.
        friction: Joint friction beside a small viscous one: none, or as identified at a real arm.
        deviations: YAML file with values in which the arm and the objects differ from their models.
        robots: Number of arms, each with its own table, at host and the addresses after it.
        faults: YAML file with a list of faults: user_stop, freeze, drop, delay, push, payload,
            version.

    Examples:
        handoff twin pick_cube
        handoff twin reach --robot panda --host 127.0.0.3 --clock real
        handoff twin open_drawer --faults faults.yaml
        handoff twin reach --friction published --robots 3
        handoff twin pick_cube --deviations heavier.yaml
    """
    from flows.session.standalone_twin import StandaloneTwin, twin_command
    from sim.scene.deviations import Deviations, read_deviations

    options = StandaloneTwin(
        task=task,
        robot=robot,
        host=host,
        clock=clock,
        seed=seed,
        friction=friction,
        deviations=Deviations() if deviations is None else read_deviations(deviations),
        robots=robots,
    )
    twin_command(options, faults)


def approve(
    run: RunPath,
    /,
    *,
    by: Annotated[
        str | None, Parameter(help="Name of the person who decides; default: asks.")
    ] = None,
    reject: Annotated[str | None, Parameter(help="Reject the policy, for this reason.")] = None,
    confirm: Annotated[Flag, Parameter(help="Confirm all items of the checklist.")] = False,
    debug: Debug = False,
) -> None:
    """Approve or reject the policy for which a run waits; run the recipe again afterwards.

    A run that is suspended on a Prefect server goes on by itself where PREFECT_API_URL is set.

    Examples:
        handoff approve demo_approved
        handoff approve runs/demo_approved --by "Ada Lovelace" --confirm
        handoff approve demo_approved --by Ada --reject "it hits the bin"
    """
    from rich.console import Console

    from flows.approve import approve_command
    from flows.deployment.approval import run_folder

    screen = Console()
    approve_command(
        run_folder(run),
        by=by,
        reject=reject,
        confirm=confirm,
        say=lambda line: screen.print(line, highlight=False, markup=False, soft_wrap=True),
    )


def clear_fault(
    host: Annotated[
        str,
        Parameter(help="Address of the arm's control unit.", completer=completers.faulted_arms),
    ],
    /,
    *,
    person: Annotated[
        str | None, Parameter(help="Name of the person who found the cause; default: asks.")
    ] = None,
    cause: Annotated[
        str | None, Parameter(help="What stopped the arm, in words; default: asks.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Clear the kept fault of an arm, once a person has found its cause.

    Until then Handoff does not move the arm. Name and cause are recorded.

    Examples:
        handoff clear-fault 172.16.0.2
        handoff clear-fault 172.16.0.2 --person ada --cause "the cable caught on the table"
    """
    from flows.deployment.fault_clearing import clear_fault_command

    clear_fault_command(host, person, cause)

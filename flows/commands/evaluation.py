"""Defines the commands that evaluate, gate and serve policies, record them and tune the simulated
arm: `evaluate`, `compare`, `robustness`, `sensitivity`, `worst-case`, `evaluate-family`, `gate`,
`serve`, `rollouts`, `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import LOOPBACK, Debug, Flag, Host, Port

Count = Parameter(validator=Number(gte=1))


def evaluate(
    protocol: Annotated[str, Parameter(completer=completers.protocols)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Entries of the protocol, protocol.KEY=VALUE, e.g. protocol.episodes=20.",
            completer=completers.options_of("flows.evaluation.config:PlayedConfig"),
        ),
    ],
    policy: Annotated[tuple[str, ...], Parameter(required=True, completer=completers.policies)],
    out: Path,
    batch: Annotated[int, Count] = 50,
    workers: Annotated[int, Count] = 1,
    videos: Annotated[int, Parameter(validator=Number(gte=0))] = 4,
    instruction: str | None = None,
    device: Literal["cpu", "cuda", "auto"] = "cpu",
    adastop: Flag = False,
    stages: Annotated[int, Count] = 5,
    specification: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    debug: Debug = False,
) -> None:
    """Evaluate policies under a protocol; writes intervals, videos and a report.

    Args:
        protocol: Name of a protocol, e.g. reach, or path of a YAML file.
        policy: Folder of a policy or bundle, ONNX file, ws://HOST:PORT, random or expert; may be repeated.
        out: Folder for results and report.html.
        batch: Number of environments stepped together.
        workers: Number of processes; the result does not depend on it.
        videos: Number of episodes rendered as videos, failed ones first.
        instruction: Instruction for policies that take one; default: the environment's.
        device: Device of saved policies.
        adastop: Stop early, once the policies are ranked (AdaStop).
        stages: Number of stages into which --adastop divides the protocol's episodes.
        specification: NAME=FORMULA in signal temporal logic, which is measured; may be repeated.

    Examples:
        handoff evaluate reach --policy expert --policy random --out runs/baselines
        handoff evaluate push_t_published --policy runs/demo/teacher --out runs/scores
        handoff evaluate reach protocol.episodes=20 --policy expert --out runs/few
        handoff evaluate reach --policy a.onnx --policy b.onnx --adastop --out runs/ranked
        handoff evaluate reach --policy expert --specification "slow=always dq.max < 1" --out runs/s
    """
    from flows.evaluation.config import PlayedConfig
    from flows.evaluation.evaluate import evaluate_command, named_formulas
    from flows.evaluation.robustness import command_options
    from sim.evaluation.evaluate import EvaluateConfig

    config = EvaluateConfig(
        batch=batch,
        workers=workers,
        videos=videos,
        device=device,
        specifications=named_formulas(specification),
    )
    played = command_options("evaluate", PlayedConfig, protocol, overrides).protocol
    evaluate_command(played, policy, out, config, instruction, stages if adastop else None)


def compare(
    *results: Annotated[Path, Parameter(required=True)],
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Compare evaluations under one protocol, paired by seed.

    Args:
        results: Output folders of evaluate; the first is the reference.
        out: HTML page to write.

    Examples:
        handoff compare runs/teacher runs/student
        handoff compare runs/teacher runs/student --out runs/comparison.html
    """
    from flows.evaluation.evaluate import compare_command

    compare_command(results, out)


def robustness(
    protocol: Annotated[str, Parameter(completer=completers.protocols)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage robustness, KEY=VALUE, e.g. sweep.clutter=[0,8] or protocol.episodes=50.",
            completer=completers.options_of("flows.evaluation.config:RobustnessConfig"),
        ),
    ],
    policy: Annotated[tuple[str, ...], Parameter(required=True, completer=completers.policies)],
    out: Path,
    debug: Debug = False,
) -> None:
    """Measure success under displaced cameras, other light and distractors, paired by seed.

    Writes robustness.json, a chart and a page. The protocol's environments have cameras.

    Args:
        protocol: Name of a protocol, e.g. pick_cube_cameras, or path of a YAML file.
        policy: As for evaluate; may be repeated, and the first one is the reference.
        out: Folder for the results.

    Examples:
        handoff robustness pick_cube_cameras --policy expert --out runs/robust
        handoff robustness pick_cube_cameras sweep.clutter=[0,8] --policy random --out runs/out
    """
    from flows.evaluation.robustness import robustness_command

    robustness_command(protocol, overrides, policy, out)


def sensitivity(
    protocol: Annotated[str, Parameter(completer=completers.protocols)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage sensitivity, KEY=VALUE, e.g. design.points=64 or protocol.episodes=50.",
            completer=completers.options_of("flows.evaluation.config:SensitivityPoliciesConfig"),
        ),
    ],
    policy: Annotated[tuple[str, ...], Parameter(required=True, completer=completers.policies)],
    factors: Path | None = None,
    out: Path,
    debug: Debug = False,
) -> None:
    """Measure which parameters of the environments decide whether policies succeed.

    Writes sensitivity.json, a chart and a page: success against each factor, and its influence.

    Args:
        protocol: Name of a protocol, e.g. pick_cube, or path of a YAML file.
        policy: As for evaluate; may be repeated, and the first one is the reference.
        factors: YAML file with the options of the stage, such as factors and design.
        out: Folder for the results.

    Examples:
        handoff sensitivity reach --factors f.yaml --policy expert --out runs/f
        handoff sensitivity reach design.points=64 --policy a.onnx --out runs/a
    """
    from flows.evaluation.sensitivity import sensitivity_command

    sensitivity_command(protocol, overrides, policy, factors, out)


def worst_case(
    protocol: Annotated[str, Parameter(completer=completers.protocols)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage worst_case, KEY=VALUE, e.g. search.episodes=50 or search.rounds=3.",
            completer=completers.options_of("flows.evaluation.config:WorstCasePolicyConfig"),
        ),
    ],
    policy: Annotated[str, Parameter(completer=completers.policies)],
    factors: Path | None = None,
    family: Annotated[Path | None, Parameter(completer=completers.artifacts)] = None,
    out: Path,
    debug: Debug = False,
) -> None:
    """Search the parameters of the environments that are worst for a policy.

    Writes family.json with the worst environment, worst_case.json, a chart and a page.

    Args:
        protocol: Name of a protocol, e.g. reach, or path of a YAML file.
        policy: As for evaluate.
        factors: YAML file with the options of the stage, such as factors and search.
        family: Folder of a family to which the worst environment is added; default: a new one.
        out: Folder for the results.

    Examples:
        handoff worst-case reach --factors f.yaml --policy a.onnx --out runs/w
        handoff worst-case reach --factors f.yaml --policy expert --family runs/w --out runs/v
    """
    from flows.evaluation.family_commands import worst_case_command

    worst_case_command(protocol, overrides, policy, factors, family, out)


def evaluate_family(
    protocol: Annotated[str, Parameter(completer=completers.protocols)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage evaluate_family, KEY=VALUE, e.g. protocol.episodes=50 or workers=2.",
            completer=completers.options_of("flows.evaluation.config:EvaluateFamilyConfig"),
        ),
    ],
    policy: Annotated[tuple[str, ...], Parameter(required=True, completer=completers.policies)],
    family: Annotated[Path, Parameter(completer=completers.artifacts)],
    out: Path,
    debug: Debug = False,
) -> None:
    """Evaluate policies in every member of a family of environments.

    Writes family_scores.json, a chart and a page: success per member, and in the worst one again.

    Args:
        protocol: Name of a protocol, e.g. reach, or path of a YAML file.
        policy: As for evaluate; may be repeated, and the first one is the reference.
        family: Folder of the family, e.g. runs/reach_robust/held_out.
        out: Folder for the results.

    Examples:
        handoff evaluate-family reach --family runs/w --policy a.onnx --out runs/e
    """
    from flows.evaluation.family_commands import evaluate_family_command

    evaluate_family_command(protocol, overrides, policy, family, out)


def gate(
    bundle: Annotated[Path, Parameter(completer=completers.artifacts)],
    protocol: Annotated[str, Parameter(completer=completers.protocols)],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage gate, KEY=VALUE, e.g. min_success=0.8 or twin=null.",
            completer=completers.options_of("flows.gating.config:GateConfig"),
        ),
    ],
    out: Path = Path("runs/gate"),
    scores: Annotated[tuple[Path, ...], Parameter(completer=completers.artifacts)] = (),
    reference: Annotated[Path | None, Parameter(completer=completers.artifacts)] = None,
    twin: Annotated[Path | None, Parameter(completer=completers.artifacts)] = None,
    incumbent: Annotated[Path | None, Parameter(completer=completers.artifacts)] = None,
    debug: Debug = False,
) -> None:
    """Decide whether an exported policy is released: it plays episodes as the robot runs it.

    Compares the exported file with the policy that was trained, its teacher and the release that it
    replaces, start by start; prints every condition, and exits with 1 unless all are met.

    Args:
        bundle: Folder of the exported policy, e.g. runs/demo/bundle.
        protocol: Name of a protocol, e.g. reach, or path of a YAML file.
        out: Folder for gate.json and the release page.
        scores: Evaluation of policy or teacher; may be repeated. Missing ones are run.
        reference: Bundle of the teacher, whose inference time is compared.
        twin: Episodes of this bundle at the twin, e.g. runs/demo/twin.
        incumbent: Bundle, release or gate that this one replaces.

    Examples:
        handoff gate runs/demo/bundle push_t_published --twin runs/demo/twin
        handoff gate runs/new/bundle reach min_success=0.9 --incumbent runs/old/gate
        handoff gate exported reach twin=null margin=0.05 --out runs/gated
    """
    from flows.gating.command import gate_command

    gate_command(
        bundle,
        protocol,
        overrides,
        out,
        scores=scores,
        reference=reference,
        twin=twin,
        incumbent=incumbent,
    )


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


def rollouts(
    policy: Annotated[Path, Parameter(completer=completers.artifacts)],
    out: Path,
    /,
    *,
    debug: Debug = False,
) -> None:
    """Record the push-T demonstrations that ship with Handoff: rollouts of a trained policy, with
    provenance.

    Args:
        policy: Artifact folder of the policy, e.g. runs/demo/teacher.
        out: Folder for rollouts.zarr.zip and rollouts.json.

    Examples:
        handoff rollouts runs/demo/teacher runs/rollouts
    """
    from rich.console import Console

    from flows.record import record as record_rollouts

    line = record_rollouts(policy, out)
    Console().print(line, highlight=False, soft_wrap=True, markup=False)


def tune(
    store: Path,
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage tune, KEY=VALUE, e.g. parameters.kind=per_joint.",
            completer=completers.options_of("sim.identification.config:TuneStoreConfig"),
        ),
    ],
    out: Path = Path("runs/tune"),
    debug: Debug = False,
) -> None:
    """Tune the simulated arm to recorded motions of a robot.

    Writes dynamics.json and report.html, and prints what the motions do not determine. An
    interrupted search resumes.

    Args:
        store: Episode store of recorded motions, or the folder of an artifact that has one.
        out: Folder of the results.

    Examples:
        handoff tune recordings/store.zarr
        handoff tune recordings parameters.kind=per_joint --out runs/tuned
    """
    from flows.tune import tune_command

    tune_command(store, out, overrides)

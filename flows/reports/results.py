"""Defines the results of a run, and describes each stage's result in a phrase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.reports.dataset_text import counted
from policies.networks.images.image_size import small_crop_note

HEADLINES: Mapping[str, Sequence[str]] = {
    "demonstrate": ("episodes",),
    "scripted": ("episodes",),
    "ingest": ("episodes",),
    "classify": ("precision", "recall"),
    "correct": (
        "steps",
        "updates",
        "recent_success",
        "recent_corrected",
        "cycle_seconds",
        "demonstrated_seconds",
        "false_success_share",
        "missed_success_share",
    ),
    "tune": ("mse", "nominal_mse", "held_out_mse"),
    "evaluate": ("score", "success", "cost"),
    "gate": ("success", "speedup", "parity", "latency_p50_ms", "latency_p99_ms"),
    "deploy": ("realtime_factor", "lost_packets", "command_success_rate", "coverage", "success"),
}
"""Metrics of a stage that the summary repeats as `STAGE.METRIC`, by kind of stage."""

DISTILL = "distill"
"""Kind of the stage whose policies have teachers."""
TEACHERS = ("teacher", "more_teachers")
"""Inputs of that stage that are teachers."""


@dataclass(frozen=True)
class StageResult:
    """Result of one stage, a row of the summary."""

    name: str
    uses: str
    """Kind of stage."""
    status: str
    seconds: float
    """Time spent in this run [s]."""
    cached: bool
    computed_seconds: float
    """Time of its computation, in this run or an earlier one [s]."""
    artifact: str
    digest: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """Results of a run."""

    source: str
    """Description of the demonstrations, one line; of several sets, each after its stage's name."""
    stages: Sequence[StageResult]
    metrics: Mapping[str, Any]

    def with_times(self, started: float, now: float, *, prefect: bool = True) -> Summary:
        """Returns the summary with the times of the whole run.

        Args:
            started: begin of the run [s since the epoch].
            now: its end [s since the epoch].
            prefect: whether Prefect ran the stages. All time in which no stage runs counts as its
                share, including its import and the start of its server.
        """
        total = now - started
        idle = max(0.0, total - self.metrics["stages_busy_seconds"])
        times = {"total_seconds": round(total, 2)}
        if prefect:
            times["prefect_share"] = round(idle / total, 4)
        return replace(self, metrics={**self.metrics, **times})


def headline_metrics(results: Sequence[StageResult]) -> dict[str, Any]:
    """Returns the most important metrics of every stage, by `STAGE.METRIC`."""
    return {
        f"{result.name}.{key}": result.metrics[key]
        for result in results
        for key in HEADLINES.get(result.uses, ())
        if key in result.metrics
    }


def _deployment(metrics: Mapping[str, Any]) -> str:
    """Describes the outcome of the starts on the twin."""
    reasons = metrics.get("fault_reasons", {})
    why = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()))
    faults = f", {metrics['faults']} ended by a fault" if metrics["faults"] else ""
    faults += f" ({why})" if faults and why else ""
    if "coverage" in metrics:
        return f"coverage {metrics['coverage']:.2f} over {metrics['starts']} starts{faults}"
    return f"solved {metrics['success']['k']} of {metrics['starts']} starts{faults}"


def _session(metrics: Mapping[str, Any]) -> str:
    """Describes a session: success and corrections at its end, the errors of the success signal,
    and the versions of the classifier."""
    recent, false, missed = (
        metrics[name] for name in ("recent_success", "false_success_share", "missed_success_share")
    )
    versions = metrics.get("classifiers", [])
    judged = f", {counted(len(versions), 'version')} of the classifier" if versions else ""
    if refused := metrics.get("refused_classifiers"):
        judged += f", {counted(refused, 'version')} refused: {metrics['refused_because']}"
    return (
        f"success {recent['k']} of the last {recent['n']} episodes, {metrics['recent_corrected']:.2f} corrected; "
        f"false successes {_of(false)} episodes, missed {_of(missed)} solved ones{judged}"
    )


def _of(share: Mapping[str, Any]) -> str:
    percent = f" ({100.0 * share['k'] / share['n']:.1f} %)" if share["n"] else ""
    return f"{share['k']}{percent} of {share['n']}"


def _tuning(metrics: Mapping[str, Any]) -> str:
    """Describes the tracking error before and after tuning, and how much the motions determine."""
    before = 1e3 * metrics["nominal_mse"] ** 0.5
    after = 1e3 * metrics["mse"] ** 0.5
    determined = len(metrics["values"]) - len(metrics["undetermined"])
    return (
        f"tracking error {before:.2f} -> {after:.2f} mrad rms, {determined} of {len(metrics['values'])} parameters "
        "determined"
    )


def _comparison(metrics: Mapping[str, Any]) -> str:
    """Describes the decisions of AdaStop, or the paired differences from the reference."""
    if "adastop" in metrics:
        decided = [
            f"{each['better']} > {each['worse']} ({each['difference']:+.3f})"
            for each in metrics["adastop"]["decisions"]
        ]
        if not decided and metrics["adastop"]["smallest_p_value"] > metrics["config"]["alpha"]:
            runs = len(metrics["groups"][0]["evaluations"])
            return f"{runs} evaluations per group are too few for any difference to be significant"
        return "; ".join(decided) or "no significant difference"
    return "; ".join(
        f"{each['group']} {each['mean']:+.3f} [{each['low']:+.3f}, {each['high']:+.3f}]"
        for each in metrics["differences"]
    )


def _deployments(metrics: Mapping[str, Any]) -> str:
    """Describes the success of every deployment, and how many true parameters the tuned intervals
    hold."""
    solved = [
        f"{each['name']} {each['success']['k']} of {each['success']['n']}"
        for each in metrics["deployments"]
    ]
    parameters = metrics.get("parameters", [])
    inside = sum(each["inside"] for each in parameters)
    tuned = f"; {inside} of {len(parameters)} true parameters in their tuned intervals"
    return f"solved: {', '.join(solved)}{tuned if parameters else ''}"


def _robustness(metrics: Mapping[str, Any]) -> str:
    """Describes every policy's success in the nominal scene and under its worst condition."""
    phrases = []
    for agent in metrics["agents"]:
        rates = {
            row["name"]: row["agents"][agent]["success"]["k"] / row["agents"][agent]["success"]["n"]
            for row in metrics["conditions"]
        }
        worst = min(rates, key=lambda name: rates[name])
        phrases.append(
            f"{agent} {rates['nominal']:.2f} nominal, lowest {rates[worst]:.2f} ({worst})"
        )
    return "; ".join(phrases)


def _sensitivity(metrics: Mapping[str, Any]) -> str:
    """Describes every policy's success as the environments are and over the design, and the factors
    that were found important."""
    design = metrics["design"]
    if design is None:
        return _robustness(metrics)
    nominal = metrics["conditions"][0]["agents"]
    phrases = []
    for agent, varied in design["agents"].items():
        alone, all_vary = nominal[agent]["success"], varied["success"]
        ordered = sorted(varied["factors"], key=lambda row: -row["share"])
        names = [f"{row['name']} {row['share']:.2f}" for row in ordered if row["important"]]
        phrases.append(
            f"{agent} {alone['k'] / alone['n']:.2f} nominal, {all_vary['k'] / all_vary['n']:.2f} over all factors, "
            f"important: {', '.join(names) or 'none'}"
        )
    return "; ".join(phrases)


def _worst_case(metrics: Mapping[str, Any]) -> str:
    """Describes the worst environment that a search found, and whether it was added."""
    worst, known = metrics["finalists"][0], metrics["members"][0]["name"]
    values = ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in worst["values"].items()
    )
    found, member = metrics["found"]["mean"], metrics["known"]["mean"]
    end = "added" if metrics["added"] else "nothing added"
    return f"{values}: score {found:.2f} against {member:.2f} in {known}; {end}"


def _family_scores(metrics: Mapping[str, Any]) -> str:
    """Describes every policy's success in the nominal environments, over all members, and in the
    worst one from new starts."""
    phrases: list[str] = []
    for name, agent in metrics["agents"].items():
        nominal, again = agent["nominal"], agent["worst"]["again"]
        alone = "" if nominal is None else f"{nominal['k'] / nominal['n']:.2f} nominal, "
        phrases.append(
            f"{name} {alone}{agent['mean']['mean']:.2f} mean, {again['k'] / again['n']:.2f} worst"
        )
    return "; ".join(phrases)


def _played(metrics: Mapping[str, Any]) -> str:
    """Describes the episodes that a gate played; empty for one of an older version."""
    if "success" not in metrics:
        return ""
    rate = metrics["success"]
    loose = ", looser limits" if metrics["looser"] else ""
    return f"released{loose}: success {rate['k']} of {rate['n']}, "


def _approval(metrics: Mapping[str, Any]) -> str:
    """Describes who approved which bundle, when and where; an older record has no place."""
    answered = f"{metrics['decision']} by {metrics['by']}, {metrics['time']}"
    if "about" not in metrics:
        return answered
    place = f"{metrics['means']}, {metrics['login']} on {metrics['computer']}"
    return f"bundle {metrics['about']['bundle'][:12]} {answered} ({place})"


def sampler_text(sampler: str) -> str:
    """Describes the sampler in a contract. `one-step` means a policy without a sampler, such as
    ACT, or a one-step student; in both, one pass of the network gives the actions."""
    return "one pass of the network" if sampler == "one-step" else f"sampler {sampler}"


def describe(uses: str, metrics: Mapping[str, Any]) -> str:
    """Describes the result of a kind of stage in one phrase; of an unknown kind, its numbers."""
    match uses:
        case "ingest" | "scripted" | "demonstrate" | "rollouts" | "excite" | "excite_arm":
            return f"{counted(metrics['episodes'], 'episode')}, {metrics['frames']:,} frames"
        case "examine":
            errors, warnings = metrics["errors"], metrics["warnings"]
            found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
            return f"{found} in {counted(metrics['episodes'], 'episode')}"
        case "filter" | "split":
            return f"{metrics['episodes']} of {metrics['episodes_before']} episodes, {metrics['frames']:,} frames"
        case "play":
            return f"{metrics['episodes']} episodes, {metrics['hours']:.1f} h of play"
        case "world_model":
            horizon, error = list(metrics["error"].items())[-1]
            stays = metrics["stays"][horizon]
            several = ""
            if "disagreement" in metrics:
                correlation = metrics["disagreement"]["rank_correlation_imagined"]
                several = f"; {metrics['members']} models, rank correlation of disagreement and error {correlation:.2f}"
            return (
                f"error {error:.2f} standard deviations after {horizon} steps (constant prediction: {stays:.2f})"
                f"{several}"
            )
        case "distill" if "kl" in metrics:
            chunks = metrics["asked"]
            kl = metrics["kl"]
            return f"{chunks:,} chunks distilled, divergence {kl:.3g} nat, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "pretrain" | "distill":
            short = metrics.get("short_episodes", 0)
            unused = f"; {counted(short, 'episode')} too short for a window" if short else ""
            small = small_crop_note(metrics.get("small_crops", {}))
            return (
                f"{metrics['steps']:,} steps, loss {metrics['loss']:.4f}, {metrics['cpu_seconds'] / 60:.1f} CPU min"
                f"{unused}{small and f'; {small}'}"
            )
        case "finetune":
            return (
                f"{metrics['steps']:,} fine-tuning steps, {metrics['cpu_seconds'] / 60:.1f} CPU min"
            )
        case "reinforce":
            spent = f"{metrics['steps']:,} steps, {metrics['updates']:,} updates"
            reached = f"success {metrics['success']:.2f}"
            if "cost" in metrics:
                reached += f", cost {metrics['cost']:.2f}"
            return f"{spent}, {reached} in training, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "correct" if "false_success_share" in metrics:
            return _session(metrics)
        case "evaluate":
            success = metrics["success"]
            rate = success["k"] / success["n"]
            low = success["low"]
            high = success["high"]
            line = f"score {metrics['score']:.3f}, success {rate:.2f} [{low:.2f}, {high:.2f}] (n = {success['n']})"
            return line + (f", cost {metrics['cost']:.2f}" if "cost" in metrics else "")
        case "open_loop":
            policy, control = metrics["normalised"]["mean"], metrics["control"]["mean"]
            number = counted(metrics["episodes"], "held-out episode")
            return f"error {policy:.2f} standard deviations, control {control:.2f} ({number})"
        case "robustness":
            return _robustness(metrics)
        case "sensitivity":
            return _sensitivity(metrics)
        case "draw_family":
            return f"{metrics['members']} members of {', '.join(metrics['factors'])}"
        case "worst_case":
            return _worst_case(metrics)
        case "evaluate_family":
            return _family_scores(metrics)
        case "tune":
            return _tuning(metrics)
        case "compare":
            return _comparison(metrics)
        case "compare_deployments":
            return _deployments(metrics)
        case "export":
            return f"{sampler_text(metrics['sampler'])}, {metrics['bytes'] / 1e6:.1f} MB"
        case "gate":
            return (
                _played(metrics)
                + f"parity {metrics['parity']:.1e}, p50 {metrics['latency_p50_ms']:.3f} ms, "
                f"p99 {metrics['latency_p99_ms']:.3f} ms"
                + (f", {metrics['speedup']:.1f}x the teacher" if "speedup" in metrics else "")
            )
        case "approve":
            return _approval(metrics)
        case "deploy":
            speed, lost = metrics["realtime_factor"], metrics["lost_packets"]
            repeats = metrics.get("repeated_starts", 0)
            repeated = f", {repeats} repeated after a lost connection" if repeats else ""
            return f"{_deployment(metrics)}, {speed:.1f}x real time, {lost} packets lost{repeated}"
        case _:
            return _numbers(metrics)


def _numbers(metrics: Mapping[str, Any]) -> str:
    numbers = [
        f"{name.replace('_', ' ')} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return ", ".join(numbers[:4])

"""On-policy distillation: divergences, assignment of teachers, and resumption."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from policies.card import PolicyCard, Shapes
from policies.checkpoint import WEIGHTS, save_policy
from policies.data.visited_states import FILE
from policies.distillation.config import OnPolicyDistilConfig
from policies.distillation.losses import (
    DenoisingDistillationLoss,
    TokenDistillationLoss,
    distillation_loss,
    policy_gradient_loss,
    token_divergence,
)
from policies.distillation.on_policy import CURVE, PICTURE, STATE, on_policy_distil
from policies.distillation.teachers import Teachers, assign_instructions
from policies.families.action_tokens import draw_tokens, token_log_prob
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_module
from policies.networks.config import MlpConfig
from policies.policy import ChunkPolicy, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.on_policy.config import PpoConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.language.text import encode
from robots.spec import FieldSpec
from tests.policies.kill import run_until_killed
from tests.policies.rl.counting import Counting
from tests.policies.rl.finetuning.test_finetune import KilledError, killing
from tests.policies.rl.on_policy.test_flow_actor import flowing
from tests.policies.rl.on_policy.test_token_actor import reading
from tests.toy_envs.word_line import WORDS, WordLine

NUM_ENVS = 6
SMALL = OnPolicyDistilConfig(
    rollouts=4, decisions=5, batch_size=7, save_every=1, learning_rate=1e-3, epochs=2
)


def card_of(module: Any, rate_hz: float = 10.0) -> PolicyCard:
    fields = {name: FieldSpec(shape=(1,)) for name in module.shapes.entries}
    action = FieldSpec(shape=(module.shapes.action,))
    return PolicyCard(
        task="line",
        rate_hz=rate_hz,
        observation=fields,
        sensors={},
        action=action,
        model=module.config,
    )


def saved(folder: Path, module: ChunkPolicy, rate_hz: float = 10.0) -> Path:
    folder.mkdir()
    save_policy(folder, card_of(module, rate_hz), module.state_dict(), module.extra_files())
    return folder


def denoising(seed: int = 0, **options: Any) -> DiffusionPolicy:
    """One observed number, chunks of two actions of one entry."""
    settings: dict[str, Any] = {
        "train_timesteps": 10,
        "inference_steps": 5,
        "horizon": 2,
        "n_action_steps": 2,
    } | options
    config = DiffusionPolicyConfig(
        anchor_field=None,
        observation_fields=("step",),
        n_obs_steps=1,
        network=MlpConfig(width=16, blocks=1),
        **settings,
    )
    torch.manual_seed(seed)
    module = DiffusionPolicy(config, Shapes({"step": (0, 1)}, 1, None, {}))
    with torch.no_grad():
        # The last layer may begin at 0, at which all policies are the same.
        for part in module.denoiser.parameters():
            part.add_(0.1 * torch.randn(part.shape))
    return module


def words(rows: int = NUM_ENVS) -> Any:
    """Rows that hear both sentences in turn."""
    from tensordict import TensorDict

    instructions = torch.from_numpy(encode([WORDS[row % 2] for row in range(rows)], 16))
    place = torch.linspace(-0.5, 0.5, rows)[:, None, None]
    return TensorDict({"vector": place, "instruction": instructions}, batch_size=[rows])


def shown(kind: str) -> Any:
    return torch.linspace(-1.0, 1.0, NUM_ENVS)[:, None, None] if kind == "denoising" else words()


MAKE: dict[str, Callable[[int], Any]] = {
    "tokens": lambda seed: reading("parallel", seed),
    "causal": lambda seed: reading("autoregressive", seed),
    "flowing": flowing,
    "denoising": denoising,
}
KINDS = pytest.mark.parametrize("kind", list(MAKE))


def student_and_loss(kind: str, folder: Path, teacher_seed: int, **options: Any) -> tuple[Any, Any]:
    """A student of seed 0 with one teacher for all, and its lessons."""
    config, student = replace(SMALL, **options), MAKE[kind](0).eval()
    teachers_of = Teachers(
        saved(folder / "teacher", MAKE[kind](teacher_seed)), student, card_of(student), config
    )
    return student, distillation_loss(config, student, teachers_of)


def gradient(module: nn.Module) -> Tensor:
    return torch.cat([part.grad.flatten() for part in module.parameters() if part.grad is not None])


@KINDS
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_student_that_is_its_teacher_is_at_no_distance_and_learns_nothing(
    kind: str, noise: float, tmp_path: Path
):
    """Invariant 14."""
    student, loss_fn = student_and_loss(kind, tmp_path, 0, noise=noise)
    _, trace = loss_fn.decide(shown(kind), torch.Generator().manual_seed(1))
    found = loss_fn.divergence(shown(kind), trace)
    assert found.loss.item() == pytest.approx(0.0, abs=1e-7)
    assert found.kl_B.abs().max().item() < 1e-5
    found.loss.backward()
    assert gradient(student).abs().max().item() < 1e-6


@KINDS
def test_another_teacher_is_at_a_distance_and_gives_a_gradient(kind: str, tmp_path: Path):
    student, loss_fn = student_and_loss(kind, tmp_path, 1)
    _, trace = loss_fn.decide(shown(kind), torch.Generator().manual_seed(1))
    found = loss_fn.divergence(shown(kind), trace)
    assert found.kl_B.min().item() > 1e-6
    found.loss.backward()
    assert gradient(student).abs().max().item() > 1e-6


def test_a_reinforced_student_that_is_its_teacher_learns_nothing(tmp_path: Path):
    student, loss_fn = student_and_loss("tokens", tmp_path, 0, form="reinforce")
    _, trace = loss_fn.decide(words(), torch.Generator().manual_seed(1))
    loss_fn.divergence(words(), trace).loss.backward()
    assert gradient(student).abs().max().item() < 1e-6


def test_the_divergence_of_two_bins_is_the_one_worked_by_hand():
    # 0.8 ln(0.8 / 0.5) + 0.2 ln(0.2 / 0.5) = 0.8 * 0.470004 - 0.2 * 0.916291.
    own, even = torch.tensor([[[[0.8, 0.2]]]]).log(), torch.zeros(1, 1, 1, 2)
    assert token_divergence(own, even, 1.0).item() == pytest.approx(0.192745, abs=1e-5)
    # At temperature 2 the odds of 4 become 2: 2/3 ln(4/3) + 1/3 ln(2/3).
    assert token_divergence(own, even, 2.0).item() == pytest.approx(0.056633, abs=1e-5)


def drawn(logits_K: Tensor, draws: int) -> dict[str, Tensor]:
    """What a student of these logits did."""
    noise = torch.randn(draws, 1, 1, generator=torch.Generator().manual_seed(0))
    logits = logits_K.detach().expand(draws, 1, 1, -1)
    tokens = draw_tokens(logits, noise, 1.0)
    return {"tokens": tokens, "log_prob": token_log_prob(logits, tokens, 1.0)}


def odds(seed: int) -> Tensor:
    return torch.randn(5, generator=torch.Generator().manual_seed(seed))


def test_the_divergence_is_the_expected_log_ratio():
    """Invariant 14, of tokens; that of the Gaussians of a chain is in `test_chain.py`."""
    own, wanted, draws = odds(1), odds(2), 100_000
    trace = drawn(own, draws)
    ratio = trace["log_prob"] - token_log_prob(wanted.expand(draws, 1, 1, -1), trace["tokens"], 1.0)
    exact = token_divergence(own[None, None, None], wanted[None, None, None], 1.0).item()
    error = (ratio.std() / draws**0.5).item()
    assert ratio.mean().item() == pytest.approx(exact, abs=4.0 * error)
    assert exact > 20.0 * error


def gradients(own: Tensor, wanted: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """(K,) of the divergence, and (draws, K) of the reinforced loss of every token drawn."""
    closed = own.clone().requires_grad_()
    token_divergence(closed[None, None, None], wanted[None, None, None], 1.0).sum().backward()
    each = own.expand(draws, 1, 1, -1).clone().requires_grad_()
    trace = drawn(own, draws)
    (
        draws * policy_gradient_loss(PpoConfig(), each, wanted.expand(draws, 1, 1, -1), trace, 1.0)
    ).backward()
    return closed.grad, each.grad[:, 0, 0]  # type: ignore[return-value, index]


def test_the_reinforced_gradient_is_on_average_that_of_the_divergence():
    exact, each = gradients(odds(1), odds(2), 100_000)
    error = each.std(dim=0) / len(each) ** 0.5
    assert ((each.mean(dim=0) - exact).abs() < 4.0 * error).all()
    assert exact.abs().max() > 20.0 * error.max()


def test_the_closed_form_varies_less_over_the_drawing_of_decisions_than_the_reinforced_one(
    tmp_path: Path,
):
    """Of 40 rollouts of the same states, by the trace of the covariance of the gradient;
    autoregressive, where the closed form, too, hangs on what was drawn."""
    spread = {}
    for form in ("kl", "reinforce"):
        (tmp_path / form).mkdir()
        student, loss_fn = student_and_loss("causal", tmp_path / form, 1, form=form)
        found = []
        for seed in range(40):
            _, trace = loss_fn.decide(words(), torch.Generator().manual_seed(seed))
            student.zero_grad()
            loss_fn.divergence(words(), trace).loss.backward()
            found.append(gradient(student))
        spread[form] = torch.stack(found).var(dim=0).sum().item()
    assert spread["kl"] < 0.2 * spread["reinforce"]


def test_the_rows_instruction_chooses_its_teacher(tmp_path: Path):
    one, other, student = reading(seed=1), reading(seed=2), reading(seed=0).eval()
    folders = {WORDS[0]: saved(tmp_path / "one", one), WORDS[1]: saved(tmp_path / "other", other)}
    loss_fn = TokenDistillationLoss(
        SMALL, student, Teachers(folders, student, card_of(student), SMALL)
    )
    obs = words()
    _, trace = loss_fn.decide(obs, torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = loss_fn.divergence(obs, trace).kl_B
        observed = ObservationTensors(
            obs["vector"], {}, tuple(WORDS[row % 2] for row in range(NUM_ENVS))
        )
        own = student.logits(observed)
        single = [
            token_divergence(own, teacher.eval().logits(observed), 1.0).sum((1, 2))
            for teacher in (one, other)
        ]
    expected = torch.stack([single[row % 2][row] for row in range(NUM_ENVS)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert (single[0] - single[1]).abs().min() > 1e-6


def test_the_rows_instruction_chooses_the_teacher_of_a_flow(tmp_path: Path):
    student = flowing(0).eval()
    folders = {
        WORDS[0]: saved(tmp_path / "self", flowing(0)),
        WORDS[1]: saved(tmp_path / "other", flowing(1)),
    }
    loss_fn = DenoisingDistillationLoss(
        SMALL, student, Teachers(folders, student, card_of(student), SMALL)
    )
    _, trace = loss_fn.decide(words(), torch.Generator().manual_seed(1))
    divergence = loss_fn.divergence(words(), trace).kl_B
    assert divergence[0::2].abs().max() < 1e-6
    assert divergence[1::2].min() > 1e-4


def test_without_instructions_the_divergence_is_that_from_the_mean_of_the_teachers(tmp_path: Path):
    """Means of Gaussians: the distance to the mean velocity is the mean of the squared distances,
    less the teachers' own spread; a student half-way between two teachers is at no distance."""
    one, other = denoising(1).eval(), denoising(2).eval()
    folders = [saved(tmp_path / "one", one), saved(tmp_path / "other", other)]
    student = denoising(0).eval()
    loss_fn = DenoisingDistillationLoss(
        SMALL, student, Teachers(folders, student, card_of(student), SMALL)
    )
    inputs = ObservationTensors(shown("denoising"))
    noisy = torch.randn(NUM_ENVS, *student.chunk_shape, generator=torch.Generator().manual_seed(1))
    level = torch.full((NUM_ENVS,), 3)
    with torch.no_grad():
        found = loss_fn._teacher_velocity(inputs)(noisy, level)
        expected = [teacher.velocity(inputs)(noisy, level) for teacher in (one, other)]
    torch.testing.assert_close(found, (expected[0] + expected[1]) / 2)
    assert (expected[0] - expected[1]).abs().max() > 1e-3


def test_without_instructions_tokens_are_held_against_the_mean_of_the_log_probabilities(
    tmp_path: Path,
):
    one, other, student = reading(seed=1), reading(seed=2), reading(seed=0).eval()
    folders = [saved(tmp_path / "one", one), saved(tmp_path / "other", other)]
    loss_fn = TokenDistillationLoss(
        SMALL, student, Teachers(folders, student, card_of(student), SMALL)
    )
    obs = words()
    _, trace = loss_fn.decide(obs, torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = loss_fn.divergence(obs, trace).kl_B
        observed = ObservationTensors(
            obs["vector"], {}, tuple(WORDS[row % 2] for row in range(NUM_ENVS))
        )
        own = student.logits(observed).log_softmax(-1)
        log_probs = [teacher.eval().logits(observed).log_softmax(-1) for teacher in (one, other)]
        mean = (log_probs[0] + log_probs[1]) / 2
        # Mean divergence, and the constant that the normalisation of the mean adds.
        kl = sum((own.exp() * (own - each)).sum(-1) for each in log_probs) / 2
        expected = (kl + mean.logsumexp(-1)).sum((1, 2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_instructions_of_the_configuration_pair_with_the_teachers_in_order(school: Path):
    by_name = run_distillation(school, "by name")
    folders = [school / "one", school / "other"]
    (school / "by order").mkdir()
    config = replace(SMALL, instructions=WORDS)
    by_order = on_policy_distil(
        config,
        school / "student",
        folders,
        lambda: WordLine(NUM_ENVS),
        school / "by order",
        no_progress,
    )
    names = ("asked", "kl", "success", "return")
    assert [by_order[name] for name in names] == [by_name[name] for name in names]
    for instructions, message in (
        (WORDS[:1], "for 2 teachers"),
        (WORDS[:1] * 2, "a different one"),
    ):
        with pytest.raises(HandoffError, match=message):
            assign_instructions(folders, instructions)
    assert assign_instructions(folders[:1], ()) == folders[0]
    assert assign_instructions(folders, ()) == folders


def test_one_teacher_twice_and_no_teacher_are_refused(tmp_path: Path):
    student, folder = denoising(), saved(tmp_path / "one", denoising())
    with pytest.raises(HandoffError, match="are not distinct"):
        Teachers([folder, folder], student, card_of(student), SMALL)
    with pytest.raises(HandoffError, match="there are no teachers"):
        Teachers([], student, card_of(student), SMALL)


def test_a_teacher_sees_the_state_in_its_own_units(tmp_path: Path):
    student, teacher = reading(seed=0).eval(), reading(seed=0)
    with torch.no_grad():
        next(iter(teacher.normalize_observation.buffers())).add_(0.25)
    teachers_of = Teachers(saved(tmp_path / "teacher", teacher), student, card_of(student), SMALL)
    ((policy, _, inputs, _),) = teachers_of.assign(
        ObservationTensors(words()["vector"], {}, WORDS * 3)
    )
    physical = student.normalize_observation.inverse(words()["vector"])
    torch.testing.assert_close(policy.normalize_observation.inverse(inputs.vector_BTO), physical)
    assert not torch.allclose(inputs.vector_BTO, words()["vector"])


def refused(
    folder: Path, student: ChunkPolicy, teacher: ChunkPolicy, match: str, **options: Any
) -> None:
    path = saved(folder / "refused", teacher, options.pop("rate_hz", 10.0))
    with pytest.raises(HandoffError, match=match):
        Teachers(path, student, card_of(student), replace(SMALL, **options))


def test_a_teacher_of_another_grid_is_refused(tmp_path: Path):
    refused(
        tmp_path,
        denoising(),
        denoising(inference_steps=2),
        "the sampler steps differ: the teacher's timestep_K",
    )


def test_steps_for_both_make_one_grid_of_two_but_not_of_two_schedules(tmp_path: Path):
    student, fewer = denoising(), denoising(inference_steps=2)
    Teachers(saved(tmp_path / "fewer", fewer), student, card_of(student), replace(SMALL, steps=5))
    refused(tmp_path, student, denoising(train_timesteps=20), "the sampler steps differ", steps=5)


def test_a_teacher_of_other_bins_units_rate_or_family_is_refused(tmp_path: Path):
    from policies.families.token_vla import TokenVlaPolicy

    student = reading()
    finer = TokenVlaPolicy(replace(student.config, bins=8), student.shapes)
    other = copy.deepcopy(student)
    other.normalize_action.scale.mul_(1.5)
    cases: list[tuple[ChunkPolicy, str, float]] = [
        (finer, "the teacher's bins is 8, the student's 4", 10.0),
        (other, "action normaliser differs from the student's by up to 0.5", 10.0),
        (student, r"rate \[Hz\] is 5.0, the student's 10.0", 5.0),
        (flowing(), "family is VlaPolicy, the student's TokenVlaPolicy", 10.0),
    ]
    for number, (teacher, match, rate_hz) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        refused(tmp_path / str(number), student, teacher, match, rate_hz=rate_hz)


def test_a_sentence_that_nobody_teaches_is_refused(tmp_path: Path):
    student = reading()
    teachers_of = Teachers(
        {WORDS[0]: saved(tmp_path / "one", reading())}, student, card_of(student), SMALL
    )
    with pytest.raises(
        HandoffError,
        match=r"no teacher for the instructions \['go right'\], available are \['go left'\]",
    ):
        teachers_of.assign(ObservationTensors(words()["vector"], {}, WORDS * 3))


def test_teachers_by_instruction_for_a_student_without_language_are_refused(tmp_path: Path):
    student, folder = denoising(), saved(tmp_path / "one", denoising())
    with pytest.raises(HandoffError, match="a DiffusionPolicy, reads none"):
        Teachers({"go left": folder}, student, card_of(student), SMALL)


def test_a_flow_is_not_reinforced(tmp_path: Path):
    with pytest.raises(HandoffError, match="form is 'reinforce', which needs action tokens"):
        student_and_loss("flowing", tmp_path, 1, form="reinforce")


def run_distillation(
    folder: Path, out: str, progress: Any = no_progress, **options: Any
) -> dict[str, Any]:
    (folder / out).mkdir(exist_ok=True)
    teachers = {WORDS[0]: folder / "one", WORDS[1]: folder / "other"}
    config = replace(SMALL, **options)
    return on_policy_distil(
        config, folder / "student", teachers, lambda: WordLine(NUM_ENVS), folder / out, progress
    )


@pytest.fixture
def school(tmp_path: Path) -> Path:
    for seed, name in enumerate(("student", "one", "other")):
        saved(tmp_path / name, reading(seed=seed))
    return tmp_path


def curve(out: Path) -> list[dict[str, float]]:
    return [
        json.loads(line) | {"cpu_seconds": 0.0} for line in (out / CURVE).read_text().splitlines()
    ]


def test_a_distilled_policy_is_nearer_to_its_teachers(school: Path):
    progress_calls: list[int] = []
    metrics = run_distillation(
        school,
        "out",
        lambda done, total, note="": progress_calls.append(done),
        rollouts=8,
        learning_rate=3e-3,
    )
    assert progress_calls == list(range(1, 9))
    entries = curve(school / "out")
    assert entries[-1]["kl"] < 0.7 * entries[0]["kl"]
    assert metrics["asked"] == entries[-1]["asked"] == 8 * 5 * NUM_ENVS * 2
    module, card = load_module(school / "out")
    assert card.model == reading().config
    assert (school / "out" / PICTURE).stat().st_size > 1000
    assert (school / "out" / FILE).exists()
    assert not (school / "out" / STATE).exists()
    before, _ = load_module(school / "student")
    assert any(
        not torch.equal(one, two)
        for one, two in zip(module.parameters(), before.parameters(), strict=True)
    )


@pytest.mark.parametrize(("form", "save_every"), [("kl", 2), ("reinforce", 1)])
def test_a_run_killed_by_the_system_ends_as_one_that_was_not(
    form: Any, save_every: int, school: Path
):
    run_distillation(school, "whole", form=form, save_every=save_every)
    (school / "cut").mkdir()
    teachers = {WORDS[0]: school / "one", WORDS[1]: school / "other"}
    config = replace(SMALL, form=form, save_every=save_every)
    arguments = (config, school / "student", teachers, partial(WordLine, NUM_ENVS), school / "cut")
    run_until_killed(3, on_policy_distil, *arguments)
    done: list[int] = []
    run_distillation(
        school, "cut", lambda at, total, note="": done.append(at), form=form, save_every=save_every
    )
    assert done[0] == (4 if save_every == 1 else 3)
    assert curve(school / "cut") == curve(school / "whole")
    whole, cut = (load_module(school / name)[0].state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(weight, cut[name]) for name, weight in whole.items())


def test_other_teachers_start_a_new_run(school: Path):
    with pytest.raises(KilledError):
        run_distillation(school, "out", killing(2))
    save_policy(school / "one", card_of(reading()), reading(seed=7).state_dict())
    done: list[int] = []
    run_distillation(school, "out", lambda at, total, note="": done.append(at))
    assert done[0] == 1


def test_a_teacher_whose_file_changes_meanwhile_is_reported(school: Path):
    def replaced(done: int, total: int, note: str = "") -> None:
        if done == 2:
            save_policy(school / "other", card_of(reading()), reading(seed=7).state_dict())

    with pytest.raises(HandoffError, match="other: the teacher's weights have changed"):
        run_distillation(school, "out", replaced)
    assert not (school / "out" / WEIGHTS).exists()


def test_a_teacher_that_learns_meanwhile_is_reported(tmp_path: Path):
    student = reading()
    teachers_of = Teachers(
        saved(tmp_path / "one", reading(seed=1)), student, card_of(student), SMALL
    )
    teachers_of.check_unchanged()
    with torch.no_grad():
        next(teachers_of.policies[0].parameters()).add_(1e-3)
    with pytest.raises(HandoffError, match="one: the teacher's weights have changed"):
        teachers_of.check_unchanged()


def test_a_denoising_student_comes_to_answer_as_its_teacher_in_as_many_steps(tmp_path: Path):
    student, teacher = (
        saved(tmp_path / "student", denoising(0)),
        saved(tmp_path / "teacher", denoising(1)),
    )
    (tmp_path / "out").mkdir()
    config = replace(SMALL, steps=2, rollouts=30, learning_rate=1e-2, noise=0.5)
    on_policy_distil(
        config, student, teacher, lambda: Counting(NUM_ENVS), tmp_path / "out", no_progress
    )
    module, card = load_module(tmp_path / "out")
    assert card.model.inference_steps == 2  # type: ignore[union-attr]
    inputs, noise = (
        ObservationTensors(shown("denoising")),
        torch.randn(NUM_ENVS, 2, 1, generator=torch.Generator().manual_seed(3)),
    )
    wanted = load_module(teacher, steps=2)[0].sample(inputs, noise)
    before = load_module(student, steps=2)[0].sample(inputs, noise)
    assert (module.sample(inputs, noise) - wanted).square().mean() < 0.3 * (
        before - wanted
    ).square().mean()


@pytest.mark.parametrize("flow", [False, True])
def test_a_student_in_one_step_comes_to_answer_as_its_teacher_in_its_own(
    flow: bool, tmp_path: Path
):
    """The student is its teacher in one step, so it begins at the distance of the two samplers."""
    options = {"objective": "flow"} if flow else {}
    one_step = denoising(1, **options, inference_steps=1)
    student, teacher = (
        saved(tmp_path / "student", one_step),
        saved(tmp_path / "teacher", denoising(1, **options)),
    )
    (tmp_path / "out").mkdir()
    config = replace(SMALL, form="chunk", rollouts=30, learning_rate=1e-2)
    metrics = on_policy_distil(
        config, student, teacher, lambda: Counting(NUM_ENVS), tmp_path / "out", no_progress
    )
    module, card = load_module(tmp_path / "out")
    assert card.model.inference_steps == 1  # type: ignore[union-attr]
    first = curve(tmp_path / "out")[0]
    assert 0.0 < metrics["kl"] < 0.3 * first["kl"]
    inputs, noise = (
        ObservationTensors(shown("denoising")),
        torch.randn(NUM_ENVS, 2, 1, generator=torch.Generator().manual_seed(3)),
    )
    wanted = load_module(teacher)[0].sample(inputs, noise)
    before = load_module(student)[0].sample(inputs, noise)
    assert (module.sample(inputs, noise) - wanted).square().mean() < 0.5 * (
        before - wanted
    ).square().mean()


def test_the_chunk_is_compared_with_that_of_the_same_noise(tmp_path: Path):
    student, loss = student_and_loss("denoising", tmp_path, 0, form="chunk")
    obs = shown("denoising")
    chunk, trace = loss.decide(obs, torch.Generator().manual_seed(0))
    torch.testing.assert_close(chunk, trace["target"])
    assert loss.divergence(obs, trace).loss.item() < 1e-10
    # Control: the teacher's chunk from other noise.
    other = {**trace, "target": trace["target"].flip(0)}
    divergence = loss.divergence(obs, other)
    assert divergence.loss.item() > 1e-4
    square = (chunk - other["target"]).square().sum(dim=(1, 2))
    torch.testing.assert_close(divergence.kl_B, 0.5 * square)
    divergence.loss.backward()
    assert gradient(student).abs().max() > 0.0


def test_the_form_chunk_needs_a_sampler_and_no_noise_in_it(tmp_path: Path):
    with pytest.raises(HandoffError, match="form is 'chunk', which needs a diffusion or flow"):
        student_and_loss("tokens", tmp_path, 1, form="chunk")
    with pytest.raises(HandoffError, match=r"noise is 0\.5 with the form 'chunk'"):
        OnPolicyDistilConfig(form="chunk", noise=0.5)


def test_a_loss_that_is_not_finite_stops_it(school: Path):
    broken = reading(seed=1)
    with torch.no_grad():
        broken.head.weight.fill_(float("nan"))
    save_policy(school / "one", card_of(broken), broken.state_dict())
    with pytest.raises(
        HandoffError, match="the loss of rollout 1 is nan, expected a finite number"
    ):
        run_distillation(school, "out")


@pytest.mark.parametrize("options", [{"decisions": 0}, {"temperature": 0.0}, {"save_every": 0}])
def test_numbers_below_one_are_refused(options: dict[str, Any]):
    with pytest.raises(HandoffError, match="expected 1 or more, and a temperature above 0"):
        OnPolicyDistilConfig(**options)

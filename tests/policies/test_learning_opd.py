"""C4: two teachers of one sentence each become one student that does what either sentence asks.

WordBalance: an error grows 1.4 times a step unless it is mended. Either teacher imitated the expert
of its own sentence from all places; the student begins as an imitator of both sentences whose
demonstrations were shaken. 6,400 decisions are put before a teacher, in 200 updates of the same
optimiser, which see each twice: in the student's own states (on policy, in closed form or
reinforced) or in those where the teachers act (behaviour cloning of their tokens, or the closed
form there). The score is the share of 200 episodes, the same for all, that are still near their
mark after 10, 40 or 160 steps. Asked for, seeds 0 to 4: on policy not behind cloning, and by more
the longer an episode lasts; the negative control, the student as it began, behind all.

At five seeds, per length:
- on policy, closed form: .995, .975, .98, .485, .975; .97, .85, .86, .395, .9; .865, .595, .625,
  .105, .605;
- on policy, reinforced: .5, .885, .495, .505, .385; .355, .515, .375, .215, .11; .085, .025, .175,
  .005, .005;
- cloned: .83, .765, .76, .82, .82; .435, .265, .205, .295, .33; .03, .005, .01, .005, 0;
- closed form in the teachers' states: .935, .95, .87, .55, .635; .495, .72, .025, .06, .04; .075,
  .29, 0, 0, 0;
- as it began: .175, .195, .14, .12, .185; then 0.

Met, but ahead significantly at 40 and 160 steps only; at 10 seed 3 fails in half of the episodes.
The closed form in the teachers' states is not told apart from cloning, so it is the states that do
it. The reinforced form is behind.
"""

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.distillation.config import OnPolicyDistilConfig
from policies.distillation.losses import TokenDistillationLoss
from policies.distillation.on_policy import on_policy_distil
from policies.distillation.teachers import Teachers
from policies.families.token_vla import TokenVlaPolicy
from policies.load import load_module, new_module
from policies.networks.config import BackboneConfig, ScratchConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import TokenVlaConfig
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.on_policy.observations import observation_tensors
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.toy_envs.comparison import better, runs
from tests.toy_envs.word_balance import WORDS, WordBalance, expert

pytestmark = pytest.mark.slow

NUM_ENVS, DECISIONS, ROLLOUTS, LIMIT = 16, 20, 20, 40
LENGTHS = (10, 40, 160)
EPISODES = 200
DISTIL = OnPolicyDistilConfig(
    rollouts=ROLLOUTS,
    decisions=DECISIONS,
    batch_size=64,
    epochs=2,
    learning_rate=3e-3,
    save_every=ROLLOUTS,
)


def untaught(seed: int) -> TokenVlaPolicy:
    """One action of one entry, 16 bins."""
    config = TokenVlaConfig(
        backbone=BackboneConfig(
            scratch=ScratchConfig(sentences=WORDS, width=16, layers=1, heads=2, feedforward=32)
        ),
        train_backbone="all",
        observation_fields=("place",),
        anchor_field=None,
        horizon=1,
        n_action_steps=1,
        bins=16,
        decoding="parallel",
    )
    torch.manual_seed(seed)
    policy = new_module(config, Shapes({"place": (0, 1)}, 1, None, {}))
    assert isinstance(policy, TokenVlaPolicy)
    return policy


def imitator(seed: int, sentences: tuple[int, ...], updates: int, shaken: float) -> TokenVlaPolicy:
    """Of the expert who obeys these sentences, from places all over, `shaken` by that deviation."""
    policy, draw = untaught(seed), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), 3e-3)
    for update in range(updates):
        place, which = draw.uniform(-1.0, 1.0, 128), draw.choice(sentences, 128)
        action = np.clip(
            expert(place, which == 1) + shaken * draw.standard_normal(128), -0.99, 0.99
        )
        observed = ObservationTensors(column(place), {}, tuple(WORDS[one] for one in which))
        batch = Batch(observed, column(action), torch.zeros(128, 1, dtype=torch.bool))
        loss = policy.loss(batch, np.random.default_rng(update))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy.eval()


def column(values: np.ndarray) -> Tensor:
    """(B,) to (B, 1, 1)."""
    return torch.from_numpy(values.astype(np.float32))[:, None, None]


def saved(folder: Path, policy: TokenVlaPolicy) -> Path:
    folder.mkdir()
    one = FieldSpec(shape=(1,))
    card = PolicyCard(
        task="balance", rate_hz=10.0, observation={"place": one}, action=one, model=policy.config
    )
    save_policy(folder, card, policy.state_dict(), policy.extra_files())
    return folder


@torch.no_grad()
def lasting(policy: TokenVlaPolicy) -> list[float]:
    """Share of the episodes of each length that are solved, with tokens drawn at temperature 1."""
    shares = []
    for length in LENGTHS:
        env = ChunkEnv(WordBalance(EPISODES, length), policy, 1, count(9_000_000), 1.0)
        generator = torch.Generator().manual_seed(5)
        alone = torch.ones(EPISODES, dtype=torch.bool)
        for number in range(length):
            noise_BHA = torch.randn(EPISODES, 1, 1, generator=generator)
            led = env.step(
                policy.values(
                    policy.act(observation_tensors(env.observation()), noise_BHA).tokens_BHA
                )
            )
            # Environments begin anew; whoever was lost before the end is not counted again.
            alone &= ~led.terminated_N if number < length - 1 else led.success_N
        shares.append(round(alone.float().mean().item(), 4))
    return shares


def teachers(folder: Path) -> dict[str, Path]:
    return {said: folder / str(number) for number, said in enumerate(WORDS)}


def began(folder: Path, seed: int) -> Path:
    return folder / f"student {seed}"


def begun(seed: int, folder: Path) -> list[float]:
    return lasting(loaded(began(folder, seed)))


def loaded(folder: Path) -> TokenVlaPolicy:
    policy, _ = load_module(folder, trainable=True)
    assert isinstance(policy, TokenVlaPolicy)
    return policy


def on_policy(seed: int, folder: Path, form: str) -> list[float]:
    out = folder / f"{form} {seed}"
    out.mkdir()
    config = replace(DISTIL, form=form, seed=seed, first_seed=10_000 * seed)  # type: ignore[arg-type]
    env = partial(WordBalance, NUM_ENVS, LIMIT)
    metrics = on_policy_distil(config, began(folder, seed), teachers(folder), env, out, no_progress)
    assert metrics["asked"] == DISTIL.epochs * NUM_ENVS * DECISIONS * ROLLOUTS
    return lasting(loaded(out))


def cloned(seed: int, folder: Path, closed: bool) -> list[float]:
    """As many decisions, made by the teachers in their own episodes, and as many updates.

    Args:
        seed: of the student.
        folder: of all.
        closed: whether by the divergence over all bins, so that only the states differ from
            on-policy teaching.
    """
    student = loaded(began(folder, seed))
    _, card = load_module(began(folder, seed))
    teachers_of = Teachers(teachers(folder), student, card, DISTIL)
    loss_fn = TokenDistillationLoss(DISTIL, student, teachers_of)
    generator = torch.Generator().manual_seed(seed)
    env = ChunkEnv(WordBalance(NUM_ENVS, LIMIT), student, 1, count(10_000 * seed), 1.0)
    observations, tokens = [], []
    for _ in range(ROLLOUTS * DECISIONS):
        obs, noise_BHA = env.observation(), torch.randn(NUM_ENVS, 1, 1, generator=generator)
        token_BHA = torch.zeros(NUM_ENVS, 1, 1, dtype=torch.long)
        for policy, rows, inputs, _ in teachers_of.assign(observation_tensors(obs)):
            assert isinstance(policy, TokenVlaPolicy)
            token_BHA[rows] = policy.act(inputs, noise_BHA[rows]).tokens_BHA
        env.step(student.values(token_BHA))
        observations.append(obs)
        tokens.append(token_BHA)
    obs, token_BHA = torch.cat(observations), torch.cat(tokens)
    optimizer = torch.optim.Adam(student.parameters(), DISTIL.learning_rate)
    for _ in range(DISTIL.epochs):
        for rows in torch.randperm(len(obs), generator=generator).chunk(
            len(obs) // DISTIL.batch_size
        ):
            if closed:
                loss = loss_fn.divergence(obs[rows], {"tokens": token_BHA[rows]}).loss
            else:
                loss = -student.log_prob(observation_tensors(obs[rows]), token_BHA[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
    return lasting(student)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """(seeds, lengths) of every arm."""
    folder = tmp_path_factory.mktemp("balance")
    for number in range(len(WORDS)):
        saved(folder / str(number), imitator(100 + number, (number,), 1000, 0.0))
    for seed in range(5):
        saved(began(folder, seed), imitator(seed, (0, 1), 300, 0.8))
    arms = {
        "on policy": partial(on_policy, folder=folder, form="kl"),
        "reinforced": partial(on_policy, folder=folder, form="reinforce"),
        "cloned": partial(cloned, folder=folder, closed=False),
        "closed, off policy": partial(cloned, folder=folder, closed=True),
        "begun": partial(begun, folder=folder),
    }
    return {name: np.array(scores) for name, scores in runs(arms).items()}


def of_length(found: dict[str, np.ndarray], length: int) -> dict[str, list[float]]:
    number = LENGTHS.index(length)
    return {name: scores[:, number].tolist() for name, scores in found.items()}


@pytest.mark.parametrize("length", LENGTHS)
def test_on_policy_distillation_matches_cloning_with_as_many_decisions(
    found: dict[str, np.ndarray], length: int
) -> None:
    scores = of_length(found, length)
    assert np.mean(scores["on policy"]) >= np.mean(scores["cloned"])


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_in_long_episodes_it_is_ahead_of_cloning(found: dict[str, np.ndarray], length: int) -> None:
    assert better(of_length(found, length), "on policy", "cloned")


def test_the_gap_grows_with_the_length_of_an_episode(found: dict[str, np.ndarray]) -> None:
    on, cloned = (found[name].mean(axis=0) for name in ("on policy", "cloned"))
    assert (np.diff(on / cloned.clip(min=1e-3)) > 0.0).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_the_closed_form_is_ahead_of_the_reinforced_one(
    found: dict[str, np.ndarray], length: int
) -> None:
    assert better(of_length(found, length), "on policy", "reinforced")


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_the_students_own_states_are_what_does_it(
    found: dict[str, np.ndarray], length: int
) -> None:
    assert better(of_length(found, length), "on policy", "closed, off policy")


def test_the_student_as_it_began_is_behind(found: dict[str, np.ndarray]) -> None:
    assert better(of_length(found, 10), "on policy", "begun")

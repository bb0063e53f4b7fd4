"""Cal-QL's loss against one written out in NumPy, and what calibration does to it."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.tanh_gaussian import ActionSample
from policies.rl.offline.calql import CalQl, calibrated
from policies.rl.offline.config import CalQlConfig
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError

SMALL = MlpSizes(hidden=(16,), activation="relu")
SIZES = Sizes(observation=2, action=1)
SAC = SacConfig(critic=SMALL, actor=SMALL, critics=3, subset=2, init_temperature=1.0)


def learner(**options) -> CalQl:
    return CalQl(CalQlConfig(sac=SAC, **options), SIZES)


def batch(returns: list[float] | None = None, rows: int = 4) -> Transitions:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Transitions(
        obs=Observations(draw(rows, 2)),
        action_BA=torch.tanh(draw(rows, 1)),
        reward_B=draw(rows),
        discount_B=torch.full((rows,), 0.9),
        next_obs=Observations(draw(rows, 2)),
        demo_B=torch.zeros(rows, dtype=torch.bool),
        intervention_B=torch.zeros(rows, dtype=torch.bool),
        toggles_B=torch.zeros(rows),
        extra={} if returns is None else {"mc_return": torch.tensor(returns)},
    )


class SumOfInputs(nn.Module):
    """A critic with known values: member e answers (e + 1) times the sum of features and action."""

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        factors = torch.arange(1.0, 4.0) if members is None else members + 1.0
        return factors[:, None, None] * inputs.sum(dim=1, keepdim=True)


class FixedActor(nn.Module):
    """A policy whose action and log-density are functions of the features that can be worked out by
    hand."""

    actions = 1

    def sample(self, features_BF: Tensor, noise_BA: Tensor) -> ActionSample:
        return ActionSample(0.1 * features_BF[:, :1], features_BF[:, 1])


def with_known_parts(one: CalQl) -> CalQl:
    one.networks.critic = SumOfInputs()  # type: ignore[assignment]
    one.networks.critic_target = SumOfInputs()  # type: ignore[assignment]
    one.networks.actor = FixedActor()  # type: ignore[assignment]
    return one


@pytest.mark.parametrize("returns", [None, [-50.0, 0.3, 1.0, 50.0]])
def test_the_loss_is_as_written_out_action_by_action(returns: list[float] | None) -> None:
    one = with_known_parts(
        learner(actions=2, target_actions=3, weight=0.7, calibrated=returns is not None)
    )
    rows = batch(returns)
    one._generator.manual_seed(5)
    loss, metrics = one.critic_loss(rows)

    # The subset of the target is drawn after the noise of its 12 actions, the random actions after
    # that.
    replayed = torch.Generator().manual_seed(5)
    torch.randn(12, 1, generator=replayed)
    subset = torch.randperm(3, generator=replayed)[:2].numpy() + 1.0
    uniform = (2.0 * torch.rand(4, 2, 1, generator=replayed) - 1.0).numpy()

    state, after = rows.obs.vector_BO.numpy(), rows.next_obs.vector_BO.numpy()
    losses, gaps = [], []
    for row in range(4):
        here, there = state[row].sum(), after[row].sum()
        of_policy, of_next = 0.1 * state[row, 0], 0.1 * after[row, 0]
        target = rows.reward_B[row] + 0.9 * min(subset * (there + of_next))
        for factor in (1.0, 2.0, 3.0):
            chosen = [factor * (here + of_policy)] * 2 + [factor * (here + of_next)] * 2
            if returns is not None:
                chosen = [max(value, returns[row]) for value in chosen]
            minus_density = [-state[row, 1]] * 2 + [-after[row, 1]] * 2
            exponents = [factor * (here + a) + np.log(2.0) for a in uniform[row, :, 0]]
            exponents += [
                value + density for value, density in zip(chosen, minus_density, strict=True)
            ]
            data = factor * (here + rows.action_BA[row, 0].item())
            gaps.append(np.log(np.exp(exponents).sum()) - data)
            losses.append((data - target) ** 2)
    assert metrics["conservatism"].item() == pytest.approx(np.mean(gaps), rel=1e-5)
    assert loss.item() == pytest.approx(np.mean(losses) + 0.7 * np.mean(gaps), rel=1e-5)


def test_calibration_lifts_the_policys_values_only_and_only_up_to_the_return() -> None:
    value = torch.tensor([[[-3.0, -2.0, 5.0], [-3.0, 0.0, 1.0]]])
    assert calibrated(value, torch.tensor([1.0, -1.0]), random=1).tolist() == [
        [[-3, 1, 5], [-3, 0, 1]]
    ]


def test_values_of_the_policy_below_the_return_are_not_lowered() -> None:
    gradients = {}
    for name, returns in (("far below", [1e3] * 4), ("far above", [-1e3] * 4)):
        value = torch.zeros(1, 4, 3, requires_grad=True)
        torch.logsumexp(calibrated(value, torch.tensor(returns), random=1), dim=2).sum().backward()
        assert value.grad is not None
        gradients[name] = value.grad[0, 0].tolist()
    assert gradients["far below"][1:] == [0, 0]
    assert gradients["far above"] == pytest.approx([1 / 3] * 3)


def test_returns_far_below_make_cal_ql_the_same_as_cql() -> None:
    cql, cal = learner(calibrated=False), learner()
    cql.update([batch()])
    cal.update([batch([-1e6] * 4)])
    for left, right in zip(cql.networks.parameters(), cal.networks.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_target_is_the_largest_of_several_next_actions() -> None:
    class Alternating(nn.Module):
        """Values 0, 1, 2, ... in the order of the rows."""

        def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
            return torch.arange(float(len(inputs)))[None, :, None].expand(2, -1, 1)

    one = learner(target_actions=3)
    one.networks.critic_target = Alternating()  # type: ignore[assignment]
    with torch.no_grad():
        assert one.next_value(torch.zeros(2, 2)).tolist() == [2, 5]


@pytest.mark.parametrize(("gap", "grows"), [(-100.0, True), (100.0, False)])
def test_the_multiplier_grows_while_conservatism_is_above_its_gap(gap: float, grows: bool) -> None:
    one = learner(calibrated=False, gap=gap)
    one.update([batch()])
    assert (one.log_multiplier.item() > 1.0) == grows


def test_a_restored_learner_learns_identically() -> None:
    first, rows = learner(gap=0.8), batch([0.0, 0.1, 0.2, 0.3])
    first.update([rows])
    second = learner(gap=0.8)
    second.load_state_dict(deepcopy(first.state_dict()))
    for one in (first, second):
        one.update([rows, rows])
    for left, right in zip(first.networks.parameters(), second.networks.parameters(), strict=True):
        assert torch.equal(left, right)
    assert torch.equal(first.log_multiplier, second.log_multiplier)


def test_missing_returns_are_named() -> None:
    with pytest.raises(HandoffError, match="mc_return"):
        learner().update([batch()])


@pytest.mark.parametrize("options", [{"gripper": GripperConfig()}, {"backup_entropy": True}])
def test_unsupported_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(HandoffError, match="cal-ql"):
        CalQl(CalQlConfig(sac=SacConfig(critic=SMALL, actor=SMALL, **options)), SIZES)  # type: ignore[arg-type]

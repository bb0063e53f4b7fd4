"""Options of stream AC(lambda). Imports no torch.

Every default is that of the released code for continuous actions [C]; the paper (Elsayed et al.,
arXiv 2410.14606) uses one set for all of its tasks.
"""

from __future__ import annotations

from robots.config import Count, LearningRate, NonNegative, Positive, Share, ShareBelowOne, config


@config
class StreamAcOptions:
    """Networks and updates of stream AC(lambda)."""

    hidden: tuple[Count, ...] = (128, 128)
    """Units of each hidden layer of the actor and of the critic, which have separate networks
    [C]."""
    sparsity: ShareBelowOne = 0.9
    """Share of the inputs of every unit whose initial weights are 0 [C]; at least one input keeps
    its weight, also where the share leaves none of a short observation vector."""
    learning_rate: LearningRate = 1.0
    """Largest step size of actor and critic; the bound on overshooting shortens nearly every step
    [C]."""
    actor_kappa: Positive = 3.0
    """Divisor of the actor's step size where the bound shortens it [C]."""
    critic_kappa: Positive = 2.0
    """Divisor of the critic's step size where the bound shortens it [C]. From 2 on, a linear value
    of features within [-1, 1] never overshoots its TD target."""
    discount: Share = 0.99
    """Discount per control period [C]."""
    trace_lambda: Share = 0.8
    """Lambda of the eligibility traces: a step's gradient counts `discount * trace_lambda` times as
    much at the next one [C]. 0 learns from the newest step alone."""
    entropy: NonNegative = 0.01
    """Weight of the entropy in the actor's objective, where it has the sign of the TD error [C]."""
    bootstrap_time_limits: bool = False
    """Whether the TD target of an episode's last step contains the value of its last observation
    where the time limit ended it; False ends the return there, as at a termination [C]."""

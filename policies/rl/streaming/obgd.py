"""Steps parameters along eligibility traces by overshooting-bounded gradient descent (ObGD).

Source: Elsayed et al., arXiv 2410.14606; `optim.py` of the released code does the same.
"""

from __future__ import annotations

import torch

from policies.rl.streaming.networks import TracedMlp


class ObGd:
    """Overshooting-bounded gradient descent.

    A step of size a along the traces e changes the TD error d of a linear value, whose features x
    lie within [-1, 1], by -a d e (x - g x'), and |e (x - g x')| is at most 2 ||e||_1. The largest
    step size is the learning rate; where learning rate * kappa * max(|d|, 1) * ||e||_1 exceeds 1,
    it is divided by that product, so that with kappa >= 2 the error keeps its sign.

    Args:
        network: network whose parameters are stepped.
        learning_rate: largest step size.
        kappa: divisor of the step size.
    """

    def __init__(self, network: TracedMlp, learning_rate: float, kappa: float) -> None:
        self.network = network
        self.learning_rate = learning_rate
        self.kappa = kappa

    def step(self, td_error: float) -> float:
        """Adds step size times TD error times traces to the parameters; returns the step size."""
        network = self.network
        length = float(torch.linalg.vector_norm(network.traces_P, 1))
        overshoot = self.learning_rate * self.kappa * max(abs(td_error), 1.0) * length
        size = self.learning_rate / max(overshoot, 1.0)
        network.values_P.add_(network.traces_P, alpha=size * td_error)
        return size

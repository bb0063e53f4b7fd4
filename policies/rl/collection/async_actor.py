"""Collects each rollout with an earlier copy of the policy while the policy learns.

AReaL (arXiv 2505.24298) lets rollouts continue during updates. Here rollout k + 1 always uses the
weights from before update k and runs in a thread beside that update; both are waited for. The data
therefore do not depend on which of the two is faster, and an iteration takes the time of the slower
one.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from policies.rl.collection.admission import Admission
from policies.rl.collection.interfaces import PublishedActor
from policies.rl.on_policy.advantages import ChunkRollout
from robots.errors import HandoffError

Actor = TypeVar("Actor", bound=PublishedActor)


class AsyncActor(Generic[Actor]):
    """Collects rollouts with a copy of a learning actor.

    Args:
        learning: actor that is trained in place.
        staleness: updates by which the copy may lag, at least 1.
    """

    def __init__(self, learning: Actor, staleness: int) -> None:
        self._learning = learning
        self._admission = Admission(staleness)
        self.actor = copy.deepcopy(learning)
        """The copy that acts."""
        self._next: ChunkRollout | None = None

    def next_rollout(self, collect: Callable[[], ChunkRollout]) -> ChunkRollout:
        """The next rollout to learn from: the one collected ahead, or a new one at the start."""
        if self._next is None:
            self._publish()
            return collect()
        rollout = self._next
        self._next = None
        return rollout

    @contextmanager
    def collecting_ahead(self, collect: Callable[[], ChunkRollout], version: int) -> Iterator[None]:
        """Context in which the policy learns while the next rollout is collected with the current
        weights.

        Args:
            collect: collects a rollout with `actor`.
            version: updates made so far; `version + 1` rollouts have been started.
        """
        if not self._admission.admits(version + 1, version):
            yield
            return
        self._publish()
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(1, "rollout", torch.set_num_threads, (threads,)) as executor:
            pending = executor.submit(collect)
            yield
            self._next = pending.result()

    def discard(self) -> None:
        """Drops the rollout collected ahead, after its episodes were abandoned."""
        self._next = None

    def _publish(self) -> None:
        acting_tensors = list(_tensors(self.actor))
        with torch.no_grad():
            for source, target in zip(_tensors(self._learning), acting_tensors, strict=True):
                target.copy_(source)
        check_weights_match(
            weights_digest(_tensors(self._learning)), weights_digest(acting_tensors)
        )


def weights_digest(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 (hex) over all tensors in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def check_weights_match(published: str, acting: str) -> None:
    """Raises HandoffError unless the acting copy has the weights that were published last."""
    if published != acting:
        raise HandoffError(
            f"finetune: the acting copy has weights {acting[:12]}, published were {published[:12]}. The weights do not "
            "arrive, so rollouts would never use what is learned."
        )


def _tensors(actor: PublishedActor) -> Iterator[torch.Tensor]:
    """Weights and buffers with which an actor computes decisions and values."""
    for part in actor.acting():
        yield from part.parameters()
        yield from part.buffers()

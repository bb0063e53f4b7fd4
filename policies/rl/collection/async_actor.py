"""Rollouts by a policy that lies one update behind, made while that update is made; and that its
weights arrive.

AReaL (arXiv 2505.24298) lets rollouts go on while the policy learns. Here rollout k + 1 is always
made by the policy that update k begins with, in a thread beside it, and both are waited for: so
what is experienced does not depend on how long either takes, and the time of both is that of the
longer one.
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


class Stale(Generic[Actor]):
    """Acts by a copy of a learning actor.

    Args:
        learning: learns in place.
        staleness: updates that the copy may lie behind, at least one.
    """

    def __init__(self, learning: Actor, staleness: int) -> None:
        self._learning = learning
        self._admission = Admission(staleness)
        self.actor = copy.deepcopy(learning)
        """Who acts."""
        self._next: ChunkRollout | None = None

    def made(self, collect: Callable[[], ChunkRollout]) -> ChunkRollout:
        """The rollout that is to be learned from: that made ahead, or the first."""
        if self._next is None:
            self._publish()
            return collect()
        made, self._next = self._next, None
        return made

    @contextmanager
    def ahead(self, collect: Callable[[], ChunkRollout], version: int) -> Iterator[None]:
        """Makes the next rollout by the policy as it is, while it learns inside.

        Args:
            collect: by `actor`.
            version: updates that were made; as many rollouts and one more have been begun.
        """
        if not self._admission.admits(version + 1, version):
            yield
            return
        self._publish()
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(1, "rollout", torch.set_num_threads, (threads,)) as beside:
            coming = beside.submit(collect)
            yield
            self._next = coming.result()

    def forget(self) -> None:
        """Leaves out what was made ahead: its episodes are over."""
        self._next = None

    def _publish(self) -> None:
        theirs = list(_tensors(self.actor))
        with torch.no_grad():
            for own, other in zip(_tensors(self._learning), theirs, strict=True):
                other.copy_(own)
        check_arrived(weights_digest(_tensors(self._learning)), weights_digest(theirs))


def weights_digest(tensors: Iterable[torch.Tensor]) -> str:
    """Digest (hex sha256) of all of them, in their order."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()


def check_arrived(published: str, acting: str) -> None:
    """Raises HandoffError unless who acts has the weights that were published last."""
    if published != acting:
        raise HandoffError(
            f"practice: the policy that acts has weights {acting[:12]}, published were {published[:12]}. They do not "
            "arrive, so nothing that is learned would ever be tried."
        )


def _tensors(actor: PublishedActor) -> Iterator[torch.Tensor]:
    """All weights and buffers by which an actor acts or values."""
    for part in actor.acting():
        yield from part.parameters()
        yield from part.buffers()

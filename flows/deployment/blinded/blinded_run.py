"""Plays the episodes of a blinded comparison at the table of a session; neither the page nor the
terminal nor any file of the running session tells which policy acts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.deployment.blinded.rounds import CUT_OFF, ENTRY, Standing, Turn, read_attempts, standing
from flows.deployment.blinded.sealed_order import SealedOrder
from flows.deployment.blinded.start_pictures import StartPictures
from flows.deployment.cameras.picture_check import PictureCheck
from flows.deployment.session_tables.supervised_run import SupervisedRun
from robots.contract import Contract
from robots.errors import HandoffError
from robots.storage.durable import append_line

if TYPE_CHECKING:
    from real.console.control.reset_offer import ResetQuestion
    from real.deploy.onnx_policy import OnnxPolicy

PREFERENCES = "preferences.jsonl"
"""File with the answers about pairs, one line of JSON each: `pair`, from 0, and `place` of the
episode that was better, from 0; null for no difference, and no line without an answer."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""Names of the places in a pair."""
TELLING = (
    "policy",
    "policy_digest",
    "release",
    "release_digest",
    "inference_ms",
    "picture_distance",
)
"""Entries of an episode's metadata that tell, or could tell, which policy acted."""


class BlindedRun(SupervisedRun):
    """Several policies at one table, with a person who does not know which one acts.

    Args:
        order: the hidden order.
        others: the second policy and those after it; the first is that of `SupervisedRun`.
        contracts: contracts of all policies, slowed by the session's speed.
        folder: folder of the session.
        arguments: those of `SupervisedRun`.
    """

    reports = False

    def __init__(
        self,
        order: SealedOrder,
        others: Sequence[OnnxPolicy],
        contracts: Sequence[Contract],
        folder: Path,
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._policies = (self._policy, *others)
        self._contracts = tuple(contracts)
        self._order = order
        self._answers = folder / PREFERENCES
        cameras = self._observed.shown
        self._pictures = StartPictures(folder, cameras, self.supervisor.operator.show_still)
        # Of several policies only some may know their training pictures, which would tell.
        self.check = PictureCheck({}, {}, self._observed.pictures)
        self._turn = Turn(0, 0, 0)
        self._asked: ResetQuestion | None = None

    def next_episode(self, say: Callable[[str], None]) -> bool:
        """See `SupervisedRun.next_episode`; also over when the test has decided, or after the last
        pair."""
        known = self._standing()
        self._asked = self._question(known)
        if known.next is None:
            if self._asked is not None:
                self._await_answer()
            return False
        self._turn = known.next
        self._policy = self._policies[self._turn.policy]
        self._contract = self._contracts[self._turn.policy]
        self.about[ENTRY] = {"pair": self._turn.pair, "place": self._turn.place}
        place = ORDINALS[self._turn.place]
        pair = len(known.played) + 1
        facts = {"pair": f"{pair} of at most {self._order.config.pairs}", "episode": place}
        self.supervisor.operator.inform(facts)
        return super().next_episode(say)

    def seed(self, start: int) -> int:
        """See `SupervisedRun.seed`: that of the pair."""
        return self._session.first_seed + self._turn.pair

    def await_start(self) -> bool:
        """See `SupervisedRun.await_start`; the pictures of the start are taken, or shown."""
        again = self._pictures.known(self._turn.pair)
        self._pictures.show(self._turn.pair)
        words = "Put the objects back as the pictures of the start show." if again else ""
        if not self._reset.await_start(words, self._asked):
            return False
        self._keep_answer()
        self._pictures.keep(self._turn.pair)
        return True

    def stated(self, entries: dict[str, Any], error: BaseException | None = None) -> dict[str, Any]:
        """See `SupervisedRun.stated`: nothing that tells which policy acted."""
        kept = {name: value for name, value in entries.items() if name not in TELLING}
        if error is not None and not isinstance(error, HandoffError):
            kept[CUT_OFF] = True
        return kept

    def ending(self) -> str:
        """See `SupervisedRun.ending`."""
        known = self._standing()
        if known.next is not None:
            pairs = len(known.played)
            return f"{pairs} of at most {self._order.config.pairs} pairs; go on at any time."
        decided = "the test has decided" if known.decisions else "the test has not decided"
        return f"The comparison is over after {len(known.played)} pairs: {decided}."

    def _standing(self) -> Standing:
        order = self._order
        return standing(read_attempts(self._store), order.order, order.config, len(self._policies))

    def _question(self, known: Standing) -> ResetQuestion | None:
        """The question about the last complete pair, before another one has begun."""
        from real.console.control.reset_offer import ResetQuestion

        if not (self._order.config.preference and known.played):
            return None
        last = known.played[-1]
        begun = known.next is not None and known.next.place > 0
        if begun or last.pair in read_preferences(self._answers):
            return None
        places = range(len(last.attempts))
        words = tuple(f"The {ORDINALS[place]}" for place in places)
        text = f"Which episode of pair {len(known.played)} was better?"
        return ResetQuestion(last.pair + 1, text, (*words, "No difference"))

    def _await_answer(self) -> None:
        """Asks about the last pair, after which no episode follows."""
        if self._reset.await_start("The last episode is over.", self._asked):
            self._keep_answer()

    def _keep_answer(self) -> None:
        asked = self._asked
        choice = None if asked is None else self.supervisor.operator.answer(asked)
        if asked is None or choice is None:
            return
        place = choice if choice < len(asked.choices) - 1 else None
        append_line(self._answers, json.dumps({"pair": asked.number - 1, "place": place}))


def read_preferences(file: Path) -> dict[int, int | None]:
    """The place of the better episode by pair, both from 0; None for no difference. A last line
    that a kill cut off is left out."""
    answers: dict[int, int | None] = {}
    if not file.is_file():
        return answers
    for line in file.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        answers[int(entry["pair"])] = entry["place"]
    return answers

"""Decides who controls the arm, what it is commanded to do, and when it must hold still.

Every failure ends in HOLD, and a person has to press `go on`: if the page is hidden or closed, its
messages stop for longer than the watchdog allows, control passes to another person, somebody sends
a wrong token, or a page sends too many messages. Everybody who can reach the console can stop the
arm; only the person in control can move it.

The module does no I/O and time is an argument, so that tests can cover every case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from real.console.control.arm_mode import RECOVERING, ArmMode, Log
from real.console.control.bindings import (
    END,
    HELD,
    HOLD,
    HOME,
    LABELS,
    LIMP,
    RESUME,
    SLOW,
    SLOW_SPEED,
    UNDO,
    Bindings,
    Inputs,
    RefusedBindingError,
)
from real.console.control.commands import RESET_MODES, STILL, ControlCommand, Mode
from real.console.control.instructions import InstructionOffer
from real.console.control.labels import EpisodeLabel, PendingLabel
from real.console.control.people import FloodedError, People, Person, RefusalCount
from real.console.control.reset_offer import ResetOffer, ResetQuestion
from real.teleop.takeover import HandInput
from robots.config import Count, Delay, Seconds, config
from robots.errors import HandoffError
from robots.interfaces import Label


@config
class ArbiterConfig:
    """Time limits of the control arbiter."""

    watchdog: Seconds = 0.15
    """Longest time without a message from the page in control before the arm holds still [s]."""
    undo: Delay = 1.5
    """Time for which a label can be undone and the arm holds still [s]. Giving the same label again
    makes it final at once."""
    end: Delay = 1.0
    """Time for which the key that ends the session is held until it ends [s]."""
    pause: Delay | None = 1.5
    """Time for which the arm holds still after an episode, with its result on the pages; then it
    resumes by itself if it moved before [s]. None waits for the person."""
    hold_to_run: bool = False
    """Whether the policy acts only while the person in control holds the key that starts it; the
    arm holds still when they release it, unless they lead the arm themselves. The drive to the
    start takes its own key in the same way."""
    messages: Count = 300
    """Highest number of messages per second from one page before it is disconnected [1/s]."""


class ControlArbiter:
    """State of the console: the people at it, the one in control, the mode and the last label.

    Args:
        config: time limits.
        bindings: map from keys and buttons to actions.
        log: called with every action, before the action becomes visible to anybody.
        now: returns the time [s].
        trouble: says why nothing may move, such as a log that fails; empty if everything may.
    """

    def __init__(
        self,
        config: ArbiterConfig,
        bindings: Bindings,
        log: Log,
        now: Callable[[], float],
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self.config = config
        self.bindings = bindings
        self._log = log
        self._now = now
        self.motion = ArmMode(log, now, trouble)
        """Source of the arm's motion."""
        self.reset = ResetOffer()
        """What the session offers between two episodes."""
        self.instructions = InstructionOffer()
        """What a person tells the policy."""
        self._refusals = RefusalCount()
        self.people = People()
        """The people at the console, and who of them is in control."""
        self.motion.why = self._ready()
        self.robot = False
        """Whether the robot's process is connected."""
        self._device_hand = STILL
        self._label = EpisodeLabel()
        self.without: frozenset[str] = frozenset()
        """Motions that the session's actions do not have, whose inputs do nothing."""

    @property
    def mode(self) -> Mode:
        """Source of the arm's motion."""
        return self.motion.mode

    @property
    def why(self) -> str:
        """Cause of the mode HOLD, FAULT or STOP, for the pages."""
        return self.motion.why

    def join(self, name: str, address: str) -> int:
        """Adds a page that sent the right token, and returns its number.

        The first page gets control.
        """
        number = self.people.join(name, address, self._now())
        self._log(self.people[number].name, "joined", {"address": address})
        if self.people.controller is None:
            self._take_control(number)
        return number

    def refuse(self, address: str, why: str) -> None:
        """Notes that a connection was refused, and holds the arm."""
        self.hold(f"A connection from {address} was refused: {why}.")
        if self._refusals.counts(self._now()):
            self._log(address, "refused", {"why": why})

    def turn_away(self, address: str, why: str) -> None:
        """Notes that a page of another site was refused, which cannot hold the arm either."""
        if self._refusals.counts(self._now()):
            self._log(address, "turned away", {"why": why})

    def leave(self, number: int, why: str) -> None:
        """Removes a page; the arm holds still if it was in control."""
        in_control = number == self.people.controller
        person = self.people.leave(number)
        if person is None:
            return
        if in_control:
            self.hold(f"The page of {person.name} disconnected: {why}.")
        self._log(person.name, "left", {"why": why})

    def count(self, number: int) -> None:
        """Counts a message of a page.

        Raises:
            FloodedError: the page sends more messages per second than allowed.
        """
        person = self.people[number]
        messages = person.count_message(self._now())
        if messages > self.config.messages:
            self.hold(f"The page of {person.name} sent too many messages.")
            self._log(person.name, "flooded", {"messages": messages})
            raise FloodedError(
                f"{person.name}: more than {self.config.messages} messages in a second."
            )

    def inputs(self, number: int, inputs: Inputs, sequence: int, visible: bool) -> None:
        """Takes a page's inputs, which are its heartbeat as well.

        Args:
            number: number of the page.
            inputs: state of all keys, axes and buttons.
            sequence: number of the inputs, counted by the page.
            visible: whether the browser shows the page.
        """
        person = self.people[number]
        person.last_heard = self._now()
        person.sequence = sequence
        down = self.bindings.down(inputs)
        pressed = down - person.down
        person.down = down
        hidden = person.visible and not visible
        person.visible = visible
        # A page without control can stop the arm, and nothing else.
        if number != self.people.controller:
            person.spacemouse.hand(None, self._now())
            if HOLD in pressed:
                self.press(number, HOLD)
            return
        if hidden:
            self.hold(f"The page of {person.name} is hidden.")
        person.hand = self._page_hand(person, inputs)
        hand = self._merged(person.hand)
        if person.ending is not None and END not in down:
            person.ending = None
            self.hold(f"{person.name} released {self.bindings.key(END)}; the session goes on.")
        # Actions that stop the arm come before those that move it.
        for action in sorted(pressed - HELD, key=lambda action: action != HOLD):
            self.press(number, action)
        self.motion.move(person.name, hand)
        self._check_held(person)

    def device(self, hand: HandInput) -> None:
        """Takes the input of a device at the server, such as a SpaceMouse, for whoever is in
        control."""
        self._device_hand = hand
        person = self.people.in_control
        if person is not None:
            self.motion.move(person.name, self._merged(person.hand))
            self._check_held(person)

    def press(self, number: int, action: str) -> None:
        """Takes a page's action that moves the arm by no deflection: a label, undo, hold still, go
        on, home, limp, and the beginning of the end of the session.

        Raises:
            HandoffError: unknown action.
        """
        person = self.people[number]
        if action == HOLD:
            self.hold(f"{person.name} pressed Hold.")
        elif number != self.people.controller:
            self._log(person.name, "not in control", {"asked for": action})
        elif action in LABELS:
            self._give_label(person, LABELS[action])
        elif action == UNDO:
            self._undo(person)
        elif action == RESUME:
            self._resume(person)
        elif action in (HOME, LIMP):
            self._begin_reset_mode(person, Mode(action))
        elif action == END:
            person.ending = self._now()
            self.hold(f"Keep {self.bindings.key(END)} pressed to end the session.")
        else:
            raise HandoffError(
                f"console: '{action}' is no action of a page. Does the page have another version?"
            )

    def claim(self, number: int, *, force: bool) -> None:
        """A page asks for control; with `force` it takes control, which holds the arm still."""
        person, holder = self.people[number], self.people.in_control
        if person is holder:
            return
        if holder is None or force:
            self._take_control(number)
            return
        self.people.asking = number
        self._log(person.name, "asked for control", {"of": holder.name})

    def give(self, number: int) -> None:
        """The page in control passes control to the page that asked for it; if none did, nobody is
        in control and the arm holds still."""
        if number != self.people.controller:
            return
        if self.people.asking is not None:
            self._take_control(self.people.asking)
            return
        name = self.people[number].name
        self.people.controller = None
        self._log(name, "gave control up", {})
        self.hold(f"{name} gave up control.")

    def bind(self, number: int, action: str, name: str, *, swap: bool = False) -> None:
        """The page in control binds an input to an action, while the arm holds still.

        Args:
            number: number of the page.
            action: action to be bound.
            name: name of the input.
            swap: whether an action that already has the input gets the other action's inputs.

        Raises:
            RefusedBindingError: the page is not in control, the arm may move, or the map does not
                allow it; nothing changes.
            HandoffError: unknown action or input.
        """
        details = {"action": action, "input": name, "swap": swap}
        self._rebind(number, details, lambda: self.bindings.bound(action, name, swap=swap))

    def restore(self, number: int) -> None:
        """The page in control restores the default bindings, while the arm holds still.

        Raises:
            RefusedBindingError: the page is not in control, or the arm may move; nothing changes.
        """
        self._rebind(number, {"action": "all", "input": "defaults"}, self.bindings.restored)

    def robot_connected(
        self,
        connected: bool,
        about: str,
        refusals: Mapping[str, str] | None = None,
        *,
        client: str = "",
        instructable: bool = False,
    ) -> None:
        """The robot's process connected or disconnected.

        Args:
            connected: whether it connected.
            about: name of its task.
            refusals: why it offers no `home` or `limp`, see `ResetOffer.refusals`.
            client: names the process, so that one that comes back is known; empty if it
                disconnected.
            instructable: whether its policy takes instructions from the pages.
        """
        self._log("robot", "connected" if connected else "lost", {"about": about})
        self.robot = connected
        self._label.reset()
        self.reset.connect(refusals)
        self.instructions.connect(client, offered=instructable)
        if connected or self.mode is Mode.FAULT:
            self.motion.reopen()
        self.hold(self._ready() if connected else "The robot disconnected.")

    def begin_episode(self, episode: int, heard: int = 0) -> None:
        """An episode of this number began; its label may be given. After a fault the arm has been
        recovered by then.

        Args:
            episode: number of the episode.
            heard: number of the last instruction that the session has taken.
        """
        self.motion.recovered(self._recovered())
        self._label.begin(episode)
        self.reset.begin_episode()
        self.instructions.begin_episode(heard)

    def await_start(self, words: str, *, wait: bool, question: ResetQuestion | None = None) -> None:
        """The session waits for the person before the next episode: they may drive the arm home or
        guide it by hand until they start it.

        Args:
            words: what there is to do, or what has been done, as sentences for the pages.
            wait: whether the arm holds still until the person starts; otherwise it resumes by
                itself if it would.
            question: what the person may answer until they start; None asks nothing.
        """
        late = self._end_label()
        self.reset.open = True
        self.reset.words = words
        self.reset.ask(question)
        self.motion.recovered(self._recovered())
        if wait:
            self.hold(" ".join(filter(None, (self.reset.result, late, words, self._to_start()))))

    def leave_reset(self) -> None:
        """The session goes on to the next episode: nothing but the episode moves the arm now."""
        self.reset.open = False
        self.reset.ask(None)
        if self.mode in RESET_MODES:
            self.hold("The next episode begins.")

    def end_episode(self, result: str) -> None:
        """The running episode ended: the arm holds still, with the result on the pages, and resumes
        by itself if it moved before. A label that was still pending does not count.

        Args:
            result: the result as a sentence.
        """
        moved = self.motion.moving
        pending = self._label.pending
        late = self._end_label()
        self.reset.result = " ".join(filter(None, (result, late)))
        self.hold(self.reset.result)
        if self.config.pause is not None and (moved or (pending is not None and pending.resume)):
            self.motion.resume_after(self.config.pause)

    def fault(self, number: int, why: str, *, asks_cause: bool) -> None:
        """A fault has stopped the arm, and ended the running episode; see `ArmMode.fault`."""
        self._end_label()
        self.motion.fault(number, why, asks_cause=asks_cause)

    def recover(self, number: int, cause: str) -> None:
        """A page recovers the arm after a fault, and gives its cause; only the page in control
        can."""
        person = self.people[number]
        if number != self.people.controller:
            self._log(person.name, "not in control", {"asked for": "recover"})
            return
        self.motion.recover(person.name, cause)

    def answer(self, number: int, choice: int) -> None:
        """A page answers the question between two episodes; only the page in control can.

        Args:
            number: number of the page.
            choice: index of the answer.
        """
        person = self.people[number]
        if number != self.people.controller:
            self._log(person.name, "not in control", {"asked for": "answer"})
            return
        if self.reset.takes(choice) and self.reset.question is not None:
            question = self.reset.question
            details = {"question": question.text, "answer": question.choices[choice]}
            self._log(person.name, "answered", details)

    def instruct(self, number: int, text: str) -> None:
        """A page tells the policy what to do from the next episode on; only the page in control
        can.

        Args:
            number: number of the page.
            text: the instruction.
        """
        person = self.people[number]
        if number != self.people.controller:
            self._log(person.name, "not in control", {"asked for": "instruct"})
        elif self.instructions.state(text, person.name):
            self._log(person.name, "instructed", {"instruction": text})

    def finish(self, why: str) -> None:
        """The session is over; if a person ended it, they stay the cause that the pages show."""
        self.motion.stop("console", "finished", why)

    def hold(self, why: str) -> None:
        """Holds the arm still until the person in control presses `go on`."""
        if self._label.pending is not None:
            self._label.pending.resume = False
        self.motion.hold(why)

    def tick(self) -> None:
        """Checks the watchdog, the pending label and what is held to end the session; to be called
        a hundred times per second."""
        now = self._now()
        self._end_session(now)
        if self.motion.moving:
            person = self.people.in_control
            if person is None:
                self.hold("Nobody has control.")
            elif trouble := self.motion.trouble():
                self.hold(trouble)
            elif now - person.last_heard > self.config.watchdog:
                silent_ms = 1e3 * (now - person.last_heard)
                self.hold(f"The page of {person.name} was silent for {silent_ms:.0f} ms.")
        if self._label.pending is not None and now >= self._label.pending.until:
            self._commit_label()
        if self.motion.due():
            self.motion.why = self._ready()
            self._resume_if_present("resumed by itself")
        left_out = self._refusals.left_out(now)
        if left_out:
            self._log("console", "refused", {"why": "many connections", "more": left_out})

    def command(self) -> ControlCommand:
        """The command to the robot's process at this moment."""
        person = self.people.in_control
        name, sequence = ("", -1) if person is None else (person.name, person.sequence)
        return ControlCommand(
            self.mode,
            self.motion.hand,
            name,
            sequence,
            self._label.final,
            self._label.number,
            self._label.episode,
            self.motion.recovery,
            self.reset.answer,
            self.instructions.given,
        )

    def page_state(self) -> dict[str, Any]:
        """State that every page shows, as plain values for JSON."""
        pending = self._label.pending
        now = self._now()
        names = {number: person.name for number, person in self.people.pages.items()}
        controller = self.people.in_control
        ending = None if controller is None else controller.ending
        return {
            "mode": self.mode.value,
            "why": self.motion.shown_why,
            "trouble": self.motion.recovering or bool(self.motion.trouble()),
            "controller": self.people.controller,
            "asking": self.people.asking,
            "people": names,
            "robot": self.robot,
            "sequence": -1 if controller is None else controller.sequence,
            "pending": None if pending is None else pending.label.name.lower(),
            "undo": self.config.undo,
            "undo_left": None if pending is None else max(0.0, pending.until - now),
            "label": self._label.final.name.lower(),
            "labels": self._label.running is not None,
            "ending": None
            if ending is None
            else min(1.0, (now - ending) / max(1e-3, self.config.end)),
            "resume_left": self.motion.resume_left,
            "hold_to_run": self.config.hold_to_run,
            "asks_cause": self.motion.asks_cause,
            "reset": self.reset.shown(),
            "instruction": self.instructions.shown(),
        }

    def _ready(self) -> str:
        return f"{self.reset.words or 'Ready.'} {self._to_start()}"

    def _recovered(self) -> str:
        return f"The arm has been recovered. {self._to_start()}"

    def _to_start(self) -> str:
        if self.config.hold_to_run:
            return self._hold_to_run()
        return f"Press {self.bindings.key(RESUME)} to start."

    def _hold_to_run(self) -> str:
        return f"Hold {self.bindings.key(RESUME)} to run."

    def _runs(self, person: Person) -> bool:
        """Whether the person lets the policy act, once it has been started."""
        return not self.config.hold_to_run or RESUME in person.down

    def _check_held(self, person: Person) -> None:
        """Holds the arm still if the person has released the key that lets the policy act, or the
        arm drive home."""
        if self.mode is Mode.POLICY and not self._runs(person):
            self.hold(f"{person.name} released {self.bindings.key(RESUME)}. {self._hold_to_run()}")
        if self.mode is Mode.HOME and self.config.hold_to_run and HOME not in person.down:
            key = self.bindings.key(HOME)
            self.hold(f"{person.name} released {key}. Hold {key} to drive home.")

    def _end_session(self, now: float) -> None:
        """Ends the session if the person in control has held its key for long enough."""
        person = self.people.in_control
        if person is None or person.ending is None or now - person.ending < self.config.end:
            return
        person.ending = None
        # A page that fell silent with the key down holds nothing any more.
        if END in person.down and self._controller_present():
            self.motion.stop(person.name, "ended the session", f"{person.name} ended the session.")

    def _rebind(
        self, number: int, details: Mapping[str, Any], make: Callable[[], Bindings]
    ) -> None:
        """Replaces the bindings by those that `make` returns, or logs why they were refused."""
        name = self.people[number].name
        try:
            if number != self.people.controller or self.mode is not Mode.HOLD:
                raise RefusedBindingError("Hold the arm still and take control to change bindings.")
            self.bindings = make()
        except RefusedBindingError as refused:
            self._log(name, "not bound", {**details, "mode": self.mode.value, "why": str(refused)})
            raise
        self.motion.released = False
        self._log(name, "bound", details)

    def _page_hand(self, person: Person, inputs: Inputs) -> HandInput:
        """The motion that the inputs of the page in control ask for; while keys, the screen or a
        gamepad move the arm, a SpaceMouse at the page moves nothing."""
        hand = self.bindings.hand(inputs, self.without)
        cap = person.spacemouse.hand(inputs.spacemouse, self._now())
        if hand.engaged:
            return hand
        speed = SLOW_SPEED if SLOW in person.down else 1.0
        return cap._replace(twist=cap.twist * speed)

    def _merged(self, hand: HandInput) -> HandInput:
        """The page's input, or the device's if the page moves nothing; notes when both are
        released."""
        merged = hand if hand.engaged else self._device_hand
        self.motion.released |= not merged.engaged
        return merged

    def _take_control(self, number: int) -> None:
        previous = self.people.take_control(number)
        name = self.people[number].name
        self._log(name, "has control", {"before": previous})
        self.hold(f"{name} took control." if previous else self._ready())

    def _give_label(self, person: Person, label: Label) -> None:
        if not self.robot or self.mode is Mode.STOP or self._label.running is None:
            self._refuse_label(person, label)
            return
        pending = self._label.pending
        again = pending is not None and pending.label is label
        self._log(person.name, "said", {"label": label.name.lower(), "again": again})
        if again:
            self._commit_label()
            return
        self._label.pending = None
        self.hold(f"{person.name} labelled the episode: {label.name.lower()}.")
        self._label.pending = PendingLabel(label, person.name, self._now() + self.config.undo)

    def _refuse_label(self, person: Person, label: Label) -> None:
        """Says that no episode runs that could have the label; the arm resumes as it would."""
        details = {"label": label.name.lower(), "mode": self.mode.value}
        self._log(person.name, "label not taken", details)
        if self.mode is Mode.HOLD and self.robot:
            self.motion.why = (
                f"No episode is running, so the label {label.name.lower()} does not count."
            )

    def _undo(self, person: Person) -> None:
        pending = self._label.pending
        if pending is None:
            self._log(person.name, "nothing to undo", {})
            return
        self._log(person.name, "took back", {"label": pending.label.name.lower()})
        self._label.pending = None
        self.motion.why = f"{person.name} undid the label."

    def _commit_label(self) -> None:
        """Makes the pending label final; the arm resumes if the person in control is present."""
        committed = self._label.commit()
        details = {"label": committed.label.name.lower(), "number": self._label.number}
        self._log(committed.person, "label counts", details)
        if self.mode is Mode.HOLD and committed.resume:
            self._resume_if_present("resumed after the label")

    def _end_label(self) -> str:
        """Ends the time in which a label counts; returns what becomes of one that was pending, as a
        sentence."""
        late = self._label.end()
        if late is None:
            return ""
        label = late.label.name.lower()
        self._log(late.person, "label too late", {"label": label})
        return f"The label {label} came too late and does not count."

    def _begin_reset_mode(self, person: Person, mode: Mode) -> None:
        """Begins HOME or LIMP, which any of their keys ends."""
        if self.mode in RESET_MODES:
            self._end_reset_mode(person)
            return
        if self.mode is not Mode.HOLD or self._label.pending is not None:
            return
        refused = self._absent(person)
        if not refused:
            refused = self.reset.refusal(mode, running=self._label.running is not None)
            if refused:
                self._log(person.name, "refused", {"asked for": mode.value, "why": refused})
            elif mode is Mode.HOME and self.config.hold_to_run and HOME not in person.down:
                refused = f"Hold {self.bindings.key(HOME)} to drive home."
        if refused:
            self.motion.why = refused
            return
        hold = self.bindings.key(HOLD)
        why = (
            f"The arm drives to its start. {hold} holds it."
            if mode is Mode.HOME
            else f"The arm yields to your hand. {hold} or {self.bindings.key(RESUME)} stiffens it."
        )
        self.motion.reset(mode, person.name, why)

    def _end_reset_mode(self, person: Person) -> None:
        ended = "stopped the drive home" if self.mode is Mode.HOME else "stiffened the arm"
        self.hold(f"{person.name} {ended}. {self._to_start()}")

    def _absent(self, person: Person) -> str:
        """Who is missing before anything may move, as a sentence; empty if nobody is."""
        if not self.robot:
            return "Wait for the robot to connect."
        if self.motion.recovering:
            return f"The arm is being recovered. {RECOVERING}"
        return "" if person.visible else "Show the page."

    def _resume(self, person: Person) -> None:
        if self.mode in RESET_MODES:
            self._end_reset_mode(person)
            return
        if self.mode is not Mode.HOLD or self._label.pending is not None:
            return
        if absent := self._absent(person):
            self.motion.why = absent
            return
        if not self._runs(person):
            self.motion.why = self._hold_to_run()
            return
        self.motion.resume(person.name, "said go on")

    def _resume_if_present(self, what: str) -> None:
        """Lets the arm move again without a person's word, if the one in control is there to see
        it and nothing is in the way.

        Args:
            what: for the log.
        """
        person = self.people.in_control
        if person is None or not self._controller_present() or self.motion.trouble():
            return
        if self._runs(person):
            self.motion.resume("console", what)
        else:
            self.motion.why = self._hold_to_run()

    def _controller_present(self) -> bool:
        person = self.people.in_control
        if person is None:
            return False
        return person.visible and self._now() - person.last_heard <= self.config.watchdog

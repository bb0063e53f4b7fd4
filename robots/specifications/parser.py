"""Reads formulas of signal temporal logic from text, by recursive descent.

The operators in the order in which they take their operands, the loosest first: `implies`, `or`,
`and`, `until[a, b]`, then `not`, `always[a, b]` and `eventually[a, b]`, then comparisons, then
arithmetic. Intervals are in seconds. `a implies b` stands for `not a or b`, and `a < b < c` for
`a < b and b < c`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from robots.errors import HandoffError, suggest
from robots.specifications.formula import (
    Arithmetic,
    Entries,
    Formula,
    FunctionCall,
    Interval,
    Junction,
    NamedEntry,
    Not,
    Number,
    ObservedField,
    Predicate,
    Quantity,
    Temporal,
    Until,
)

FUNCTIONS = ("norm", "abs", "min", "max", "distance")
KEYWORDS = ("not", "and", "or", "implies", "always", "eventually", "until")
LONGEST = 1000
"""Largest number of characters of a formula."""
DEEPEST = 30
"""Largest number of operators and brackets inside one another."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol><=|>=|[-+*/<>()\[\],.:])|(?P<other>\S))"
)


class _Token(NamedTuple):
    kind: str
    """`number`, `name`, `symbol` or `end`."""
    text: str
    position: int


def parse(text: str, name: str) -> Formula:
    """Reads a formula.

    Args:
        text: the formula, such as `always[0, 2.5] (goal_offset.norm < 0.3)`.
        name: name of the specification, for messages.

    Raises:
        HandoffError: not a formula; the message has the position of the error.
    """
    if len(text) > LONGEST:
        raise HandoffError(
            f"specification '{name}': {len(text)} characters, at most {LONGEST}. Split it in several."
        )
    return _Parser(name, _tokens(text, name)).formula()


def check_syntax(specifications: Mapping[str, str]) -> None:
    """Checks that texts are formulas.

    Args:
        specifications: formulas by name.

    Raises:
        HandoffError: one is not, see `parse`.
    """
    for name, text in specifications.items():
        parse(text, name)


def _tokens(text: str, name: str) -> list[_Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        position = match.start(kind) + 1
        if kind == "other":
            hint = " Write >= or <= and a tolerance." if match[kind] in "=!" else ""
            raise _error(name, position, f"'{match[kind]}' is no part of a formula.{hint}")
        tokens.append(_Token(kind, match[kind], position))
    return [*tokens, _Token("end", "the end", len(text) + 1)]


def _error(name: str, position: int, problem: str) -> HandoffError:
    return HandoffError(f"specification '{name}', character {position}: {problem}")


class _Parser:
    """The tokens of one formula, and how far they have been read."""

    def __init__(self, name: str, tokens: Sequence[_Token]) -> None:
        self._name = name
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def formula(self) -> Formula:
        """Reads the whole text."""
        formula = self._formula(self._implication())
        if self._token.kind != "end":
            raise self._unexpected("and, or, implies, until or the end")
        return formula

    # Tokens.

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _accept(self, *texts: str) -> _Token | None:
        """The next token if it is one of `texts`, which is then read."""
        token = self._token
        return self._take() if token.kind != "end" and token.text in texts else None

    def _expect(self, text: str, meaning: str = "") -> _Token:
        token = self._accept(text)
        if token is None:
            raise self._unexpected(meaning or f"'{text}'")
        return token

    def _unexpected(self, expected: str) -> HandoffError:
        token = self._token
        found = token.text if token.kind == "end" else f"'{token.text}'"
        return _error(self._name, token.position, f"expected {expected}, found {found}.")

    # Formulas, from the loosest operator to the tightest.

    def _formula(self, node: Formula | Quantity) -> Formula:
        if isinstance(node, Formula):
            return node
        problem = "a quantity alone is no requirement; compare it, such as x < 0.1."
        raise _error(self._name, node.position, problem)

    def _quantity(self, node: Formula | Quantity) -> Quantity:
        if isinstance(node, Quantity):
            return node
        problem = "a requirement is no number; arithmetic and comparisons take numbers."
        raise _error(self._name, node.position, problem)

    def _implication(self) -> Formula | Quantity:
        left = self._disjunction()
        token = self._accept("implies")
        if token is None:
            return left
        with_not = Not(self._formula(left), left.position)
        self._enter(token)
        right = self._formula(self._implication())
        self._depth -= 1
        return Junction("or", with_not, right, left.position)

    def _disjunction(self) -> Formula | Quantity:
        node = self._conjunction()
        while self._accept("or"):
            left, right = self._formula(node), self._formula(self._conjunction())
            node = Junction("or", left, right, node.position)
        return node

    def _conjunction(self) -> Formula | Quantity:
        node = self._until()
        while self._accept("and"):
            left, right = self._formula(node), self._formula(self._until())
            node = Junction("and", left, right, node.position)
        return node

    def _until(self) -> Formula | Quantity:
        left = self._prefixed()
        if self._accept("until") is None:
            return left
        interval = self._interval()
        right = self._formula(self._prefixed())
        return Until(interval, self._formula(left), right, left.position)

    def _prefixed(self) -> Formula | Quantity:
        token = self._accept("not", "always", "eventually")
        if token is None:
            return self._comparison()
        self._enter(token)
        interval = Interval() if token.text == "not" else self._interval()
        of = self._formula(self._prefixed())
        self._depth -= 1
        match token.text:
            case "always":
                return Temporal("always", interval, of, token.position)
            case "eventually":
                return Temporal("eventually", interval, of, token.position)
        return Not(of, token.position)

    def _interval(self) -> Interval:
        opening = self._accept("[")
        if opening is None:
            return Interval()
        start = self._time()
        self._expect(",")
        end = None if self._accept("inf") else self._time()
        self._expect("]")
        if end is not None and end < start:
            problem = f"the interval [{start:g}, {end:g}] s ends before it begins."
            raise _error(self._name, opening.position, problem)
        return Interval(start, end, opening.position)

    def _time(self) -> float:
        if self._token.kind != "number":
            raise self._unexpected("a time in seconds, at least 0")
        return float(self._take().text)

    def _comparison(self) -> Formula | Quantity:
        node = left = self._sum()
        while token := self._accept("<", "<=", ">", ">="):
            smaller, larger = self._quantity(left), self._quantity(self._sum())
            left = larger
            if token.text in (">", ">="):
                smaller, larger = larger, smaller
            compared = Predicate(larger, smaller, node.position)
            match node:
                case Predicate() | Junction():
                    node = Junction("and", node, compared, node.position)
                case _:
                    node = compared
        return node

    # Arithmetic.

    def _sum(self) -> Formula | Quantity:
        node = self._product()
        while token := self._accept("+", "-"):
            left, right = self._quantity(node), self._quantity(self._product())
            operator = "+" if token.text == "+" else "-"
            node = Arithmetic(operator, left, right, node.position)
        return node

    def _product(self) -> Formula | Quantity:
        node = self._signed()
        while token := self._accept("*", "/"):
            left, right = self._quantity(node), self._quantity(self._signed())
            if token.text == "*":
                node = Arithmetic("*", left, right, node.position)
                continue
            if not isinstance(right, Number) or right.value == 0.0:
                problem = "a quantity is divided by a number other than 0 only."
                raise _error(self._name, right.position, problem)
            node = Arithmetic("/", left, right, node.position)
        return node

    def _signed(self) -> Formula | Quantity:
        token = self._accept("-")
        if token is None:
            return self._postfixed()
        self._enter(token)
        of = self._quantity(self._signed())
        self._depth -= 1
        if isinstance(of, Number):
            return Number(-of.value, token.position)
        return Arithmetic("-", Number(0.0, token.position), of, token.position)

    def _postfixed(self) -> Formula | Quantity:
        node = self._primary()
        if isinstance(node, ObservedField):
            self._check_operator(node)
        while token := self._accept("[", "."):
            of = self._quantity(node)
            node = self._entries(of) if token.text == "[" else self._attribute(of)
        return node

    def _check_operator(self, field: ObservedField) -> None:
        """Refuses a misspelt operator, which reads as a field: a name, a number or an interval
        follows, as in `alwys x < 1` and `alwys[0, 2] x < 1`."""
        following = [token.text for token in self._tokens[self._next : self._next + 3]]
        interval = following[0] == "[" and following[-1] == ","
        stated = self._token.kind in ("name", "number") and self._token.text not in KEYWORDS
        if (interval or stated) and get_close_matches(field.name, KEYWORDS, n=1):
            problem = f"unknown operator '{field.name}', {suggest(field.name, KEYWORDS)}"
            raise _error(self._name, field.position, problem)

    def _entries(self, of: Quantity) -> Entries:
        start = self._index()
        stop = self._index() if self._accept(":") else start + 1
        self._expect("]")
        return Entries(of, start, stop, of.position)

    def _index(self) -> int:
        if self._token.kind != "number" or not self._token.text.isdecimal():
            raise self._unexpected("the number of an entry, counted from 0")
        return int(self._take().text)

    def _attribute(self, of: Quantity) -> Quantity:
        token = self._take()
        match token.text:
            case "norm" | "abs" | "min" | "max":
                return FunctionCall(token.text, (of,), of.position)
        if token.kind != "name" or not isinstance(of, ObservedField):
            self._next -= token.kind != "end"
            raise self._unexpected("norm, abs, min, max or, after a field, the name of an entry")
        return NamedEntry(of, token.text, of.position)

    def _primary(self) -> Formula | Quantity:
        token = self._token
        if token.kind == "number":
            return Number(float(self._take().text), token.position)
        if self._accept("("):
            self._enter(token)
            node = self._implication()
            self._depth -= 1
            self._expect(")", "')' or an operator")
            return node
        if token.kind != "name" or token.text in KEYWORDS:
            raise self._unexpected("a field, a number or '('")
        self._take()
        if self._token.text == "(":
            return self._call(token)
        return ObservedField(token.text, token.position)

    def _call(self, token: _Token) -> FunctionCall:
        if token.text not in FUNCTIONS:
            near = get_close_matches(token.text, (*FUNCTIONS, *KEYWORDS), n=1)
            kind = "operator" if near and near[0] in KEYWORDS else "function"
            problem = f"unknown {kind} '{token.text}', {suggest(token.text, near or FUNCTIONS)}"
            raise _error(self._name, token.position, problem)
        self._enter(self._expect("("))
        arguments = [self._quantity(self._sum())]
        while self._accept(","):
            arguments.append(self._quantity(self._sum()))
        self._expect(")", "',' or ')'")
        self._depth -= 1
        given = tuple(arguments)
        match token.text:
            case "norm" | "abs" if len(given) == 1:
                return FunctionCall(token.text, given, token.position)
            case "distance" if len(given) == 2:
                return FunctionCall("distance", given, token.position)
            case "min" | "max":
                return FunctionCall(token.text, given, token.position)
        wanted = "two arguments" if token.text == "distance" else "one argument"
        problem = f"{token.text} takes {wanted}, given {len(given)}."
        raise _error(self._name, token.position, problem)

    def _enter(self, token: _Token) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            problem = f"more than {DEEPEST} operators and brackets inside one another. Split it."
            raise _error(self._name, token.position, problem)

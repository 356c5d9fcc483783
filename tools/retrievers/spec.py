"""The language of `--retriever`: a word, or an expression of words.

    bm25                                                  a kind
    bm25(k1=1.2,b=0.75)                                   with options
    dense:Qwen/Qwen3-Embedding-4B                         with a model, by name or by folder
    fusion(bm25,dense,weights=[1,2])                      made of other retrievers
    rerank(fusion(bm25,dense),cross:PATH,depth=50)
    splade:"a folder, with a comma"                       quotes around what has commas or brackets in it

Only the form is known here: what a kind takes is in its constructor, which tools/retrievers/__init__.py reads.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.errors import UsageError

_DEEPEST = 50  # expressions inside one another; Python's own limit is a thousand calls

Value = str | int | float | bool | tuple["Value", ...]


class Expression(str):
    """The text of one retriever, as the type of a parameter that names one; "" where there is none."""


class Expressions(str):
    """The texts of several retrievers with commas between, as the type of a parameter; "" where there are none."""

    def each(self) -> list[str]:
        """The texts, one by one."""
        return [str(part) for part in parse(f"all({self})").parts] if self.strip() else []


@dataclass(frozen=True, slots=True)
class Spec:
    """One parsed expression. It prints as it is written, without blanks."""

    kind: str
    subject: str = ""  # what follows the colon: a model, or the spec of what fills vectors
    parts: tuple["Spec", ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)  # after parsing alone, all values are strings

    def __str__(self) -> str:
        return spell(self.kind, self.subject, [str(part) for part in self.parts], self.options)


def spell(kind: str, subject: str = "", parts: Sequence[str] = (), options: Mapping[str, Value] | None = None) -> str:
    """The expression made of these, as `parse` reads it."""
    inside = [*parts, *(f"{name}={_written(value)}" for name, value in (options or {}).items())]
    return kind + (f":{_quoted(subject)}" if subject else "") + (f"({','.join(inside)})" if inside else "")


def parse(text: str) -> Spec:
    """The expression `text`; UsageError, with the place, when it has no such form."""
    reader = _Reader(text)
    spec = reader.spec()
    if reader.rest():
        raise reader.error("the end")
    return spec


def _written(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_written, value))}]"
    return (
        _quoted(str(value)) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _quoted(text: str) -> str:
    return f'"{text}"' if re.search(r"[(),\[\]=]|^\s|\s$", text) or not text else text


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rest(self) -> str:
        return self._text[self._at :].strip()

    def error(self, expected: str) -> UsageError:
        found = f"{self.rest()!r}" if self.rest() else "nothing"
        return UsageError(
            f"the retriever {self._text!r} has {found} where {expected} is expected; "
            "the form is KIND, KIND:MODEL or KIND(PART,...,option=value)"
        )

    def _take(self, pattern: str) -> str | None:
        match = re.compile(rf"\s*({pattern})\s*").match(self._text, self._at)
        if not match:
            return None
        self._at = match.end()
        return match[1]

    def spec(self) -> Spec:
        self._deeper()
        kind = self._take(r"[A-Za-z_]\w*")
        if kind is None:
            raise self.error("the name of a retriever")
        subject = ""
        if self._take(":"):
            subject = self._word(r"[^\s(),](?:[^(),]*[^\s(),])?", "a model")
        parts, options = list[Spec](), dict[str, Value]()
        if self._take(r"\("):
            while not self._take(r"\)"):
                if (parts or options) and not self._take(","):
                    raise self.error("a comma or a closing bracket")
                if option := self._take(r"\w+\s*=(?!=)"):
                    name = option.rstrip("= \t\n")
                    if name in options:
                        raise UsageError(f"the retriever {self._text!r} gives {name} twice")
                    options[name] = self._value()
                else:
                    parts.append(self.spec())
        self._depth -= 1
        return Spec(kind, subject, tuple(parts), options)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError(f"the retriever {self._text[:100]!r}... is nested more than {_DEEPEST} deep")

    def _value(self) -> Value:
        if not self._take(r"\["):
            return self._word(r"[^\s(),\[\]](?:[^(),\[\]]*[^\s(),\[\]])?", "a value")
        self._deeper()
        values = list[Value]()
        while not self._take(r"\]"):
            if values and not self._take(","):
                raise self.error("a comma or ]")
            values.append(self._value())
        self._depth -= 1
        return tuple(values)

    def _word(self, plain: str, what: str) -> str:
        quoted = self._take(r'"[^"]*"')
        word = quoted[1:-1] if quoted is not None else self._take(plain)
        if not word:
            raise self.error(what)
        return word

"""The language of `--retriever`: its text is read into a `RetrieverSpec`, and written from one.

    bm25                                                  a kind
    bm25(k1=1.2,b=0.75)                                   with options
    dense:Qwen/Qwen3-Embedding-4B                         with a model, by name or by folder
    fusion(bm25,dense,weights=[1,2])                      made of other retrievers
    rerank(fusion(bm25,dense),cross:PATH,depth=50)
    http(http://host:port/v1/INDEX,dialect=anserini)      an address, with or without quotes
    splade:"a folder, with a comma"                       quotes around text with commas or brackets
    my.py:Overlap(prefix=5)                               a class in a file, or package.module:Overlap

Nothing is looked up here: `sextant.tools.retrievers.canonicalize` checks kinds, models and options.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sextant.tools.errors import UsageError

T = TypeVar("T")
Value = str | int | float | bool | tuple["Value", ...]

_NAME = r"[A-Za-z_]\w*"
# A class in a file, or in a module; other references are quoted.
_CLASS_REFERENCE = rf'[^\s(),\[\]=":]*\.py:{_NAME}|{_NAME}(?:\.{_NAME})+:{_NAME}'
# Python itself allows a thousand nested calls.
_MAX_DEPTH = 50


class Expression(str):
    """Parameter type for a retriever's expression; "" is no retriever."""


class Expressions(str):
    """The texts of several retrievers with commas between, as the type of a parameter.

    "" if there are none.
    """

    def each(self) -> list[str]:
        """Return the texts in turn."""
        if not self.strip():
            return []
        return [str(part) for part in parse(f"all({self})").parts]


class RetrieverSpec(NamedTuple):
    """A parsed expression. It prints as it is written, without blanks."""

    kind: str
    subject: str = ""  # the text behind the colon: a model, or the expression of an embedder
    parts: tuple["RetrieverSpec", ...] = ()
    options: Mapping[str, Value] = {}  # after parsing alone, all values are strings

    def __str__(self) -> str:
        return format_expression(
            self.kind, self.subject, [str(part) for part in self.parts], self.options
        )


def format_expression(
    kind: str,
    subject: str = "",
    parts: Sequence[str] = (),
    options: Mapping[str, Value] | None = None,
) -> str:
    """Write an expression as `parse` reads it."""
    text = kind if re.fullmatch(rf"{_CLASS_REFERENCE}|{_NAME}", kind) else f'"{kind}"'
    if subject:
        text += f":{_format_value(subject)}"
    arguments = [*parts]
    for name, value in (options or {}).items():
        arguments.append(f"{name}={_format_value(value)}")
    return f"{text}({','.join(arguments)})" if arguments else text


def _format_value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_format_value, value))}]"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    needs_quotes = not text or re.search(r"[(),\[\]=]|^\s|\s$", text)
    return f'"{text}"' if needs_quotes else text


def parse(text: str) -> RetrieverSpec:
    """Read the expression `text`; UsageError, with the position, if it has no such form."""
    parser = _ExpressionParser(text)
    spec = parser.spec()
    if parser.remainder():
        raise parser.error("the end")
    return spec


class _ExpressionParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def remainder(self) -> str:
        return self._text[self._position :].strip()

    def error(self, expected: str) -> UsageError:
        actual = repr(self.remainder()) if self.remainder() else "nothing"
        return UsageError(
            f"the retriever {self._text!r} has {actual} where {expected} is expected; the form is "
            "KIND, KIND:MODEL, FILE.py:CLASS or KIND(PART,...,option=value)"
        )

    def spec(self) -> RetrieverSpec:
        kind = self._take(_CLASS_REFERENCE) or self._take(_NAME)
        if not kind:
            kind = (self._take(r'"[^"]+"') or "").strip('"')
        if not kind:
            raise self.error("the name of a retriever")
        subject = ""
        if self._take(":"):
            subject = self._word(r"[^\s(),](?:[^(),]*[^\s(),])?", "a model")
        parts = []
        options = {}
        if self._take(r"\("):
            for name, value in self._list(r"\)", "a closing bracket", self._argument):
                if isinstance(value, RetrieverSpec):
                    parts.append(value)
                elif name in options:
                    raise UsageError(f"the retriever {self._text!r} gives {name} twice")
                else:
                    options[name] = value
        return RetrieverSpec(kind, subject, tuple(parts), options)

    def _argument(self) -> tuple[str, RetrieverSpec | Value]:
        if option := self._take(r"\w+\s*=(?!=)"):
            return option.rstrip("= \t\n"), self._value()
        return "", self.spec()

    def _value(self) -> Value:
        if self._take(r"\["):
            return tuple(self._list(r"\]", "]", self._value))
        return self._word(r"[^\s(),\[\]](?:[^(),\[\]]*[^\s(),\[\]])?", "a value")

    def _list(
        self,
        end: str,
        end_name: str,
        read_item: Callable[[], T],
    ) -> list[T]:
        items = list[T]()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UsageError(
                f"the retriever {self._text[:100]!r}... is nested more than {_MAX_DEPTH} deep"
            )
        while not self._take(end):
            if items and not self._take(","):
                raise self.error(f"a comma or {end_name}")
            items.append(read_item())
        self._depth -= 1
        return items

    def _word(self, pattern: str, expected: str) -> str:
        quoted = self._take(r'"[^"]*"')
        word = quoted[1:-1] if quoted is not None else self._take(pattern)
        if not word:
            raise self.error(expected)
        return word

    def _take(self, pattern: str) -> str | None:
        match = re.compile(rf"\s*({pattern})\s*").match(self._text, self._position)
        if not match:
            return None
        self._position = match.end()
        return match[1]

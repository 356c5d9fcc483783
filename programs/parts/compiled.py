"""Compiled programs: what an optimizer found, as one readable JSON file, and how a program takes it up.

The file has, for every predictor, its instructions and demonstrations, the program's parameters, and where all that
came from. It is read strictly: what was made for another program, another version or another signature is refused with
the reason, because a prompt that silently does not fit is worse than none. Nothing in it is code. Who writes it is
optimizers/compile.py.

Two forms hold more than one set of prompts: an ensemble has members, and neighbours have demonstrations that are
chosen query by query (programs/parts/ensembles.py).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools import disk, forms
from tools.errors import DataError, UsageError
from tools.models.forms import CompiledForm, Versions
from tools.models.prompting import instructed

FORMAT = 1
NAME = "compiled.json"

Demo = dict[str, Any]  # field -> value, plain data


@dataclass(frozen=True, slots=True)
class Prompt:
    """What of one predictor is compiled."""

    instructions: str
    demos: tuple[Demo, ...] = ()
    # What it was compiled for: the signature's name, its fields, and a digest of the instructions it had before.
    signature: str = ""
    fields: tuple[str, ...] = ()
    before: str = ""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A training query, and what each predictor was asked and answered for it."""

    query_id: str
    text: str
    demos: Mapping[str, Sequence[Demo]]  # by predictor


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program. `origin` is for the reader: task, split, optimizer, models, versions, cost, scores."""

    program: str
    parameters: Mapping[str, Any]
    retriever: str
    prompts: Mapping[str, Prompt]
    members: tuple["Compiled", ...] = ()  # of an ensemble
    neighbours: tuple[Neighbour, ...] = ()
    nearest: int = 0  # of the neighbours, how many a query gets
    origin: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: dict(_get_versions()))

    def digest(self) -> str:
        """Eight hex digits over everything that shapes an answer."""
        text = json.dumps(_to_body(self, origin=False), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _get_versions() -> dict[str, str]:
    from importlib.metadata import version  # takes a fifth of the time in which --help answers

    return {"format": str(FORMAT), "sextant": version("sextant"), "dspy": version("dspy")}


def _to_body(compiled: Compiled, *, origin: bool = True) -> dict[str, Any]:
    body = asdict(compiled)
    body["members"] = [_to_body(member, origin=origin) for member in compiled.members]
    for name in () if origin else ("origin", "versions"):
        del body[name]
    return body


def write(path: Path, compiled: Compiled) -> None:
    """Replace `path` in one step. The digest at its end tells a later reader whether the file was edited."""
    body = json.loads(json.dumps(_to_body(compiled)))
    text = json.dumps({**body, "digest": _digest(body)}, indent=2, ensure_ascii=False)
    disk.replace(path, text + "\n")


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def read(path: Path) -> Compiled:
    """The compiled program in a file, or in the folder that it is in.

    DataError when there is none, or it is torn or was edited; UsageError when it is of another version.
    """
    file = path / NAME if path.is_dir() else path
    mend = "it is torn or no compiled program; compile again"
    try:
        if versions := forms.read_file(Versions, file, mend).get("versions"):
            _check_versions(file, versions)  # before what another version may hold otherwise
        body = forms.read_file(CompiledForm, file, mend)
    except FileNotFoundError:
        raise DataError(f"there is no compiled program {file}; python -m optimizers.compile makes one") from None
    digest = body.pop("digest", None)
    compiled = _from_body(body)
    if digest != _digest(body):
        raise DataError(
            f"{file} was edited after it was compiled; compile again, or copy the prompts that you changed into the "
            "program itself"
        )
    return compiled


def _from_body(body: Mapping[str, Any]) -> Compiled:
    known: dict[str, Any] = {name: body[name] for name in Compiled.__slots__}
    known["prompts"] = {name: prompt_from_json(row) for name, row in body["prompts"].items()}
    known["members"] = tuple(_from_body(member) for member in body["members"])
    known["neighbours"] = tuple(Neighbour(row["query_id"], row["text"], row["demos"]) for row in body["neighbours"])
    return Compiled(**known)


def prompt_from_json(row: Mapping[str, Any]) -> Prompt:
    """What `asdict` made of a prompt, read again."""
    demos, fields = tuple(row["demos"]), tuple(row["fields"])
    return Prompt(row["instructions"], demos, row.get("signature", ""), fields, row.get("before", ""))


def _check_versions(file: Path, made_with: Mapping[str, Any]) -> None:
    """UsageError unless format, and the first two numbers of Sextant's and DSPy's version, are those of now."""
    for name, now in _get_versions().items():
        then = str(made_with.get(name, "unknown"))
        if then.split(".")[:2] != now.split(".")[:2]:
            raise UsageError(f"{file} was compiled with {name} {then}, and this is {name} {now}; compile again")


def prompt_of(predictor: Any) -> Prompt:
    """What a predictor has now, as plain data; its own signature is what it is compiled for."""
    signature = predictor.signature
    named = set(signature.fields)
    demos = tuple({key: plain(value) for key, value in dict(demo).items() if key in named} for demo in predictor.demos)
    return Prompt(
        signature.instructions, demos, signature.__name__, _list_fields(signature), _digest_text(signature.instructions)
    )


def prompts_of(program: Any) -> dict[str, Prompt]:
    """The prompts of all predictors of a program, by name."""
    return {name: prompt_of(predictor) for name, predictor in program.named_predictors()}


def _list_fields(signature: Any) -> tuple[str, ...]:
    """Each field with its side and type, in order: what a demonstration has to fit."""
    sides = (("in", signature.input_fields), ("out", signature.output_fields))
    return tuple(
        f"{side} {name}: {getattr(one.annotation, '__name__', '') or str(one.annotation)}"
        if "[" not in str(one.annotation)
        else f"{side} {name}: {one.annotation}"
        for side, fields in sides
        for name, one in fields.items()
    )


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def plain(value: Any) -> Any:
    """`value` as JSON holds it: what a predictor was asked or answered, without objects of ours or DSPy's."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(one) for one in value)
    if hasattr(value, "items"):  # an example or prediction of DSPy's
        return {str(key): plain(one) for key, one in value.items()}
    return str(value)


def check(compiled: Compiled, name: str, program: Any, where: str) -> None:
    """UsageError unless `compiled` was made for the program `name` with the signatures that `program` has."""
    if compiled.program != name:
        raise UsageError(f"{where} was compiled for --program {compiled.program}, not {name}")
    current = prompts_of(program)
    for place, prompt in compiled.prompts.items():
        if place not in current:
            known = ", ".join(current) or "no prompts"
            raise UsageError(f"{where} has a prompt for {place!r}, and {name} has {known}; compile again")
        now = current[place]
        if now.signature != prompt.signature:
            raise UsageError(
                f"{where}: the signature of {place} was {prompt.signature}, and is {now.signature}; compile again"
            )
        if changed := sorted(set(prompt.fields) ^ set(now.fields)):
            raise UsageError(f"{where}: {prompt.signature} has other fields now ({', '.join(changed)}); compile again")
        if prompt.before and now.before != prompt.before:
            raise UsageError(
                f"{where}: the instructions of {place} that it started from have changed since; compile again"
            )
    if lacking := sorted(current.keys() - compiled.prompts.keys()):
        raise UsageError(f"{where} has no prompt for {lacking[0]!r} of {name}; compile again")
    for member in compiled.members:
        check(member, name, program, where)


def apply(compiled: Compiled, program: Any) -> None:
    """Give a program's predictors the compiled instructions and demonstrations."""
    for name, predictor in program.named_predictors():
        prompt = compiled.prompts[name]
        predictor.signature = instructed(predictor.signature, prompt.instructions)
        predictor.demos = [dict(demo) for demo in prompt.demos]

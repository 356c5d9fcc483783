"""Compiled programs: the result of an optimizer as one readable JSON file, and its use by a program.

The file has instructions and demonstrations of every predictor, the program's parameters, and their
origin (optimizers/compile_program.py). A file made for another program, version or signature is
refused. Nothing in it is code. Prompts of a user (programs/prompts.py) are a compiled program, too:
predictors that they do not name stay as the program has them. An ensemble runs every member on the query, each in a
session of its own, and fuses the rankings by reciprocal ranks (Cormack, Clarke and Buettcher, SIGIR
2009). Neighbours are DSPy's KNNFewShot, but demonstrations are made once, when compiling, and BM25
finds the near training queries.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NotRequired

import dspy
from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.models.prompting import with_instructions
from sextant.tools.platform import files, installation
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document, JsonMapping, JsonObject, Query, Submission, Trace, total
from sextant.tools.retrievers.fusion import reciprocal_rank_fusion
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.schemas import Count
from sextant.tools.session import SharedOnDeepcopy

FORMAT = 1
NAME = "compiled.json"
BY_HAND = "hand"  # in place of an optimizer's name: a user's own prompts

Demo = JsonObject  # field -> value, plain data


def _get_versions() -> dict[str, str]:
    return {
        "format": str(FORMAT),
        "sextant": installation.version(),
        "dspy": version("dspy"),
    }


class CompiledHeader(TypedDict):
    """The part of a compiled program that is read first."""

    versions: NotRequired[dict[str, Annotated[str, Field(pattern=r"^[\w.+-]{1,60}$")] | Count]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The compiled part of a predictor, and the signature that it was compiled for."""

    instructions: str
    demos: tuple[Demo, ...] = ()
    signature: str = ""  # its name
    fields: tuple[str, ...] = ()
    before: str = ""  # a digest of the instructions that it had
    # Descriptions of fields, if they differ from the program's own.
    descriptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NeighbourExample:
    """A training query, with the inputs and outputs of each predictor for it."""

    query_id: str
    text: str
    demos: Mapping[str, Sequence[Demo]]  # by predictor


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program. `origin` is for the reader: task, split, optimizer, models, versions, cost, scores."""

    program: str
    parameters: JsonMapping
    retriever: str
    prompts: Mapping[str, Prompt]
    members: tuple["Compiled", ...] = ()  # of an ensemble
    neighbours: tuple[NeighbourExample, ...] = ()
    nearest: int = 0  # of the neighbours, how many a query gets
    origin: JsonMapping = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=_get_versions)

    def digest(self) -> str:
        """Return eight hex digits over everything that shapes an answer."""
        return _digest(json.dumps(_without_origin(asdict(self)), sort_keys=True))[:8]

    @property
    def by_hand(self) -> bool:
        """Whether a user wrote it; then it has only the prompts that are to change."""
        return self.origin.get("optimizer") == BY_HAND

    def check(
        self,
        name: str,
        program: Any,
        source: str,
    ) -> None:
        """UsageError, which names the file `source`, unless it was made for the program `name` as that is now."""
        if self.program != name:
            raise UsageError(f"{source} was compiled for --program {self.program}, not {name}")
        current = get_prompts(program)
        for predictor_name, prompt in self.prompts.items():
            if predictor_name not in current:
                raise UsageError(
                    f"{source}: {UnknownName(f'predictor of {name}', predictor_name, current)}"
                )
            _check_prompt(prompt, current[predictor_name], predictor_name, source)
        if (lacking := sorted(current.keys() - self.prompts.keys())) and not self.by_hand:
            raise UsageError(f"{source} has no prompt for {lacking[0]!r} of {name}; compile again")
        for member in self.members:
            member.check(name, program, source)

    def prompts_alone(self, source: str) -> "Compiled":
        """Return it; UsageError, which names the file `source`, for an ensemble or neighbours."""
        if self.members or self.neighbours:
            raise UsageError(
                f"{source} is not made of prompts alone, as of `ensemble` or `knn`; take another"
            )
        return self

    def assemble(self, program: Any) -> Any:
        """Make the system that this describes of a fresh `program`."""
        if self.members:
            members = [member.assemble(program.deepcopy()) for member in self.members]
            return dspy.Ensemble(reduce_fn=fuse_rankings).compile(members)
        for name, predictor in program.named_predictors():
            if prompt := self.prompts.get(name):
                signature = predictor.signature
                predictor.signature = with_instructions(
                    signature, prompt.instructions or signature.instructions, prompt.descriptions
                )
                predictor.demos = (
                    predictor.demos if self.by_hand else [dict(demo) for demo in prompt.demos]
                )
        return (
            NearestDemonstrations(program, self.neighbours, self.nearest)
            if self.neighbours
            else program
        )

    def without_defaults(self, program: Any) -> "Compiled | None":
        """Return a user's prompts without those that `program` has anyway; None if no prompt differs."""
        if not self.by_hand:
            return self
        before = get_prompts(program)
        after = get_prompts(self.assemble(program))
        changed = {}
        for name, prompt in after.items():
            is_same = prompt.instructions == before[name].instructions
            if prompt.descriptions or not is_same:
                changed[name] = Prompt(
                    "" if is_same else prompt.instructions, descriptions=prompt.descriptions
                )
        origin = {
            "edited": f"{len(changed)} of {plural(len(after), 'predictor')}",
            "differs": list(changed),
        }
        return (
            replace(
                self,
                prompts=changed,
                origin={**self.origin, **origin},
            )
            if changed
            else None
        )


def description(name: str, field: Any) -> str:
    """Return the description of a signature's field; "" if DSPy has only its placeholder ${name}."""
    text = str(field.json_schema_extra["desc"])
    return "" if text == f"${{{name}}}" else text


def _check_prompt(
    prompt: Prompt,
    current: Prompt,
    predictor_name: str,
    source: str,
) -> None:
    field_names = [field_line.split()[1].removesuffix(":") for field_line in current.fields]
    if unknown := [name for name in prompt.descriptions if name not in field_names]:
        raise UsageError(
            f"{source}: {UnknownName(f'field of {predictor_name}', unknown[0], field_names)}"
        )
    if not prompt.signature:  # a user's own prompt
        return
    parts = {
        "signature": (prompt.signature, current.signature),
        "fields": ({*map(_bare, prompt.fields)}, {*map(_bare, current.fields)}),
        "instructions": (prompt.before or current.before, current.before),
    }
    for part, (compiled, now) in parts.items():
        if compiled != now:
            raise UsageError(
                f"{source}: the {part} of {predictor_name} changed since it was compiled; compile "
                f"again"
            )


def _bare(field: str) -> str:
    """Return a field without the modules of its type, which may move."""
    return re.sub(r"\b(?:\w+\.)+", "", field)


def _without_origin(body: JsonObject) -> JsonObject:
    content = {name: value for name, value in body.items() if name not in ("origin", "versions")}
    for prompt in body["prompts"].values():
        if not prompt["descriptions"]:
            del prompt["descriptions"]  # as in digests from before there were any
    return content | {"members": [_without_origin(member) for member in body["members"]]}


def write(path: Path, compiled: Compiled) -> None:
    """Write `path` in a single step. The digest at its end shows a later reader if the file was
    edited.
    """
    body = json.loads(json.dumps(asdict(compiled)))
    text = json.dumps(
        {**body, "digest": _digest(json.dumps(body, sort_keys=True))[:16]},
        indent=2,
        ensure_ascii=False,
    )
    files.replace(path, text + "\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read(path: Path) -> Compiled:
    """Return the compiled program in a file or its folder; `origin` says if it was edited. DataError if damaged."""
    file = path / NAME if path.is_dir() else path
    mend = "it is torn or no compiled program; compile again"
    versions = _get_versions()
    try:
        body = schemas.read_file(CompiledHeader, file, mend)
    except FileNotFoundError:
        raise DataError(f"there is no compiled program {file}; sextant compile makes one") from None
    if "program" not in body and any(map(_is_dspy_state, (body, *body.values()))):
        raise UsageError(
            f"{file} was saved by DSPy; load it where your program is made, "
            f"with self.load({file.name!r}), and leave out --compiled"
        )
    made_with = body.get("versions") or versions
    for name, ours in versions.items():  # before what another version may hold otherwise
        compiled_version = str(made_with.get(name, "unknown"))
        if compiled_version.split(".")[:2] != ours.split(".")[:2]:
            raise UsageError(
                f"{file} was compiled with {name} {compiled_version}, and this is {name} {ours}; compile again"
            )
    intact = body.pop("digest", None) == _digest(json.dumps(body, sort_keys=True))[:16]
    try:
        compiled = schemas.build_dataclass(Compiled, body)
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}); {mend}") from None
    return (
        compiled
        if intact
        else replace(compiled, origin={**compiled.origin, "edited": "after it was compiled"})
    )


def _is_dspy_state(value: Any) -> bool:
    """Return whether this is the state of a predictor, as `dspy.Module.save` writes it."""
    return isinstance(value, dict) and "demos" in value


def get_prompts(program: Any) -> dict[str, Prompt]:
    """Return the present prompt of each predictor of a program, by name."""
    prompts = {}
    for name, predictor in program.named_predictors():
        signature = predictor.signature
        fields = []
        descriptions = {}
        for key, field_info in signature.fields.items():
            side = "in" if key in signature.input_fields else "out"
            kind = field_info.annotation
            shown = kind if "[" in str(kind) else getattr(kind, "__name__", "") or kind
            fields.append(f"{side} {key}: {shown}")
            if field_info.json_schema_extra.get("described"):
                descriptions[key] = description(key, field_info)
        demos = [
            {key: to_json_values(value) for key, value in demo.items() if key in signature.fields}
            for demo in predictor.demos
        ]
        prompts[name] = Prompt(
            signature.instructions,
            tuple(demos),
            signature.__name__,
            tuple(fields),
            _digest(signature.instructions)[:8],
            descriptions,
        )
    return prompts


def to_json_values(value: Any) -> Any:
    """Return `value`, a predictor's input or output, as JSON values without Sextant's or DSPy's objects."""
    return json.loads(json.dumps(value, default=_open))


def _open(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "items"):  # an example or prediction of DSPy's
        return dict(value.items())
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def fuse_rankings(submissions: Sequence[Submission]) -> Submission:
    """Fuse submissions for a query: rankings by reciprocal ranks, ties in order of appearance, and all traces."""
    points = reciprocal_rank_fusion([submission.ranking for submission in submissions], exact=False)
    first = submissions[0]
    order = sorted(points, key=lambda doc_id: -points[doc_id])
    trace = Trace(first.trace.query_id)
    for submission in submissions:
        later_trace = submission.trace  # whose hops and times go on where these end
        last = max((step.hop for step in trace.steps), default=0)
        end = max((step.started + step.seconds for step in trace.steps), default=0.0)
        for step in later_trace.steps:
            trace.steps.append(
                replace(
                    step,
                    hop=step.hop + last if step.hop else 0,
                    started=step.started + end,
                )
            )
        trace.notes += later_trace.notes
        trace.calls += later_trace.calls
        trace.invented_ids += later_trace.invented_ids
        trace.unusable = dict(Counter(trace.unusable) + Counter(later_trace.unusable))
        trace.used_in_part = dict(Counter(trace.used_in_part) + Counter(later_trace.used_in_part))
        trace.fallbacks += later_trace.fallbacks
        trace.followed |= later_trace.followed | trace.followed
    ranking = tuple(order[: max(len(submission.ranking) for submission in submissions)])
    usage = total(submission.usage for submission in submissions)
    scores = (
        tuple(points[doc_id] for doc_id in ranking)
        if any(submission.scores for submission in submissions)
        else ()
    )
    return Submission(ranking, trace, first.answer, usage, scores)


class NearestDemonstrations(SharedOnDeepcopy, dspy.Module):
    """A program with the demonstrations of the training queries nearest to the query."""

    def __init__(
        self,
        program: Any,
        neighbours: Sequence[NeighbourExample],
        nearest: int,
    ) -> None:
        super().__init__()
        self.program = program
        self._neighbours = {neighbour.query_id: neighbour for neighbour in neighbours}
        self._nearest = nearest
        self._index = BM25(
            Corpus(Document(neighbour.query_id, neighbour.text) for neighbour in neighbours)
        )

    def forward(self, query: Query) -> Submission:
        """Search with a copy of the program that has the query's own demonstrations."""
        program = self.program.deepcopy()
        query_id = frozenset({query.query_id})  # a training query is not shown its own answer
        near = [
            self._neighbours[hit.doc_id]
            for hit in self._index.search(query.text, self._nearest, excluded=query_id)
        ]
        for name, predictor in program.named_predictors():
            # The nearest last: models give most weight to the text next to the question.
            predictor.demos = [
                dict(demo) for neighbour in reversed(near) for demo in neighbour.demos.get(name, ())
            ]
        return program(query=query)  # type: ignore[no-any-return]

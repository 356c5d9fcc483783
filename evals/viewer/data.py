"""The page's data as JSON, made from run folders on request: runs, a run, a query of it, a model
call, and the data of each panel.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, combinations, count, product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from sextant.environments.ranking_metrics import PAIRWISE
from sextant.evals import run_folder
from sextant.evals.run_schemas import FATE_LABELS
from sextant.evals.run_sittings import explain_resuming
from sextant.evals.scoring import reference_runs, scored_run
from sextant.evals.scoring.attribution import fate_at
from sextant.evals.viewer.comparisons import COMPARISONS
from sextant.evals.viewer.hops import describe_hops, describe_timeline
from sextant.evals.viewer.loaded_run import Answer, DocumentTexts, LoadedRun, plain_json
from sextant.evals.viewer.panel import Panel
from sextant.evals.viewer.panels import load_panels
from sextant.evals.viewer.remarks import (
    Remarks,
    RemarkWriter,
    Subject,
    find_file,
    name_run,
    read_remarks,
)
from sextant.evals.viewer.run_list import describe_groups, describe_setting, describe_time
from sextant.evals.viewer.unfinished import UnfinishedRun
from sextant.tools.errors import DataError, SextantError, UsageError
from sextant.tools.models.storage.request_store import read_call
from sextant.tools.plugins import describe_exception

# Documents of a ranking.
RANKED = 100
# Runs that were asked the same of which an exported page compares each two.
PAIRED = 8
COMPARED = (
    "Of runs that were asked the same, this file compares all together, and each two of up to "
    f"{PAIRED}"
)

# Files of a run whose change means that it is read again.
_READ_FILES = (
    run_folder.CONFIG_FILE,
    run_folder.SCORES_FILE,
    run_folder.VALUES_FILE,
    run_folder.JUDGED_FILE,
    run_folder.OUTCOMES_FILE,
)
# And those of them without which it is unfinished.
_SCORE_FILES = (run_folder.SCORES_FILE, run_folder.VALUES_FILE)
_SUMMARY_KEYS = (
    "task",
    "data",
    "split",
    "judgements",
    "relevant_from",
    "program",
    "retriever",
    "lm",
    "compiled",
    "pool",
    "queries",
    "failed",
    "usage",
    "losses",
)
# What reading a query of a damaged run may raise.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)

# Keys of a trace that the page shows, with their values if they are left out. "calls" are the model
# calls after the last step.
_TRACE: Answer = {
    "steps": [],
    "notes": [],
    "calls": [],
    "invented_ids": 0,
    "unusable": {},
    "used_in_part": {},
    "fallbacks": 0,
    "followed": {},
}

_Stamp = dict[str, tuple[int, ...]]


class NotFound(DataError):
    """There is no such run, query or answer."""


class _RunEntry(NamedTuple):
    """A run folder; `loaded` is None if it cannot be opened, and `why` is the reason.

    `unfinished` is the run if it has no scores.
    """

    path: Path
    stamp: _Stamp
    loaded: LoadedRun | None
    why: str = ""
    unfinished: UnfinishedRun | None = None


class ViewerApi:
    """The answers to the page's requests, by path: runs.json, live.json, run/ID.json,
    run/ID/query/QUERY.json, run/ID/call/KEY.json, run/ID/PANEL/ARGUMENT.json, and of several runs
    compare/ID,ID/METRIC.json, curves/ID,ID/METRIC.json and behaviours/ID,ID/all.json.

    With `exported`, an answer waits for the corpus. `texts` and `prompts` are whether there are
    texts of documents, and model calls. `chosen` takes the queries of a run and returns the
    queries to show. `panels` are the sections of a run's page, in its order. `empty` is whether
    folders may have no runs yet; else that is a DataError.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        exported: bool = False,
        texts: bool = True,
        prompts: bool = True,
        chosen: Callable[[Sequence[str]], Sequence[str]] = lambda query_ids: query_ids,
        panels: Sequence[Panel] | None = None,
        empty: bool = False,
    ) -> None:
        self._paths = list(paths)
        self._exported = exported
        self._chosen = chosen
        self.prompts = prompts
        self.panels = {panel.name: panel for panel in panels or load_panels(())}
        self._texts = DocumentTexts(wait=exported, documents=texts)
        self._remark_writer = RemarkWriter()
        self._lock = threading.Lock()
        # Once given, the id of a folder stays.
        self._ids: dict[Path, str] = {}
        self._entries: dict[str, _RunEntry] = {}
        subjects = "|".join(("query", "call", *self.panels))
        self._route = re.compile(rf"run/(.*?)(?:/({subjects})/(.*))?\.json", re.DOTALL)
        if not empty:
            # DataError for a path without a run.
            scored_run.find_folders(self._paths, unanswered=True)
        self._scan()

    def __call__(self, path: str) -> bytes:
        """Return the answer at `path`, as the browser wrote it.

        NotFound if there is none.
        """
        if path == "runs.json":
            return self._runs()
        if path == "live.json":
            self._scan()
            return plain_json(self._describe_live())
        match = re.fullmatch(rf"({'|'.join(COMPARISONS)})/(.*)/([^/]*)\.json", path, re.DOTALL)
        if match:
            return self._compare(match[1], match[2].split(","), unquote(match[3]))
        match = self._route.fullmatch(path)
        if match is None:
            raise NotFound(f"there is no {path[:200]!r}")
        run_id, subject, argument = match.groups()
        if subject is None:
            return self._run(run_id)
        if subject == "query":
            return self._query(run_id, unquote(argument))
        if subject == "call":
            return self._call(run_id, unquote(argument))
        return self._panel(run_id, self.panels[subject], unquote(argument))

    def add_remark(self, path: str, body: bytes) -> bytes:
        """Write a remark on the run of `path`, "run/ID/remark", and return it as JSON.

        NotFound for another path, UsageError for a body that is no remark.
        """
        match = re.fullmatch(r"run/(.*)/remark", path, re.DOTALL)
        entry = self._entries.get(match[1]) if match else None
        if entry is None:
            raise NotFound(f"there is no run at {path[:200]!r}")
        return plain_json(self._remark_writer.add(entry.path, body))

    def _read_remarks(self, paths: Iterable[Path]) -> dict[Path, Remarks]:
        """Return the remarks on the runs in these folders."""
        files = {find_file(path) for path in paths}
        remarks = {file: read_remarks(file) for file in files}
        return {path: remarks[find_file(path)].get(name_run(path), {}) for path in paths}

    @property
    def _readable(self) -> dict[str, LoadedRun]:
        return {run_id: entry.loaded for run_id, entry in self._entries.items() if entry.loaded}

    @property
    def run_ids(self) -> list[str]:
        """The runs that can be opened."""
        return list(self._readable)

    @property
    def unreadable(self) -> list[tuple[Path, str]]:
        """The run folders that cannot be opened, each with the reason."""
        return [
            (entry.path, entry.why)
            for entry in self._entries.values()
            if not entry.loaded and (self._exported or not entry.unfinished)
        ]

    @property
    def _unfinished(self) -> dict[str, UnfinishedRun]:
        return {
            run_id: entry.unfinished for run_id, entry in self._entries.items() if entry.unfinished
        }

    def _describe_live(self) -> Answer:
        """Return the unfinished runs, and a version that changes with the finished runs."""
        finished = [
            (run_id, entry.stamp) for run_id, entry in self._entries.items() if entry.loaded
        ]
        unfinished = []
        for run_id, run in self._unfinished.items():
            run.refresh()
            unfinished.append(self._describe_unfinished_run(run_id, run))
        # Those under way come first, then the latest.
        unfinished.sort(key=lambda one: (not one["live"], -(one["since"] or 0.0)))
        return {
            "version": hashlib.sha256(plain_json(finished)).hexdigest()[:16],
            "unfinished": unfinished,
        }

    def _describe_unfinished_run(self, run_id: str, run: UnfinishedRun) -> Answer:
        """Return the state of a run, with what tells it from others on its task."""
        others = [loaded.run for loaded in self._readable.values()]
        others += [other.stub for other in self._unfinished.values() if other is not run]
        return {"id": run_id, **describe_setting(run.stub, others), **run.describe()}

    @property
    def places(self) -> dict[str, str]:
        """The name in an exported page of each absolute path of a run or its data."""
        names = {str(loaded.run.path): run_id for run_id, loaded in self._readable.items()}
        for loaded in self._readable.values():
            folder = loaded.run.config[run_folder.PROVENANCE]["folder"]
            if folder:
                names[folder] = Path(folder).name
        return {path: name for path, name in names.items() if Path(path).is_absolute()}

    def query_ids(self, run_id: str) -> list[str]:
        """Return the queries of a run, as the page names them."""
        return list(self._open(run_id).named)

    def list_comparisons(self) -> Iterator[str]:
        """Yield the comparison paths of an exported page, for runs over the same queries."""
        groups: dict[bytes, list[str]] = {}
        for run_id, loaded in self._readable.items():
            asked = plain_json([loaded.run.contract, loaded.run.metric])
            groups.setdefault(asked, []).append(run_id)
        for run_ids in groups.values():
            chosen = {tuple(run_ids)} if len(run_ids) > 1 else set[tuple[str, ...]]()
            if len(run_ids) <= PAIRED:
                chosen |= set(combinations(run_ids, 2))
            for kind, run_ids_compared in product(COMPARISONS, sorted(chosen)):
                yield f"{kind}/{','.join(run_ids_compared)}/all.json"

    def _runs(self) -> bytes:
        self._scan()
        titles = dict.fromkeys(path.resolve().name or "runs" for path in self._paths)
        unreadable = [] if self._exported else self.unreadable
        readable = self._readable
        groups = describe_groups([loaded.run for loaded in readable.values()])
        remarks = self._read_remarks([loaded.run.path for loaded in readable.values()])
        answer = {
            "title": ", ".join(titles),
            "exported": self._exported,
            "compared": COMPARED if self._exported else "",
            "runs": [
                {
                    **_summarize(run_id, loaded),
                    **groups[loaded.run.name],
                    **_describe_remarks(loaded, remarks[loaded.run.path]),
                }
                for run_id, loaded in readable.items()
            ],
            **({} if self._exported else self._describe_live()),
            "unreadable": [{"path": str(path), "why": why} for path, why in unreadable],
            "fates": {fate.value: words for fate, words in FATE_LABELS.items()},
            "lower": [name for name, row in PAIRWISE.items() if row.is_lower_better],
        }
        return plain_json(answer)

    def _run(self, run_id: str) -> bytes:
        try:
            loaded = self._open(run_id)
        except DataError as problem:
            unfinished = self._unfinished.get(run_id)
            if unfinished is None or self._exported:
                raise
            return plain_json(
                {
                    "id": run_id,
                    "live": self._describe_unfinished_run(run_id, unfinished),
                    "no_scores": str(problem),
                }
            )
        answer = _describe_run(loaded) | self._relate(run_id, loaded) | {"id": run_id}
        answer["remarks"] = _list_remarks(
            loaded, self._read_remarks([loaded.run.path])[loaded.run.path]
        )
        if unfinished := self._unfinished.get(run_id):
            answer["live"] = self._describe_unfinished_run(run_id, unfinished)
        elif not self._exported:
            threading.Thread(target=_prepare, args=(loaded,), daemon=True).start()
        return plain_json(answer)

    def _relate(self, run_id: str, loaded: LoadedRun) -> Answer:
        run = loaded.run
        siblings = {name: entry.run for name, entry in self._readable.items() if name != run_id}
        references = reference_runs.references_among(run, siblings.values(), run.metric)
        return {
            "bounds": [
                {"label": label, "mean": bound["mean"], "what": bound["what"]}
                for label, bound in reference_runs.list_bounds(references.json())
            ],
            "siblings": [
                name for name, sibling in siblings.items() if sibling.contract == run.contract
            ],
        }

    def _query(self, run_id: str, name: str) -> bytes:
        loaded = self._open(run_id)
        query_id = loaded.named.get(name)
        if query_id is None:
            raise NotFound(f"{run_id} has no query {name[:200]!r}")
        try:
            answer = _describe_query(loaded, query_id)
            return plain_json(answer | loaded.texts_for(answer))
        except _DAMAGE as problem:
            raise DataError(
                f"what {run_id} holds of query {name[:200]!r} is damaged "
                f"({type(problem).__name__}: {problem}); remove its line in outcomes.jsonl and "
                "give the run's command again"
            ) from None

    def _call(self, run_id: str, key: str) -> bytes:
        path = self._open(run_id).answers
        call = read_call(path, key) if self.prompts else None
        if call is None:
            raise NotFound(
                f"{path} has no call {key[:16]!r}; was it cleared, or the run moved, or replayed?"
            )
        return plain_json(call)

    def _compare(self, kind: str, run_ids: Sequence[str], metric: str) -> bytes:
        """Answer a question about several runs; `metric` is "all" for the headline metric."""
        runs = [self._open(unquote(run_id)).run for run_id in dict.fromkeys(run_ids)]
        if len(runs) < 2:
            raise UsageError("one run has nothing to be compared with; choose two or more")
        return plain_json(COMPARISONS[kind](runs, "" if metric == "all" else metric))

    def _panel(self, run_id: str, panel: Panel, argument: str) -> bytes:
        loaded = self._open(run_id)
        try:
            answer = panel.data(loaded, argument)
            if isinstance(answer, dict):
                answer = answer | {"run": run_id}
            return plain_json(answer)
        except (SextantError, OSError):
            raise
        except Exception as error:
            # The function may be a user's own, and raise anything.
            raise UsageError(f"panel {panel.name}: {describe_exception(error)}") from error

    def _open(self, run_id: str) -> LoadedRun:
        with self._lock:
            if entry := self._entries.get(run_id):
                entry = self._entries[run_id] = self._read(entry.path, entry)
        if entry is None:
            raise NotFound(f"there is no run {run_id[:200]!r}")
        if entry.unfinished and not self._exported:
            entry.unfinished.refresh()
            return entry.unfinished.load()
        if entry.loaded is None:
            raise DataError(entry.why)
        return entry.loaded

    def _scan(self) -> None:
        """Look for runs that are new, changed or gone."""
        with self._lock:
            entries: dict[str, _RunEntry] = {}
            for root in self._paths:
                folders = []
                with suppress(DataError, OSError):
                    # It had a run when the page was opened.
                    folders = scored_run.find_folders([root], unanswered=True)
                for path in folders:
                    run_id = self._id(root, path)
                    entries.setdefault(run_id, self._read(path, self._entries.get(run_id)))
            self._entries = entries

    def _read(self, path: Path, before: _RunEntry | None) -> _RunEntry:
        # The stamp is taken before reading: a file that changes meanwhile is read again.
        stamp: _Stamp = {}
        for name in _READ_FILES:
            with suppress(OSError):
                status = (path / name).stat()
                times = (status.st_mtime_ns, status.st_ctime_ns)
                stamp[name] = (status.st_ino, status.st_size, *times)
        if before and before.stamp == stamp:
            return before
        try:
            if all(name in stamp for name in _SCORE_FILES):
                run = scored_run.read_scored_run(path)
                query_ids = list(self._chosen(run.query_ids))
                return _RunEntry(path, stamp, LoadedRun(run, query_ids, self._texts))
            unfinished = (before and before.unfinished) or UnfinishedRun(path, self._texts)
            # `read_scored_run` would load the corpus to count the queries that are unanswered.
            why = (
                f"there are no scores: it is unfinished, or was not scored; sextant score {path} "
                f"scores it if nothing is unanswered, else {explain_resuming(path)}"
            )
            return _RunEntry(path, stamp, None, why, unfinished)
        except (SextantError, OSError) as problem:
            return _RunEntry(path, stamp, None, str(problem))

    def _id(self, root: Path, path: Path) -> str:
        """Return a run's id in links: its path below `root`, in letters that need no escape."""
        folder = path.resolve()
        if folder not in self._ids:
            parts = path.relative_to(root).parts or folder.parts[-2:]
            plain = (
                re.sub(r"[^A-Za-z0-9._~-]+", "-", part) for part in parts if part != folder.anchor
            )
            reserved = {"q", "s", "query", "call", *self.panels}
            name = "/".join(f"{part}-" if part in reserved else part for part in plain)
            numbered = (f"{name}~{number}" for number in count(2))
            candidates = (
                text for text in chain([name], numbered) if text not in self._ids.values()
            )
            self._ids[folder] = next(candidates)
        return self._ids[folder]


def _prepare(loaded: LoadedRun) -> None:
    """Read ahead: a reader looks at the queries of a run next."""
    loaded.load_data()
    with suppress(SextantError, OSError):
        # The answer to a query reports the problem.
        len(loaded.outcomes)


def _summarize(run_id: str, loaded: LoadedRun) -> Answer:
    run = loaded.run
    metrics = {
        name: {key: value.get(key) for key in ("mean", "low", "high")}
        for name, value in run.scores["metrics"].items()
    }
    return {
        "id": run_id,
        **{key: run.scores.get(key) for key in _SUMMARY_KEYS},
        "metric": run.metric,
        "contract": hashlib.sha256(plain_json(run.contract)).hexdigest()[:8],
        "metrics": metrics,
        "notes": loaded.notes,
        "mini": run.scores["data"] == "mini",
        "imported": bool(run.config.get("imported")),
        "unusable": sum(run.scores.get("unusable", {}).values()),
        **describe_time(run.path),
    }


def _list_remarks(loaded: LoadedRun, remarks: Remarks) -> list[Answer]:
    """Return the remarks on the run's queries that are shown, and on their steps."""
    keys = ("query_id", "step", "label", "note", "time")
    return [
        {key: remark.get(key) for key in keys}
        for subject, remark in remarks.items()
        if subject.query_id in loaded.named
    ]


def _describe_remarks(loaded: LoadedRun, remarks: Remarks) -> Answer:
    """Return the name, tags and note of a run on the page, and how many remarks it has."""
    of_run = remarks.get(Subject(None, None), {})
    return {
        "named": {
            "name": of_run.get("name", ""),
            "tags": of_run.get("tags", []),
            "note": of_run.get("note", ""),
        },
        "remarks": len(_list_remarks(loaded, remarks)),
    }


def _describe_run(loaded: LoadedRun) -> Answer:
    run = loaded.run
    judged = loaded.judged
    query_ids = loaded.query_ids
    return {
        "config": run.config,
        "scores": run.scores | {"notes": loaded.notes},
        "query_ids": query_ids,
        "texts": [judged.texts.get(query_id, "") for query_id in query_ids],
        "values": {
            name: [column[query_id] for query_id in query_ids]
            for name, column in run.columns.items()
        },
        "errors": {
            query_id: run.errors[query_id] for query_id in query_ids if query_id in run.errors
        },
        "fates": None if judged.why else [judged.fates[query_id] for query_id in query_ids],
        "why_no_fates": judged.why,
    }


def _describe_query(loaded: LoadedRun, query_id: str) -> Answer:
    run = loaded.run
    judged = loaded.judged
    outcome = loaded.outcomes[query_id]
    trace = outcome["trace"]
    row = judged.rows.get(query_id, {})
    documents = row.get("relevant", [])
    cutoff = 0 if judged.why else run.scores["losses"]["cutoff"]
    return {
        "query_id": query_id,
        "text": row.get("text", ""),
        "objective": "",
        "grades": row.get("grades", {}),
        "units": row.get("units", {}),
        "relevant": [document | {"fate": fate_at(document, cutoff)} for document in documents]
        if cutoff
        else [],
        "values": {name: column[query_id] for name, column in run.columns.items()},
        "answer": outcome.get("answer", ""),
        "traceback": outcome.get("traceback", ""),
        "error": outcome["error"],
        "usage": outcome["usage"],
        "seconds": outcome.get("seconds"),
        "ranking": outcome["ranking"][:RANKED],
        "ranked": len(outcome["ranking"]),
        "scores": (outcome.get("scores") or [])[:RANKED],
        "hops": describe_hops(
            trace["steps"],
            [document["unit"] for document in documents],
            row.get("units", {}),
        ),
        "timeline": describe_timeline(trace["steps"], loaded.answers),
        **{key: trace.get(key, default) for key, default in _TRACE.items()},
    }

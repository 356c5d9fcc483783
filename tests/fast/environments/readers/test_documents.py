"""Every public form of a data set, read as it is published; and no damaged or hostile one read as whole.

Files are made on the spot, in exactly the form that a release or its conversion has, and go through environments.load.
"""

import csv
import gzip
import io
import json
import os
import pickle
import re
import tempfile
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mutations import mutated

from sextant import environments
from sextant.environments import crumb
from sextant.environments.base import Comparison
from sextant.environments.multiconir import COLUMNS, TENS
from sextant.environments.readers import corpora, raw_files
from sextant.environments.task_card import run_checks
from sextant.evals.scoring.metrics import collapse_to_units
from sextant.tools.corpus import StoredCorpus
from sextant.tools.errors import DataError, UsageError

MANY = 5  # mutations of a form


# --- The forms, each as {file: bytes}; one good small data set apiece ------------------------------------------------


def jsonl(rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def tsv(*rows) -> bytes:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def parquet(rows) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, write_page_checksum=True)
    return buffer.getvalue()


def gzipped(files):
    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}


OBLIQ_TEXTS = {
    "p 1": 'Show that √2 is "irrational".',
    "p/2": "A second\nproblem.",
    "p3": "A third,\twith a tab.",
    "p4": "One more.",
}
OBLIQ_QUERIES = {"q1": "Find the trick.", "q2": "Another trick?", "q3": "The last."}


def obliq():
    inside = "analogues/math/queries+qrels"
    return {
        "analogues/math/corpus/corpus.jsonl": jsonl(
            {"_id": i, "text": t} for i, t in OBLIQ_TEXTS.items()
        ),
        f"{inside}/queries.jsonl": jsonl({"_id": i, "text": t} for i, t in OBLIQ_QUERIES.items()),
        f"{inside}/qrels.tsv": tsv(
            ("query_id", "corpus_id", "score"),
            ("q1", "p/2", 2),
            ("q2", "p 1", 2),
            ("q2", "p4", 0),
            ("q3", "p4", 2),
        ),
        f"{inside}/qrels_pool.tsv": tsv(
            ("query-id", "corpus-id", "score"),
            ("q1", "p/2", 2),
            ("q1", "p3", 1),
            ("q2", "p 1", 2),
            ("q3", "p4", 2),
        ),
        f"{inside}/per_query_excluded_ids.json": json.dumps(
            {"q1": ["p 1"], "q2": ["p3"], "q3": []}
        ).encode(),
    }


def crumb_corpus(ids):
    def row(name):
        parent = name.partition(":")[0] if ":" in name and not name.startswith("C") else None
        content = f"What is said about {name} – in Markdown.\n\n- a list"
        return {
            "document_id": name,
            "document_content": content,
            "parent_id": parent,
            "metadata": "{}",
        }

    return list(map(row, ids))


def crumb_query(number, passages, documents, binary=(), instruction="Find them."):
    def cell(labels):
        return [{"id": name, "label": float(label)} for name, label in labels]

    return {
        "query_id": f"2021-{number}",
        "query_content": f"Query {number}?",
        "instruction": instruction,
        "passage_qrels": cell(passages),
        "passage_binary_qrels": cell(binary) if binary else None,
        "full_document_qrels": cell(documents),
        "use_max_p": True,
        "metadata": "{}",
    }


PASSAGES = (
    "A:0",
    "A:1",
    "B:0",
    "B:1",
    "C:0",
    "D:0",
)  # C's have no parent_id: the official script cuts at the colon
CRUMB_QUERIES = {
    "eval": [
        crumb_query(1, [("A:0", 1), ("B:1", 0)], [("A", 1), ("C", 0.5)]),
        crumb_query(2, [("B:0", 2)], [("B", 2)], instruction=None),
    ],
    "val": [crumb_query(3, [("C:0", 1)], [("C", 1)])],
}


def crumb_raw():
    place = "set_operation_entity_retrieval"
    return {
        f"{place}/passage_corpus.jsonl": jsonl(crumb_corpus(PASSAGES)),
        f"{place}/full_document_corpus.jsonl": jsonl(crumb_corpus("ABCD")),
        f"{place}/eval/query_labels.jsonl": jsonl(CRUMB_QUERIES["eval"]),
        f"{place}/val/query_labels.jsonl": jsonl(CRUMB_QUERIES["val"]),
    }


def birco_object(text=str, number=float):
    return {
        "query": {text("q 1"): "Who said it?", text("q2"): "Another claim [MASK]."},
        "corpus": {text(f"d{n}"): text(f"Passage {n} with „quotes“ and 🐙.") for n in range(4)},
        "qrel": {
            text("q 1"): {text("d0"): number(1), text("d1"): number(0)},
            text("q2"): {text("d2"): number(2), text("d1"): number(1), text("d3"): number(0)},
        },
    }


def birco(ending, dump):
    dev = {
        "query": {"v1": "A dev query."},
        "corpus": {f"v{n}d": f"Dev passage {n}." for n in range(3)},
        "qrel": {"v1": {"v0d": 1.5, "v1d": 0.5, "v2d": 0.0}},
    }
    place = "datasets/relic"
    return {
        f"{place}/test_set.{ending}": dump(
            birco_object(np.str_, np.float64) if ending == "pickle" else birco_object()
        ),
        f"{place}/dev_set.{ending}": dump(dev),
    }


def numpy_1(pickled: bytes) -> bytes:
    """The same pickle as NumPy 1 would have written it; from protocol 4 on, names and frames have lengths."""
    pickled = pickled.replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    pickled = pickled.replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")
    return (
        pickled[:3] + (len(pickled) - 11).to_bytes(8, "little") + pickled[11:]
        if pickled[2] == 0x95
        else pickled
    )


LADDER = ("Positive", *(f"HN{n}" for n in range(1, 11)))


def multiconir():
    files = {}
    for name, columns in COLUMNS.items():
        file = io.StringIO(newline="")
        rows = (
            [n, *(f'{name} {column} of {n}:\n"quoted", and more' for column in columns)]
            for n in (1, 2, 3)
        )
        csv.writer(file).writerows([("Unnamed: 0", *columns), *rows])
        place = f"datasets/{'Task4' if name.isdigit() else name}/Legal Document_{name}.csv"
        files[place] = b"\xef\xbb\xbf" + file.getvalue().encode()
    return files


BEIR_TEXTS = {
    "d 1": ("A title", "About dams."),
    "d/2": ("", "About ferries."),
    "d3": ("Third", "Örtliche Brücken."),
}


def beir():
    return {
        "corpus.jsonl": jsonl(
            {"_id": i, "title": h, "text": t, "metadata": {}} for i, (h, t) in BEIR_TEXTS.items()
        ),
        "queries.jsonl": jsonl(
            {"_id": q, "text": f"Query {q}", "metadata": {}} for q in ("q1", "q2", "of train")
        ),
        "qrels/test.tsv": tsv(
            ("query-id", "corpus-id", "score"), ("q1", "d 1", 1), ("q2", "d/2", 2), ("q2", "d3", 0)
        ),
        "qrels/train.tsv": tsv(("query-id", "corpus-id", "score"), ("of train", "d3", 1)),
    }


def beir_in_folders():
    files = beir()
    return files | {
        f"{name}/part.jsonl": files.pop(f"{name}.jsonl") for name in ("corpus", "queries")
    }


def mteb():
    corpus = [{"id": i, "title": h, "text": t} for i, (h, t) in BEIR_TEXTS.items()]
    qrels = [("q1", "d 1", 1.0), ("q2", "d/2", 2.0), ("q2", "d3", 0.0)]
    judged = [dict(zip(("query-id", "corpus-id", "score"), row, strict=True)) for row in qrels]
    return {
        "data/corpus/test-00000-of-00002.parquet": parquet(corpus[:2]),
        "data/corpus/test-00001-of-00002.parquet": parquet(corpus[2:]),
        "data/queries/test-00000-of-00001.parquet": parquet(
            [{"id": q, "text": f"Query {q}"} for q in ("q1", "q2")]
        ),
        "data/default/test-00000-of-00001.parquet": parquet(judged),
        "data/default/train-00000-of-00001.parquet": parquet(
            [{"query-id": "t", "corpus-id": "d3", "score": 1.0}]
        ),
    }


TREC_REST = {
    "qrels.txt": b"301 0 X-1 1\n301 0 X-2 0\n302 Q0 X-3 2\n",
    "corpus.jsonl": jsonl(
        {"docno": f"X-{n}", "title": f"T{n}", "text": f"Body {n}"} for n in (1, 2, 3)
    ),
}
SGML = """<top>
<num> Number: 301
<title> International crime & punishment
<desc> Description:
What is known at p < 0.05 about it?
<narr> Narrative:
Anything helps.
</top>

<top><num>302</num><title>Closed</title></top>
<top><num>303</num><title>Not judged</title></top>
"""
XML = """<?xml version="1.0"?>
<!-- as TREC CT has it -->
<topics task="2021">
  <topic number="301">Patient is a 45-year-old &amp; ill.</topic>
  <topic type="x" number='302'><title>Closed</title><desc>And said.</desc></topic>
</topics>
"""

FORMS = {
    "OBLIQ": ("math", "all", obliq),
    "OBLIQ gzipped": ("math", "all", lambda: gzipped(obliq())),
    "CRUMB raw": ("set_ops", "all", crumb_raw),
    "BIRCO pickle 2": (
        "relic",
        "test",
        lambda: birco("pickle", lambda content: pickle.dumps(content, 2)),
    ),
    "BIRCO pickle 4": (
        "relic",
        "dev",
        lambda: birco("pickle", lambda content: pickle.dumps(content, 4)),
    ),
    "BIRCO JSON": (
        "relic",
        "all",
        lambda: birco("json", lambda content: json.dumps(content).encode()),
    ),
    "MultiConIR": ("legal_document", "all", multiconir),
    "MultiConIR padded": ("legal_document:length512", "all", multiconir),
    "BEIR": ("congress", "all", beir),
    "MTEB": ("relic", "test", mteb),
    "TREC SGML": ("congress", "all", lambda: {"topics.txt": SGML.encode(), **TREC_REST}),
    "TREC XML": ("congress", "all", lambda: {"topics.xml": XML.encode(), **TREC_REST}),
}


@cache
def good(form):
    return FORMS[form][2]()


def put(folder: Path, files) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def load(form_or_task, folder, split=None, **more):
    task, usual, _ = FORMS.get(form_or_task, (form_or_task, "all", None))
    loaded = environments.load(task, str(folder), split or usual, **more)
    return loaded.released or loaded


def floats(grades):
    return all(type(grade) is float for labels in grades.values() for grade in labels.values())


# --- 1. Each form as it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [dict, gzipped], ids=["plain", "gzipped"])
def test_obliqs_folder_has_pooled_judgements_and_masks_whether_gzipped_or_not(packed, tmp_path):
    world = load("math", put(tmp_path, packed(obliq())))
    assert {i: d.text for i, d in world.documents.items()} == OBLIQ_TEXTS
    assert {q.query_id: q.text for q in world.queries} == OBLIQ_QUERIES
    assert {q.query_id: q.excluded for q in world.queries} == {
        "q1": {"p 1"},
        "q2": {"p3"},
        "q3": frozenset(),
    }
    assert all(q.candidates is None for q in world.queries)
    assert world.qrels == {"q1": {"p/2": 2.0}, "q2": {"p 1": 2.0, "p4": 0.0}, "q3": {"p4": 2.0}}
    assert (world.headline, set(world.judgements)) == ("gold", {"gold", "pooled"})
    assert world.judgements["pooled"].qrels["q1"] == {"p/2": 2.0, "p3": 1.0}
    assert floats(world.qrels) and floats(world.judgements["pooled"].qrels)
    assert load("math", tmp_path, qrels="pooled").headline == "pooled"


@pytest.mark.parametrize("packed", [dict, gzipped], ids=["plain", "gzipped"])
def test_crumb_has_passages_documents_and_judgements_of_both(packed, tmp_path):
    world = load("set_ops", put(tmp_path, packed(crumb_raw())), "test")
    assert list(world.documents) == list(PASSAGES)
    assert world.documents["A:1"].text.startswith("What is said about A:1 – in Markdown.\n")
    parents = {name: "" if name == "C:0" else name[0] for name in PASSAGES}
    assert {doc_id: document.parent for doc_id, document in world.documents.items()} == parents
    assert [(q.query_id, q.text) for q in world.queries] == [
        ("2021-1", "Query 1?"),
        ("2021-2", "Query 2?"),
    ]
    # The second row has no instruction: the task's own stands in.
    assert [q.objective for q in world.queries] == [
        "Find them.",
        crumb.TASKS["set_ops"].instruction,
    ]
    assert (world.headline, set(world.judgements), world.max_p) == (
        "document",
        {"document", "passage"},
        True,
    )
    assert world.qrels == {"2021-1": {"A": 1.0, "C": 0.5}, "2021-2": {"B": 2.0}}
    passage = world.judgements["passage"]
    assert passage.qrels == {"2021-1": {"A:0": 1.0, "B:1": 0.0}, "2021-2": {"B:0": 2.0}}
    assert floats(world.qrels) and floats(passage.qrels) and passage.binary is None
    assert collapse_to_units(["B:1", "A:1", "B:0", "C:0", "A:0"], world.judgements["document"]) == [
        "B",
        "A",
        "C",
    ]
    assert [q.query_id for q in load("set_ops", tmp_path, "dev").queries] == ["2021-3"]
    whole = load("set_ops:document", tmp_path, "test")
    assert list(whole.documents) == list("ABCD") and whole.judgements["document"].unit_of is None


def test_binary_labels_stand_beside_graded_ones_in_paper_retrieval(tmp_path):
    rows = [crumb_query(1, [("P1", 0.5), ("P2", 7)], [], binary=[("P2", 1)])]
    files = {
        "scientific_paper/passage_corpus.jsonl": jsonl(crumb_corpus(("P1", "P2"))),
        "scientific_paper/eval/query_labels.jsonl": jsonl(rows),
    }
    world = load("paper_retrieval", put(tmp_path, files), "test")
    assert world.qrels == {"2021-1": {"P1": 0.5, "P2": 7.0}} and set(world.judgements) == {
        "passage"
    }
    assert world.judgements["passage"].binary == {"2021-1": {"P2": 1.0}}


@pytest.mark.parametrize("numpy_version", [1, 2])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_birco_is_read_from_a_pickle_of_any_protocol_and_of_either_numpy(
    protocol, numpy_version, tmp_path
):
    kinds = islice(
        cycle([np.float64, np.float32, np.int64, np.int32, np.uint8, float, int]), protocol, None
    )
    pickled = pickle.dumps(birco_object(np.str_, lambda label: next(kinds)(label)), protocol)
    if numpy_version == 1:
        pickled = numpy_1(pickled)
        assert b"numpy.core.multiarray" in pickled and b"_core" not in pickled
    world = load("relic", put(tmp_path, {"datasets/relic/test_set.pickle": pickled}), "test")
    assert {i: d.text for i, d in world.documents.items()} == birco_object()["corpus"]
    assert {q.query_id: q.text for q in world.queries} == birco_object()["query"]
    assert world.qrels == birco_object()["qrel"] and floats(world.qrels)
    assert {q.query_id: q.candidates for q in world.queries} == {
        "q 1": {"d0", "d1"},
        "q2": {"d1", "d2", "d3"},
    }
    ids = [
        *world.documents,
        *world.qrels,
        *(document.text for document in world.documents.values()),
    ]
    assert all(type(text) is str for text in ids)


def test_birco_with_numbers_for_ids_and_fractions_for_labels_is_read_alike_from_pickle_and_json(
    tmp_path,
):
    content = {
        "query": {0: "A query."},
        "corpus": {10: "One.", 11: np.str_("")},
        "qrel": {0: {10: np.float64(1.25), 11: np.float16(0.5)}},
    }
    files = {f"p{n}/doris-mae/test_set.pickle": pickle.dumps(content, n) for n in (0, 3, 5)}
    files["j/test_set.json"] = json.dumps(content, default=float).encode()
    put(tmp_path, files)
    worlds = [
        load("doris_mae", folder, "test")
        for folder in sorted(tmp_path.iterdir())
        if folder.name != "home"
    ]
    assert len({world.fingerprint for world in worlds}) == 1 and len(worlds) == 4
    assert worlds[0].qrels == {"0": {"10": 1.25, "11": 0.5}}


def test_birco_has_both_splits_and_compares_on_dev_only(tmp_path):
    put(tmp_path, good("BIRCO JSON"))
    dev, both = load("relic", tmp_path, "dev"), load("relic", tmp_path, "all")
    assert [(c.better, c.worse) for c in dev.comparisons["v1"]] == [
        ("v0d", "v1d"),
        ("v0d", "v2d"),
        ("v1d", "v2d"),
    ]
    assert not both.comparisons and len(both.documents) == 7 and len(both.queries) == 3
    corpus = load("relic:corpus", tmp_path, "test")
    assert all(query.candidates is None for query in corpus.queries)


def test_multiconirs_csvs_keep_quoted_newlines_and_have_a_byte_order_mark(tmp_path):
    put(tmp_path, multiconir())
    search = load("legal_document", tmp_path)
    assert search.queries[0].text == 'Task2_&_3 Query10 of 1:\n"quoted", and more'
    assert search.documents["1-Positive"].text == 'Task2_&_3 Positive of 1:\n"quoted", and more'
    assert len(search.documents) == 3 * (11 + 21) and search.qrels["2"] == {"2-Positive": 1.0}
    complexity = load("legal_document:complexity", tmp_path)
    assert len(complexity.queries) == 30
    assert complexity.comparisons["3-q4"] == (Comparison("Win(4)", "3-T1-Positive", "3-T1-HN4"),)
    assert complexity.queries[3].candidates == {"1-T1-Positive", "1-T1-HN4"}
    ladder = load("legal_document:monotonicity", tmp_path)
    assert ladder.qrels["1-q10"] == {f"1-{name}": 10.0 - n for n, name in enumerate(LADDER)}
    rungs = [Comparison(f"Win({k})", f"1-{LADDER[k - 1]}", f"1-{LADDER[k]}") for k in TENS]
    assert list(ladder.comparisons["1-q10"]) == rungs
    styles = load("legal_document:format", tmp_path)
    assert styles.twins == {f"{n}-prose": f"{n}-list" for n in (1, 2, 3)}
    padded = load("legal_document:length512", tmp_path)
    assert padded.documents["1-512-HN10"].text == '512 HN10 of 1:\n"quoted", and more'
    assert (
        floats(ladder.qrels) and load("legal_document:length1024", tmp_path).documents["3-1024-HN1"]
    )


def test_equal_texts_in_one_ladder_stay_two_documents_as_published(tmp_path):
    files = {name: data.replace(b"HN4 of", b"HN3 of") for name, data in multiconir().items()}
    ladder = load("legal_document:monotonicity", put(tmp_path, files))
    assert {len(query.candidates) for query in ladder.queries} == {11}
    assert ladder.documents["1-HN3"].text == ladder.documents["1-HN4"].text


@pytest.mark.parametrize("inside", ["", "Books"])
def test_multiconirs_second_version_is_a_search_task_in_beirs_form(inside, tmp_path):
    files = beir()
    files["qrels.jsonl"] = jsonl([{"query-id": "q1", "corpus-id": "d3", "score": 1}])
    world = load(
        "books",
        put(tmp_path / inside, {n: d for n, d in files.items() if "qrels/" not in n}) and tmp_path,
    )
    assert world.qrels == {"q1": {"d3": 1.0}} and world.documents["d 1"].title == "A title"
    with pytest.raises(DataError, match="holds no datasets/ of the release"):
        load("books:format", tmp_path)


@pytest.mark.parametrize("form", [beir, beir_in_folders, mteb])
def test_beirs_form_has_titles_and_only_the_queries_that_the_test_split_judges(form, tmp_path):
    world = load("congress", put(tmp_path, form()))
    assert {i: (d.title, d.text) for i, d in world.documents.items()} == BEIR_TEXTS
    assert [q.text for q in world.queries] == ["Query q1", "Query q2"]
    assert world.qrels == {"q1": {"d 1": 1.0}, "q2": {"d/2": 2.0, "d3": 0.0}} and floats(
        world.qrels
    )
    pool = load("relic", tmp_path, "test")
    assert [q.candidates for q in pool.queries] == [{"d 1"}, {"d/2", "d3"}]


def test_trec_topics_are_sgml_with_unclosed_tags_or_xml(tmp_path):
    sgml = load("congress", put(tmp_path / "sgml", {"topics.txt": SGML.encode(), **TREC_REST}))
    assert [(q.query_id, q.text) for q in sgml.queries] == [
        (
            "301",
            "International crime & punishment What is known at p < 0.05 about it? Anything helps.",
        ),
        ("302", "Closed"),
    ]
    assert sgml.qrels == {"301": {"X-1": 1.0, "X-2": 0.0}, "302": {"X-3": 2.0}} and floats(
        sgml.qrels
    )
    assert (sgml.documents["X-2"].title, sgml.documents["X-2"].text) == ("T2", "Body 2")
    xml = load("congress", put(tmp_path / "xml", {"topics.xml": XML.encode(), **TREC_REST}))
    assert [q.text for q in xml.queries] == ["Patient is a 45-year-old & ill.", "Closed And said."]


# --- 2. Hostile pickles ----------------------------------------------------------------------------------------------


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def in_a_label(payload):
    content = birco_object()
    content["qrel"]["q2"]["d1"] = payload
    return content


def nested(kind):
    """`kind` containers nested very deep, as instructions: Python's own pickler would not write them."""
    return {"tuple": b")" + b"\x85" * 300_000, "list": b"]" * 300_000 + b"a" * 299_999}[kind]


def laughs():
    level = {"ha": 1}
    for _ in range(40):
        level = dict.fromkeys("0123456789", level)
    return level


# Each gives a pickle that creates the marker file when it is loaded: see the end of the test.
LIVE = {
    "in a label": lambda m: pickle.dumps(in_a_label(Calls(os.system, f"touch {m}"))),
    "protocol 0": lambda m: pickle.dumps(Calls(os.system, f"touch {m}"), 0),
    "getattr": lambda m: f"cbuiltins\ngetattr\n(cpathlib\nPath\n(V{m}\ntRVtouch\ntR(tR.".encode(),
    "in an object array": lambda m: pickle.dumps(
        np.array([Calls(os.system, f"touch {m}")], dtype=object)
    ),
    "INST": lambda m: f"(S'touch {m}'\nios\nsystem\n.".encode(),
    "OBJ": lambda m: f"(cos\nsystem\nS'touch {m}'\no.".encode(),
}
WHOLE = pickle.dumps(birco_object(np.str_, np.float64))
INERT = {
    "a persistent id": b"P12\n.",
    "an extension code": b"\x80\x02\x82\x01.",
    "bytes of 64 GiB": b"\x80\x04\x8e" + (2**36).to_bytes(8, "little") + b"x.",
    "a memo entry numbered four billion": b"\x80\x02}r\xff\xff\xff\xff.",
    "a key of 5,000 digits": pickle.dumps(
        {"query": {10**5000: "x"}, "corpus": {"d": "x"}, "qrel": {}}
    ),
    "one key as a number and as a text": pickle.dumps(
        {"query": {1: "x", "1": "x"}, "corpus": {}, "qrel": {}}
    ),
    "tuples nested deep for a key": b"\x80\x02}" + nested("tuple") + b"K\x01s.",
    "lists nested deep": b"\x80\x02" + nested("list") + b".",
    "dicts that hold each other ten times": pickle.dumps(in_a_label(laughs())),
    "a scalar of objects": b"\x80\x02cnumpy._core.multiarray\nscalar\n"
    b"cnumpy\ndtype\nX\x02\x00\x00\x00O8\x85RK\x01\x86R.",
    "a set": pickle.dumps(in_a_label({1})),
    "something after its end": WHOLE + b"junk",
    "nothing": b"",
    **{
        f"broken off after {share:.0%}": WHOLE[: int(len(WHOLE) * share)]
        for share in (0.1, 0.5, 0.99)
    },
}


def refusal(pickled: bytes, folder: Path) -> str:
    put(folder, {"datasets/relic/test_set.pickle": pickled})
    with pytest.raises(DataError) as caught:
        load("relic", folder, "test")
    message = str(caught.value)
    assert (
        message.startswith(str(folder / "datasets/relic/test_set.pickle")) and message.isprintable()
    )
    return message


@pytest.mark.parametrize("payload", LIVE)
def test_a_hostile_pickle_is_refused_and_nothing_in_it_runs(payload, tmp_path):
    marker = tmp_path / "marker"
    pickled = LIVE[payload](str(marker))
    assert re.search(r"it names '[\w.]+', .* Nothing in it was run", refusal(pickled, tmp_path))
    assert not marker.exists()
    # The payload is a live one: Python's own unpickler runs it.
    with suppress(Exception):  # what comes after the marker does not matter
        pickle.loads(pickled)
    assert marker.exists()


@pytest.mark.parametrize("payload", INERT)
def test_a_pickle_that_is_no_plain_data_is_refused_in_one_line(payload, tmp_path):
    assert re.search("is refused: |fetch it again", refusal(INERT[payload], tmp_path))


def test_a_pickle_that_git_lfs_has_not_fetched_is_called_so(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    assert "Git LFS has not fetched it; run `git lfs pull`" in refusal(pointer, tmp_path)


# --- 3. Damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_folder_is_an_environment_or_an_error_of_one_line_that_names_the_file(form):
    for seed in range(MANY):
        random = Random(f"{form} {seed}")
        name = random.choice(sorted(good(form)))
        with tempfile.TemporaryDirectory() as place:
            folder = put(Path(place), good(form) | {name: mutated(random, good(form)[name])})
            try:
                world = load(form, folder)
                assert world.fingerprint and world.queries and len(world.documents)
            except (DataError, UsageError) as error:
                message = str(error)
                assert place in message and message.isprintable() and len(message) < 1000, (
                    seed,
                    message,
                )


UNPADDED = ("search", "complexity", "monotonicity", "format")
UNUSED = ("train", "full_document", "Task4", ".gz", ".parquet", ".pickle")
TEXT_FILES = [
    (form, name)
    for form in FORMS
    for name in good(form)
    if ("_512" in name if form == "MultiConIR padded" else not any(part in name for part in UNUSED))
]


@pytest.mark.parametrize(("form", "name"), TEXT_FILES)
def test_a_junk_line_does_not_vanish(form, name, tmp_path):
    rows = good(form)[name].split(b"\n")
    for place in range(0, len(rows), 1 + len(rows) // 20):
        spoilt = b"\n".join([*rows[:place], b"}{ junk", *rows[place:]])
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            put(Path(folder), good(form) | {name: spoilt})
            tasks = (
                [form]
                if form != "MultiConIR"
                else [f"legal_document:{variant}" for variant in UNPADDED]
            )
            try:
                worlds = [load(task, folder) for task in tasks]
            except DataError as error:
                assert str(Path(folder) / name) in str(error)
                continue
            # Between the quotes of a CSV cell, or inside a topic's field, it is a part of the text.
            said = {q.text for w in worlds for q in w.queries} | {
                d.text for w in worlds for d in w.documents.values()
            }
            assert any("}{ junk" in text for text in said), f"line {place + 1}"


LABELS = "eval/query_labels.jsonl"
SAID = {
    "a grade with an underscore": (
        "OBLIQ",
        "qrels.tsv",
        b"q1\tp/2\t2",
        b"q1\tp/2\t1_0",
        r"line 2: the score '1_0'",
    ),
    "a pooled document": (
        "OBLIQ",
        "qrels_pool.tsv",
        b"p3",
        b"p9",
        r"qrels_pool.tsv: 'p9' is no query or document of the task",
    ),
    "a mask twice": ("OBLIQ", "ids.json", b'"q2":', b'"q1":', r"the key 'q1' is there twice"),
    "a mask for nobody": (
        "OBLIQ",
        "ids.json",
        b'"q3": []',
        b'"q3": [], "q4": []',
        r"entry for 'q4', which is no query",
    ),
    "a mask that is a number": (
        "OBLIQ",
        "ids.json",
        b'["p 1"]',
        b"[1.5]",
        r"not an object of lists of ids, one a query: q1",
    ),
    "a mask that is missing": ("OBLIQ", "ids.json", b', "q3": []', b"", r"no entry for query 'q3'"),
    "a label twice": (
        "CRUMB raw",
        LABELS,
        b'"id": "C"',
        b'"id": "A"',
        r"line 1, .*'A' is judged twi",
    ),
    "a label that is true": (
        "CRUMB raw",
        LABELS,
        b'"label": 2.0',
        b'"label": true',
        r"line 2, pass",
    ),
    "a label that is NaN": (
        "CRUMB raw",
        LABELS,
        b'"label": 0.5',
        b'"label": NaN',
        r"line 1, full_",
    ),
    "an instruction that is none": ("CRUMB raw", LABELS, b'n": null', b'n": []', r"'instruction'"),
    "a passage twice": (
        "CRUMB raw",
        "passage_corpus.jsonl",
        b'id": "A:1"',
        b'id": "A:0"',
        r"line 2: the id 'A:0' was",
    ),
    "one id for two queries": (
        "CRUMB raw",
        "/val/query_labels.jsonl",
        b"2021-3",
        b"2021-1",
        r"1: the id '2021-1' was",
    ),
    "an empty pool": (
        "BIRCO JSON",
        "dev_set.json",
        b'{"v0d": 1.5, "v1d": 0.5, "v2d": 0.0}',
        b"{}",
        r"qrel.v1 .*at least 1 item",
    ),
    "a label in words": (
        "BIRCO JSON",
        "test_set.json",
        b'"d1": 1.0',
        b'"d1": "x"',
        r"qrel.q2.d1 should be a valid number",
    ),
    "a column twice": (
        "MultiConIR",
        "Task1.csv",
        b",HN2,",
        b",HN1,",
        r"the column 'HN1' is there twice",
    ),
    "a column too many": (
        "MultiConIR",
        "_3.csv",
        b"Unnamed: 0",
        b"HN3",
        r"the column 'HN3' is there twice",
    ),
    "a quote too many": (
        "MultiConIR",
        "Task1.csv",
        b'""quoted""',
        b'"quoted""',
        r"line 2: .* quotation mark missing",
    ),
    "a title that is a number": (
        "BEIR",
        "corpus.jsonl",
        b'"title": ""',
        b'"title": 0',
        r"line 2: field 'title'",
    ),
    "a document twice": (
        "TREC XML",
        "corpus.jsonl",
        b"X-2",
        b"X-1",
        r"line 2: the id 'X-1' was there before",
    ),
    "a topic without an end": (
        "TREC SGML",
        "topics.txt",
        b"Anything helps.\n</top>",
        b"",
        r"a <top> has no end",
    ),
    "a topic without a title": (
        "TREC SGML",
        "topics.txt",
        b"<title>Closed",
        b"<titel>",
        r"topic 2: no column is known as the query .*--column",
    ),
    "a topic without a number": (
        "TREC XML",
        "topics.xml",
        b'number="301"',
        b'nr="301"',
        r"topic 1: no column is known as the query_id",
    ),
    "a topic twice": (
        "TREC XML",
        "topics.xml",
        b"'302'",
        b"'301'",
        r"topic 2: .*'301' has another text in .*topic 1",
    ),
    "words between topics": (
        "TREC XML",
        "topics.xml",
        b"<topics",
        b"lost <topics",
        r"is not whole XML",
    ),
}


def test_a_release_without_one_split_says_which_split_it_has(tmp_path):
    put(tmp_path, good("BIRCO JSON"))
    [path] = tmp_path.rglob("dev_set.json")
    path.unlink()
    with pytest.raises(DataError, match=r"it has test_set\.json, which --split test reads alone"):
        load("BIRCO JSON", tmp_path, "dev")
    assert load("BIRCO JSON", tmp_path, "test").queries


@pytest.mark.parametrize("fault", SAID)
def test_a_fault_is_said_where_it_is(fault, tmp_path):
    form, ending, old, new, message = SAID[fault]
    put(tmp_path, good(form))
    [path] = [tmp_path / name for name in good(form) if name.endswith(ending)]
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(DataError, match=message) as caught:
        load(form, tmp_path, "dev" if "dev_set" in ending else None)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("form", "name", "message"),
    [
        ("MTEB", "data/corpus/test-00001-of-00002.parquet", r"test-\* lacks part 0001"),
        (
            "OBLIQ",
            "analogues/math/queries+qrels/per_query_excluded_ids.json",
            r"per_query_excluded_ids\.json",
        ),
        ("BEIR", "qrels/test.tsv", None),
    ],
)
def test_a_part_that_is_missing_is_missed(form, name, message, tmp_path):
    put(tmp_path, good(form))
    (tmp_path / name).unlink()
    if message is None:
        (tmp_path / "qrels/dev.tsv").write_bytes(good(form)[name])
        message = r"of the split dev, and none of test"
    with pytest.raises(DataError, match=message):
        load(form, tmp_path)


@pytest.mark.parametrize(
    "name", ["corpus.jsonl", "per_query_excluded_ids.json", "corpus.parquet", "a line"]
)
def test_a_file_that_would_fill_the_memory_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(raw_files, "LONGEST", 100_000)
    put(tmp_path, beir() if name.endswith("parquet") else obliq())
    [path] = tmp_path.rglob("corpus.json*" if name == "a line" else f"{Path(name).stem}.json*")
    if name.endswith("parquet"):
        table = pa.table({"_id": [f"p{n}" for n in range(100)], "text": ["x" * 20_000] * 100})
        pq.write_table(table, path.with_name(name), compression="zstd", use_dictionary=False)
    else:
        blank = b"\n" + b" " * 50_000
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes() + blank * 100))
    if name == "a line":
        path.write_bytes(path.read_bytes() + b"\0" * 110_000)
    else:
        path.unlink()
    said = (
        "line 5: longer than"
        if name == "a line"
        else rf"{name}.* unpacks to more than 100 times its size"
    )
    with pytest.raises(DataError, match=said):
        load("math", tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_corpus_is_known_by_its_content_and_not_by_its_times(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(
        corpora, "_SETTLED", -1
    )  # files that have just been written are not waited for
    monkeypatch.setattr(corpora, "LARGE", 90_000)
    put(tmp_path, obliq())
    [path] = tmp_path.rglob("corpus.jsonl")
    whole = path.read_bytes() + json.dumps({"_id": "long", "text": "ferry " * 15_000}).encode()
    path, made = (path.with_name("corpus.jsonl.gz"), gzip.compress) if packed else (path, bytes)
    next(path.parent.iterdir()).unlink()
    first, second = (
        made(whole.replace(b"ferry ", word)).ljust(1000, b"\0") for word in (b"ferry ", b"kiosk ")
    )
    path.write_bytes(first)
    world, times = load("math", tmp_path), path.stat()
    assert isinstance(world.documents, StoredCorpus)
    assert load("math", tmp_path).fingerprint == world.fingerprint
    path.write_bytes(second)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (
        path.stat().st_size == times.st_size
        and load("math", tmp_path).fingerprint != world.fingerprint
    )
    [noted] = tmp_path.rglob(corpora._DIGESTS)
    noted.write_text(json.dumps(dict.fromkeys(json.loads(noted.read_text()), "of another content")))
    list(run_checks("obliq/math", str(tmp_path)))
    assert "of another content" not in noted.read_text()

"""Data of one's own in the forms that it comes in: what is asked, judged and said is right, and damage is refused.

Every form holds the same collection. Its judgements are compared with what pytrec_eval reads from the TREC file.
"""

import csv
import gzip
import io
import json
import lzma
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval

from sextant.environments import load as load_task
from sextant.environments.readers import corpora
from sextant.environments.readers import files as tables
from sextant.environments.readers.collections import read_collection
from sextant.tools.corpus import StoredCorpus
from sextant.tools.errors import DataError, UsageError

TEXTS = {
    "7": ("Dams", "On weirs, rivers"),
    "d/2": ("", 'A "ferry"\nof two'),
    "d3": ("Drei", "Örtliche Brücken"),
}
LINES = {
    doc_id: f"{title} {text}".replace("\n", " ").strip() for doc_id, (title, text) in TEXTS.items()
}
QUERIES = {"2": "Which dam?", "q1": "Crossing water?", "q9": "Not judged"}
JUDGED = [("q1", "d/2", 2), ("q1", "d3", -1), ("2", "7", 1), ("2", "gone", 1)]
TREC_QRELS = "".join(f"{query_id} 0 {doc_id} {grade}\n" for query_id, doc_id, grade in JUDGED)
TOPICS = "".join(
    f"<top>\n<num> Number: {name}\n<title> {text}\n</top>\n" for name, text in QUERIES.items()
)

ROWS = [(doc_id, *texts) for doc_id, texts in TEXTS.items()]
CORPUS = [{"_id": doc_id, "title": title, "text": text} for doc_id, title, text in ROWS]
ASKED = [{"_id": query_id, "text": text} for query_id, text in QUERIES.items()]
QRELS = [
    {"query-id": query_id, "corpus-id": doc_id, "score": grade}
    for query_id, doc_id, grade in JUDGED
]
HEADER = ("query-id", "corpus-id", "score")


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def numbered(rows):
    return jsonl(
        {name: int(cell) if str(cell).isdigit() else cell for name, cell in row.items()}
        for row in rows
    )


def floats(rows):
    return jsonl(
        {name: float(cell) if str(cell).isdigit() else cell for name, cell in row.items()}
        for row in rows
    )


def cells(separator, *rows, quoting=csv.QUOTE_MINIMAL):
    csv.writer(buffer := io.StringIO(newline=""), delimiter=separator, quoting=quoting).writerows(
        rows
    )
    return buffer.getvalue().encode()


def quoted(*rows):
    return cells("\t", *rows, quoting=csv.QUOTE_ALL)


def zstd(data):
    return pa.Codec("zstd").compress(data).to_pybytes()


def parquet(rows):
    pq.write_table(pa.Table.from_pylist(rows), buffer := io.BytesIO())
    return buffer.getvalue()


def trec(rows):
    form = "<DOC>\n<DOCNO> {} </DOCNO>\n<HEADLINE><P>{}</P></HEADLINE>\n<TEXT>\n{}\n</TEXT>\n</DOC>\n\n"
    return "".join(form.format(*row) for row in rows).encode()


BEIR = {
    "corpus.jsonl": jsonl(CORPUS),
    "queries.jsonl": jsonl(ASKED),
    "qrels/test.tsv": cells("\t", HEADER, *JUDGED),
}
OWN = {
    "id": "Key",
    "text": "Was",
    "title": "Kopf",
    "query": "frage",
    "grade": "note",
    "doc_id": "treffer",
}
FORMS = {
    "BEIR": BEIR,
    "BEIR, two splits in zstd": {
        "corpus.jsonl.zst": zstd(BEIR["corpus.jsonl"]),
        "queries.jsonl.zst": zstd(BEIR["queries.jsonl"]),
        "qrels/dev.tsv": cells("\t", HEADER, *JUDGED[:2]),
        "qrels/test.tsv": cells("\t", HEADER, *JUDGED[2:]),
    },
    "BEIR, repeats in numbers and parts": {
        "corpus/0000.jsonl.gz": gzip.compress(numbered(CORPUS[:2])),
        "corpus/0001.jsonl.gz": gzip.compress(numbered(CORPUS[1:])),
        "queries.jsonl": numbered(ASKED + ASKED[:1]),
        "qrels.jsonl": numbered(QRELS + QRELS[:1]),
    },
    "BEIR, packed in two ways under plain names": {
        name: pack(content)
        for (name, content), pack in zip(
            BEIR.items(), (lzma.compress, gzip.compress, bytes), strict=True
        )
    },
    "BEIR, numbers as floats": {
        "corpus.jsonl": floats(CORPUS),
        "queries.jsonl": floats(ASKED),
        "qrels.jsonl": floats(QRELS),
    },
    "BEIR, in capitals, beside files that systems and editors leave": {
        "CORPUS.JSONL": BEIR["corpus.jsonl"],
        "._CORPUS.JSONL": b"\0\5\x16\7",
        "Queries.jsonl": jsonl({"ID": name, "Text": text} for name, text in QUERIES.items()),
        "qrels/test.tsv": BEIR["qrels/test.tsv"],
        "qrels/.DS_Store": b"\0",
        "qrels/.ipynb_checkpoints/test-checkpoint.tsv": b"older",
    },
    "a Hugging Face folder, two splits as MTEB has them": {
        "data/corpus/test-00000-of-00002.parquet": parquet(CORPUS[:1]),
        "data/corpus/test-00001-of-00002.parquet": parquet(CORPUS[1:]),
        "data/queries/test-00000-of-00001.parquet": parquet(ASKED),
        "data/default/test-00000-of-00001.parquet": parquet(QRELS[2:]),
        "data/default/dev-00000-of-00001.parquet": parquet(QRELS[:2]),
    },
    "a Hugging Face folder, the default subset in data": {
        "corpus/test-00000-of-00001.parquet": parquet(CORPUS),
        "queries/test-00000-of-00001.parquet": parquet(ASKED),
        "data/test-00000-of-00001.parquet": parquet(QRELS),
        "data/README.md": b"# what this is",
    },
    "a Hugging Face folder, other columns": {
        "docs.parquet": parquet([{"Key": i, "Kopf": h, "Was": t} for i, h, t in ROWS]),
        "queries.jsonl": jsonl({"qid": i, "frage": t} for i, t in QUERIES.items()),
        "qrels.jsonl": jsonl({"qid": q, "treffer": d, "note": g} for q, d, g in JUDGED),
    },
    "TREC": {
        "docs.trec": trec(ROWS),
        "topics.1-3.txt": TOPICS.encode(),
        "qrels.1-3.txt": TREC_QRELS.encode(),
    },
    "TREC, many files": {
        "documents/ft/ft911_1.gz": gzip.compress(trec(ROWS[:2])),
        "documents/la/LA010189": trec(ROWS[2:]),
        "documents/README": b"what this is",
        "topics.tsv": cells("\t", ("qid", "query"), *QUERIES.items()),
        "robust.qrels": TREC_QRELS.encode(),
    },
    "TREC, JSON Lines": {
        "collection.jsonl": jsonl({"docno": i, "title": h, "contents": t} for i, h, t in ROWS),
        "topics.xml": "".join(
            f'<topic number="{name}">{text}</topic>' for name, text in QUERIES.items()
        ).encode(),
        "qrels": TREC_QRELS.encode(),
    },
    "TREC, topics with a query, a comment and a subtopic": {
        "collection.jsonl": jsonl({"docno": i, "title": h, "contents": t} for i, h, t in ROWS),
        "topics.xml": "<topics> <!-- faceted < ambiguous --> {}</topics>".format(
            "".join(
                f"<topic id='{name}'><subtopic number='1'>x</subtopic><query><![CDATA[{text}]]></query></topic>"
                for name, text in QUERIES.items()
            )
        ).encode(),
        "qrels": TREC_QRELS.encode(),
    },
    "TREC, topics in a namespace with an entity": {
        "collection.jsonl": jsonl({"docno": i, "title": h, "contents": t} for i, h, t in ROWS),
        "topics.xml": '<!DOCTYPE t:topics [<!ENTITY ask "?">]><t:topics xmlns:t="urn:t">{}</t:topics>'.format(
            "".join(
                f'<t:topic number="{name}"><t:title xml:lang="en">{text.replace("?", "&ask;")}</t:title></t:topic>'
                for name, text in QUERIES.items()
            )
        ).encode(),
        "qrels": TREC_QRELS.encode(),
    },
    "CSV": {
        "documents.csv": cells(",", ("ID", "Title", "Text"), *ROWS),
        "queries.csv": cells(",", ("qid", "query"), *QUERIES.items()),
        "qrels.csv": cells(",", ("qid", "docid", "relevance"), *JUDGED),
    },
    "CSV, as spreadsheets write it": {
        "documents.csv": cells(";", ("Doc ID", "Title", "Text", ""), *((*row, "") for row in ROWS)),
        "queries.csv": cells("\t", ("Query ID", "Query"), *QUERIES.items()),
        "qrels.tsv": cells(
            "\t", ("Query-ID", "Doc Id", "RELEVANCE"), *((*row, "") for row in JUDGED)
        ),
    },
    "CSV, tabs and quotation marks": {
        "documents.tsv": quoted(
            ("id", "title", "text"), *([c.replace("\n", " ") for c in row] for row in ROWS)
        ),
        "queries.tsv": cells("\t", ("id", "query"), *QUERIES.items()),
        "qrels.tsv": quoted(HEADER, *JUDGED),
    },
    "CSV, other columns": {
        "documents.csv": cells(";", ("Key", "Kopf", "Was"), *ROWS),
        "queries.csv": cells(";", ("id", "frage"), *QUERIES.items()),
        "judgements.tsv": cells("\t", ("query_id", "treffer", "note"), *JUDGED),
    },
}


REPEATED = ("Documents", "Queries", "Judgements")


def put(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_collection_is_the_same_in_every_form(form, tmp_path):
    read = read_collection(
        put(tmp_path, FORMS[form]), tmp_path / "home", OWN if "other" in form else {}
    )
    found = read.documents.stream()
    assert {
        one.doc_id: f"{one.title} {one.text}".replace("\n", " ").strip() for one in found
    } == LINES
    assert read.documents["d3"].title == "Drei"
    assert dict(read.queries) == {"2": "Which dam?", "q1": "Crossing water?"}
    assert read.qrels == pytrec_eval.parse_qrel(TREC_QRELS.splitlines())
    assert read.splits == ({"dev": ("q1",), "test": ("2",)} if "splits" in form else {})
    left_out = ("Left out: subtopic in 3 of the queries.",) if "subtopic" in form else ()
    assert read.said[1:] == (
        *left_out,
        "3 documents, 2 queries, 4 judgements with grades from -1 to 2.",
        *(
            f"{what} that are there again, counted once: 1."
            for what in REPEATED
            if "repeats" in form
        ),
        "Queries without a judgement, left out: 1.",
        "Judged documents that are not in the corpus: 1.",
        "Grades below 0, which count as not relevant: 1.",
    )


DAMAGE = {  # what is changed in BEIR's folder, and what is said
    "one id with two texts": (
        {"corpus.jsonl": jsonl([*CORPUS, CORPUS[0] | {"text": "x"}])},
        r"line 4: the id '7' was there before with another text",
    ),
    "one query with two texts": (
        {"queries.jsonl": jsonl([*ASKED, ASKED[0] | {"text": "x"}])},
        r"line 4: .*line 1",
    ),
    "two grades": (
        {"qrels/more.test.tsv": cells("\t", HEADER, ("q1", "d/2", 1))},
        "test.tsv, line 2: .* with 1 and 2",
    ),
    "an unknown column": (
        {"queries.jsonl": jsonl([{"_id": "q1", "asked": "y"}])},
        "known as the query of queries; --column query=NA",
    ),
    "no rows": ({"queries.jsonl": b""}, "queries.jsonl has no rows, so there are no queries"),
    "strangers": (
        {"queries.jsonl": jsonl([{"_id": "x", "text": "y"}])},
        "no query has a judgement: '2' .*'x'",
    ),
    "queries 02 for 2": (
        {"queries.jsonl": jsonl([{"_id": "02", "text": "y"}])},
        "no query has a judgement: '2' in the judgements, and '02' in the queries: write both alike",
    ),
    "no document": (
        {"corpus.jsonl": jsonl([{"_id": "x", "text": "y"}])},
        "none of the relevant documents .3. is in the corpus: '7' .*'x'",
    ),
    "no relevant document": (
        {"corpus.jsonl": jsonl([{"_id": "d3", "text": "y"}])},
        "none of the relevant documents .3. is in the corpus: ",
    ),
    "documents in passages": (
        {"corpus.jsonl": jsonl([{"_id": "d3#1", "text": "y"}])},
        "`max_p` in benchmark.toml judges passages by their documents",
    ),
    "queries in two files": (
        {"queries_rewritten.jsonl": jsonl([ASKED[0] | {"text": "x"}])},
        r'in its benchmark.toml: `files = { documents = "NAME", queries = "NAME" }`',
    ),
    "passages with two ids": (
        {
            "corpus.jsonl": jsonl(
                [{"pid": f"p{n}", "docid": "d3", "passage": f"x {n}"} for n in range(2)]
            )
        },
        "docid and pid could both be the id; --column id=docid says which it is",
    ),
    "a pointer": (
        {"corpus.jsonl": b"version https://git-lfs.github.com/spec/v1\n"},
        "git lfs pull",
    ),
    "a pointer to Parquet": (
        {"corpus.parquet": b"version https://git-lfs.github.com/spec/v1\n"},
        "git lfs pull",
    ),
    "an archive": ({"corpus.jsonl": b"PK\3\4\xff"}, "line 1: byte 0xff is not UTF-8"),
    "a page": ({"corpus.jsonl": b"\n<!doctype HTML>"}, "a page in HTML, not data"),
    "Latin-1": (
        {"corpus.jsonl": '{"_id": "é"}'.encode("latin-1")},
        "line 1: byte 0xe9 is not UTF-8; write the file",
    ),
    "three columns of four": (
        {"qrels/test.tsv": b"1\td3\t1\n"},
        r"the column '1' is there twice; read are .*four columns \(query, iteration, document, grade\)",
    ),
    "an object of lists": (
        {"corpus.jsonl": b'{"data": [{"_id": "d3"}]}'},
        "known as the id .*'data'; read are JSON Lines",
    ),
    "an array of texts": (
        {"corpus.jsonl": b'["x"]'},
        "line 1: not a JSON object; write one object a line",
    ),
    "a comma too many": (
        {"corpus.jsonl": b'{"_id": "d3", "text": "x"},\n{"_id": "d/2",}'},
        "line 1: not whole JSON .*write one object a line",
    ),
    "a fraction as an id": (
        {"corpus.jsonl": b'{"_id": 1.5, "text": "x"}'},
        "line 1: the id 1.5 is no text or whole number",
    ),
    "torn zstd": (
        {"queries.jsonl.zst": zstd(BEIR["queries.jsonl"])[:-3]},
        "jsonl.zst cannot be read: Truncated",
    ),
    "Parquet by a name of text": (
        {"queries.jsonl": parquet(ASKED)},
        "not UTF-8",
    ),
    "bytes behind gzip": (
        {"queries.jsonl": gzip.compress(BEIR["queries.jsonl"]) + b"-- end of download --"},
        "jsonl cannot be read: Not a gzipped file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_contradicts_itself_or_is_damaged_is_refused(damage, tmp_path):
    files, message = DAMAGE[damage]
    with pytest.raises(DataError, match=message):
        read_collection(put(tmp_path, BEIR | files), tmp_path / "home")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("x/corpus.jsonl", "x/queries.jsonl", "x/qrels.tsv"), "it has 'x/corpus.jsonl', "),
        (
            ("harbour.jsonl", "queries.jsonl", "qrels.tsv"),
            r'its benchmark.toml: `files = { documents = "NAME", .*\'harbour.jsonl\'',
        ),
        (
            ("corpus.jsonl", "queries.jsonl", "judged.tsv"),
            r'`judgements = { gold = "NAME" }`.*\'judged.tsv\'',
        ),
    ],
)
def test_where_no_file_has_a_known_name_it_is_said_how_to_name_one(names, said, tmp_path):
    put(tmp_path, dict(zip(names, BEIR.values(), strict=True)))
    with pytest.raises(DataError, match=said):
        read_collection(tmp_path, tmp_path / "home")


def test_lists_of_documents_in_columns_of_the_queries_judge_and_exclude_as_bright_has_them(
    tmp_path,
):
    lists = {"2": (["7"], ["N/A"]), "q1": (["d/2", "d3", "d3"], ["7"]), "q9": ([], ["7"])}
    rows = [
        {"id": query_id, "query": QUERIES[query_id], "gold_ids": gold, "excluded_ids": excluded}
        for query_id, (gold, excluded) in lists.items()
    ]
    for folder, name in (("documents", "corpus"), ("examples", "examples")):
        (tmp_path / folder).mkdir()
        table = CORPUS if folder == "documents" else rows
        pq.write_table(pa.Table.from_pylist(table), tmp_path / folder / f"{name}.parquet")
    read = read_collection(tmp_path, tmp_path / "home")
    assert read.qrels == {"2": {"7": 1}, "q1": {"d/2": 1, "d3": 1}}
    assert read.excluded == {"q1": {"7"}} and read.unjudged == {"q9"}
    [query] = [query for query in load_task(str(tmp_path)).queries if query.query_id == "q1"]
    assert query.excluded == {"7"}
    by_name = read_collection(tmp_path, tmp_path / "home", {"doc_id": "excluded_ids"})
    assert by_name.qrels == {"q1": {"7": 1}, "q9": {"7": 1}}


def test_tables_of_several_domains_with_the_same_ids_are_told_by_the_files_of_a_domain(tmp_path):
    for domain in ("biology", "economics"):
        documents = [{"id": f"{domain}/d1", "content": f"a text on {domain}"}]
        queries = [{"id": "0", "query": f"what is {domain}?", "gold_ids": [f"{domain}/d1"]}]
        for folder, table in (("documents", documents), ("examples", queries)):
            (tmp_path / folder).mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist(table), tmp_path / folder / f"{domain}.parquet")
    with pytest.raises(DataError, match="the query '0' has another text") as refused:
        load_task(str(tmp_path))
    line = re.search("`(files = .*?)`", str(refused.value))[1]
    for folder in ("documents", "examples"):
        line = line.replace("NAME", f"{folder}/biology.parquet", 1)
    (tmp_path / "benchmark.toml").write_text(line)
    task = load_task(str(tmp_path))
    assert task.judgements["gold"].qrels == {"0": {"biology/d1": 1}} and len(task.documents) == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [({"text": "Wass"}, "'Wass'; did you mean 'Was'"), ({"word": "x"}, "'word'")],
)
def test_a_column_that_is_not_there_is_said(columns, said, tmp_path):
    with pytest.raises(UsageError, match=f"is called {said}"):
        read_collection(
            put(tmp_path, FORMS["CSV, other columns"]), tmp_path / "home", OWN | columns
        )


def test_topics_have_the_tags_that_are_said_and_their_own_numbers(tmp_path):
    topics = "".join(
        f"<top>\n<head> x\n<num> Number:  {number:03}\n<desc> Description:\nd{number}\n<title> Topic: t{number}\n\n"
        for number in (99, 100)
    )
    put(
        tmp_path,
        BEIR | {"topics.txt": topics.encode(), "qrels/test.tsv": b"99 0 d3 1\n100 0 d3 1\n"},
    )
    (tmp_path / "queries.jsonl").unlink()
    read = read_collection(tmp_path, tmp_path / "home")
    assert dict(read.queries) == {"100": "t100 d100"}
    assert "queries from topics.txt (num, title, desc)" in read.said[0]
    assert read.said[1] == "Left out: head in 2 of the queries."
    assert "'99' in the judgements, and '099' in the queries: write both alike" in read.warnings[0]
    by_tag = read_collection(tmp_path, tmp_path / "home", {"query": "desc"})
    assert dict(by_tag.queries) == {"100": "d100"}


ALIKE = {
    "101.0": "101",
    " 101": "101",
    "gru\u0308n": "grün",
    "D1": "d1",
    "MB007": "MB7",
    "a%20b": "a b",
    "'x'": "x",
}


@pytest.mark.parametrize("judged", ALIKE)
def test_a_judged_document_that_is_only_spelled_differently_is_a_warning_with_both_ids(
    judged, tmp_path
):
    corpus = [{"_id": ALIKE[judged], "text": "x"}, *CORPUS]
    qrels = [{"query-id": "q1", "corpus-id": doc_id, "score": 1} for doc_id in (judged, "7", "d3")]
    put(
        tmp_path,
        {
            "corpus.jsonl": jsonl(corpus),
            "queries.jsonl": BEIR["queries.jsonl"],
            "qrels.jsonl": jsonl(qrels),
        },
    )
    [warning] = read_collection(tmp_path, tmp_path / "home").warnings
    show = repr if judged.isascii() else ascii
    assert (
        "1 of 3 judged documents" in warning
        and f"{show(judged)} in the judgements" in warning
        and f"{show(ALIKE[judged])} in the corpus" in warning
    )


@pytest.mark.parametrize(("missing", "warns"), [(2, 0), (4, 1)])
def test_only_when_most_judged_documents_are_missing_it_is_a_warning(missing, warns, tmp_path):
    gone = [
        {"query-id": "q1", "corpus-id": f"gone {number}", "score": 1} for number in range(missing)
    ]
    put(
        tmp_path,
        BEIR
        | {
            "qrels/test.tsv": BEIR["qrels/test.tsv"].replace(b"gone", b"d3"),
            "qrels/more.jsonl": b"",
        },
    )
    (tmp_path / "qrels/test.tsv").unlink()
    (tmp_path / "qrels/more.jsonl").write_bytes(jsonl([*QRELS[:3], *gone]))
    assert len(read_collection(tmp_path, tmp_path / "home").warnings) == warns


def test_cells_between_tabs_are_quoted_as_csv_does_it_and_end_in_their_line(tmp_path):
    table = tmp_path / "table.tsv"
    table.write_text('id\ttext\na\t"the ""rope tram"""\n"b"\t"x\ty"\n\t\nc\t5" nail\n')
    rows = [row["text"] for _, row in tables.read_headed(table)]
    assert rows == ['the "rope tram"', "x\ty", '5" nail']
    for broken in ('a\t"x\ny"\n', 'a\t"x\n', 'a\t"x" and "y"\n'):
        table.write_text(f"id\ttext\n{broken}")
        with pytest.raises(DataError, match=r"line 2: .*; is a quotation mark missing or too many"):
            list(tables.read_headed(table))


def test_a_stored_corpus_says_what_was_counted_when_it_was_read(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "LARGE", 1)
    folder = put(tmp_path / "data", FORMS["BEIR, repeats in numbers and parts"])
    first, second = (read_collection(folder, tmp_path / "home") for _ in range(2))
    assert isinstance(second.documents, StoredCorpus)
    assert (
        second.said == first.said
        and "Documents that are there again, counted once: 1." in second.said
    )


def test_an_id_of_ir_datasets_is_kept_in_beirs_form(tmp_path, monkeypatch):
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    package = pytest.importorskip("ir_datasets")
    texts = "".join(f"{doc_id}\t{text}\n" for doc_id, text in LINES.items())
    queries = "".join(f"{query_id}\t{text}\n" for query_id, text in QUERIES.items())
    (tmp_path / "collection.tsv").write_text(texts)
    (tmp_path / "queries.dev.tsv").write_text(queries)
    (tmp_path / "qrels.dev.tsv").write_text(TREC_QRELS)
    names = {
        "docs_tsv": "collection.tsv",
        "queries_tsv": "queries.dev.tsv",
        "qrels_trec": "qrels.dev.tsv",
    }
    data = package.create_dataset(**{kind: str(tmp_path / name) for kind, name in names.items()})
    package.registry.register(name := f"sextant/{tmp_path.name}", data)
    for place in (Path(f"ir_datasets:{name}"), Path(name)):
        read = read_collection(place, tmp_path / "home")
        assert {one.doc_id: one.text for one in read.documents.stream()} == LINES
        assert read.qrels == pytrec_eval.parse_qrel(TREC_QRELS.splitlines()) and list(
            read.queries
        ) == ["2", "q1"]
    with pytest.raises(UsageError, match="did you mean 'sextant/"):
        read_collection(Path(f"{name}s"), tmp_path / "home")


def test_a_task_says_which_of_its_files_are_outside_of_its_folder(tmp_path):
    task, elsewhere = tmp_path / "task", tmp_path / "elsewhere"
    task.mkdir()
    elsewhere.mkdir()
    (elsewhere / "blob").write_text('{"_id": "d1", "text": "the tides"}\n')
    (task / "corpus.jsonl").symlink_to(elsewhere / "blob")
    (task / "queries.jsonl").write_text('{"_id": "q1", "text": "tides"}\n')
    (task / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    said = read_collection(task, tmp_path / "home").said
    assert any(
        line.startswith("Files outside of the folder, ") and "corpus.jsonl" in line for line in said
    )

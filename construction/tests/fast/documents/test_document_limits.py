"""Files that a stranger made to stall whoever reads them: each is left out at a limit, and the others are read."""

import gzip
import subprocess
import sys

import pytest
from conftest import ROOT
from pdfs import make_pdf

from sextant.tools.errors import DataError
from sextant.tools.platform import files as disk
from sextant_construction import documents
from sextant_construction.documents.readers import Limits
from sextant_construction.documents.xml_records import XmlPaths
from sextant_construction.ingest import CorpusSettings, CutSettings, ingest
from sextant_construction.text_cleaning import CleanSettings

SMALL = Limits(seconds=1, memory=200, text=1)
GOOD = "<p>" + "The harbour publishes its tide tables twice a year. " * 5 + "</p>"


def read(folder, limits, record=XmlPaths()):  # noqa: B008
    left_out = list[tuple[str, str, str]]()
    files = documents.list_files(folder, "").files
    rows = [
        row
        for _, row in documents.read(
            folder, files, "", record, limits, lambda *one: left_out.append(one)
        )
    ]
    return {row["id"]: row["text"] for row in rows}, {name: reason for name, reason, _ in left_out}


def test_files_over_a_limit_are_left_out_and_named_and_those_after_them_are_read(tmp_path):
    files = {
        "b-attributes.html": f"<p {' '.join(f'a{n}=1' for n in range(100_000))}>x</p>".encode(),
        "c-memory.html": b"<p>" * (4 << 20),
        "d-text.html": ("<p>" + "A word or two. " * 100_000 + "</p>").encode(),
        "e-bomb.html.gz": gzip.compress(b"<p>hello</p>" * (10 << 20)),
        "f-text.txt": b"long " * (1 << 20),
        "g-good.html": GOOD.encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    texts, left_out = read(tmp_path, SMALL)
    assert list(texts) == ["g-good.html"]
    assert list(left_out) == list(files)[:5]
    assert left_out["b-attributes.html"] == "files that take too long to read"
    assert left_out["d-text.html"] == left_out["f-text.txt"] == "files with too much text"
    assert left_out["e-bomb.html.gz"] == "files that unpack to too much"


def test_of_an_xml_file_the_records_over_a_limit_are_left_out_alone(tmp_path):
    records = [f"<r>{text}</r>" for text in ("One.", "long " * (1 << 18), "Three.")]
    (tmp_path / "all.xml").write_text(f"<all>{''.join(records)}</all>")
    texts, left_out = read(tmp_path, SMALL, XmlPaths("r"))
    assert texts == {"all.xml:1": "One.", "all.xml:3": "Three."}
    assert left_out == {"all.xml:2": "files with too much text"}


def test_a_build_names_what_is_over_a_limit(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("long " * (1 << 20))
    (corpus / "b.txt").write_text("short")
    section = CorpusSettings(path=str(corpus), file_text=1)
    source = ingest(section, CleanSettings(), CutSettings(), tmp_path / "home")
    assert [document.text for document in source.documents.stream()] == ["short"]
    assert source.counts == {"files with too much text": 1}
    assert source.dropped is not None
    assert [disk.loads(line)[0] for line in disk.iter_lines(source.dropped)] == ["a.txt"]
    with pytest.raises(DataError, match=r"a.txt is one of files with too much text \(more than"):
        list(documents.read(corpus, [corpus / "a.txt"], "", XmlPaths(), Limits(text=1)))


def test_a_file_in_another_encoding_and_a_broken_pdf_are_left_out_and_named(tmp_path):
    (tmp_path / "a.md").write_bytes("# Köln".encode("cp1252"))
    (tmp_path / "b.pdf").write_bytes(make_pdf("Harbour notes")[:200])
    (tmp_path / "c.md").write_bytes("# Köln".encode("utf-16"))
    texts, left_out = read(tmp_path, Limits())
    assert texts == {"c.md": "# Köln"}
    assert set(left_out) == {"a.md", "b.pdf"}
    assert set(left_out.values()) == {"files that cannot be read"}


@pytest.mark.parametrize(("option", "least"), [("-t", "30"), ("-v", "4000000")])
def test_limits_of_the_system_below_ours_leave_no_good_file_out(tmp_path, option, least):
    (tmp_path / "a.html").write_text(GOOD)
    script = (
        "from pathlib import Path; from sextant_construction import documents;"
        "from sextant_construction.documents.xml_records import XmlPaths;"
        f"folder = Path({str(tmp_path)!r});"
        "print(len(list(documents.read(folder, [folder / 'a.html'], '', XmlPaths()))), 'read')"
    )
    command = ["sh", "-c", f'ulimit {option} {least}; exec "$0" -c "$1"', sys.executable, script]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.stdout == "1 read\n", ended.stderr

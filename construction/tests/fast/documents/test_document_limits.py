"""Files that a stranger made to stall whoever reads them: each is left out at a limit, and the others are read."""

import gzip
import subprocess
import sys

import pytest
from conftest import ROOT
from pdfs import make_pdf

from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.platform import files as disk
from sextant_construction import documents
from sextant_construction.documents import readers
from sextant_construction.documents.markup import XmlPaths, write_markdown
from sextant_construction.documents.readers import Limits
from sextant_construction.ingest import CorpusSettings, CutSettings, ingest
from sextant_construction.text_cleaning import CleanSettings

SMALL = Limits(seconds=1, memory=200, text=1)
ENDLESS = '<div a="' * 4000  # of wikitext: minutes, and twice the length takes four times as long
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


def page(number, text):
    return f"<page><title>P{number}</title><ns>0</ns><id>{number}</id><revision><text>{text}</text></revision></page>"


def test_files_over_a_limit_are_left_out_and_named_and_those_after_them_are_read(tmp_path):
    files = {
        "a-time.wiki": ENDLESS.encode(),
        "b-attributes.html": f"<p {' '.join(f'a{n}=1' for n in range(100_000))}>x</p>".encode(),
        "c-memory.html": b"<p>" * (4 << 20),
        "d-text.html": ("<p>" + "A word or two. " * 100_000 + "</p>").encode(),
        "e-bomb.html.gz": gzip.compress(b"<p>hello</p>" * (10 << 20)),
        "f-text.txt": b"long " * (1 << 20),
        "g-good.html": GOOD.encode(),
        "h-good.wiki": b"== Tides ==\nAt noon.",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    texts, left_out = read(tmp_path, SMALL)
    assert (
        list(texts) == ["g-good.html", "h-good.wiki"]
        and texts["h-good.wiki"] == "## Tides\n\nAt noon."
    )
    assert list(left_out) == list(files)[:6]
    assert (
        left_out["a-time.wiki"]
        == left_out["b-attributes.html"]
        == "files that take too long to read"
    )
    assert left_out["d-text.html"] == left_out["f-text.txt"] == "files with too much text"
    assert left_out["e-bomb.html.gz"] == "files that unpack to too much"


def test_of_a_dump_the_pages_over_a_limit_are_left_out_alone(tmp_path):
    stalls = ENDLESS.replace("<", "&lt;").replace('"', "&quot;")
    pages = [
        page(1, "One."),
        page(2, stalls),
        page(3, "Three."),
        page(4, "long " * (1 << 18)),
        page(5, "Five."),
    ]
    (tmp_path / "dump.xml").write_text(f"<mediawiki>{''.join(pages)}</mediawiki>")
    texts, left_out = read(tmp_path, Limits(seconds=1, memory=500, text=1))
    assert texts == {"1": "One.", "3": "Three.", "5": "Five."}
    assert left_out == {
        "dump.xml:2": "files that take too long to read",
        "dump.xml:4": "files with too much text",
    }


@pytest.mark.parametrize("text", ["{{a|", "{{{a|", "[[a|", "{|\n|\n"])
def test_marks_that_nothing_closes_are_text_and_take_no_longer_in_a_long_page(text):
    assert write_markdown(text * 20_000) == (text * 20_000).strip()


def test_a_page_of_a_pdf_is_read_once_however_often_it_is_named(tmp_path):
    (tmp_path / "pages.pdf").write_bytes(make_pdf("Harbour notes", pages=20_000))
    assert read(tmp_path, Limits()) == ({"pages.pdf": "Harbour notes"}, {})


def test_a_build_names_what_is_over_a_limit(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("long " * (1 << 20))
    (corpus / "b.txt").write_text("short")
    section = CorpusSettings(path=str(corpus), file_text=1)
    source = ingest(section, CleanSettings(), CutSettings(), tmp_path / "home")
    assert [document.text for document in source.documents.stream()] == ["short"]
    assert source.counts == {"files with too much text": 1} and "a.txt" in source.warnings[0]
    assert source.dropped is not None
    assert [disk.loads(line)[0] for line in disk.iter_lines(source.dropped)] == ["a.txt"]
    with pytest.raises(DataError, match=r"a.txt is one of files with too much text \(more than"):
        list(documents.read(corpus, [corpus / "a.txt"], "", XmlPaths(), Limits(text=1)))


def test_a_file_in_another_encoding_and_a_broken_pdf_are_left_out_and_named(tmp_path):
    (tmp_path / "a.md").write_bytes("# Köln".encode("cp1252"))
    (tmp_path / "b.pdf").write_bytes(make_pdf("Harbour notes")[:200])
    (tmp_path / "c.md").write_bytes("# Köln".encode("utf-16"))
    texts, left_out = read(tmp_path, Limits())
    assert texts == {}
    assert set(left_out) == {"a.md", "b.pdf", "c.md"}
    assert set(left_out.values()) == {"files that cannot be read"}


@pytest.mark.parametrize(("option", "least"), [("-t", "30"), ("-v", "4000000")])
def test_limits_of_the_system_below_ours_leave_no_good_file_out(tmp_path, option, least):
    (tmp_path / "a.html").write_text(GOOD)
    script = (
        "from pathlib import Path; from sextant_construction import documents;"
        "from sextant_construction.documents.markup import XmlPaths;"
        f"folder = Path({str(tmp_path)!r});"
        "print(len(list(documents.read(folder, [folder / 'a.html'], '', XmlPaths()))), 'read')"
    )
    command = ["sh", "-c", f'ulimit {option} {least}; exec "$0" -c "$1"', sys.executable, script]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.stdout == "1 read\n", ended.stderr


def test_a_reader_that_the_system_ends_is_no_fault_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "a.html").write_text(GOOD)
    monkeypatch.setattr(readers, "hard_limit", lambda name: 1 << 30)
    monkeypatch.setattr(readers.Readers, "_receive", ended_by_the_system)
    with pytest.raises(RunIncomplete, match="ulimit -v"):
        read(tmp_path, Limits())


def ended_by_the_system(self, request):
    raise EOFError

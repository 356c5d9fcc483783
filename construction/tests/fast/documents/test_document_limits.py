"""Files that a stranger made to stall whoever reads them: each is left out at a limit, and the others are read."""

import gzip
import subprocess
import sys

import pytest
from conftest import ROOT
from pdfs import make_pdf

from sextant.tools.platform import files as disk
from sextant_construction import documents
from sextant_construction.documents.readers import OVER_LIMIT, Limits
from sextant_construction.ingest import CorpusSettings, CutSettings, ingest
from sextant_construction.text_cleaning import CleanSettings

LARGE = Limits(seconds=60, memory=2048, text=64)
SMALL = Limits(seconds=1, memory=200, text=1)
ENDLESS = '<div a="' * 4000  # of wikitext: minutes, and twice the length takes four times as long
GOOD = "<p>" + "The harbour publishes its tide tables twice a year. " * 5 + "</p>"


def read(folder, limits):
    left_out = list[tuple[str, str, str]]()
    files = documents.list_files(folder).files
    rows = [
        row
        for _, row in documents.read(folder, files, "", limits, lambda *one: left_out.append(one))
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
    assert {*left_out.values()} == {OVER_LIMIT}


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
    assert left_out == {"dump.xml:2": OVER_LIMIT, "dump.xml:4": OVER_LIMIT}


def test_a_build_names_what_is_over_a_limit(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("long " * (1 << 20))
    (corpus / "b.txt").write_text("short")
    section = CorpusSettings(path=str(corpus), file_text=1)
    source = ingest(section, CleanSettings(), CutSettings(), tmp_path / "home")
    assert [document.text for document in source.documents.stream()] == ["short"]
    assert source.counts == {OVER_LIMIT: 1} and "a.txt" in source.warnings[0]
    assert source.dropped is not None
    assert [disk.loads(line)[0] for line in disk.iter_lines(source.dropped)] == ["a.txt"]


def test_a_file_in_another_encoding_and_a_broken_pdf_are_left_out_and_named(tmp_path):
    (tmp_path / "a.md").write_bytes("# Köln".encode("cp1252"))
    (tmp_path / "b.pdf").write_bytes(make_pdf("Harbour notes")[:200])
    (tmp_path / "c.md").write_bytes("# Köln".encode("utf-16"))
    texts, left_out = read(tmp_path, LARGE)
    assert texts == {}
    assert set(left_out) == {"a.md", "b.pdf", "c.md"}
    assert set(left_out.values()) == {"files that cannot be read"}


@pytest.mark.parametrize(("option", "least"), [("-t", "30"), ("-v", "4000000")])
def test_limits_of_the_system_below_ours_leave_no_good_file_out(tmp_path, option, least):
    (tmp_path / "a.html").write_text(GOOD)
    script = (
        "from pathlib import Path; from sextant_construction import documents;"
        "from sextant_construction.documents.readers import Limits;"
        f"folder = Path({str(tmp_path)!r});"
        "files, limits = [folder / 'a.html'], Limits(60, 2048, 64);"
        "print(len(list(documents.read(folder, files, '', limits, print))), 'read')"
    )
    command = ["sh", "-c", f'ulimit {option} {least}; exec "$0" -c "$1"', sys.executable, script]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.stdout == "1 read\n", ended.stderr

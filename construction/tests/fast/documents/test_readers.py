"""Each form of files that people have, read from a file of that form, and what damage to it is called."""

import bz2
import gzip
from collections import Counter

import pytest
from pdfs import make_pdf

from sextant.tools.errors import DataError, UsageError
from sextant_construction import documents
from sextant_construction.documents import pages
from sextant_construction.documents.markup import write_markdown
from sextant_construction.documents.readers import Limits

PAGE = """<html><head><title>Tide tables</title></head><body><nav><a href="/">Home</a> <a href="/b">About us</a></nav>
<article><h1>Tide tables</h1><p>The harbour publishes its tide tables twice a year, and says when the water comes.</p>
<h2>Springs</h2><ul><li>March</li><li>September</li></ul><table><tr><th>Day</th><th>High</th></tr>
<tr><td>1</td><td>6:00</td></tr></table></article><footer>Copyright 2020</footer>
<script>alert(1)</script></body></html>"""

WIKI = """{{Infobox person
| name = Ilse Brandauer
| born = {{birth date|1909|3|11}}
}}
'''Ilse Brandauer''' was an [[Austria]]n [[Glider (aircraft)|glider]] pilot.<ref>Book 1</ref>{{citation needed}}

== Life ==
* one [http://x.org link]
** deep

{| class="wikitable"
! Year !! Place
|-
| 1930 || 2nd
|}
[[File:x.jpg|thumb|caption]]
[[Category:Pilots]]"""

IN_MARKDOWN = """- name: Ilse Brandauer
- born: 1909 3 11

Ilse Brandauer was an Austrian glider pilot.

## Life

- one link
  - deep

 Year  Place
 1930  2nd"""

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><sitename>W</sitename></siteinfo>
<page><title>Crake</title><ns>0</ns><id>7</id><revision><id>1</id>
<text>A '''crake''' &amp; more.</text></revision></page>
<page><title>Talk:Crake</title><ns>1</ns><id>8</id><revision><text>talk</text></revision></page>
<page><title>Rail</title><ns>0</ns><id>9</id><redirect title="Crake"/><revision><text>x</text></revision></page>
</mediawiki>"""

TRIALS = """<trials><study><nct>N1</nct><title>On  digoxin</title><eligibility><criteria>Adults &lt; 80
<b>only</b></criteria></eligibility></study><study><nct>N2</nct><title>Other</title></study></trials>"""


def refuse(name, reason, evidence):
    raise DataError(f"{name}: {reason} ({evidence})")


def read(path, record=""):
    listed = documents.list_files(path)
    counts = Counter(one.reason for one in listed.left_out)
    limits = Limits(seconds=60, memory=2048, text=64)
    rows = documents.read(path, listed.files, record, limits, refuse)
    return [row for _, row in rows], counts


def test_a_folder_is_read_file_by_file_as_their_names_say_with_paths_as_ids_and_without_hidden_files(
    tmp_path,
):
    files = {
        "a.md": "# Tides\n\nthe *water*\n",
        "deep/b.txt": "plain\ntext",
        "deep/page.HTML": PAGE,
        "Ilse_Brandauer.wiki": WIKI,
        ".git/c.md": "hidden",
        "photo.jpg": "not a text",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "e.pdf").write_bytes(make_pdf("Harbour notes"))
    rows, counts = read(tmp_path)
    texts = {row["id"]: row["text"].strip() for row in rows}
    assert list(texts) == [
        "Ilse_Brandauer.wiki",
        "a.md",
        "d.txt.gz",
        "deep/b.txt",
        "deep/page.HTML",
        "e.pdf",
    ]
    assert texts["a.md"] == "# Tides\n\nthe *water*" and texts["deep/b.txt"] == "plain\ntext"
    assert texts["d.txt.gz"] == "packed" and texts["e.pdf"] == "Harbour notes"
    assert counts == {"files of another form, left out": 1}
    assert {row["id"]: row.get("title") for row in rows}["Ilse_Brandauer.wiki"] == "Ilse Brandauer"


def test_of_a_web_page_the_main_text_is_kept_as_markdown(tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    [row], _ = read(tmp_path / "page.html")
    lines = [" ".join(line.split()) for line in row["text"].splitlines() if line.strip()]
    assert row["title"] == "Tide tables" and lines == [
        "# Tide tables",
        "The harbour publishes its tide tables twice a year, and says when the water comes.",
        *["## Springs", "- March", "- September", "| Day | High |", "|---|---|", "| 1 | 6:00 |"],
    ]
    (tmp_path / "short.html").write_text("<p>short</p>")
    assert read(tmp_path / "short.html")[0][0]["text"] == "short"


def test_wikitext_becomes_markdown_with_its_headings_lists_tables_and_infobox():
    assert write_markdown(WIKI) == IN_MARKDOWN
    assert write_markdown("unclosed [[link {{t") == "unclosed [[link {{t"


def test_of_a_dump_of_a_wiki_the_articles_are_read(tmp_path):
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(DUMP.encode()))
    assert read(tmp_path)[0] == [{"id": "7", "title": "Crake", "text": "A crake & more."}]


def test_records_of_xml_are_those_that_a_recipe_names_or_the_whole_file(tmp_path):
    (tmp_path / "trials.xml").write_text(TRIALS)
    first, second = read(tmp_path / "trials.xml", record="study")[0]
    assert first["id"] == "trials.xml:1" and first["text"].splitlines()[::2] == [
        "N1",
        "On digoxin",
        "Adults < 80",
        "only",
    ]
    assert second == {"id": "trials.xml:2", "text": "N2\n\nOther"}
    [whole] = read(tmp_path / "trials.xml")[0]
    assert whole["text"].split() == [
        "N1",
        "On",
        "digoxin",
        "Adults",
        "<",
        "80",
        "only",
        "N2",
        "Other",
    ]
    with pytest.raises(DataError, match="no element <trial>"):
        read(tmp_path / "trials.xml", record="trial")


def test_of_a_collection_only_the_corpus_is_read(tmp_path):
    (tmp_path / "corpus.csv").write_text('id,text\n1,"a; b, c"\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "asked"}\n')
    assert read(tmp_path)[0] == [{"id": "1", "text": "a; b, c"}]


BOMB = "<!DOCTYPE r [<!ENTITY a 'x'>" + "".join(
    f"<!ENTITY {chr(98 + n)} '{f'&{chr(97 + n)};' * 20}'>" for n in range(12)
)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.md", b"good\nbad \xe9\n", "a.md, line 2: byte 0xe9 is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "a.jsonl, line 2: not whole JSON"),
        (
            "a.txt.gz",
            gzip.compress(b"x" * 99, mtime=0)[:-6],
            "a.txt.gz cannot be read",
        ),
        ("a.xml", b"<r><a>torn", "a.xml is not whole XML"),
        ("a.xml.bz2", bz2.compress(DUMP.encode())[:-9], "a.xml.bz2"),
        ("a.xml", f"{BOMB}]><r>&m;</r>".encode(), "a.xml is not whole XML"),
        (
            "a.xml",
            b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><r>&x;</r>',
            "a.xml is not whole XML",
        ),
        ("a.pdf", b"%PDF-1.4 torn", "a.pdf cannot be read as pdf"),
        ("a.pdf", make_pdf("cut off")[:200], "a.pdf cannot be read as pdf"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read as Parquet"),
        ("a.jpg", b"", "holds no file that is read"),
    ],
)
def test_damage_is_one_line_with_its_place(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    said = r"PDFs need the package pypdf, which is not installed; run .*construction\[sources\]'"
    with pytest.raises(UsageError, match=said):
        pages.need(*pages.NEEDED["pdf"])

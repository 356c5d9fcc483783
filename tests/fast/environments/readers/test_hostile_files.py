"""Small files that are made to take long: each is read, or refused in one line, in time that grows with its length.

None of the tests looks at a clock. With a reader that goes back over what it has read, each would take minutes.
"""

import re

import pytest

from sextant.environments.readers import files, trec_tags
from sextant.tools.errors import DataError

MANY = 100_000
TOPIC = "<topic number='1'>weirs</topic>"


def read_table(path):
    return files.read_headed(path)


def read_grades(path):
    return [files.check_grade(text, str(path)) for text in path.read_text().split()]


FILES = {  # what reads the file, its content, and what is said of it: "" where it is read
    "open comments": (
        trec_tags.read_topics,
        "<!-- a" * 4 * MANY,
        "has no <top> or <topic> in it",
    ),
    "open sections": (trec_tags.read_topics, "<top>" + "<![CDATA[" * 3 * MANY, ""),
    "open document types": (
        trec_tags.read_topics,
        "<!DOCTYPE [" * 3 * MANY,
        "has no <top> or <topic> in it",
    ),
    "sections of every form, open in turn": (
        trec_tags.read_topics,
        "<!DOCTYPE [<!-- a<![CDATA[" * MANY,
        "has no <top> or <topic> in it",
    ),
    "a long attribute": (
        trec_tags.read_topics,
        f"<topic {'a' * 5 * MANY}='' number='1'>weirs</topic>",
        "",
    ),
    "many entities": (
        trec_tags.read_topics,
        "<!DOCTYPE topic ["
        + "".join(f'<!ENTITY e{n} "x">' for n in range(30_000))
        + f"]><topic number='1'>{''.join(f'&e{n};' for n in range(30_000))}</topic>",
        "",
    ),
    "an entity that grows": (
        trec_tags.read_topics,
        f'<!DOCTYPE topic [<!ENTITY e "{"x" * MANY}">]><topic number="1">{"&e;" * MANY}</topic>',
        "is not whole XML",
    ),
    "open fields": (
        trec_tags.read_documents,
        f"<doc>{'<title><text>' * 2 * MANY}</doc>",
        "it is not one <DOC>",
    ),
    "open quotation marks": (
        read_table,
        "a\tb\n" + '"x"y\t' * 4 * MANY + "\n",
        "line 2: .*; is a quotation mark missing",
    ),
    "a long cell that nothing closes": (
        read_table,
        'a\tb\n1\t"x"y"z' + ('y z "u"s ' * 400 + "\n") * 2000,
        "line 2: .*; is a quotation mark missing",
    ),
    "marks and tabs that close nothing": (
        read_table,
        'a\tb\n1\t"x"y"z' + ('\t"q"r\tb' * 600 + "\n") * 990,
        "line 2: .*; is a quotation mark missing",
    ),
    "a long number": (read_grades, "1" * 4 * MANY + "x", "is not a number up to"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_made_to_take_long_is_read_or_refused_at_once(name, tmp_path):
    read, content, refusal = FILES[name]
    path = tmp_path / "file.txt"
    path.write_text(content)
    if not refusal:
        assert len(list(read(path))) == 1
        return
    with pytest.raises(DataError, match=refusal) as refused:
        list(read(path))
    assert not re.search("\n", str(refused.value))


def test_a_comment_in_a_section_of_text_is_text_and_a_section_in_a_comment_is_none(tmp_path):
    path = tmp_path / "topics.xml"
    inside = "<![CDATA[a <!-- b --> c]]> <!-- <![CDATA[ d --> e"
    path.write_text(
        "<!DOCTYPE topics [<!ELEMENT topic ANY> ] >"
        f'<topics>{TOPIC}<topic number="2">{inside}</topic></topics>'
    )
    assert [row["text"] for _, row in trec_tags.read_topics(path)] == [
        "weirs",
        "a <!-- b --> c e",
    ]

"""What people judge of a benchmark in the making: sheets out, answers in, and how far all agree."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from scipy.stats import bootstrap, spearmanr
from sklearn import metrics

from sextant.tools.platform.cli import CommandParser, run_command
from sextant_construction import human_review
from sextant_construction.agreement import agree
from sextant_construction.human_review import SHEETS, Item, answers, identify, offer


@pytest.fixture
def command(tmp_path, capsys):
    """`build review FOLDER ...`; its exit code, what it printed, and what it said."""

    def called(*words):
        human_review.add_options(parser := CommandParser())
        told = [str(word) for word in (tmp_path, *words)]
        code = run_command(parser, human_review.command, told)
        return code, *capsys.readouterr()

    return called


def graded(number, model="2"):
    return Item([("Query", f"query {number}"), ("Document", f"document {number}")], model)


def group(number):
    members = [f"d{number}-{place}" for place in range(4)]
    return Item(
        [("Label", f"label {number}"), *((one, f"text of {one}") for one in members)],
        members[:1],
        members,
    )


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def said(sheet, item, value, rater="ann", note=""):
    return {"item": identify(sheet, item), "rater": rater, "value": value, "note": note}


def agreement(folder):
    return json.loads((folder / "review/agreement.json").read_text())


def packed(page):
    (data,) = re.findall(r'data-path="sheet.json">([^<]*)<', page)
    return json.loads(gzip.decompress(base64.b64decode(data)))


# --- agreement


@pytest.mark.parametrize("seed", range(5))
def test_agreement_is_that_of_scikit_learn_and_scipy(seed):
    draw = np.random.default_rng(seed)
    first = draw.integers(0, 3, 90)
    second = np.where(draw.random(90) < 0.6, first, draw.integers(0, 3, 90))
    found = agree([[(str(a), str(b))] for a, b in zip(first, second, strict=True)], ["0", "1", "2"])
    assert found.agreement.mean == pytest.approx(np.mean(first == second))
    assert found.kappa.mean == pytest.approx(metrics.cohen_kappa_score(first, second))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(first, second, average="macro"))
    assert found.spearman == pytest.approx(spearmanr(first, second).statistic)
    theirs = bootstrap(
        (first, second),
        metrics.cohen_kappa_score,
        paired=True,
        vectorized=False,
        n_resamples=999,
        method="percentile",
    ).confidence_interval
    assert [found.kappa.low, found.kappa.high] == pytest.approx([theirs.low, theirs.high], abs=0.03)


def test_what_values_do_not_define_is_not_invented():
    assert agree([]) is None and agree([[]]) is None
    always = agree([[("1", "1")]] * 5, ["0", "1"])
    assert (always.agreement.mean, always.kappa, always.spearman, always.macro_f1) == (
        1,
        None,
        None,
        1,
    )
    assert agree([[("0", "1")]]).agreement == (0, None, None)


def test_pairs_of_an_item_are_drawn_together():
    """Eight choices of one item are no eight items: the interval is as wide as that of the items."""
    items = [[("no", "no" if place % 2 else "yes")] for place in range(20)]
    alone, repeated = agree(items), agree([pairs * 8 for pairs in items])
    assert alone.agreement == repeated.agreement


# --- sheets out


def test_a_sheet_is_the_same_sample_whatever_the_order_and_whatever_was_there(tmp_path):
    items = [graded(number, str(number % 3)) for number in range(300)]
    offer(tmp_path / "a", "gold", items)
    offer(tmp_path / "b", "gold", items[:7])
    offer(tmp_path / "b", "gold", [*reversed(items), *items])
    first, second = ((tmp_path / name / "review/offered/gold.jsonl").read_bytes() for name in "ab")
    assert first == second and first.count(b"\n") == SHEETS["gold"].size


def test_screening_takes_as_many_of_each_class(tmp_path):
    classes = ["implicit", "stated"]
    items = [Item([("Document", str(n))], classes[n % 10 == 0], classes) for n in range(700)]
    offer(tmp_path, "screening", items)
    models = [
        json.loads(line)["model"] for line in (tmp_path / "review/offered/screening.jsonl").open()
    ]
    assert [models.count(name) for name in classes] == [50, 50]


def test_the_page_does_not_tell_what_the_model_said(tmp_path, command):
    groups = [group(number) for number in range(30)]
    offer(tmp_path, "clusters", groups)
    offer(tmp_path, "gold", [graded(1, "secret")])
    code, out, _ = command("--out", tmp_path / "sheet.html")
    assert code == 0 and "31 items" in out
    page = packed((tmp_path / "sheet.html").read_text())
    assert all(
        item.keys() == {"item", "show", "values"}
        for sheet in page["sheets"]
        for item in sheet["items"]
    )
    assert "secret" not in json.dumps(page)
    # The model's member is the first that the stage gave; it is not the first that is shown.
    first = [
        item["values"][0][-1]
        for sheet in page["sheets"]
        for item in sheet["items"]
        if sheet["many"]
    ]
    assert 2 < first.count("0") < 15


def test_what_is_not_offered_cannot_be_judged(tmp_path, command):
    for words in (["--out", tmp_path / "sheet.html"], []):
        code, out, err = command(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)


# --- answers in


def test_answers_are_taken_once_and_what_is_wrong_is_said_a_line_each(tmp_path, command):
    items = [graded(number) for number in range(4)]
    offer(tmp_path, "gold", items)
    rows = [
        said("gold", item, value) for item, value in zip(items, ["2", "1", "7", None], strict=True)
    ]
    strange = {"item": "gold-0123", "rater": "ann", "value": "2"}
    given = write(
        tmp_path / "a.jsonl",
        *rows,
        strange,
        said("gold", items[0], "0"),
        said("gold", items[1], "1", " "),
    )
    given.write_text(given.read_text() + "{no json\n\n")
    code, _, err = command("--in", given)
    assert code == 3 and [
        line.split(":")[0].rsplit(" ")[-1] for line in err.splitlines()[:-1]
    ] == list("35678")
    assert "5 answers refused" in err.splitlines()[-1] and "'7' is no answer" in err
    assert answers(tmp_path) == {identify("gold", items[0]): "2", identify("gold", items[1]): "1"}
    kept = (tmp_path / "review/answers.jsonl").read_bytes()
    assert command("--in", write(tmp_path / "b.jsonl", *rows[:2]), given)[0] == 3
    assert (tmp_path / "review/answers.jsonl").read_bytes() == kept


def test_answers_hold_for_a_build_made_again_that_shows_the_same(tmp_path, command):
    offer(tmp_path, "gold", [graded(1), graded(2)])
    rows = said("gold", graded(1), "0"), said("gold", graded(2), "1")
    assert command("--in", write(tmp_path / "a.jsonl", *rows))[0] == 0
    offer(
        tmp_path, "gold", [graded(1, "0"), graded(3)]
    )  # the model thinks otherwise by now; one item is new
    assert answers(tmp_path)[identify("gold", graded(1))] == "0"
    assert human_review.measure_agreement(tmp_path)["sheets"]["gold"]["model agreement"].mean == 1
    (tmp_path / "review/answers.jsonl").open("ab").write(b'{"item": "torn')
    assert command("--in", write(tmp_path / "b.jsonl", said("gold", graded(3), "2")))[0] == 0
    assert len(answers(tmp_path)) == 3


def test_what_people_are_divided_about_has_no_answer(tmp_path, command):
    items = [graded(number) for number in range(3)]
    offer(tmp_path, "gold", items)
    rows = [said("gold", items[0], value, rater) for value, rater in zip("221", "abc", strict=True)]
    rows += [said("gold", items[1], value, rater) for value, rater in zip("21", "ab", strict=True)]
    assert command("--in", write(tmp_path / "a.jsonl", *rows))[0] == 0
    assert answers(tmp_path) == {identify("gold", items[0]): "2"}
    assert agreement(tmp_path)["sheets"]["gold"]["divided"] == 1


def test_where_many_values_apply_those_do_that_more_than_half_chose(tmp_path, command):
    item = group(0)
    first, second, third, _ = item.values
    offer(tmp_path, "clusters", [item])
    chosen = {"a": [first, second], "b": [first], "c": [second, first, third]}
    rows = [said("clusters", item, value, rater) for rater, value in chosen.items()]
    assert command("--in", write(tmp_path / "a.jsonl", *rows[:2]))[0] == 0
    assert answers(tmp_path) == {identify("clusters", item): [first]}
    assert command("--in", write(tmp_path / "b.jsonl", *rows))[0] == 0
    assert sorted(answers(tmp_path)[identify("clusters", item)]) == [first, second]


def test_agreement_says_which_sheet_is_below_its_bar(tmp_path, command):
    assert human_review.describe(tmp_path) == human_review.NOBODY
    draw = np.random.default_rng(0)
    items = [graded(number, str(draw.integers(0, 3))) for number in range(60)]
    offer(tmp_path, "gold", items)
    assert human_review.describe(tmp_path) == human_review.NOBODY
    ann = [item.model if draw.random() < 0.9 else str(draw.integers(0, 3)) for item in items]
    ben = [one if draw.random() < 0.3 else str(draw.integers(0, 3)) for one in ann]
    for rater, values in (("ann", ann), ("ben", ben)):
        rows = [said("gold", item, value, rater) for item, value in zip(items, values, strict=True)]
        code, out, _ = command("--in", write(tmp_path / f"{rater}.jsonl", *rows))
    found = agreement(tmp_path)
    people, model = metrics.cohen_kappa_score(ann, ben), [item.model for item in items]
    with_model = metrics.cohen_kappa_score([*model, *model], ann + ben)
    gold = found["sheets"]["gold"]
    assert gold["people kappa"][0] == pytest.approx(people) and gold["model kappa"][
        0
    ] == pytest.approx(with_model)
    assert people < 0.6 and f"gold is below its bar: people kappa {people:.2f}" in " ".join(
        found["below"]
    )
    line = human_review.describe(tmp_path)
    assert code == 0 and line in out and "Checked by 2 people: 120 judgements; gold: kappa" in line


def test_where_many_values_apply_each_of_them_is_a_judgement(tmp_path, command):
    groups = [group(number) for number in range(10)]
    offer(tmp_path, "clusters", groups)
    # Of 40 choices, 10 are the model's. A person finds nine of them, and one that is none.
    rows = [said("clusters", item, item.values[:1]) for item in groups[2:]]
    rows += [
        said("clusters", groups[0], []),
        said("clusters", groups[1], list(groups[1].values[:2])),
    ]
    assert command("--in", write(tmp_path / "a.jsonl", *rows))[0] == 0
    found = agreement(tmp_path)["sheets"]["clusters"]
    assert found["model agreement"][0] == pytest.approx(38 / 40)
    assert (found["model chosen"], found["model left"]) == pytest.approx((9 / 10, 29 / 30))
    assert answers(tmp_path)[identify("clusters", groups[0])] == []


def test_every_sheets_bar_names_a_figure_that_is_computed(tmp_path, command):
    for name, form in SHEETS.items():
        own = ["x", "y"] if form.multiple or not form.values else []
        values = [*own, *form.values]
        items = [
            Item([("Text", str(n)), *((one, one) for one in own)], None, own) for n in range(4)
        ]
        items = [
            item._replace(model=values[:1] if form.multiple else values[n % 2])
            for n, item in enumerate(items)
        ]
        offer(tmp_path, name, items)
        rows = [said(name, item, item.model, rater) for item in items for rater in ("ann", "ben")]
        assert command("--in", write(tmp_path / "a.jsonl", *rows))[0] == 0
        found = agreement(tmp_path)
        assert form.bar.keys() <= found["sheets"][name].keys() and found["below"] == []
        assert all(a["model agreement"][0] == 1 for a in found["sheets"].values())

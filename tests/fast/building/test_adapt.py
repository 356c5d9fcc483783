"""Labels carried over to passages, and CRUMB's passages made again from its documents."""

import json

import pytest
from building import build

import environments
from environments.chunking import bert_tokens, chunks
from evals.building.adapt import Adapt, AdaptSection, compare_labels, compare_passages, make
from evals.building.clean import CleanSection
from evals.building.ingest import CorpusSection, CutSection, ingest
from evals.building.release import write
from tools.corpus import Corpus
from tools.errors import UsageError
from tools.records import Document


class Build:
    """What a recipe is given, with a list of what it dropped and offered, and the answers of a person."""

    def __init__(self, home, corpus, cut=None, clean=None, answers=None, **adapt):
        sections = {"corpus": corpus, "clean": clean or CleanSection(), "cut": cut or CutSection()}
        self.recipe, self.answers, self.folder = Adapt(**sections, adapt=AdaptSection(**adapt)), answers or {}, home
        self.source = ingest(corpus, self.recipe.clean, self.recipe.cut, home)
        self.dropped, self.offered, self.counts = [], [], {}

    def drop(self, stage, item, why, evidence=""):
        self.dropped.append((item, why, evidence))

    def review(self, sheet, values, show):
        for one in values:
            self.offered.append((one, dict(show(one).show)))
            values[one] = self.answers.get(one, values[one])

    def count(self, stage, went_in, came_out):
        self.counts[stage] = went_in, came_out


@pytest.mark.parametrize("task", ["tip_of_the_tongue", "set_ops", "clinical_trial", "legal_qa", "stack_exchange"])
def test_crumbs_passages_and_labels_are_those_that_its_documents_make(task, tmp_path):
    whole, cut = (environments.load(f"crumb/{task}{of}", "mini", "all") for of in (":document", ""))
    [row] = compare_passages(whole.documents, cut.documents)
    assert (row["what"], row["passages"], row["share"]) == ("equal", len(cut.documents), 1)
    if "document" in cut.judgements:
        equal, every = compare_labels(cut)
        assert equal == every > 0
    corpus, by_document = CorpusSection(f"task:crumb/{task}:document", data="mini"), {"max_p": not cut.max_p}
    made = make(Build(tmp_path, corpus, CutSection(by="chunks"), **by_document))
    assert [one.text for one in made.documents.stream()] == [one.text for one in cut.documents.stream()]
    if cut.max_p:  # whose release hands labels down to every passage
        assert made.judgements["gold"] == cut.judgements["passage"].qrels
    else:
        assert made.judgements["gold"] == whole.qrels and made.settings["max_p"] == ":"
    write(made, tmp_path, {})
    released, dev = (environments.load(str(tmp_path / "release"), split=split) for split in ("all", "dev"))
    assert {query.text for query in released.queries} == {query.text for query in cut.queries}
    assert {query.text for query in dev.queries} == {
        query.text for query in environments.load(f"crumb/{task}", "mini", "dev").queries
    }
    assert released.judgements["gold"].qrels == made.judgements["gold"]
    assert [one.text for one in released.documents.stream()] == [one.text for one in made.documents.stream()]


def test_passages_that_differ_are_told_apart_by_how():
    page = "# T\n\n" + "\n\n".join(" ".join([f"word{n}"] * 30) for n in range(4))
    pages = Corpus(Document(name, page) for name in "abcd")
    made = chunks(page, bert_tokens(), 90)
    assert len(made) > 1
    whole = [page.replace("\n\n", "\n")]
    released = {"a": made, "b": [f"{one}\n" for one in made], "c": whole, "d": ["another text"]}
    passages = Corpus(
        Document(f"{of}:{n}", text, parent=of) for of, all_ in released.items() for n, text in enumerate(all_)
    )
    rows = compare_passages(pages, passages, limit=90)
    assert {row["what"]: (row["passages"], row["example"]) for row in rows} == {
        "equal": (len(made), "a"),
        "equal but for white space": (len(made), "b"),
        "same text, cut elsewhere": (1, "c"),
        "other text": (1, "d"),
    }


OLD = {
    "o1": "Freezing slows the enzymes of vegetables down but does not stop them, so that they lose their colour.",
    "o2": "Blanching for two minutes in boiling water stops the enzymes before the vegetables are frozen at home.",
    "o3": "A third passage says something else about strawberries, which are not blanched but frozen with sugar.",
    "o4": "never relevant to anything that anybody asked",
}


def write_task(folder):
    """A task of old passages, and pages made anew in which they stand: o3 for three quarters, o2 not in one piece."""
    task, pages = folder / "task", folder / "pages"
    task.mkdir()
    pages.mkdir()
    queries = {"q1": ["o1"], "q2": ["o1", "o2"], "q3": ["o3"]}
    grades = [(one, doc_id, 2) for one, judged in queries.items() for doc_id in judged] + [("q1", "o4", 0)]
    tables = {
        "corpus": [{"_id": doc_id, "text": text} for doc_id, text in OLD.items()],
        "queries": [{"_id": one, "text": f"question {one}"} for one in queries],
        "qrels": [{"qid": one, "doc_id": doc_id, "score": grade} for one, doc_id, grade in grades],
        "states": [{"_id": one, "state": "Norwick"} for one in queries],
    }
    for name, rows in tables.items():
        (task / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    half, quarter = OLD["o2"].split(), OLD["o3"].split()
    (pages / "ice.md").write_text(f"# Ice\n\nBefore it. {OLD['o1'].upper()} *After.*\n\n{' '.join(half[:8])}\n")
    (pages / "sugar.md").write_text(f"# Sugar\n\n{' '.join(half[8:])}\n\n{' '.join(quarter[4:])}\n")
    return task, CorpusSection(str(pages))


def test_a_query_stays_only_if_all_its_old_passages_stand_in_new_ones(tmp_path):
    task, pages = write_task(tmp_path)
    adapt = {"task": str(task), "labels": "passages", "positive": 2.0, "fields": str(task / "states.jsonl")}
    adapt["phrase"] = "In the state of {state}: {text}"
    build = Build(tmp_path / "home", pages, **adapt)
    made = make(build)
    assert made.judgements == {"gold": {"q1": {"ice.md": 1.0}}} and build.counts == {"transfer": (3, 1)}
    assert [query.text for query in made.queries] == ["In the state of Norwick: question q1"]
    why = "no new passage contains what is relevant"
    assert build.dropped == [("q2", why, "o2"), ("q3", why, "o3")]
    [(pair, shown)] = build.offered
    assert pair == ("o3", "sugar.md") and shown["the old passage"] == OLD["o3"]
    asked = make(Build(tmp_path / "home", pages, answers={pair: "yes"}, **adapt))
    assert asked.judgements["gold"] == {"q1": {"ice.md": 1.0}, "q3": {"sugar.md": 1.0}}
    with pytest.raises(UsageError, match=r"phrase '\{town\}' cannot be filled for query 'q1'"):
        make(Build(tmp_path / "home", pages, **adapt | {"phrase": "{town}"}))


def test_a_document_that_was_left_out_takes_its_queries_with_it(tmp_path):
    task, _ = write_task(tmp_path)
    corpus, hashed = CorpusSection(str(task), without="boiling"), CleanSection(hash_ids=True)
    build = Build(tmp_path / "home", corpus, clean=hashed)
    made = make(build)
    assert sorted(map(len, made.judgements["gold"].values())) == [1, 1, 2]
    assert build.dropped == [("q2 o2", "the relevant document is not in the corpus", "")]
    assert set().union(*made.judgements["gold"].values()) <= set(made.documents) and "max_p" not in made.settings


def test_the_funnel_begins_with_what_was_left_out_of_the_corpus(tmp_path):
    task, _ = write_task(tmp_path)
    recipe = f'recipe = "adapt"\ncorpus = {{ path = "{task}", without = "boiling" }}\ncut = {{ by = "" }}\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    ingested, transferred = build(tmp_path)["stages"]
    why = {"documents that `pattern` or `without` leaves out": 1, "files of another form, left out": 3}
    assert ingested == {"stage": "ingest", "went_in": 7, "came_out": 3, "dropped": why, "usage": {}, "lm": ""}
    assert transferred["dropped"] == {"the relevant document is not in the corpus": 1}

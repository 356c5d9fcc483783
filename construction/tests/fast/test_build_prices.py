"""A build with a budget in dollars is refused if the price of a model is not known."""

import pytest

from sextant_construction import __main__ as build_command


@pytest.mark.parametrize(
    "words",
    [
        "run BUILD --lm LM",
        "run BUILD --lm offline --lm judge=LM",
        "contamination --task congress --retriever bm25 --lm PRICED --judge LM",
        "check congress --lm PRICED --judge LM",
    ],
)
def test_dollars_are_refused_before_a_build_sends_anything_where_a_price_is_unknown(
    words, command_of, server, monkeypatch, tmp_path
):
    monkeypatch.setenv("OPENAI_BASE_URL", server.spec.partition("@")[2])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    command = command_of(build_command)
    recipe = ("--recipe", "latent", "--corpus", "task:congress", "--set", 'attribute.lens="stance"')
    assert command("new", tmp_path / "build", *recipe).code == 0
    words = words.replace("BUILD", str(tmp_path / "build"))
    words = words.replace("PRICED", "openai/gpt-5-mini").replace("LM", server.spec)
    done = command(*words.split(), "--budget-usd", "1")
    assert done.code == 2 and f"the price of {server.spec} is not known" in done.out + done.err
    assert not server.requests

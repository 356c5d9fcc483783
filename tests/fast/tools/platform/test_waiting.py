"""Long work says what it is on stderr: in place on a terminal, as lines in a log, nothing with JSON."""

import inspect
import io
import logging
import sys
import threading

import pytest

from sextant.evals.__main__ import COMMANDS, import_command
from sextant.tools.platform import cli, waiting
from sextant.tools.platform.waiting import announced, each_announced

# Commands that are short, or whose parts in other modules say what they wait for.
SAY_ELSEWHERE = {"docs", "cache", "serve"}
LIMIT = 60  # seconds after which a test fails in place of waiting


class Terminal(io.StringIO):
    """A terminal that says when something is written on it."""

    encoding = "utf-8"

    def __init__(self):
        super().__init__()
        self.written = threading.Event()
        self.last = ""

    def write(self, text):
        super().write(text)
        self.last = text
        self.written.set()
        return len(text)

    def isatty(self):
        return True

    def await_line(self, text):
        """Wait until a line with this text is written."""
        self.written.clear()
        while self.written.wait(LIMIT) and text not in self.last:
            self.written.clear()
        assert text in self.last


def open_terminal(monkeypatch):
    """Return a terminal on stderr; no fixture can, as pytest sets stderr between it and its test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    return terminal


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(waiting, "_LOOK", 0.001)
    monkeypatch.setattr(waiting, "TERMINAL_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "LOG_SECONDS", 0.0)
    logger = logging.getLogger("sextant")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


def test_a_log_has_a_line_with_the_activity_and_its_time(monkeypatch, capsys):
    told = threading.Event()
    print_stderr = cli.print_stderr

    def watch(text):
        print_stderr(text)
        told.set()

    monkeypatch.setattr(cli, "print_stderr", watch)
    with announced("opening bm25"):
        assert told.wait(LIMIT)
    assert capsys.readouterr().err == "opening bm25: 0 s so far\n"


def test_a_terminal_has_a_line_in_place_that_goes_when_the_work_has_ended(monkeypatch):
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    with announced("opening bm25"):
        assert terminal.written.wait(LIMIT)
    assert terminal.getvalue().startswith("\ropening bm25: 0 s so far\x1b[K")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_terminal_on_which_something_was_just_printed_is_left_alone(monkeypatch):
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(waiting, "TERMINAL_SECONDS", LIMIT)
    with announced("opening bm25"):
        assert not terminal.written.wait(0.05)


def test_of_nested_activities_the_terminal_has_the_inner_one_until_it_has_ended(monkeypatch):
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    with announced("outer"):
        terminal.await_line("outer")
        with announced("inner"):
            terminal.await_line("inner")
            terminal.truncate(0)
            terminal.await_line("inner")
            assert "outer" not in terminal.getvalue()
        terminal.await_line("outer")


def test_json_is_told_nothing(capsys):
    logging.getLogger("sextant").setLevel(logging.WARNING)
    before = threading.enumerate()
    with announced("opening bm25"):
        assert threading.enumerate() == before
    assert capsys.readouterr().err == ""


def test_an_error_of_the_work_comes_through():
    with pytest.raises(ValueError, match="broken"), announced("opening bm25"):
        raise ValueError("broken")


def test_items_that_take_long_to_come_are_announced_one_by_one(monkeypatch):
    terminal = open_terminal(monkeypatch)

    def slow():
        for number in range(2):
            terminal.await_line("counting")
            yield number

    assert list(each_announced("counting", slow())) == [0, 1]


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - SAY_ELSEWHERE))
def test_a_command_says_what_it_waits_for(name):
    assert "announced(" in inspect.getsource(import_command(name))

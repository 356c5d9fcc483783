"""The order in which threads take the locks of clients, episodes and their host."""

import json
import random
import threading

import pytest
from watched_locks import LockOrder

from sextant.evals.running.request import Request
from sextant.evals.serving import episode as episodes
from sextant.evals.serving.episode_server import NoQueryAvailable, serve_episodes
from sextant.tools.errors import RunIncomplete, SessionRefusal

pytest.importorskip("mcp")

from sextant.evals.serving.mcp import McpSessions

QUERIES = 8


def play_at_random(host, clients, name, seed):
    """Do what a client may do, also in an episode that was taken from it."""
    chosen = random.Random(seed)
    mine = []
    for _ in range(60):
        action = chosen.choice(
            ["open", "search", "search", "state", "submit", "leave", "next", "go"]
        )
        try:
            if action == "open":
                mine.append(host.open())
            elif action == "next":
                mine.append(clients.present(name, new=True))
            elif action == "go":
                clients.leave(name)
            elif mine:
                episode = chosen.choice(mine)
                if action == "state":
                    episode.state()
                elif action == "leave":
                    episode.leave()
                elif action == "search":
                    host.act(episode, "search", {"query": "ferry"})
                else:
                    host.act(episode, "submit", {})
        except (NoQueryAvailable, SessionRefusal, RunIncomplete):
            pass


def check_each_query_is_somewhere(host):
    with host._lock:
        opened = [episode.query.query_id for episode in host._open]
        assert sorted([*host._todo, *opened, *host.folder.outcomes]) == sorted(host.queries)


def test_threads_take_locks_in_one_order_and_lose_no_query_whatever_they_do_at_the_same_time(
    tmp_path, monkeypatch
):
    order = LockOrder("clients", "episode", "host")
    monkeypatch.setattr(episodes, "RLock", lambda: order.make("episode"))
    answered = []

    def play(host):
        host.idle = 0.002  # a search may take longer
        host._lock, clients = order.make("host"), McpSessions(host)
        clients._lock = order.make("clients")
        threads = [
            threading.Thread(
                target=play_at_random, args=(host, clients, f"client {seed}", seed), daemon=True
            )
            for seed in range(6)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            check_each_query_is_somewhere(host)
            threads[0].join(0.01)
            threads = [thread for thread in threads if thread.is_alive()]
            assert not order.inversions
        host.idle = -1.0
        while not host.done:
            assert json.loads(host.act(host.open(), "submit", {}).text) == {"submitted": 0}
        check_each_query_is_somewhere(host)
        answered.extend(host.folder.outcomes)

    fields = {
        "task": "congress",
        "data": "mini",
        "split": "dev",
        "limit": QUERIES,
        "runs": tmp_path,
    }
    assert serve_episodes(Request(program="served:x", **fields), play).pending == 0
    assert len(answered) == QUERIES


def test_an_episode_is_not_idle_while_it_searches_and_nobody_waits_for_it(tmp_path):
    """A search takes longer than an idle episode is kept; one thread submits, another opens."""
    searching, go_on = threading.Event(), threading.Event()

    def play(host):
        host.idle = 0.0
        episode = host.open()
        find = episode.desk.find

        def find_slowly(*arguments):
            searching.set()
            assert go_on.wait(60)
            return find(*arguments)

        episode.desk.find = find_slowly
        threads = [
            threading.Thread(target=host.act, args=(episode, *action), daemon=True)
            for action in (("search", {"query": "ferry", "k": 3}), ("submit", {}))
        ]
        threads[0].start()
        assert searching.wait(60)
        threads[1].start()
        other = host.open()  # while the first one searches
        assert other.query != episode.query
        go_on.set()
        for thread in threads:
            thread.join(60)
        assert len(episode.submission.ranking) == 3
        other.leave()

    fields = {"task": "congress", "data": "mini", "split": "dev", "limit": 2, "runs": tmp_path}
    assert serve_episodes(Request(program="served:x", **fields), play).pending == 1

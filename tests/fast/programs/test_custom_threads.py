"""Threads, processes and event loops of a user's own program: the query is theirs too, or a line says why not."""

import asyncio
import contextvars
import functools
import multiprocessing
import os
import queue
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import dspy
import httpx
import joblib
import pytest
from openai_server import Failure
from test_custom import outcome, steps

from sextant.programs import custom
from sextant.tools.errors import LimitReached, ProviderRefused, UsageError
from sextant.tools.session import Limits

PARTS = ("place", "thing", "time")
write = dspy.Predict("query, part -> words")
shared_pool = ThreadPoolExecutor(2)
shared_thread_pool = ThreadPool(2)
parallel = functools.partial(dspy.Parallel, num_threads=2, disable_progress_bar=True)


def by_parallel(ask, items):
    return parallel()([(lambda item: ask(item), {"item": item}) for item in items])


def by_nested_parallel(ask, items):
    return [
        made for part in by_parallel(lambda item: by_parallel(ask, [item]), items) for made in part
    ]


def by_evaluate(ask, items):
    devset = [dspy.Example(item=item).with_inputs("item") for item in items]
    evaluate = dspy.Evaluate(devset=devset, metric=lambda *_: 1.0, num_threads=2)
    return [made for _, made, _ in evaluate(lambda item: ask(item)).results]


def by_executor(ask, items):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, items))


def by_shared_executor(ask, items):
    return list(shared_pool.map(ask, items))


def by_thread_pool(ask, items):
    with ThreadPool(2) as pool:
        return pool.map(ask, items)


def by_shared_thread_pool(ask, items):
    first = shared_thread_pool.apply(ask, (items[0],))
    return [first, *shared_thread_pool.imap(ask, items[1:])]


def by_threads(ask, items):
    made = [Future() for _ in items]
    starts = [
        threading.Thread(target=lambda f, item: f.set_result(ask(item)), args=each)
        for each in zip(made, items, strict=True)
    ]
    starts[0] = threading.Timer(0, lambda: made[0].set_result(ask(items[0])))
    for thread in starts:
        thread.start()
    return [each.result(10) for each in made]


def by_joblib(ask, items):
    return joblib.Parallel(2, backend="threading")(joblib.delayed(ask)(item) for item in items)


def by_to_thread(ask, items):
    async def ask_all():
        return await asyncio.gather(*[asyncio.to_thread(ask, item) for item in items])

    return asyncio.run(ask_all())


def by_run_in_executor(ask, items):
    async def ask_all():
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*[loop.run_in_executor(None, ask, item) for item in items])

    return asyncio.get_event_loop().run_until_complete(
        ask_all()
    )  # as in the main thread of a script


def by_asyncify(ask, items):
    async def ask_all():
        return await asyncio.gather(*[dspy.asyncify(ask)(item) for item in items])

    return asyncio.run(ask_all())


KINDS = [value for name, value in list(globals().items()) if name.startswith("by_")]


def asking(spread):
    """A program that asks and searches three times, spread over threads."""

    def answer(query, search):
        def ask(part):
            return search(write(query=query, part=part).words)

        return [hit for hits in spread(ask, PARTS) for hit in hits]

    return answer


def in_thread(work):
    """The result of work in a thread, as a run has its queries answered."""
    done = Future()
    context = contextvars.copy_context()
    threading.Thread(target=lambda: done.set_result(context.run(work))).start()
    return done.result(60)


@pytest.mark.parametrize("spread", KINDS, ids=lambda spread: spread.__name__)
def test_calls_and_searches_of_threads_are_those_of_the_query(spread, corpus):
    found = in_thread(lambda: outcome(asking(spread), corpus))
    assert found["error"] is None, found.get("traceback")
    assert found["usage"]["calls"] == 3 and "d2" in found["ranking"]
    hops = [step["hop"] for step in found["trace"]["steps"] if step["tool"] == "search"]
    assert sorted(hops) == [1, 2, 3]


@pytest.mark.parametrize(
    "spread", [by_parallel, by_executor, by_evaluate], ids=lambda spread: spread.__name__
)
def test_a_limit_ends_the_query_also_where_dspy_swallows_it(spread, corpus):
    found = outcome(asking(spread), corpus, limits=Limits(calls=1))
    assert found["error"] is None, found.get("traceback")
    assert found["usage"]["calls"] == 1 and found["trace"]["steps"][-1]["argument"] == "budget"


def test_a_limit_that_comes_in_another_error_ends_the_query_as_well(corpus):
    def wrapping(query, search):
        search(query, 2)
        try:
            return search("heart")
        except LimitReached as error:
            raise RuntimeError("no more of it") from error

    found = outcome(wrapping, corpus, limits=Limits(searches=1))
    assert found["error"] is None and found["ranking"] == ["d2", "d1"]


def test_a_provider_that_refuses_in_a_thread_leaves_the_query_pending(corpus, server):
    def refuse(prompt):
        raise Failure(429, "insufficient_quota")

    server.answer = refuse
    assert isinstance(
        outcome(asking(by_parallel), corpus, spec=server.spec),
        dspy.LMBillingError | ProviderRefused,
    )


def test_queries_at_once_each_have_their_own_calls_and_the_progress_of_others_disturbs_none(corpus):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: outcome(asking(by_parallel), corpus), range(40)))
    assert [(one["error"], one["usage"]["calls"]) for one in found] == [(None, 3)] * 40


def test_a_thread_that_outlives_its_query_can_do_nothing_more(corpus):
    after, refused = threading.Event(), queue.Queue()

    def leaving(query, search):
        def late():
            after.wait(120)
            for work in (lambda: write(query=query, part="late"), lambda: search("late")):
                try:
                    refused.put(work())
                except LimitReached as error:
                    refused.put(str(error))

        threading.Thread(target=late).start()
        return search(query)

    found = outcome(leaving, corpus)
    after.set()
    assert [refused.get(timeout=120) for _ in range(2)] == ["the query has been answered"] * 2
    assert steps(found) == ["search", "rank", "stop"] and found["usage"]["calls"] == 0


jobs = queue.Queue()
threading.Thread(
    target=lambda: [
        done.set_result(contextvars.Context().run(guarded, job)) for job, done in iter(jobs.get, 0)
    ],
    daemon=True,
).start()


def guarded(job):
    try:
        return job()
    except Exception as error:  # noqa: BLE001  # raised again by who waits
        return error


def by_an_older_thread(ask, items):
    done = Future()
    jobs.put((lambda: ask(items[0]), done))
    made = done.result(10)
    if isinstance(made, Exception):
        raise made
    return [made]


def asking_by_process(query):
    receiving, sending = multiprocessing.Pipe(duplex=False)

    def work():  # which is not pickled: another test may have had this module imported again
        sending.send(guarded(lambda: write(query="copper", part="place").words))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    answered = receiving.recv() if receiving.poll(120) else "nothing"
    process.join(120)
    if isinstance(answered, Exception):
        raise answered
    return [answered]


def searching_by_process(query, search):
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(search, query).result()


async def locking(query, search):
    async def locked():
        async with LOCK:
            await asyncio.sleep(0.01)
            return search(query)

    return (await asyncio.gather(locked(), locked()))[0]


LOCK = asyncio.Lock()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            asking(by_an_older_thread),
            "asks the model in a thread or process that does not belong to the query",
        ),
        (
            lambda query: by_an_older_thread(custom.search, [query])[0].snippets,
            "search is called where no query",
        ),
        (asking_by_process, "in no other process"),
        (searching_by_process, "in no other process"),
        (locking, "each query has a loop of its own"),
    ],
)
def test_where_the_query_cannot_be_known_one_line_says_so_and_nothing_is_scored(made, said, corpus):
    outcome(locking, corpus)  # which has the lock in its loop
    refused = outcome(made, corpus)
    assert isinstance(refused, UsageError), refused.get("traceback", refused)
    assert said in str(refused) and "\n" not in str(refused)


def test_a_process_that_neither_searches_nor_asks_is_free_to_compute(corpus):
    def computing(query, search):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(len, PARTS) == [5, 5, 4]
        return search(query)

    assert outcome(computing, corpus)["error"] is None


def test_streaming_gives_the_whole_answer_at_once(corpus):
    class Streaming(dspy.Module):
        def __init__(self, search):
            super().__init__()
            self.search, self.write = search, dspy.Predict("query -> words")

        def forward(self, query):
            async def listen():
                listeners = [dspy.streaming.StreamListener("words")]
                return [
                    part
                    async for part in dspy.streamify(self.write, stream_listeners=listeners)(
                        query=query
                    )
                ]

            return [hit.doc_id for hit in self.search(asyncio.run(listen())[-1].words).snippets]

    found = outcome(Streaming, corpus)
    assert found["error"] is None and found["usage"]["calls"] == 1 and found["ranking"]


def test_a_program_that_leaves_the_process_ends_its_query(corpus):
    def leaving(query, search):
        search(query)
        os._exit(3)

    found = in_thread(lambda: outcome(leaving, corpus))
    assert found["error"].startswith("SystemExit: 3 (test_custom_threads.py") and steps(found) == [
        "search",
        "stop",
    ]


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr
)
def test_a_program_that_means_to_end_the_process_ends_its_query(raised, corpus):
    async def ending(query, search):
        search(query)
        raise raised

    found = in_thread(lambda: outcome(ending, corpus))
    assert found["error"].startswith(f"{type(raised).__name__}: ") and steps(found) == [
        "search",
        "stop",
    ]


def test_a_group_of_errors_is_described_by_its_first_and_its_reason_counts(corpus):
    async def grouping(query):
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(KeyError("nothing")))

    async def grouping_usage(query):
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(UsageError("not here")))

    async def raising(error):
        raise error

    assert (
        "(1 sub-exception), first KeyError: 'nothing' (test_custom_threads.py"
        in outcome(grouping, corpus)["error"]
    )
    assert str(outcome(grouping_usage, corpus)) == "not here"


def test_a_thread_that_outlives_its_query_may_send_by_itself(corpus, server):
    server.answer = lambda prompt: {"raw": "hello"}
    url, body = server.spec.partition("@")[2], {"model": "m", "messages": [{"content": "hi"}]}
    after, sent = threading.Event(), Future()

    def tracing(query, search):
        def late():
            after.wait(120)
            sent.set_result(httpx.post(f"{url}/chat/completions", json=body).status_code)

        threading.Thread(target=late).start()
        return search(query)

    found = outcome(tracing, corpus)
    after.set()
    assert sent.result(20) == 200 and found["usage"]["calls"] == 0


def test_configuring_dspy_in_a_query_is_answered_with_what_works(corpus, monkeypatch):
    def configuring(query):
        dspy.configure(async_max_workers=4)

    monkeypatch.setattr(
        sys.modules["dspy.dsp.utils.settings"], "config_owner_thread_id", -1
    )  # as where a file has configured it
    assert (
        "Use `with dspy.context(...)` instead of dspy.configure here. (test_custom"
        in outcome(configuring, corpus)["error"]
    )


def test_an_error_whose_text_cannot_be_had_is_reported_by_its_name(corpus):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    def muted(query):
        raise Mute

    assert (
        "Mute: (a Mute whose text cannot be shown: RuntimeError) (test_custom_threads.py"
        in outcome(muted, corpus)["error"]
    )

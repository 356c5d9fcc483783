"""The HTTP client against real sockets: http.client reads the same bytes beside it, and servers break every rule."""

import contextlib
import gzip
import http.client
import os
import random
import socket
import threading
import time
import zlib

import pytest

from programs.http1 import ConnectFailed, DeadlinePassed, HTTPError, Malformed, Pool, Reset, Response, TooLarge
from tools.errors import UsageError

KEY = "sk-very-secret-0123456789"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(autouse=True)
def no_proxy_of_the_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Server:
    """Accepts connections and does with each, in a thread of its own, what `behave` says."""

    def __init__(self, behave, context=None):
        self.behave, self.context, self.accepted = behave, context, 0
        self.requests, self.requests_of = [], {}
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            if self.context:
                connection = stack.enter_context(self.context.wrap_socket(connection, server_side=True))
            self.behave(self, connection)

    def close(self):
        self.listener.close()


@pytest.fixture
def serve():
    servers = []

    def start(behave, context=None):
        servers.append(Server(behave, context))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def request(server, connection):
    """Reads one request, keeps it, and says whether there was one."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = connection.recv(65536)
        if not got:
            return False
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    server.requests.append((head, body))
    server.requests_of[connection] = body
    return True


def answering(*pieces, again=False, pause=0.0):
    """Answers each request with the pieces, and closes after the first unless `again`."""

    def behave(server, connection):
        while request(server, connection):
            for piece in pieces:
                connection.sendall(piece)
                if pause:
                    time.sleep(pause)
            if not again:
                return

    return behave


def pool(url, **options):
    return contextlib.closing(Pool(url, headers={"authorization": f"Bearer {KEY}"}, **options))


def soon(seconds=5.0):
    return time.monotonic() + seconds


def ask(url, body=b"question", seconds=5.0, **options):
    with pool(url, **options) as client:
        return client.post("/chat/completions", body, deadline=soon(seconds))


def failure(url, kind, **options):
    with pytest.raises(kind) as caught:
        ask(url, **options)
    assert type(caught.value) is kind
    assert KEY not in str(caught.value)
    return caught.value


def reference(url, body=b"question"):
    """The same by http.client."""
    host = url.split("/")[2]
    connection = http.client.HTTPConnection(host, timeout=5)
    connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    response = Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    connection.close()
    return response


# -- Answers as they should be

ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\nhello, world",
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no reason": b"HTTP/1.1 429\r\nRetry-After: 3\r\ncontent-length: 4\r\n\r\nwait",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n",
    "chunked, with extensions and trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b'5;a=1;b="x"\r\nhello\r\n00007 ; c\r\n, world\r\n000\r\nx-sum: 1\r\nx-more: 2\r\n\r\n',
    "chunked bytes that look like heads": b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"A\r\n\r\n\r\n0\r\n\r\n\r\r\n0\r\n\r\n",
    "until close": b"HTTP/1.1 200 OK\r\n\r\nall of it\r\n\r\n, and more",
    "1.0": b"HTTP/1.0 503 Busy\r\nContent-Length: 2\r\n\r\nno",
    "204": b"HTTP/1.1 204 Nothing\r\n\r\n",
    "304": b"HTTP/1.1 304 Same\r\ncontent-length: 99\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Go\r\nx: y\r\n\r\n" + OK,
    "redirect": b"HTTP/1.1 307 There\r\nLocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 6\nx:  spaced\n\n\r\n\r\n12",
    "latin headers": "HTTP/1.1 200 Très bien\r\nx-name: café\r\ncontent-length: 2\r\n\r\nok".encode("latin-1"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_well_formed_answer_reads_as_http_client_reads_it(serve, answer):
    server = serve(answering(answer))
    assert ask(server.url) == reference(server.url)


def test_an_answer_is_the_same_however_the_network_cuts_it(serve):
    chance = random.Random(8)
    for answer in ANSWERS.values():
        whole = ask(serve(answering(answer)).url)
        single = [answer[i : i + 1] for i in range(len(answer))]
        cuts = [sorted(chance.sample(range(1, len(answer)), k=min(6, len(answer) - 1))) for _ in range(4)]
        split = [[answer[a:b] for a, b in zip([0, *cut], [*cut, None], strict=True)] for cut in cuts]
        for pieces in [single, *split]:
            server = serve(nodelay(pieces))
            assert ask(server.url) == whole


def nodelay(pieces):
    def behave(server, connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answering(*pieces, pause=0.0002 if len(pieces) < 20 else 0)(server, connection)

    return behave


@pytest.mark.parametrize("form", ["gzip", "members", "zlib", "bare deflate"])
def test_compression_that_nobody_asked_for_is_undone(serve, form):
    text = b"water " * 1000
    bare = zlib.compressobj(wbits=-15)
    body = {
        "gzip": gzip.compress(text),
        "members": gzip.compress(text[:10]) + gzip.compress(text[10:]),
        "zlib": zlib.compress(text),
        "bare deflate": bare.compress(text) + bare.flush(),
    }[form]
    name = b"gzip" if form in ("gzip", "members") else b"deflate"
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (name, len(body))
    server = serve(answering(head + body))
    assert ask(server.url).body == text
    assert b"accept-encoding: identity" in server.requests[0][0].split(b"\r\n")


@pytest.mark.parametrize("size", [0, 100, 70_000, 5_000_000])
def test_a_request_arrives_whole(serve, size):
    server = serve(answering(OK))
    body = random.Random(size).randbytes(size)
    assert ask(server.url, body).status == 200
    head, got = server.requests[0]
    first, *lines = head.decode().split("\r\n")
    assert got == body and first == "POST /v1/chat/completions HTTP/1.1"
    assert sorted(lines) == sorted(
        [
            f"host: 127.0.0.1:{server.port}",
            f"content-length: {size}",
            "accept-encoding: identity",
            f"authorization: Bearer {KEY}",
        ]
    )


# -- Connections that are used again


def test_a_connection_is_kept_and_used_again(serve):
    server = serve(answering(OK, again=True))
    with pool(server.url) as client:
        for _ in range(5):
            assert client.post("/x", b"", deadline=soon()).body == b"ok"
    assert (server.accepted, len(server.requests)) == (1, 5)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nconnection: x-other\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"and something that was not announced",
    ],
)
def test_a_connection_that_may_not_be_used_again_is_not(serve, answer):
    server = serve(answering(answer, again=True))
    with pool(server.url) as client:
        for _ in range(3):
            assert client.post("/x", b"", deadline=soon()).body == b"ok"
    assert server.accepted == 3


def test_a_connection_that_was_closed_while_idle_is_replaced_unseen(serve):
    server = serve(answering(OK))
    with pool(server.url) as client:
        for _ in range(3):
            assert client.post("/x", b"", deadline=soon()).body == b"ok"
            time.sleep(0.05)
    assert (server.accepted, len(server.requests)) == (3, 3)


def test_an_idle_connection_that_speaks_unasked_is_not_believed(serve):
    server = serve(answering(OK, again=True))
    late = serve(lambda server, c: (request(server, c), c.sendall(OK), time.sleep(0.05), c.sendall(OK), time.sleep(1)))
    with pool(late.url) as client:
        client.post("/x", b"", deadline=soon())
        time.sleep(0.15)
        client.post("/x", b"", deadline=soon())
    assert late.accepted == 2 and server.accepted == 0


def test_a_post_is_not_sent_again_when_the_server_may_have_acted(serve):
    def behave(server, connection):
        request(server, connection)
        connection.sendall(OK)
        request(server, connection)  # and no answer

    server = serve(behave)
    with pool(server.url) as client:
        client.post("/x", b"", deadline=soon())
        with pytest.raises(Reset) as caught:
            client.post("/x", b"", deadline=soon())
    assert caught.value.sent
    assert len(server.requests) == 2


def test_old_idle_connections_are_dropped(serve, monkeypatch):
    monkeypatch.setattr("programs.http1.IDLE", 0.05)
    server = serve(answering(OK, again=True))
    with pool(server.url) as client:
        client.post("/x", b"", deadline=soon())
        time.sleep(0.1)
        client.post("/x", b"", deadline=soon())
    assert server.accepted == 2


def test_two_hundred_threads_share_a_pool_and_each_gets_its_own_answers(serve):
    def echo(server, connection):
        while request(server, connection):
            body = server.requests_of[connection]
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    server = serve(echo)
    wrong = []

    def work(client, number):
        for turn in range(20):
            asked = b"%d/%d" % (number, turn)
            if client.post("/x", asked, deadline=soon(20)).body != asked:
                wrong.append(asked)

    with pool(server.url) as client:
        threads = [threading.Thread(target=work, args=(client, number)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(server.requests) == 4000
    assert server.accepted <= 200


def test_closing_the_pool_ends_what_is_under_way(serve):
    server = serve(lambda server, connection: (request(server, connection), time.sleep(3)))
    with pool(server.url) as client:
        threading.Timer(0.2, client.close).start()
        start = time.monotonic()
        with pytest.raises(Reset) as caught:
            client.post("/x", b"", deadline=soon())
        assert caught.value.sent
        assert time.monotonic() - start < 1
        with pytest.raises(ConnectFailed) as refused:
            client.post("/x", b"", deadline=soon())
    assert not refused.value.sent


# -- Answers as they should not be

BAD = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "odd status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "folded line": b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n",
    "space before the colon": b"HTTP/1.1 200 OK\r\ncontent-length : 0\r\n\r\n",
    "no colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "bytes of nothing": b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
    "huge line": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "endless interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nok",
    "negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "length in words": "HTTP/1.1 200 OK\r\ncontent-length: ²\r\n\r\n".encode("latin-1"),
    "chunk without a size": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    "negative chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
    "chunk too long": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    "endless extension": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;" + b"a" * 9000,
    "endless trailers": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 20_000,
    "unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding in two lines": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\n",
    "unknown encoding": b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok",
    "damaged gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok",
    "gzip cut off": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 20\r\n\r\n"
    + gzip.compress(os.urandom(99))[:20],
    "another protocol, unasked": b"HTTP/1.1 101 Switch\r\n\r\n",
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_what_is_not_http_is_malformed(serve, answer):
    assert failure(serve(answering(answer)).url, Malformed).sent


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ],
)
@pytest.mark.parametrize("hard", [False, True])
def test_a_connection_cut_in_the_middle_is_a_reset(serve, answer, hard):
    def behave(server, connection):
        answering(answer)(server, connection)
        if hard:  # RST in place of FIN
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    assert failure(serve(behave).url, Reset).sent


TOO_LARGE = {
    "announced": b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
    "absurd": b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffff\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1001,
    "until close": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
    "bomb": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
    % len(gzip.compress(bytes(99999)))
    + gzip.compress(bytes(99999)),
}


@pytest.mark.parametrize("answer", TOO_LARGE.values(), ids=TOO_LARGE)
def test_an_answer_over_the_limit_is_not_read_on(serve, answer):
    assert failure(serve(answering(answer)).url, TooLarge, largest=1000).sent


def test_an_endless_answer_of_small_chunks_does_not_fill_the_memory(serve):
    import tracemalloc

    chunk = b"1;" + b"e" * 4000 + b"\r\nx\r\n"
    server = serve(answering(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *[chunk * 10] * 800))
    tracemalloc.start()
    failure(server.url, TooLarge, largest=7000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # of 28 MB


def test_random_bytes_never_raise_anything_but_an_http_error(serve):
    chance = random.Random(8)
    pieces = [
        b"HTTP/1.1 200 OK\r\n",
        b"content-length: 3\r\n",
        b"transfer-encoding: chunked\r\n",
        b"\r\n",
        b"0\r\n\r\n",
    ]
    pieces += [
        b"content-encoding: gzip\r\n",
        b"3\r\nabc\r\n",
        b"\xff\xfe",
        b"\0",
        b": \r\n",
        b"connection: keep-alive\r\n",
    ]
    pieces += [b"HTTP/1.1 100 Go\r\n\r\n", b"\n", b"content-length: 99999999999999999999\r\n", b"3;x\r\n"]

    def behave(server, connection):
        request(server, connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" * chance.randrange(2) + b"".join(chance.choices(pieces, k=8)))

    server = serve(behave)
    seen = set()
    for _ in range(400):
        try:
            seen.add(type(ask(server.url)))
        except HTTPError as error:
            seen.add(type(error))
    assert {Response, Malformed, Reset} <= seen


# -- Deadlines


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"HTTP/1.1 200 OK\r\ncontent-le"],
        [bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\nx-padding: " + b"y" * 200],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n", *[b"x"] * 200],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 200],
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 200,
        [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x"] * 200],
    ],
)
def test_the_deadline_holds_even_while_bytes_trickle(serve, pieces):
    def behave(server, connection):
        answering(*pieces, pause=0.02, again=True)(server, connection)

    start = time.monotonic()
    error = failure(serve(behave).url, DeadlinePassed, seconds=0.3)
    assert error.sent
    assert 0.28 < time.monotonic() - start < 0.6


def test_the_deadline_holds_after_a_wait_in_the_kernel(serve, monkeypatch):
    monkeypatch.setattr("programs.http1.TICK", 1)
    server = serve(answering(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n\r\n", pause=2, again=True))
    start = time.monotonic()
    assert failure(server.url, DeadlinePassed, seconds=1.3).sent
    assert 1.28 < time.monotonic() - start < 1.6


def test_an_answer_that_takes_longer_than_a_wait_in_the_kernel_still_arrives(serve, monkeypatch):
    monkeypatch.setattr("programs.http1.TICK", 1)
    server = serve(answering(OK[:9], OK[9:], pause=1.2))
    assert ask(server.url).body == b"ok"


def test_a_server_that_does_not_read_meets_the_deadline(serve):
    server = serve(lambda server, connection: time.sleep(2))
    start = time.monotonic()
    assert failure(server.url, DeadlinePassed, seconds=0.3, body=bytes(30_000_000)).sent
    assert time.monotonic() - start < 0.8


def test_nothing_is_sent_after_the_deadline(serve):
    server = serve(answering(OK))
    assert not failure(server.url, DeadlinePassed, seconds=-1).sent
    assert not server.requests


def test_a_large_request_that_is_refused_early_still_gets_its_answer(serve):
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno"

    def behave(server, connection):
        connection.recv(1000)
        connection.sendall(refusal)
        time.sleep(1)

    server = serve(behave)
    assert ask(server.url, bytes(30_000_000)).status == 413


INTERIM = b"HTTP/1.1 102 Processing\r\nx: y\r\n\r\n"


def speaking_early(*pieces, then=b""):
    """Says the pieces before it reads the body of a request, and `then` after it."""

    def behave(server, connection):
        head = connection.recv(1000)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.05)
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        missing = length - len(head.partition(b"\r\n\r\n")[2])
        while missing and (got := connection.recv(1 << 20)):
            missing -= len(got)
        server.requests.append(missing)
        connection.sendall(then)
        connection.recv(1)  # the other end closes first: what it does not read would reset the connection

    return behave


@pytest.mark.parametrize(
    "pieces", [[INTERIM], [INTERIM * 2], [INTERIM[:5], INTERIM[5:]], [INTERIM + OK[:9]], [INTERIM] * 3]
)
def test_a_large_request_goes_on_after_an_interim_answer(serve, pieces):
    rest = OK[9:] if pieces[0].endswith(OK[:9]) else OK
    server = serve(speaking_early(*pieces, then=rest))
    assert ask(server.url, bytes(20_000_000)).body == b"ok"
    assert server.requests == [0], "and none of it is missing"


def test_a_large_request_ends_when_an_answer_follows_an_interim_one(serve):
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno"
    for pieces in ([INTERIM + refusal], [INTERIM, refusal[:30], refusal[30:]]):
        server = serve(lambda _, connection, pieces=pieces: early_refusal(connection, pieces))
        assert ask(server.url, bytes(30_000_000)).status == 413


def early_refusal(connection, pieces):
    connection.recv(1000)
    for piece in pieces:
        connection.sendall(piece)
        time.sleep(0.05)
    time.sleep(1)


@pytest.mark.parametrize("said", [b"SSH-2.0\r\n", b"HTTP/1.1 101 Switch\r\n\r\n", INTERIM * 10_000])
def test_nonsense_in_the_middle_of_a_large_request_ends_it(serve, said):
    server = serve(lambda _, connection: early_refusal(connection, [said]))
    assert failure(server.url, Malformed, body=bytes(30_000_000)).sent


def test_a_connection_is_used_again_after_a_large_request_with_an_interim_answer(serve):
    def behave(server, connection):
        connection.recv(1000, socket.MSG_PEEK)
        connection.sendall(INTERIM)
        time.sleep(0.05)
        answering(OK, again=True)(server, connection)

    server = serve(behave)
    with pool(server.url) as client:
        for body in (bytes(20_000_000), b"small"):
            assert client.post("/x", body, deadline=soon()).body == b"ok"
    assert (server.accepted, len(server.requests)) == (1, 2)


# -- Connecting


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_refused_connection_and_an_unknown_name_say_so():
    error = failure(f"http://127.0.0.1:{unused_port()}", ConnectFailed)
    assert "refused" in str(error) and not error.sent
    assert not failure("http://no-such-host.invalid/v1", ConnectFailed).sent
    assert not failure("http://" + "a" * 63 + "." + "b" * 63 + ".invalid/v1", ConnectFailed).sent


def test_dns_that_does_not_answer_meets_both_limits(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(3) or [])
    start = time.monotonic()
    failure("http://slow.example/v1", DeadlinePassed, seconds=0.2)
    error = failure("http://slow.example/v1", ConnectFailed, connect_timeout=0.2)
    assert "no answer in 0.2 s" in str(error)
    assert time.monotonic() - start < 1


def test_the_second_address_is_tried_when_the_first_refuses(serve, monkeypatch):
    server = serve(answering(OK))
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", p)) for p in (unused_port(), server.port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    assert ask("http://two.example/v1").body == b"ok"


def test_an_ipv6_server_is_reached():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    requests = []

    def behave():
        connection, _ = listener.accept()
        requests.append(connection.recv(65536))
        connection.sendall(OK)

    threading.Thread(target=behave, daemon=True).start()
    port = listener.getsockname()[1]
    assert ask(f"http://[::1]:{port}").body == b"ok"
    assert f"host: [::1]:{port}\r\n".encode() in requests[0]
    listener.close()


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "http://", "http://x:99999", "http://x y", "//x", "http://u:pw@x", "http://x/?k=pw", "http://[1"],
)
def test_a_url_that_cannot_be_used_is_refused_and_its_password_not_shown(url):
    with pytest.raises(UsageError) as caught:
        Pool(url, headers={})
    assert "pw" not in str(caught.value)


def test_a_key_that_breaks_a_header_is_refused_and_not_shown():
    for value in (f"{KEY}\r\nx: y", f"{KEY}\n", f"{KEY}\N{EN DASH}"):
        with pytest.raises(UsageError, match="'authorization'") as caught:
            Pool("http://x", headers={"authorization": value})
        assert KEY not in str(caught.value)


def test_a_path_cannot_smuggle_a_header(serve):
    server = serve(answering(OK))
    with pool(server.url) as client:
        client.post("/a b\r\nx: y\udcff?é=1", b"", deadline=soon())
    assert server.requests[0][0].startswith(b"POST /v1/a%20b%0D%0Ax:%20y??%C3%A9=1 HTTP/1.1\r\n")


# -- TLS


def test_a_tls_server_is_spoken_to_over_one_connection(serve, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    text = os.urandom(500_000)
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\n" + text
    server = serve(answering(large, again=True), certificate[1])
    body = os.urandom(3_000_000)
    for host in ("127.0.0.1", "localhost"):
        with pool(f"https://{host}:{server.port}/v1") as client:
            for _ in range(3):
                assert client.post("/x", body, deadline=soon()).body == text
    assert server.accepted == 2
    assert [got for _, got in server.requests] == [body] * 6


def test_a_certificate_that_is_not_trusted_or_of_another_host_is_refused(serve, certificate, monkeypatch):
    server = serve(answering(OK), certificate[1])
    error = failure(f"https://127.0.0.1:{server.port}", ConnectFailed)
    assert "certificate" in str(error) and not error.sent
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.0.1", server.port))]
    )
    error = failure("https://other.example", ConnectFailed)
    assert "other.example" in str(error) and not error.sent
    assert not server.requests


def test_a_server_without_tls_and_a_handshake_that_stalls_are_told(serve):
    plain = serve(lambda server, connection: (connection.recv(1), connection.sendall(b"HTTP/1.1 400 No\r\n\r\n")))
    assert not failure(f"https://127.0.0.1:{plain.port}", ConnectFailed).sent
    silent = serve(lambda server, connection: time.sleep(2))
    start = time.monotonic()
    assert not failure(f"https://127.0.0.1:{silent.port}", DeadlinePassed, seconds=0.3).sent
    assert not failure(f"https://127.0.0.1:{silent.port}", ConnectFailed, connect_timeout=0.3).sent
    assert time.monotonic() - start < 1.2


def test_a_tls_connection_closed_while_idle_is_replaced_and_a_stalled_one_meets_its_deadline(
    serve, certificate, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    server = serve(answering(OK), certificate[1])
    with pool(f"https://127.0.0.1:{server.port}") as client:
        for _ in range(3):
            assert client.post("/x", b"", deadline=soon()).body == b"ok"
            time.sleep(0.05)
    slow = serve(answering(b"HTTP/1.1 200 OK\r\n", *[b"x"] * 100, pause=0.02), certificate[1])
    assert failure(f"https://127.0.0.1:{slow.port}", DeadlinePassed, seconds=0.3).sent


def test_a_certificate_file_that_is_not_one_is_an_error_of_usage(tmp_path, monkeypatch):
    for path in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(UsageError, match="SSL_CERT_FILE"):
            Pool("https://x", headers={})


# -- Proxies


def test_a_proxy_gets_the_whole_url_and_its_password(serve, monkeypatch):
    proxy = serve(answering(OK))
    monkeypatch.setenv("HTTP_PROXY", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", "elsewhere.example")
    assert ask("http://provider.example:8000/v1").body == b"ok"
    head = proxy.requests[0][0]
    assert head.startswith(b"POST http://provider.example:8000/v1/chat/completions HTTP/1.1\r\n")
    assert b"proxy-authorization: Basic dXNlcjpwQHNz\r\n" in head
    assert b"host: provider.example:8000\r\n" in head


def test_no_proxy_and_this_machine_go_straight(serve, monkeypatch):
    server, proxy = serve(answering(OK)), serve(answering(b""))
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    assert ask(server.url).body == b"ok"
    monkeypatch.setenv("NO_PROXY", "provider.example")
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.0.1", server.port))]
    )
    assert ask("http://provider.example/v1").body == b"ok"
    assert proxy.accepted == 0


def test_tls_goes_through_a_proxy_in_a_tunnel(serve, certificate, monkeypatch):
    def tunnel(proxy, connection):
        request(proxy, connection)
        with socket.create_connection(("127.0.0.1", server.port)) as onward:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            threading.Thread(target=pump, args=(onward, connection), daemon=True).start()
            pump(connection, onward)

    def pump(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    server, proxy = serve(answering(OK, again=True), certificate[1]), serve(tunnel)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
    with pool("https://provider.example/v1") as client:
        for _ in range(2):
            assert client.post("/x", b"hello", deadline=soon()).body == b"ok"
    assert proxy.requests[0][0].startswith(b"CONNECT provider.example:443 HTTP/1.1\r\nhost: provider.example:443")
    assert KEY.encode() not in proxy.requests[0][0]
    assert (proxy.accepted, server.accepted, len(server.requests)) == (1, 1, 2)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Who?\r\ncontent-length: 0\r\n\r\n", b"", b"hm\r\n\r\n"])
def test_a_proxy_that_will_not_is_a_failure_to_connect(serve, monkeypatch, answer):
    proxy = serve(answering(answer))
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{KEY}@127.0.0.1:{proxy.port}")
    error = failure("https://provider.example/v1", ConnectFailed)
    assert not error.sent
    assert "proxy" in str(error)


def test_a_proxy_of_another_kind_is_refused(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", f"socks5://me:{KEY}@127.0.0.1:9")
    with pytest.raises(UsageError, match="socks5") as caught:
        Pool("http://provider.example", headers={})
    assert KEY not in str(caught.value)

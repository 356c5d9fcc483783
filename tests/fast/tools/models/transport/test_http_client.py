"""Posts against real sockets: http.client reads the same bytes beside ours, and servers break the rules that matter."""

import contextlib
import gzip
import socket
import threading
import time

import pytest

from sextant.tools.errors import UsageError
from sextant.tools.models.transport import http_client
from sextant.tools.models.transport.http_client import HttpClient as Client
from sextant.tools.models.transport.http_client import TransportError

KEY = "sk-very-secret-0123456789"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LATE = 0.3  # seconds until a deadline that is meant to pass


@pytest.fixture(autouse=True)
def no_proxy_of_the_machine(monkeypatch):
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Server:
    """Accepts connections and does with each, in a thread of its own, what `behave` says."""

    def __init__(self, behave, context=None):
        self.behave, self.context, self.accepted = behave, context, 0
        self.requests = []
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
                connection = stack.enter_context(
                    self.context.wrap_socket(connection, server_side=True)
                )
            self.behave(self, connection)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # else a thread that waits takes one more
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
    length = next(
        (
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
    while len(body) < length:
        body += connection.recv(65536)
    server.requests.append((head, body))
    return True


def answering(*pieces, again=False, pause=0.0):
    """Answers each request with the pieces, and closes after the first unless `again`."""

    def behave(server, connection):
        while request(server, connection):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            if not again:
                return

    return behave


def client(url, largest=1 << 20):
    return Client(url, {"authorization": f"Bearer {KEY}"}, largest=largest)


def post(made, body=b"question", seconds=60.0):
    return made.post("/chat/completions", body, deadline=time.monotonic() + seconds)


def failure(url, **options):
    """(kind, words) of what is raised."""
    with pytest.raises(TransportError) as caught:
        post(client(url), **options)
    assert KEY not in str(caught.value)
    return caught.value.kind, str(caught.value)


def test_compression_that_nobody_asked_for_is_undone(serve):
    body = gzip.compress(b"water " * 1000)
    server = serve(answering(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + body))
    assert post(client(server.url)).body == b"water " * 1000


def test_a_connection_is_used_again_and_replaced_unseen_when_it_was_closed_while_idle(serve):
    steady, leaving = serve(answering(OK, again=True)), serve(answering(OK))
    for server, connections in ((steady, 1), (leaving, 3)):
        made = client(server.url)
        for _ in range(3):
            assert post(made).body == b"ok"
            time.sleep(0.05)
        assert server.accepted == connections and len(server.requests) == 3


def test_a_cookie_goes_back_to_the_server_that_set_it(serve):
    setting = b"HTTP/1.1 200 OK\r\nset-cookie: node=seven; path=/\r\ncontent-length: 2\r\n\r\nok"
    server = serve(answering(setting, again=True))
    made = client(server.url)
    post(made)
    post(made)
    heads = [head.lower() for head, _ in server.requests]
    assert [b"cookie: node=seven" in head for head in heads] == [False, True]


def test_an_idle_connection_that_speaks_unasked_is_not_believed(serve):
    late = serve(
        lambda server, c: (
            request(server, c),
            c.sendall(OK),
            time.sleep(0.05),
            c.sendall(OK),
            time.sleep(1),
        )
    )
    made = client(late.url)
    post(made)
    time.sleep(0.15)
    post(made)
    assert late.accepted == 2


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_post_is_sent_again_if_its_connection_may_have_been_closed_before(serve, size):
    server = serve(closing_while_idle(reset=False))
    made = client(server.url)
    post(made)
    assert post(made, bytes(size)).body == b"ok"
    assert server.accepted == 2 and len(server.requests) == 3


def test_a_post_is_sent_again_once(serve):
    def behave(server, connection):
        request(server, connection)
        if server.accepted == 1:
            connection.sendall(OK)
            request(server, connection)  # and no answer, nor on later connections

    server = serve(behave)
    made = client(server.url)
    post(made)
    with pytest.raises(TransportError) as caught:
        post(made)
    assert caught.value.kind == "reset"
    assert server.accepted == 2 and len(server.requests) == 3


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_post_that_a_server_works_on_before_it_hangs_up_is_not_sent_again(
    serve, size, reset, monkeypatch
):
    monkeypatch.setattr(http_client, "STALE", 0.05)
    server = serve(closing_while_idle(reset=reset, working=0.1))
    made = client(server.url)
    post(made)
    with pytest.raises(TransportError) as caught:
        post(made, bytes(size))
    assert caught.value.kind == "reset"
    assert server.accepted == 1 and len(server.requests) == 2


def test_a_post_over_a_new_connection_is_never_sent_again(serve):
    server = serve(answering(b""))
    assert failure(server.url)[0] == "reset" and len(server.requests) == 1


RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: the connection is closed by RST in place of FIN


def closing_while_idle(*, reset, seconds=0.0, working=0.0, before=b""):
    """Answers the first request of the first connection; reads the second one, works on it for a
    while, and closes it after `before`. Later connections are answered."""

    def behave(server, connection):
        if server.accepted > 1:
            answering(OK, again=True)(server, connection)
            return
        request(server, connection)
        connection.sendall(OK)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if seconds:
            time.sleep(seconds)
            return
        request(server, connection)
        time.sleep(working)
        connection.sendall(before)

    return behave


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.05], ids=["on its way", "between calls"])
@pytest.mark.parametrize("secured", [False, True])
def test_a_connection_that_was_closed_between_calls_is_opened_again(
    serve, certificate, monkeypatch, reset, seconds, secured
):
    server = serve(
        closing_while_idle(reset=reset, seconds=seconds), certificate[1] if secured else None
    )
    url = server.url
    if secured:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        url = url.replace("http:", "https:")
    made = client(url)
    assert post(made).body == b"ok"
    time.sleep(2 * seconds)
    assert post(made).body == b"ok"
    assert server.accepted == 2


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("before", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", OK[:-1]])
def test_a_request_whose_answer_began_is_not_sent_again(serve, before, reset):
    server = serve(closing_while_idle(reset=reset, before=before))
    made = client(server.url)
    post(made)
    with pytest.raises(TransportError) as caught:
        post(made)
    assert caught.value.kind == "reset"
    assert len(server.requests) == 2


def test_a_new_connection_that_is_refused_counts_after_one_that_was_closed(serve):
    server = serve(closing_while_idle(reset=False, seconds=0.05))
    made = client(server.url)
    post(made)
    server.close()
    time.sleep(0.1)
    with pytest.raises(TransportError) as caught:
        post(made)
    assert caught.value.kind == "connection"


@pytest.mark.parametrize(("seconds", "connections"), [(0, 3), (60, 1)])
def test_a_connection_is_not_used_after_the_time_that_its_server_names(serve, seconds, connections):
    header = b"\r\nkeep-alive: timeout=%d, max=100\r\n\r\n" % seconds
    server = serve(answering(OK.replace(b"\r\n\r\n", header), again=True))
    made = client(server.url)
    for _ in range(3):
        assert post(made).body == b"ok"
    assert server.accepted == connections


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BOMB = gzip.compress(bytes(3 << 20))
BAD = [
    ("unreadable", b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    ("unreadable", b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000 + b"\r\n\r\n"),
    ("reset", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    ("unreadable", b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"),
    ("unreadable", b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok"),
    ("reset", b""),
    ("reset", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal"),
    ("reset", CHUNKED + b"5\r\nhel"),
    ("reset", CHUNKED + b"5\r\nhello\r\n"),
    ("unreadable", CHUNKED + b"xyz\r\n"),
    ("too large", b"HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n"),
    (
        "too large",
        CHUNKED
        + b"80000\r\n"
        + bytes(0x80000)
        + b"\r\n80001\r\n"
        + bytes(0x80001)
        + b"\r\n0\r\n\r\n",
    ),
    ("too large", b"HTTP/1.1 200 OK\r\n\r\n" + bytes((1 << 20) + 1)),
    (
        "too large",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB)
        + BOMB,
    ),
]


@pytest.mark.parametrize(("kind", "answer"), BAD, ids=range(len(BAD)))
def test_what_is_no_whole_answer_is_told_by_its_kind(serve, kind, answer):
    assert failure(serve(answering(answer)).url)[0] == kind


def test_an_answer_that_is_whole_counts_even_if_the_connection_is_reset_behind_it(serve):
    def behave(server, connection):
        answering(OK)(server, connection)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )  # RST in place of FIN

    assert post(client(serve(behave).url)).body == b"ok"


TRICKLES = [
    [],
    [b"HTTP/1.1 200 OK\r\nx: ", *[b"y"] * 100],
    [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x"] * 100],
    [CHUNKED, *[b"1\r\nx\r\n"] * 100],
]


@pytest.mark.parametrize("pieces", TRICKLES, ids=range(len(TRICKLES)))
def test_the_deadline_holds_even_while_bytes_trickle(serve, pieces):
    slow = answering(*pieces, pause=0.05)
    server = serve(
        slow if pieces else lambda server, connection: (request(server, connection), time.sleep(2))
    )
    assert failure(server.url, seconds=LATE) == ("timeout", "no whole answer in time")


def test_a_server_that_does_not_read_meets_the_deadline_and_nothing_is_sent_after_one(serve):
    server = serve(lambda server, connection: time.sleep(2))
    assert failure(server.url, body=bytes(30_000_000), seconds=LATE)[0] == "timeout"
    unasked = serve(answering(OK))
    assert failure(unasked.url, seconds=-1)[0] == "timeout" and not unasked.accepted


def test_a_refused_connection_and_an_unknown_name_say_so():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert failure(f"http://127.0.0.1:{port}") == ("connection", words)
    assert failure("http://no-such-host.invalid/v1")[0] == "connection"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x y",
        "//x",
        "http://u:pw@x",
        "http://x/?k=pw",
        "http://[1",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_its_password_not_shown(url):
    with pytest.raises(UsageError) as caught:
        client(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("value", [f"{KEY}\r\nx: y", f"{KEY}\n", f"{KEY}\N{EN DASH}"])
def test_a_key_that_breaks_a_header_is_refused_and_not_shown(value):
    with pytest.raises(UsageError, match="'authorization'") as caught:
        Client("http://x", {"authorization": value}, largest=1)
    assert KEY not in str(caught.value)


def test_what_goes_wrong_with_tls_is_told_apart_from_a_connection_that_breaks(serve, certificate):
    server = serve(answering(OK), certificate[1])
    kind, words = failure(f"https://127.0.0.1:{server.port}")
    assert kind == "TLS" and "certificate" in words and not server.requests
    plain = serve(
        lambda server, connection: (
            connection.recv(1),
            connection.sendall(b"HTTP/1.1 400 No\r\n\r\n"),
        )
    )
    assert failure(f"https://127.0.0.1:{plain.port}")[0] == "TLS"
    closing = serve(lambda server, connection: connection.recv(4096))
    assert failure(f"https://127.0.0.1:{closing.port}")[0] == "connection"
    silent = serve(lambda server, connection: time.sleep(2))
    assert failure(f"https://127.0.0.1:{silent.port}", seconds=LATE)[0] == "timeout"


def test_a_certificate_file_that_is_not_one_is_an_error_of_usage(tmp_path, monkeypatch):
    for path in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(UsageError, match="SSL_CERT_FILE"):
            client("https://x")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_gets_the_whole_url_and_its_password(serve, monkeypatch, variable):
    proxy = serve(answering(OK))
    monkeypatch.setenv(variable, f"http://user:p%40ss@127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", "elsewhere.example")
    assert post(client("http://provider.example:8000/v1")).body == b"ok"
    head = proxy.requests[0][0]
    assert head.startswith(b"POST http://provider.example:8000/v1/chat/completions HTTP/1.1\r\n")
    assert b"proxy-authorization: basic dxnlcjpwqhnz\r\n" in head.lower()


def test_no_proxy_and_this_machine_go_straight(serve, monkeypatch):
    server, proxy = serve(answering(OK)), serve(answering(b""))
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    assert post(client(server.url)).body == b"ok"
    monkeypatch.setenv("NO_PROXY", "provider.invalid")
    failure("http://provider.invalid/v1")
    assert proxy.accepted == 0


def test_a_proxy_of_another_kind_is_refused(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", f"gopher://me:{KEY}@127.0.0.1:9")
    with pytest.raises(UsageError, match="gopher") as caught:
        client("http://provider.example")
    assert KEY not in str(caught.value)

"""A server that takes spans by OTLP over HTTP, parsed by the protocol's own classes, as Phoenix and collectors do."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@contextmanager
def receiving(status=200):
    """Yield a receiver: its address `url`, the `spans` that came, and the `headers` of each request, with its path."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                server.spans += [span for scope in resource.scope_spans for span in scope.spans]
            server.headers.append({**self.headers, "path": self.path})
            self.send_response(status)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url, server.spans, server.headers = f"http://127.0.0.1:{server.server_port}", [], []
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()

"""A server that takes spans by OTLP over HTTP, parsed by the protocol's own classes, as Phoenix and collectors do."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def attributes_of(span):
    """A span's attributes by name."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextmanager
def receiving(status=200):
    """Yield a receiver: its address `url`, the `spans` that came, and the `paths` and `headers` of requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                server.spans += [span for scope in resource.scope_spans for span in scope.spans]
            server.paths.append(self.path)
            server.headers.append(dict(self.headers))
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/v1/traces")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url, server.spans, server.paths, server.headers = f"http://127.0.0.1:{server.server_port}", [], [], []
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()

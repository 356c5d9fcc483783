"""A server of searches in the exact shapes of Anserini 1.7.1's REST server and of Search-R1's, over BM25 of ours."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from sextant.tools.retrievers import build


class SearchServer:
    """`more` are ids that it gives first of all; `failures` are statuses that the next requests get."""

    def __init__(self, corpus):
        self.more, self.failures, self.paths, self.headers = [], [], [], []
        self._corpus, self._retriever = corpus, build("bm25", corpus)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.paths.append(self.path)
                server.headers.append(dict(self.headers))
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, made = 200, {"error": "Unable to open index: octo"}
                if server.failures:
                    status = server.failures.pop(0)
                else:
                    made = (
                        server.search_r1(json.loads(sent)) if sent else server.anserini(self.path)
                    )
                body = json.dumps(made).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()

    def _search(self, text, k):
        found = [
            (doc_id, self._corpus[doc_id].text, score)
            for doc_id, score in self._retriever.search(text, k)
        ]
        return [*((doc_id, "", 99.0) for doc_id in self.more), *found][:k]

    def anserini(self, path):
        index, asked = unquote(urlsplit(path).path.split("/")[2]), parse_qs(urlsplit(path).query)
        found = self._search(asked["query"][0], int(asked["hits"][0]))
        shown = [
            {"docid": i, "score": s, "rank": rank, "doc": t}
            for rank, (i, t, s) in enumerate(found, start=1)
        ]
        return {
            "api": "v1",
            "index": index,
            "query": {"text": asked["query"][0]},
            "candidates": shown,
        }

    def search_r1(self, body):
        assert body["return_scores"] is True
        lists = [self._search(text, body["topk"]) for text in body["queries"]]
        made = [
            [{"document": {"id": i, "contents": f'""\n{t}'}, "score": s} for i, t, s in one]
            for one in lists
        ]
        return {"result": made}

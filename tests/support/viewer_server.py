"""The server of the trajectory page in a thread of the test; it leaves out a browser (chromium.py)."""

import threading
from contextlib import contextmanager

from sextant.evals.viewer import server as page_server


@contextmanager
def served(answers):
    with page_server.open_server(answers, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()

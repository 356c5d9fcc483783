"""A rollout by NeMo Gym's protocol, over examples/trainers/nemo_server.py; runs in an environment of its own."""

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from nemo_gym.server_utils import ServerClient

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "trainers"))

from nemo_server import BaseResourcesServerConfig, SearchServer

config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="sextant")
server = SearchServer(config=config, server_client=MagicMock(spec=ServerClient))
row = json.loads(Path("rows.jsonl").read_text())
answer = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [], "tools": []}
answer |= {"parallel_tool_calls": False, "tool_choice": "auto"}
with TestClient(server.setup_webserver()) as client:
    assert client.post("/seed_session", json=row).status_code == 200
    words = json.loads(row["responses_create_params"]["input"][0]["content"])["query"]
    found = client.post("/search", json={"query": words}).json()
    assert client.post("/read", json={"doc_id": found[0]["doc_id"]}).json()["text"]
    assert "error" in client.post("/read", json={"doc_id": "../x"}).json()
    sys.stdout.write(str(client.post("/verify", json=row | {"response": answer}).json()["reward"]))

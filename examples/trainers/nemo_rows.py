"""Print the rows of a dataset for NeMo Gym, whose server is nemo_server.py: `python nemo_rows.py [TASK]`."""

import json
import sys

from sextant.evals.serving.episode import describe
from sextant.evals.serving.rl_training import open_training, prompt_rows

if __name__ == "__main__":
    world = open_training(**dict(zip(["task"], sys.argv[1:], strict=False)))
    tools = [
        {"type": "function", "strict": False, **describe(tool)} for tool in world.tools.values()
    ]
    for row in prompt_rows(world):
        asked = {"input": row["prompt"], "tools": tools}
        sys.stdout.write(
            json.dumps({"responses_create_params": asked, "query_id": row["query_id"]}) + "\n"
        )

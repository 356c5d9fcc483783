"""The formats in which a run can be written for other tools.

Names only; importing this loads no format.
"""

# To add one: a module beside this one with a function write(source, folder), whose docstring's
# first line is what --to list says. It fills an empty folder and returns what a reader should know
# of the result.
FOLDERS = {
    "trec": "evals.formats.trec:write",
    "atif": "evals.formats.atif:write",
    "openinference": "evals.formats.openinference:write",
    "hub": "evals.formats.hub:write",
    "schemas": "evals.run_schemas:write_schemas",  # for which source is None
}
# The same for what is not a folder of ours: a function write(source, address, *, force).
SERVICES = {"mlflow": "evals.formats.mlflow:write", "otlp": "evals.formats.openinference:post"}

"""The formats in which a run can be written for other tools.

Names only; importing this loads no format.
"""

# To add a format: a module next to this one with a function write(source, folder), whose
# docstring's first line is what `--to list` prints. It fills an empty folder and returns notes for
# the reader of the result. A format of a user's own is the same function in a file or an installed
# package (docs/guide/extend.md).
FOLDERS = {
    "trec": "sextant.evals.formats.trec:write",
    "atif": "sextant.evals.formats.atif:write",
    "openinference": "sextant.evals.formats.openinference:write",
    "hub": "sextant.evals.formats.hub:write",
    "card": "sextant.evals.scoring.harness_card:write",
    # The only format whose source is None.
    "schemas": "sextant.evals.run_schemas:write_schemas",
}
# The same for a service instead of a folder: a function write(source, address, *, force).
SERVICES = {
    "mlflow": "sextant.evals.formats.mlflow:write",
    "otlp": "sextant.evals.formats.openinference:post",
}

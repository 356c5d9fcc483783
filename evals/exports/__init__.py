"""What a run can be written as, for other people's tools. Names only; importing it loads no format."""

# To add one: a module beside this one with a function write(source, folder), whose docstring's first line is what
# --to list says. It fills an empty folder and returns what a reader should know of the result.
FOLDERS = {
    "trec": "evals.exports.trec:write",
    "atif": "evals.exports.atif:write",
    "openinference": "evals.exports.openinference:write",
    "hub": "evals.exports.hub:write",
}
# The same for what is not a folder of ours: a function write(source, address, *, force).
SERVICES = {"mlflow": "evals.exports.mlflow:write"}

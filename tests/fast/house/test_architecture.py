"""The diagram of imports in the README, held. Imports inside functions count too, and those by a text."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from sextant.agents import AGENTS
from sextant.programs import PROGRAMS

ROOT = Path(__file__).parents[3]

MAY_IMPORT = {
    "tools": set(),
    "environments": {"tools"},  # never programs: data does not know who searches it
    "programs": {"tools"},  # never environments: that is where the answers are
    "agents": {"tools", "programs"},
    "evals": {"tools", "environments", "programs", "agents"},
    "benchmarks": {"tools", "environments", "programs", "agents", "evals"},
    "optimizers": {"tools", "environments", "programs", "agents", "evals"},
    # A distribution of its own: no other package may import it.
    "sextant_construction": {"tools", "environments", "programs", "agents", "evals"},
}


# From the bottom up: each may import those before it.
LAYERS_OF_EVALS = (
    "run_schemas",
    "run_descriptions",
    "run_folder",
    "run_sittings",
    "scoring",
    "running",
    "web_page",
    "papers",
    "formats",
    "reporting",
    "viewer",
    "studies",
    "serving",
)


# A part of the benchmarks that is measured by itself, and the lazy names of the package.
TEXT_IMPORTS = {"benchmarks.scale", "benchmarks.retrieval", "evals"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, *, tables: bool = True) -> set[str]:
    """Dotted names that a module imports, of this project's packages, or names in a table ("module:attribute")."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            names |= {
                one.value
                for one in node.args[:1]
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
        elif (
            tables
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and ":" in node.value
        ):
            names.add(node.value.partition(":")[0])
    names = {name.removeprefix("sextant.") for name in names}
    return {name for name in names if name.split(".")[0] in MAY_IMPORT}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package in MAY_IMPORT:
        home = ROOT / "construction" if package == "sextant_construction" else ROOT
        for path in (home / package).rglob("*.py"):
            parts = path.relative_to(home).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_packages_import_only_downwards():
    for module, path in modules().items():
        package = module.split(".")[0]
        if module in (
            "programs.__main__",
            "tools.retrievers.__main__",
            "environments.__main__",
        ):
            continue  # commands: they look programs and tasks up as sextant.evals.run does, and nothing imports them
        used = {name.split(".")[0] for name in imports(path)} - {package}
        assert used <= MAY_IMPORT[package], f"{module} may not import {used - MAY_IMPORT[package]}"


def test_nothing_of_the_core_imports_construction():
    importers = [
        module
        for module, path in modules().items()
        if not module.startswith("sextant_construction")
        and any(name.startswith("sextant_construction") for name in imports(path))
    ]
    assert importers == []


def test_layers_of_evals_import_only_downwards():
    for module, path in modules().items():
        package, _, rest = module.partition(".")
        layer = rest.split(".")[0]
        if package != "evals" or layer not in LAYERS_OF_EVALS:
            continue  # a command may import every layer
        below = LAYERS_OF_EVALS[: LAYERS_OF_EVALS.index(layer) + 1]
        imported = {name for name in imports(path, tables=False) if name.startswith("evals.")}
        upwards = {name for name in imported if name.split(".")[1] not in below}
        assert not upwards, f"{module} may not import {upwards}"


def test_no_module_imports_itself_by_way_of_others():
    known = modules()
    graph = {m: (imports(path, tables=False) & known.keys()) - {m} for m, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError and names the cycle


def test_modules_of_ours_are_imported_by_a_text_where_a_table_has_it_alone():
    by_text = {}
    for module, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("import_module", "__import__")
            ):
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                if (
                    any(str(text).split(".")[0] in MAY_IMPORT for text in texts)
                    and module not in TEXT_IMPORTS
                ):
                    by_text[module] = texts
    assert not by_text, "an import statement in the function says the same, and tools read it"


def test_a_program_is_named_in_its_own_file_and_in_the_table_alone():
    systems = PROGRAMS | AGENTS
    words = {
        "grep",
        "notes",
        "pages",
        "rank",
        "reason",
        "score",
    }  # which are keys of files and steps of a trace, too
    for module, path in modules().items():
        if module in ("programs", "agents") or module.startswith("benchmarks"):
            continue
        said = {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)}
        others = {
            name
            for name, reference in systems.items()
            if reference.partition(":")[0].removeprefix("sextant.") != module
        }
        assert not said & (others - words), (
            f"{module} names a program: let the program say what that is for"
        )


def test_a_file_says_at_its_top_what_it_is_for():
    for module, path in modules().items():
        assert ast.get_docstring(tree(path)), module


def test_a_parsed_command_line_stays_in_the_file_of_its_command():
    for module, path in modules().items():
        named = any(
            isinstance(node, ast.Attribute) and node.attr == "Namespace"
            for node in ast.walk(tree(path))
        )
        own = any(
            isinstance(node, ast.FunctionDef) and node.name == "parser" for node in tree(path).body
        )
        assert own or not named or module == "tools.platform.cli", (
            f"{module} takes a parsed command line"
        )

"""Run a recipe in its folder, say ahead what that takes, and say how far it is."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from evals import run_folder
from evals.build import ingest, recipe, release
from evals.build.pipeline import BuildPipeline, StageReached
from evals.build.types import Benchmark, read_dropped
from evals.running.cost_estimate import LEVELS
from evals.running.request import SharedRequest
from evals.running.resolve import check_prices
from evals.studies.run_cells import FIGURES
from evals.text_tables import TextTable, render_terminal
from programs.build_stages import STAGES
from programs.build_stages.stage_program import Role
from tools import files, retrievers
from tools.cli import print_stderr
from tools.errors import FAULTS, DataError, RunBusy, UnknownName, UsageError
from tools.models.model_spec import check_key, price_is_known
from tools.number_format import number

ROLES = get_args(Role)
Range = list[float] | None  # low, likely, high
Result = dict[str, Any]  # what --json prints


def run(
    folder: Path,
    request: SharedRequest,
    named: Mapping[str, str] = {},
    *,
    until: str = "",
    dry_run: bool = False,
    cassette: Path | None = None,
    limit: int | None = None,
    follow_links: bool = False,
) -> Result:
    """Make the benchmark of the recipe in `folder`, or go on with it, `until` a stage.

    `named` are models by role or stage; a trial on `limit` documents is in a folder inside. SextantError where it
    cannot be finished; what was answered is kept.
    """
    name, parameters = recipe.read_recipe(folder)
    if follow_links:
        parameters = replace(parameters, corpus=replace(parameters.corpus, follow_links=True))
    lms = _choose_models(parameters, named, request)
    if until and until not in STAGES:
        raise UnknownName("stage", until, STAGES)
    if limit is not None:
        parameters = replace(parameters, corpus=replace(parameters.corpus, sample=limit))
        folder = folder / f"limit-{limit}"  # a trial leaves the benchmark alone
        files.mkdir_private(folder)
    requests = {role: replace(request, lm=lm) for role, lm in lms.items()}
    check_prices(request, lms.values(), _list_retrievers(parameters))
    for lm in dict.fromkeys(lms.values()):
        if not price_is_known(lm, request.prices):
            print_stderr(
                f"the price of {lm} is not known, so its dollars are not counted; --prices FILE "
                f"tells it, and --budget-calls limits what is sent"
            )
    for one in requests.values():
        if one.lm != "offline" and not (dry_run or cassette):
            check_key(one.lm, one.headers)
    with files.lock_file(folder / ".lock", partial(_refuse, folder), files.PRIVATE):
        source = ingest.ingest(
            parameters.corpus, parameters.clean, parameters.cut, folder / "corpus"
        )
        for warning in source.warnings:
            print_stderr(warning)
        with BuildPipeline(
            folder, name, parameters, source, requests, ahead=dry_run, cassette=cassette
        ) as build:
            build.until = until
            for left_out in read_dropped(source):
                build.drop("ingest", *left_out)
            build.count(
                "ingest", len(source.documents) + sum(source.counts.values()), len(source.documents)
            )
            made: Benchmark | None = None
            try:
                made = import_module(type(parameters).__module__).build_benchmark(build)
            except StageReached:
                pass
            except DataError as problem:
                if not dry_run:
                    raise
                print_stderr(f"the rehearsal ends here: {problem}")
            except FAULTS as problem:
                raise problem.saying(f"{problem}; what was answered is kept in {folder}") from None
        if dry_run:
            return {"dry_run": True, "stages": total_estimates(build.forecasts)}
        if made is None or until in build.funnel:
            return read_status(folder)
        says = parameters.release
        digest = run_folder.digest(asdict(parameters))
        told: Result = {"recipe": name, "digest": digest, "models": lms}
        told |= {
            "funnel": read_status(folder)["stages"],
            "licence": says.licence,
            "source": says.source,
        }
        release.write_release(made, folder, told)
    if problems := release.check_release(folder):
        raise DataError(
            f"{folder / 'release'} is not right: {problems[0]} ({len(problems)} in all)"
        )
    return read_status(folder)


def _refuse(folder: Path) -> None:
    raise RunBusy(f"another process is at {folder}; wait for it")


def _choose_models(
    parameters: recipe.Recipe, named: Mapping[str, str], request: SharedRequest
) -> dict[str, str]:
    """Return the model of each role, and of each stage that has one of its own."""
    lms = {
        role: named.get(role) or getattr(parameters.models, role) or request.lm for role in ROLES
    }
    lms |= {
        **parameters.models.stages,
        **{one: lm for one, lm in named.items() if one not in ROLES},
    }
    if strange := [one for one in lms if one not in (*ROLES, *STAGES)]:
        raise UnknownName("stage or role", strange[0], (*ROLES, *STAGES))
    return lms


def _list_retrievers(parameters: recipe.Recipe) -> list[retrievers.RetrieverSpec]:
    """Return those that the sections of a recipe name."""
    named = [
        getattr(getattr(parameters, section.name), "retrievers", ())
        for section in fields(parameters)
    ]
    return [retrievers.canonicalize(text) for texts in named for text in texts]


def read_status(folder: Path) -> Result:
    """Return what went through the stages so far, and where the release is."""
    try:
        funnel = json.loads((folder / "funnel.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"nothing was built in {folder} yet; python -m evals.build run {folder}"
        ) from None
    made = folder / "release"
    return {
        "folder": str(folder),
        "stages": funnel,
        "release": str(made) if made.is_dir() else None,
    }


def render_build(found: Result) -> str:
    """Return the funnel, or the forecast, as a person reads it."""
    if "dry_run" in found:
        return render_terminal(
            [
                "dry run: nothing was sent; figures are low, likely and high",
                _lay_out_ahead(found["stages"]),
            ]
        )
    rows = []
    for row in found["stages"]:
        why = ", ".join(f"{many:,} {reason}" for reason, many in row["dropped"].items())
        used = row["usage"]
        calls = f"{used['calls']:,}" if used else ""
        price = number(used["list_usd"], "${:.4f}") if used and row["lm"] != "offline" else ""
        rows.append(
            [
                row["stage"],
                f"{row['went_in']:,}",
                f"{row['came_out']:,}",
                why,
                calls,
                row["lm"],
                price,
            ]
        )
    heads = ["stage", "in", "out", "left out", "calls", "model", "list price"]
    lines: list[Any] = [TextTable("", heads, rows, (0, 3, 5))]
    if any(row["lm"] == "offline" for row in found["stages"]):
        lines.append(
            "offline, which counts words, filled some stages: what comes of them is a floor"
        )
    if found["release"]:
        lines.append(
            f"release: {found['release']}; python -m evals.run --task {found['release']} "
            f"--program multihop"
        )
    return render_terminal(lines)


def total_estimates(forecasts: Sequence[Result]) -> dict[str, dict[str, Range]]:
    """Return what each stage takes, by figure: low, likely and high; None where a price is not known.

    Units that follow from answers which are not there yet may be none, and as many as the recipe allows at most. Where
    the rehearsal came to none, they are taken to be as large as the largest of other stages.
    """
    sums: dict[str, dict[str, Range]] = {}
    every = [part for part in forecasts if part["queries"]]
    for name in dict.fromkeys(part["stage"] for part in forecasts):
        some = [part for part in forecasts if part["stage"] == name]
        units = sum(part["units"] for part in some)
        most = max(part["most"] for part in some)
        more = 1 if all(part["certain"] for part in some) else max(most, units) / max(1, units)
        for key in FIGURES:
            low, likely, high = LEVELS
            large = max(
                ((part[key] or {}).get(high, 0.0) / part["queries"] for part in every), default=0.0
            )
            known = [
                [one[low] * part["certain"], one[likely], one[high] * more]
                for part in some
                if (one := part[key])
            ]
            known += [[0.0, 0.0, 0.0 if units else most * large]]
            sums.setdefault(name, {})[key] = _add(known) if len(known) > len(some) else None
    return sums


def _lay_out_ahead(sums: Mapping[str, Mapping[str, Range]]) -> TextTable:
    every = {key: _add([one[key] for one in sums.values()]) for key in FIGURES}
    rows = [
        [name, *(_levels(one[key], digits) for key, digits in FIGURES.items())]
        for name, one in {**sums, "all": every}.items()
    ]
    return TextTable(
        "", ["stage", "calls", "tokens in", "tokens out", "list price", "hours"], rows, (0,)
    )


def _add(parts: Sequence[Range]) -> Range:
    known = [part for part in parts if part is not None]
    return (
        [sum(column) for column in zip(*known, strict=True)] if len(known) == len(parts) else None
    )


def _levels(values: Range, digits: int) -> str:
    return "unknown" if values is None else " ".join(f"{value:,.{digits}f}" for value in values)

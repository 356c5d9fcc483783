"""Run a recipe in its folder, estimate its cost before, and report its progress."""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from sextant.evals import run_folder
from sextant.evals.running.request import SharedRequest
from sextant.evals.running.resolve import check_prices
from sextant.evals.studies.run_cells import FIGURES
from sextant.tools import plugins, retrievers
from sextant.tools.errors import FAULTS, DataError, RunBusy, SextantError, UnknownName, UsageError
from sextant.tools.models.model_spec import check_key, price_is_known
from sextant.tools.platform import files
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import number
from sextant.tools.platform.result_table import CommandLine, ResultTable, render_terminal
from sextant.tools.records import JsonObject
from sextant_construction import ingest, recipe, release
from sextant_construction.pipeline import BuildPipeline, StageReached
from sextant_construction.stages import STAGES
from sextant_construction.stages.stage_program import Role
from sextant_construction.types import Benchmark, read_dropped

ROLES = get_args(Role)
HEADS = ["stage", "in", "out", "left out", "calls", "model", "list price"]  # of the funnel
INGEST = "ingest"  # the first stage, which asks no model
# Of the units that are certain, of those known so far, and of the most that the recipe allows; None
# if a price is not known.
Range = list[float] | None
Result = JsonObject  # the object that --json prints


def run(
    folder: Path,
    request: SharedRequest,
    named: Mapping[str, str] = {},
    *,
    until: str = "",
    dry_run: bool = False,
    limit: int | None = None,
) -> Result:
    """Make the benchmark of the recipe in `folder`, or go on with it, `until` a stage.

    `named` are models by role or stage; a trial on `limit` documents is in a folder inside.
    SextantError if the benchmark cannot be finished; answers so far are kept.
    """
    name, parameters = recipe.read_recipe(folder)
    known = (*ROLES, *STAGES)
    for role in named:
        if role not in known:
            raise UnknownName("stage or role", role, known)
    lms = dict.fromkeys(ROLES, request.lm) | {role: lm for role, lm in named.items() if lm}
    if until and until not in (INGEST, *STAGES):
        raise UnknownName("stage", until, (INGEST, *STAGES))
    if limit is not None:
        parameters = replace(parameters, corpus=replace(parameters.corpus, sample=limit))
        # A trial leaves the benchmark alone.
        folder = folder / f"limit-{limit}"
        files.mkdir_private(folder)
    specs = [
        retrievers.canonicalize(text)
        for section in vars(parameters).values()
        for text in getattr(section, "retrievers", ())
    ]
    check_prices(request, lms.values(), specs)
    for lm in lms.values():
        if not dry_run and lm != "offline":
            check_key(lm, request.headers)
    label = plugins.display_name(name)

    def refuse() -> None:
        raise RunBusy(f"another process is at {folder}; wait for it")

    with files.lock_file(folder / ".lock", refuse, files.PRIVATE):
        _warn_of_unknown_prices(request, lms)
        source = ingest.ingest(
            parameters.corpus, parameters.clean, parameters.cut, folder / "corpus"
        )
        for warning in source.warnings:
            print_stderr(warning)
        requests = {role: replace(request, lm=lm) for role, lm in lms.items()}
        with BuildPipeline(folder, label, parameters, source, requests, ahead=dry_run) as build:
            build.until = until
            for left_out in read_dropped(source):
                build.drop(INGEST, *left_out)
            documents = len(source.documents)
            build.count(INGEST, documents + sum(source.counts.values()), documents)
            benchmark = _follow_recipe(build, recipe.load_builder(parameters))
        if dry_run:
            return {"dry_run": True, "stages": total_estimates(build.forecasts)}
        if benchmark is None or until in build.funnel:
            return read_status(folder)
        provenance: Result = {
            "recipe": label,
            "differs": recipe.describe_differences(name),
            "digest": run_folder.digest(asdict(parameters)),
            "models": lms,
            "funnel": read_status(folder)["stages"],
            "licence": parameters.release.licence,
            "source": parameters.release.source,
        }
        release.write_release(benchmark, folder, provenance)
    problems = release.check_release(folder)
    if problems:
        raise DataError(
            f"{folder / 'release'} is not right: {problems[0]} ({len(problems)} in all)"
        )
    return read_status(folder)


def _follow_recipe(
    build: BuildPipeline, build_benchmark: Callable[[Any], Benchmark]
) -> Benchmark | None:
    """Return the benchmark; None if the build stops at a stage, or a rehearsal ends early.

    UsageError, with the line of a user's code, if a recipe of the user's own fails.
    """
    try:
        return build_benchmark(build)
    except StageReached:
        return None
    except DataError as problem:
        if not build.ahead:
            raise
        print_stderr(f"the rehearsal ends here: {problem}")
        return None
    except FAULTS as problem:
        message = f"{problem}; what was answered is kept in {build.folder}"
        raise problem.saying(message) from None
    except SextantError:
        raise
    except Exception as error:  # a recipe of the user's may raise anything
        if build.name in recipe.RECIPES:
            raise
        description = plugins.describe_exception(error)
        raise UsageError(f"the recipe {build.name} fails: {description}") from error


def _warn_of_unknown_prices(request: SharedRequest, lms: Mapping[str, str]) -> None:
    for lm in dict.fromkeys(lms.values()):
        if not price_is_known(lm, request.prices):
            print_stderr(
                f"the price of {lm} is not known, so its dollars are not counted; --prices FILE "
                f"tells it, and --budget-calls limits what is sent"
            )


def read_status(folder: Path) -> Result:
    """Return the funnel so far, and the folder of the release, None if there is none yet."""
    try:
        funnel = json.loads((folder / "funnel.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"nothing was built in {folder} yet; sextant build run {folder}") from None
    release_folder = folder / release.RELEASE
    return {
        "folder": str(folder),
        "stages": funnel,
        "release": str(release_folder) if release_folder.is_dir() else None,
    }


def render_build(result: Result) -> str:
    """Return the funnel, or the forecast, as a person reads it."""
    if "dry_run" in result:
        return render_terminal(
            [
                "dry run: nothing was sent; figures are of the units that are certain, of those known "
                "so far, and of the most that the recipe allows; answers are as long as those of "
                "offline, and none is asked for again",
                _tabulate_estimates(result["stages"]),
            ]
        )
    rows = []
    for row in result["stages"]:
        usage = row["usage"]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in row["dropped"].items())
        cells = [row["stage"], f"{row['went_in']:,}", f"{row['came_out']:,}", reasons]
        if usage:
            price = number(usage["list_usd"], "${:.4f}") if row["lm"] != "offline" else ""
            cells += [f"{usage['calls']:,}", row["lm"], price]
        rows.append(cells + [""] * (len(HEADS) - len(cells)))
    lines: list[Any] = [ResultTable("", HEADS, rows, (0, 3, 5))]
    if any(row["lm"] == "offline" for row in result["stages"]):
        lines.append(
            "offline, which counts words, filled some stages: what comes of them is a floor"
        )
    if result["release"]:
        lines.append(f"release: {result['release']}")
        command = f"sextant run --task {shlex.quote(result['release'])} --program multihop"
        lines.append(CommandLine("run it:", command))
    return render_terminal(lines)


def total_estimates(forecasts: Sequence[Result]) -> dict[str, dict[str, Range]]:
    """Return the cost of each stage, by figure, as a `Range`.

    Units that follow from answers which are not there yet may be none, and at most as many as the
    recipe allows. If the rehearsal came to no unit, units are taken to be as large as the largest
    units of other stages.
    """
    estimates: dict[str, dict[str, Range]] = {}
    for stage in dict.fromkeys(row["stage"] for row in forecasts):
        rows = [row for row in forecasts if row["stage"] == stage]
        units = sum(row["units"] for row in rows)
        most = max(units, *(row["most"] for row in rows))
        estimates[stage] = dict.fromkeys(FIGURES)
        for figure in FIGURES:
            if any(row[figure] is None for row in rows):
                continue
            known = sum(row[figure] for row in rows)
            certain = sum(row[figure] for row in rows if row["certain"])
            largest = max((row[figure] or 0) / max(1, row["queries"]) for row in forecasts)
            of_unit = known / units if units else largest
            estimates[stage][figure] = [certain, known, of_unit * most]
    return estimates


def _tabulate_estimates(estimates: Mapping[str, Mapping[str, Range]]) -> ResultTable:
    heads = ["stage", *(head for head, _ in FIGURES.values())]
    table: dict[str, list[str]] = {stage: [stage] for stage in estimates}
    table["all"] = ["all"]
    for figure, (_, form) in FIGURES.items():
        known = [by_figure[figure] or [math.nan] * 3 for by_figure in estimates.values()]
        ranges = [*known, [sum(column) for column in zip(*known, strict=True)]]
        for cells, levels in zip(table.values(), ranges, strict=True):
            is_known = not any(map(math.isnan, levels))
            cells.append(" ".join(map(form.format, levels)) if is_known else "unknown")
    return ResultTable("", heads, list(table.values()), (0,))

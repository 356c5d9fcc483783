// All runs: what they cost and what they reach, as charts and as a table to choose from.

const perQuery = (run, value) => (defined(value) && run.queries > 0 ? value / run.queries : null);
const costOf = (words, used, format) => ({ words, of: (run) => perQuery(run, used(run.usage ?? {})), format });
// What nobody knows, as of an imported run, is null, and not the cheapest.
const tokensOf = (usage) => (defined(usage.input_tokens) ? usage.input_tokens + usage.output_tokens : null);
const COSTS = {
  usd: costOf("list price per query", (usage) => usage.list_usd, (n) => usd(n).replace(/(\.\d*?)0+$/, "$1")),
  calls: costOf("model calls per query", (usage) => usage.calls, (n) => String(Number(n.toFixed(2)))),
  tokens: costOf("tokens per query", tokensOf, (n) => (n >= 10000 ? `${Number((n / 1000).toFixed(1))}k` : count(n))),
};
const FACETS = 3; // charts: one row of them
const ORDERS = { "": "by score", "-date": "newest first" };

const headline = (run) => run.metrics?.[run.metric] ?? {};
const kOf = (run) => cutoffOf(run.metric, run.losses);

async function overview({ params }) {
  const known = await loadRuns(true);
  const { runs, unreadable, title } = known;
  const usual = runs.some((run) => run.usage?.list_usd > 0) ? "usd" : "calls";
  const state = {
    ...stated(params, "task", "program", "lm", "tag", "text", "find", "cost", "sort"),
    chosen: new Set((params.get("chosen") ?? "").split(",").filter(Boolean).map(decode)),
  };
  if (!Object.hasOwn(COSTS, state.cost)) state.cost = usual;
  const byId = new Map(runs.map((run) => [run.id, run]));
  const set = (key) => (value) => {
    state[key] = value;
    changed();
    draw();
  };
  const charts = el("div.facets");
  const picked = el("div.picked", { role: "region", "aria-label": "Chosen runs" });
  const priced = runs.some((run) => run.usage?.list_usd !== 0);
  const list = runsTable(state, runs, priced, (run) => choose(run), set("sort"));
  const shown = el("span.about", { role: "status" });

  function changed() {
    keepInAddress({
      ...state,
      cost: state.cost === usual ? "" : state.cost,
      chosen: [...state.chosen].map(encodeId).join(","),
    });
  }

  function choose(run) {
    if (!state.chosen.delete(run.id)) state.chosen.add(run.id);
    drawPicked();
    changed();
  }

  function drawPicked() {
    const chosen = [...state.chosen].filter((id) => byId.has(id));
    picked.hidden = !chosen.length;
    picked.replaceChildren(
      el("span.names", chosen.map((id) => badge(labelOf(byId.get(id))))),
      chosen.length > 1
        ? el("a.button", { href: link.compare(chosen), "data-compare": true }, `Compare ${chosen.length} runs`)
        : el("span.about", "Select more runs to compare."),
      button({ class: "quiet" }, clear, "Clear"),
    );
  }

  function clear() {
    state.chosen.clear();
    for (const box of list.node.querySelectorAll("input[type=checkbox]")) box.checked = false;
    drawPicked();
    changed();
  }

  function draw() {
    const words = wordsOf(state.text);
    const told = (run) =>
      [run.id, run.task, labelOf(run), run.program, run.lm, run.retriever, run.split, run.pool ?? "", run.named].map(asText);
    const fitting = runs
      .filter((run) => !state.tag || run.named.tags.includes(state.tag))
      .filter((run) => ["task", "program", "lm"].every((key) => !state[key] || run[key] === state[key]))
      .filter((run) => holds(told(run).join(" ").toLowerCase(), words));
    list.show(fitting);
    shown.textContent = ofAll(fitting, runs, "run");
    charts.replaceChildren(...facets(fitting, state.cost));
    drawPicked();
  }

  const values = (key) => [
    ["", "all"],
    ...[...new Set(runs.map((run) => run[key]))].sort(collator.compare).map((v) => [v, v]),
  ];
  const tags = [...new Set(runs.flatMap((run) => run.named.tags))].sort(collator.compare);
  const costs = choice("Cost", Object.entries(COSTS).map(([key, cost]) => [key, cost.words]), state.cost, set("cost"));
  const node = el(
    "div",
    heading("Runs", [foreign(title ?? "")]),
    el(
      "div.filters",
      { role: "search" },
      searchField("Text", state.text, set("text")),
      choice("Task", values("task"), state.task, set("task")),
      choice("Program", values("program"), state.program, set("program")),
      choice("Model", values("lm"), state.lm, set("lm")),
      tags.length > 0 && choice("Tag", [["", "all"], ...tags.map((tag) => [tag, tag])], state.tag, set("tag")),
      choice("Order", Object.entries(ORDERS), Object.hasOwn(ORDERS, state.sort) ? state.sort : "", set("sort")),
    ),
    liveSection(known, again),
    runs.length > 0
      ? [section("Cost and quality", costs, charts), section("All runs", [shown, csvButton("runs", () => runsCsv(list.sorted))], list.node, fatesLegend(runs))]
      : notice("No run is finished yet."),
    runs.length > 1 &&
      findSection(runs.map((run) => run.id), state.find, set("find"), known.exported, (id) =>
        el("p", el("a", { href: link.run(id) }, el("b", foreign(labelOf(byId.get(id))))), " ", foreign(byId.get(id).task, "about")),
      ),
    known.compared && el("p.about", `${known.compared}.`),
    picked,
    unreadable?.length > 0 && unread(unreadable),
  );
  draw();
  return { title: "Runs", node, up: null };
}

function runsTable(state, runs, priced, choose, onSort) {
  const box = (run) => {
    const input = el("input", {
      type: "checkbox",
      checked: state.chosen.has(run.id),
      "aria-label": `Choose ${labelOf(run)} to compare`,
      on: { change: () => choose(run) },
    });
    return el("label.tick", input);
  };
  const system = (run) => [
    el("a", { href: link.run(run.id) }, foreign(run.named.name || runName(run))),
    !run.named.name && settingOf(run) && el("span.setting", " ", foreign(settingOf(run))),
    run.imported && [" ", badge("imported")],
    run.named.tags.map((tag) => [" ", badge(tag, "tag")]),
  ];
  const cut = (words) => el("span.cut", { title: words }, foreign(words));
  const text = (key, head) =>
    columnOf(key, head, (run) => run[key], (run) => cut(asText(run[key] ?? "")));
  const plain = (key, head, value, words, hint) =>
    numberColumn(key, head, value, (run) => (defined(value(run)) ? words(value(run)) : el("span.absent", "–")), { hint });
  const faults = (key, head, hint) =>
    numberColumn(key, head, (run) => run[key], (run) => el("span", { class: run[key] ? "bad" : "absent" }, count(run[key] ?? 0)), { hint });
  return sortable({
    caption: "Runs",
    sort: state.sort,
    groups: { of: contractOf, order: byAsked(runs, state), head: questions },
    tie: (a, b) => (headline(b).mean ?? -1) - (headline(a).mean ?? -1) || collator.compare(a.id, b.id),
    attributesOf: (run) => ({ "data-run": run.id }),
    open: (run) => link.run(run.id),
    onSort,
    columns: [
      { key: "choose", head: spoken("Choose"), cell: box, className: "choose" },
      columnOf("program", "System", labelOf, system, { row: true }),
      numberColumn(
        "value",
        "Headline",
        (run) => headline(run).mean,
        (run) => el("span.measured", el("b", score(headline(run).mean)), interval(headline(run), 1, 64)),
        { hint: "The task's metric, with its 95 % interval" },
      ),
      numberColumn(
        "found",
        "Relevant documents",
        (run) => sharesAt(run.losses, kOf(run))?.found,
        (run) => sharesBar(run.losses, kOf(run)),
        { hint: "Outcome of the relevant documents at the headline cutoff: found, then lost, latest loss first" },
      ),
      text("retriever", "Retriever"),
      text("lm", "Model"),
      numberColumn("calls", "Calls/query", COSTS.calls.of, (run) => number(COSTS.calls.of(run))),
      priced &&
        numberColumn("usd", "$ a query", COSTS.usd.of, (run) => usd(COSTS.usd.of(run)), { hint: "At list price" }),
      faults("failed", "Failed", "Queries that failed; they score 0"),
      faults("unusable", "Unusable", "Answers of the model of which no part could be used"),
      plain("seconds", "Time", (run) => run.seconds, clockWords, "Of all sittings"),
      plain("date", "Date", (run) => run.date, dateWords, "Of the last answer"),
      runs.some((run) => run.remarks) && plain("remarks", "Remarks", (run) => run.remarks, count),
    ],
  });
}

const RUNS_CSV =
  "run system program task split queries metric mean low high retriever model calls list_usd failed unusable seconds date remarks tags note";
const runsCsv = (runs) => [
  RUNS_CSV.split(" "),
  ...runs.map((run) => [
    ...[run.id, labelOf(run), run.program, run.task, run.split, run.queries, run.metric],
    ...[headline(run).mean, headline(run).low, headline(run).high, asText(run.retriever ?? ""), asText(run.lm ?? "")],
    ...[run.usage?.calls, run.usage?.list_usd, run.failed, run.unusable, run.seconds],
    ...[run.date && new Date(run.date * 1000).toISOString(), run.remarks, run.named.tags.join(" "), run.named.note],
  ]),
];

/** A date, with the time of day if it is today's. */
function dateWords(value) {
  const date = new Date(value * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const words = today ? { hour: "2-digit", minute: "2-digit" } : { day: "numeric", month: "short", year: "2-digit" };
  return date.toLocaleString("en-GB", words);
}

/** What the colours of the bars mean. */
function fatesLegend(runs) {
  const seen = fateOrder().filter((fate) => runs.some((run) => sharesAt(run.losses, kOf(run))?.[fate] > 0));
  const mark = (fate) => el("i", { class: `swatch fate-${fate}`, "aria-hidden": "true" }, fate === "found" ? "★" : "");
  return seen.length > 0 && el("p.legend", seen.map((fate) => el("span", mark(fate), ` ${fateWords(fate, "k")}`)));
}

/** Sets of runs that were asked the same: by task, the most queries first; or the set with the newest run first. */
function byAsked(runs, state = {}) {
  const newest = new Map();
  for (const run of runs) newest.set(contractOf(run), Math.max(newest.get(contractOf(run)) ?? 0, run.date ?? 0));
  return (a, b) =>
    (state.sort === "-date" && newest.get(contractOf(b)) - newest.get(contractOf(a))) ||
    collator.compare(a.task, b.task) ||
    b.queries - a.queries ||
    Number(a.asked !== "") - Number(b.asked !== "") ||
    collator.compare(contractOf(a), contractOf(b));
}

/** What the runs of a set were asked. */
const questions = (run) => [
  el("b", foreign(run.task)),
  " ",
  run.mini && [badge("mini", "mini"), " "],
  run.pool && [badge("pool"), " "],
  el(
    "span.about",
    ` ${splitWords(run.split)}, ${plural(run.queries, "query", "queries")}, ${run.metric}${run.asked ? `, ${run.asked}` : ""}`,
  ),
];

const number = (value) => (defined(value) ? String(Number(value.toFixed(value < 10 ? 2 : 1))) : "–");

/** The strongest bare retriever of a set: what every program in it has to be above. */
function bestBare(group) {
  const bare = group.filter((run) => run.program === "retrieve" && !run.pool && defined(headline(run).mean));
  const [best] = bare.sort((a, b) => better(a.metric) * (headline(b).mean - headline(a).mean));
  if (!best) return null;
  return el("span.about", `, best bare retriever ${score(headline(best).mean)} (`, foreign(best.retriever), ")");
}

/** A chart for each set of runs that were asked the same; those with the most runs. */
function facets(runs, cost) {
  const groups = new Map();
  for (const run of runs) {
    const key = contractOf(run);
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  const ordered = [...groups.values()].sort((a, b) => b.length - a.length || collator.compare(a[0].task, b[0].task));
  // A point by itself compares nothing, but is better than no chart.
  const several = ordered.filter((group) => group.length > 1);
  const drawn = (several.length ? several : ordered).slice(0, FACETS).sort(([a], [b]) => byAsked(runs)(a, b));
  const wide = drawn.length === 1 && !narrow();
  const { words, of, format } = COSTS[cost];
  const made = drawn.map((group) => {
    const [run] = group;
    const several = new Set(group.map(runName)).size > 1;
    const points = group
      .map((one) => ({ one, x: of(one), y: headline(one).mean }))
      .filter((point) => defined(point.x) && defined(point.y))
      .map(({ one, x, y }) => ({
        x,
        y,
        worth: better(one.metric) * y,
        name: one.named.name || (several ? labelOf(one) : settingOf(one) || runName(one)),
        href: link.run(one.id),
        said: `${labelOf(one)}: ${one.metric} ${score(y)}, ${format(x)} ${words}`,
      }));
    return el(
      "figure",
      { class: wide ? "wide" : null },
      el("figcaption", questions(run), bestBare(group)),
      points.length
        ? scatter(points, {
            xWords: words,
            xFormat: format,
            yWords: run.metric,
            ...(wide ? { width: Math.min(880, chartWidth()), height: 270 } : {}),
          })
        : notice(`The ${words} of these runs is unknown.`),
    );
  });
  if (made.length) {
    const dot = (best) =>
      svg("svg", { class: "scatter dot", viewBox: "0 0 12 12", "aria-hidden": "true" },
        svg("g", { class: best ? "best" : null }, svg("circle", { class: "point", cx: 6, cy: 6, r: 4 })));
    made.push(el("p.legend.others", el("span", dot(true), " no other is better for as little"), el("span", dot(false), " another is better for as little")));
  }
  const others = groups.size - drawn.length;
  if (others > 0 && drawn.length)
    made.push(el("p.about.others",
      `${others === 1 ? "One more set of runs is" : `${count(others)} more sets of runs are`} in the table; choose a task to see its chart.`));
  return made.length ? made : [notice("No run fits these filters.")];
}

function unread(unreadable) {
  return el(
    "details.unreadable",
    el("summary", `${plural(unreadable.length, "folder")} could not be read`),
    el("ul", unreadable.map(({ path: where, why }) => el("li", foreign(where, "id"), " ", foreign(why)))),
  );
}

// Runs beside each other: whether they differ, what they reach, where they lose, on which queries they differ; and one
// query of theirs, from the first step at which they part.

const letter = (n) => String.fromCharCode(65 + (n % 26)) + (n < 26 ? "" : Math.floor(n / 26) + 1);

async function compareView(given) {
  const ids = [...new Set(given.ids)].filter(Boolean);
  if (ids.length < 2) throw new Error("one run has nothing to be compared with; choose more in the list of runs");
  const { runs, exported } = await loadRuns(false);
  const place = (id) => runs.findIndex((run) => run.id === id);
  if (exported) ids.sort((a, b) => place(a) - place(b)); // as the comparisons in the file have them
  const loaded = await Promise.all(ids.map(loadRun));
  const sides = loaded.map((run, n) => {
    const about = runs.find((one) => one.id === ids[n]) ?? { id: ids[n], ...run.scores };
    return { n, id: ids[n], letter: letter(n), run, about, name: labelOf(about) };
  });
  return given.query === null ? compareRuns(sides, given.params) : compareQuery(sides, given);
}

const sideKey = (sides) => sides.map((side) => side.id).join(",");
const namesOf = (sides) => new Intl.ListFormat("en-GB").format(sides.map((side) => side.name));
const lettered = (side) => el("span", { class: `letter of-${side.n % 7}` }, side.letter);
const titled = (side) => [lettered(side), " ", foreign(side.name)];

/** Said when runs were not asked the same: their values then do not compare. */
function asked(sides) {
  const keys = ["task", "data", "split", "judgements", "relevant_from", "metric", "pool", "queries"];
  const differ = keys.filter((key) => new Set(sides.map((side) => asText(side.about[key] ?? null))).size > 1);
  const known = sides[0].run.siblings ?? [];
  if (!differ.length && sides.slice(1).every((side) => known.includes(side.id))) return null;
  return notice(
    `These runs differ in what was asked${differ.length ? `: ${differ.join(", ")}` : ""}. Their values are not comparable.`,
  );
}

async function compareRuns(sides, params) {
  const metrics = Object.keys(sides[0].run.values).filter((name) => sides.every((side) => name in side.run.values));
  if (!metrics.length) throw new Error("these runs have no metric in common; choose runs of the same task");
  const main = metrics.includes(sides[0].about.metric) ? sides[0].about.metric : metrics[0];
  const state = stated(params, "text", "metric", "sort", "show");
  if (!metrics.includes(state.metric)) state.metric = main;
  const ids = sides.map((side) => side.id);
  const find = (metric) => loadTogether("compare", ids, metric === main ? "all" : metric);
  let found = await find(state.metric);
  sides.forEach((side, n) => (side.name = side.about.named?.name || found.names[n]));
  const rows = pairedRows(sides, found);
  const list = pairedTable(sides, rows, state, (value) => {
    state.sort = value;
    draw();
  });
  const shown = el("span.about", { role: "status" });
  const verdicts = el("div");
  const differences = el("div");
  const agree = el("div");
  const set = (key) => async (value) => {
    state[key] = value;
    if (key === "metric") found = await find(value);
    if (key !== "text") tell();
    draw();
  };

  /** What changes with the metric. */
  function tell() {
    verdicts.replaceChildren(...verdictList(found, sides));
    differences.replaceChildren(scrolling("Metrics", sidesTable(sides, metrics, main, found)));
    agree.replaceChildren(agreement(sides, rows, state.metric));
  }

  function draw() {
    keepInAddress({ ...state, metric: state.metric === main ? "" : state.metric });
    const words = wordsOf(state.text);
    const wanted = SHOWN_QUERIES[state.show] ?? (() => true);
    const fitting = rows.filter(
      (row) => holds(`${row.queryId} ${row.text}`.toLowerCase(), words) && wanted(better(state.metric) * (row.spread[state.metric] ?? 0), found.tie),
    );
    list.show(fitting);
    lists.set(sideKey(sides), list.sorted.map((row) => row.queryId));
    shown.textContent = `${count(found.moved[state.metric] ?? 0)} of ${plural(rows.length, "query", "queries")} differ`;
  }

  const small = rows.length * sides.length <= 1500;
  const node = el(
    "div",
    heading(
      sides.map((side, n) => [n > 0 && el("span.versus", n === sides.length - 1 ? " and " : ", "), foreign(side.name)]),
      [foreign(sides[0].about.task), splitWords(sides[0].about.split)],
      sides[0].about.mini && miniBadge(),
    ),
    asked(sides),
    section("Is there a difference?", metricChoice(metrics, state.metric, set("metric")), verdicts),
    section("Metrics", null, differences),
    fallSection(
      sides.map((side) => ({ name: [lettered(side), " ", foreign(side.name)], losses: side.run.scores.losses })),
    ),
    section("Agreement by query", null, agree),
    together("At equal budgets", "Curves by searches, calls, tokens and dollars", small, () =>
      loadTogether("curves", ids).then((answer) => curveFigures(answer, sides)),
    ),
    together("What the searchers do", "Searches, notes, losses by kind, and what two find together", small, () =>
      loadTogether("behaviours", ids).then((answer) => behaviourSides(answer, sides)),
    ),
    section(
      "Queries by size of the difference",
      [shown, csvButton("queries", () => pairedCsv(sides, list.sorted, metrics))],
      el(
        "div.filters",
        { role: "search" },
        searchField("Text", state.text, set("text")),
        choice(
          "Show",
          [["", "all queries"], ["moved", "those that differ"]].concat(
            sides.length === 2 ? [["more", "those that B does better"], ["less", "those that A does better"]] : [],
          ),
          state.show,
          set("show"),
        ),
      ),
      list.node,
    ),
  );
  tell();
  draw();
  return {
    title: `${namesOf(sides)} on ${sides[0].about.task}`,
    crumbs: [[namesOf(sides), null]],
    node,
    up: link.overview(),
  };
}

// Which queries are listed, by how much better B is, or by the spread of several; less than `tie` is none.
const SHOWN_QUERIES = {
  moved: (spread, tie) => Math.abs(spread) >= tie,
  more: (spread, tie) => spread >= tie,
  less: (spread, tie) => -spread >= tie,
};

/** A section that is filled when it is opened, or at once. */
function together(title, summary, open, make) {
  const made = closedSection(title, summary, make, (nodes) => nodes);
  if (open) made.querySelector("details").open = true;
  return made;
}

const pairedCsv = (sides, rows, metrics) => [
  ["query_id", "text", ...metrics.flatMap((name) => sides.map((side) => `${name} ${side.letter}`))],
  ...rows.map((row) => [row.queryId, row.text, ...metrics.flatMap((name) => sides.map((_, n) => row.values[n][name]))]),
];

/** Verdicts in words, the matrix of all pairs where there are more than two runs, and notes. */
function verdictList(found, sides) {
  if (found.why) return [notice(found.why)];
  const row = (text) => el("li", foreign(`${text.charAt(0).toUpperCase()}${text.slice(1)}.`));
  return [
    el("ul.verdicts", found.verdicts.map(row)),
    found.pairs.length > 0 && pairMatrix(found, sides),
    found.notes.length > 0 &&
      el("details.config", el("summary", plural(found.notes.length, "note")), el("ul.notes", found.notes.map(row))),
  ].filter(Boolean);
}

const pWords = (p) => (!defined(p) ? "not tested" : p < 0.001 ? "p\u00a0<\u00a00.001" : `p\u00a0=\u00a0${p.toFixed(3)}`);

/** How far the run of a row is above that of a column, for all pairs. */
function pairMatrix({ pairs, metric, alpha, families }, sides) {
  const known = new Map(pairs.map((pair) => [`${pair.run} ${pair.baseline}`, pair]));
  const cell = (run, baseline) => {
    const pair = known.get(`${run} ${baseline}`);
    if (!pair) return el("td.number", "");
    const sure = defined(pair.p_holm) && pair.p_holm < alpha;
    return el(
      "td",
      { class: `number ${sure ? "sure" : ""}` },
      el(sure ? "b" : "span", signed(pair.difference)),
      el("span.about.under", pWords(pair.p_holm)),
    );
  };
  return el(
    "div",
    scrolling(
      "All pairs",
      tableOf(
        "metrics.matrix",
        `Differences in ${metric} between all pairs`,
        [columnHead(`${metric}: row less column`), sides.slice(0, -1).map((side) => numberHead(lettered(side)))],
        sides.slice(1).map((side, n) =>
          tableRow(titled(side), false, sides.slice(0, -1).map((_, column) => cell(n + 1, column))),
        ),
      ),
    ),
    el("p.about", `Bold is p below ${alpha}. Here p is adjusted (Holm) for ${plural(pairs[0].tests ?? 0, "test")} of pairs in ${metric}; in the sentences above and in the table of metrics, for ${families} against A. So a difference can have two values of p.`),
  );
}

/** Values of each query: one run against the other, or a heat map of several. */
function agreement(sides, rows, metric) {
  const known = rows.filter((row) => sides.every((_, n) => defined(row.values[n][metric])));
  if (!known.length) return notice("No query has a value in all of these runs.");
  const href = (row) => link.compare(sides.map((side) => side.id), row.queryId);
  const said = (row) => `${row.queryId}: ${sides.map((side, n) => `${side.letter} ${score(row.values[n][metric])}`).join(", ")}`;
  // The list of queries has the same values and links; by keyboard these would be in the way.
  const linked = (row, ...shapes) => svg("a", { href: href(row), tabindex: "-1" }, svg("title", null, said(row)), shapes);
  const caption = sides.length === 2
    ? `Each point is a query: ${metric} of B against that of A. ${better(metric) > 0 ? "Above" : "Below"} the line, B is better.`
    : `Each column is a query, in the order of the mean of its values; the stronger its color, the higher its ${metric}.`;
  if (sides.length > 2) {
    const mean = (row) => sides.reduce((sum, _, n) => sum + row.values[n][metric], 0);
    const ordered = [...known].sort((a, b) => mean(b) - mean(a) || a.n - b.n);
    const [width, height] = [chartWidth() / ordered.length, 22];
    const cells = ordered.map((row, at) =>
      linked(row, sides.map((_, n) =>
        svg("rect", { class: "heat", x: 30 + at * width, y: n * (height + 3), width: Math.max(width - (width > 4 ? 1 : 0), 0.5), height,
          style: { "--share": `${Math.round(100 * Math.min(1, row.values[n][metric]))}%` } }))));
    const names = sides.map((side, n) => svg("text", { x: 0, y: n * (height + 3) + 16 }, side.letter));
    return el("figure",
      svg("svg", { class: "agreement heatmap", viewBox: `0 0 ${chartWidth() + 30} ${sides.length * (height + 3)}`, role: "group", "aria-label": `${metric} of each query` }, names, cells),
      el("figcaption.about", caption));
  }
  const size = 320;
  const x = (value) => 34 + value * (size - 50);
  const y = (value) => size - 30 - value * (size - 50);
  const axis = [0, 0.5, 1].map((t) => [
    svg("text", { x: x(t), y: size - 14, "text-anchor": "middle" }, String(t)),
    svg("text", { x: 28, y: y(t) + 4, "text-anchor": "end" }, String(t)),
  ]);
  return el("figure.square",
    svg("svg", { class: "agreement scatter", viewBox: `0 0 ${size} ${size}`, role: "group", "aria-label": `${metric} of each query` },
      svg("path", { class: "frame", d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }),
      axis,
      svg("text", { class: "name", x: x(1), y: size - 2, "text-anchor": "end" }, `A: ${sides[0].name}`),
      svg("text", { class: "name", x: 0, y: 12 }, `B: ${sides[1].name}`),
      known.map((row) => linked(row, svg("circle", { class: "point", cx: x(row.values[0][metric]), cy: y(row.values[1][metric]), r: 4 })))),
    el("figcaption.about", caption));
}

/** Curves at equal budgets, a figure for each budget; a table has the ends. */
function curveFigures({ why, axes, refused, metric }, sides) {
  if (why) return [notice(why)];
  const figures = Object.values(axes).map(({ words, budgets, curves }) =>
    el("figure",
      el("figcaption", `${metric} by ${words} spent on a query`),
      steppedLines(curves.map((curve) => ({ side: sides[curve.run], values: curve.mean })), budgets),
      el("p.about", facts(curves.map((curve) => [lettered(sides[curve.run]), ` ${score(curve.end)}\u00a0after\u00a0${Number(curve.cost.toPrecision(3))}`]))),
    ));
  const line = (row) => el("li.about", `${sides[row.run].letter} has no curve by ${row.axis}: `, foreign(row.why));
  return [el("div.facets", figures), refused.length > 0 && el("ul", refused.map(line))].filter(Boolean);
}

/** Values from each budget on, as steps; the letter of a run stands at the end of its line. */
function steppedLines(lines, budgets, width = 400, height = 220) {
  const top = Math.max(0.05, ...lines.flatMap((one) => one.values)) * 1.15;
  const last = budgets.at(-1) || 1;
  const x = (value) => 40 + (value / last) * (width - 66);
  const y = (value) => height - 24 - (value / top) * (height - 34);
  const path = (values) => values.map((value, n) => (n ? `H${x(budgets[n])}V${y(value)}` : `M${x(budgets[0])} ${y(value)}`)).join("") + "h0.01";
  // Letters of lines that end close together are moved apart.
  const ends = lines.map((one) => ({ one, at: y(one.values.at(-1)) })).sort((a, b) => a.at - b.at);
  ends.forEach((end, n) => n && (end.at = Math.max(end.at, ends[n - 1].at + 12)));
  return svg("svg", { class: "scatter lines", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("g", { class: "axis" },
      ticks(top).filter((t) => t <= top).map((t) => [
        svg("line", { x1: 40, x2: width - 26, y1: y(t), y2: y(t) }),
        svg("text", { x: 34, y: y(t) + 4, "text-anchor": "end" }, String(Number(t.toFixed(3)))),
      ]),
      ticks(last).filter((t) => t <= last).map((t) => svg("text", { x: x(t), y: height - 8, "text-anchor": "middle" }, t.toLocaleString("en")))),
    lines.map(({ side, values }) => svg("path", { class: `line of-${side.n % 7}`, d: path(values) })),
    ends.map(({ one, at }) => svg("text", { class: `end of-${one.side.n % 7}`, x: width - 20, y: at + 4 }, one.side.letter)));
}

/** What the searchers of the runs do, and what each two of them find together. */
function behaviourSides({ why, words, kinds, cutoff, runs, pairs }, sides) {
  if (why) return [notice(why)];
  const heads = (what) => [columnHead(what), sides.map((side) => numberHead(titled(side)))];
  const lost = Object.keys(kinds).filter((kind) => runs.some((run) => run.failures[kind]?.documents));
  const table = (label, head, rows) => scrolling(label, tableOf("metrics", "", head, rows));
  return [
    table("Figures", heads("A mean over the run"), Object.keys(words).map((key) =>
      tableRow(words[key], false, runs.map((run) => el("td.number", score(run.figures[key].mean)))))),
    lost.length > 0 && table("Losses by kind", heads(`Relevant and not among the first ${cutoff}`), lost.map((kind) =>
      tableRow(kinds[kind].replace("{k}", cutoff), false, runs.map((run) => el("td.number", count(run.failures[kind]?.documents ?? 0)))))),
    table("What two runs surface", ["Two runs", "Both", "Only the first", "Only the second", "Neither", "Recall of both together"].map((head, n) => (n ? numberHead(head) : columnHead(head))),
      pairs.map((pair) => tableRow([lettered(sides[pair.runs[0]]), " and ", lettered(sides[pair.runs[1]])], false,
        ["both", "first", "second", "neither"].map((key) => el("td.number", count(pair.documents[key] ?? 0))),
        el("td.number", pair.all ? score(pair.all[2]) : "–")))),
  ].filter(Boolean);
}

function sidesTable(sides, metrics, main, found) {
  const known = new Map((found.comparisons ?? []).map((one) => [`${one.run} ${one.metric}`, one]));
  const change = (side, name) => {
    const one = known.get(`${side.n} ${name}`);
    if (!one || !defined(one.difference)) return "–";
    const sure = defined(one.p_holm) && one.p_holm < found.alpha;
    const range = defined(one.low) ? `${signed(one.low)}\u00a0to\u00a0${signed(one.high)}, ` : "";
    return [el(sure ? "b" : "span", signed(one.difference)), el("span.about.under", range, pWords(one.p_holm))];
  };
  const mean = (side, name) => el("b", score(side.run.scores.metrics[name]?.mean));
  const to = (side) => el("a", { href: link.run(side.id) }, titled(side));
  const failed = (side) => el("td.number", count(side.run.scores.failed ?? 0));
  const none = (usage) => (defined(usage?.calls) ? "no model calls" : "unknown");
  const used = (side) => el("td.number.about", usageWords(side.about.usage).join(" · ") || none(side.about.usage));
  if (sides.length > 2)
    return tableOf(
      "metrics.sides.by-run",
      "Metrics of the runs, and below each its difference from A",
      [columnHead("Run, difference from A"), metrics.map((name) => numberHead(name)), numberHead("Failed"), numberHead("Used")],
      sides.map((side) =>
        tableRow(to(side), false, metrics.map((name) => el("td.number", mean(side, name), side.n > 0 && el("div", change(side, name)))), failed(side), used(side)),
      ),
    );
  return tableOf(
    "metrics.sides",
    "Metrics of the runs and their differences",
    [columnHead("Metric"), sides.map((side) => numberHead(to(side))), numberHead("B − A")],
    metrics.map((name) =>
      tableRow(
        name,
        name === main,
        sides.map((side) => el("td.number", mean(side, name), interval(side.run.scores.metrics[name] ?? {}, 1, 60))),
        el("td.number", change(sides[1], name)),
      ),
    ),
    tableRow("failed", false, sides.map(failed), el("td")),
    tableRow("used", false, sides.map(used), el("td")),
  );
}

/** A row for each query of any of the runs, with its values in each and their spread by metric. */
function pairedRows(sides, found) {
  const rows = new Map();
  found.query_ids.forEach((queryId, n) => {
    const spread = Object.fromEntries(Object.entries(found.spread).map(([name, values]) => [name, values[n]]));
    rows.set(queryId, { queryId, n, text: "", values: sides.map(() => ({})), fates: [], spread });
  });
  for (const [n, { run }] of sides.entries())
    run.query_ids.forEach((queryId, place) => {
      const row = rows.get(queryId);
      if (!row) return;
      row.text ||= run.texts?.[place] ?? "";
      row.values[n] = Object.fromEntries(Object.keys(run.values).map((name) => [name, run.values[name][place]]));
      row.fates[n] = run.fates?.[place] ?? null;
    });
  return [...rows.values()];
}

const movedBy = (row, metric) => Math.abs(row.spread[metric] ?? 0);

/** The queries of runs beside each other, the one that differs most first. */
const mostMoved = (rows, metric) =>
  [...rows].sort((a, b) => movedBy(b, metric) - movedBy(a, metric) || a.n - b.n).map((row) => row.queryId);

function pairedTable(sides, rows, state, onSort) {
  const ids = sides.map((side) => side.id);
  const href = (row) => link.compare(ids, row.queryId);
  const moved = (row) => row.spread[state.metric] ?? null;
  return sortable({
    caption: "Queries",
    sort: state.sort,
    tie: (a, b) => movedBy(b, state.metric) - movedBy(a, state.metric) || a.n - b.n,
    attributesOf: (row) => ({ "data-query": row.queryId }),
    open: href,
    onSort,
    columns: [
      ...queryColumns(href).map((column) => (column.key === "text" ? { ...column, className: "text aside" } : column)),
      ...sides.map((side, n) => {
        const k = cutoffOf(side.about.metric, side.run.scores.losses);
        const value = (row) => row.values[n][state.metric];
        const cell = (row) => measured(fateMarks(row.fates[n], k, 6), score(value(row)));
        return numberColumn(side.letter, [lettered(side), " ", foreign(side.name)], value, cell);
      }),
      numberColumn("moved", sides.length === 2 ? "B − A" : "Spread", moved, (row) =>
        measured(balance(moved(row)), sides.length === 2 ? signed(moved(row)) : score(moved(row))),
      ),
    ],
  });
}

async function compareQuery(sides, { query: queryId }) {
  const ids = sides.map((side) => side.id);
  const [found, ...answers] = await Promise.all([
    loadTogether("compare", ids).catch(() => ({ query_ids: sides[0].run.query_ids, spread: {} })),
    ...ids.map((id) => loadQuery(id, queryId)),
  ]);
  sides.forEach((side, n) => {
    side.answer = answers[n];
    side.gold = new Gold(answers[n], side.id);
    side.hrefOf = (number) => link.query(side.id, queryId, number);
    side.k = cutoffOf(side.about.metric, side.run.scores.losses);
  });
  const main = sides[0].about.metric;
  const kept = lists.get(sideKey(sides));
  const order = kept?.includes(queryId) ? kept : mostMoved(pairedRows(sides, found), main);
  const text = answers.find((answer) => answer.text)?.text ?? "";
  const node = el(
    "div",
    heading(
      el("span", spoken("Query "), idOf(queryId)),
      [
        el("a", { href: link.compare(ids) }, facts(sides.map((side) => foreign(side.name)))),
        foreign(sides[0].about.task),
      ],
      sides[0].about.mini && miniBadge(),
    ),
    neighbours(order, queryId, (one) => link.compare(ids, one)),
    asked(sides),
    el("div.question", longText(text, 600)),
    scrolling("Values", valuesTable(sides, main)),
    section("Found by one and missed by the other", null, goldTable(sides)),
    section("Trajectories", null, besideEachOther(sides)),
  );
  return {
    title: `${queryId}, ${namesOf(sides)}`,
    crumbs: [[namesOf(sides), link.compare(ids)], [queryId, null]],
    node,
    up: link.compare(ids),
    order: { ids: order, at: queryId, href: (one) => link.compare(ids, one) },
    reading: answers.some((answer) => answer.reading),
  };
}

function valuesTable(sides, main) {
  const names = [main, ...leading(Object.keys(sides[0].answer.values ?? {})).filter((name) => name !== main)];
  const used = ({ answer }) => [seconds(answer.seconds), ...usageWords(answer.usage)].filter(Boolean).join(" · ");
  return tableOf(
    "metrics",
    "Values of this query",
    [columnHead("Run"), names.map((name) => numberHead(name)), numberHead("Used")],
    sides.map((side) =>
      tableRow(
        [el("a", { href: side.hrefOf() }, titled(side)), side.answer.error && badge("failed", "bad")],
        false,
        names.map((name) =>
          el("td", { class: name === main ? "number strong" : "number" }, score(side.answer.values?.[name])),
        ),
        el("td.number.about", used(side)),
      ),
    ),
  );
}

/** Relevant documents: first those that only some of the runs found, then those that none did, then the others. */
function goldTable(sides) {
  const units = new Map(); // unit -> its history in each run
  sides.forEach((side, n) => {
    for (const [unit, one] of side.gold.relevant) {
      if (!units.has(unit)) units.set(unit, new Array(sides.length).fill(null));
      units.get(unit)[n] = one;
    }
  });
  if (!units.size)
    return notice("No document is relevant by these judgements, or these runs were scored by an older version.");
  const found = (row) => row.filter((one) => one?.fate === "found").length;
  const group = ([, row]) => (found(row) === 0 ? 1 : found(row) === sides.length ? 2 : 0);
  const rows = [...units].sort((a, b) => group(a) - group(b) || collator.compare(a[0], b[0]));
  const words = ["Found by some, missed by others", "Missed by all", "Found by all"];
  const heads = narrow() ? [columnHead("Outcome")] : sides.map((side) => columnHead(titled(side)));
  const bodies = [0, 1, 2].map((n) => {
    const here = rows.filter((row) => group(row) === n);
    if (!here.length && n > 0) return null;
    return el(
      "tbody",
      { "data-group": ["differs", "missed", "found"][n] },
      el("tr.group", el("th", { scope: "rowgroup", colspan: heads.length + 2 }, `${words[n]}: ${here.length || "none"}`)),
      here.map(([unit, row]) => goldRow(sides, unit, row)),
    );
  });
  return scrolling(
    "Relevant documents",
    el(
      "table.relevant",
      el("caption.spoken", "Relevant documents and their outcome in each run"),
      tableHead(columnHead("Document"), numberHead("Grade"), heads),
      bodies,
    ),
  );
}

function goldRow(sides, unit, row) {
  const documents = Object.assign({}, ...sides.map((side) => side.gold.documents));
  const docId = row.find((one) => one?.doc_id)?.doc_id ?? unit;
  const outcome = (side, n) =>
    row[n] ? [fateChip(row[n], side.k, side.gold, side.hrefOf), fateStory(row[n], side.hrefOf)] : "–";
  const grade = el("td.number", String(row.find(Boolean).grade));
  const cells = narrow()
    ? el("td", sides.map((side, n) => el("div", lettered(side), " ", outcome(side, n))))
    : sides.map((side, n) => el("td", outcome(side, n)));
  return el("tr.gold", { "data-doc": unit }, relevantHead(unit, docId, documents), grade, cells);
}

/** What a step did; time and usage differ between any two runs. */
const essence = (step) =>
  JSON.stringify([
    [step.tool, step.argument, step.retriever ?? "", step.k ?? 0, step.instruction ?? "", step.refused ?? ""],
    step.doc_ids,
  ]);

/** How many steps at the beginning are the same in all. */
function sameSteps(trajectories) {
  const shortest = Math.min(...trajectories.map((steps) => steps.length));
  let same = 0;
  while (same < shortest && new Set(trajectories.map((steps) => essence(steps[same]))).size === 1) same += 1;
  return same;
}

/** In which way steps differ, in words. */
function partingWords(steps) {
  if (steps.some((step) => !step)) return "one run ends here";
  const differ = (key) => new Set(steps.map((step) => asText(step[key] ?? ""))).size > 1;
  if (differ("tool")) return steps.map((step) => step.tool).join(" against ");
  if (differ("argument")) return steps[0].tool === "search" ? "different search text" : "different text";
  if (differ("retriever") || differ("k")) return "different retriever or depth";
  if (new Set(steps.map((step) => [...step.doc_ids].sort().join("\u0000"))).size > 1) return "other documents";
  return differ("doc_ids") ? "the same documents in a different order" : "different instruction or refusal";
}

function besideEachOther(sides) {
  const trajectories = sides.map((side) => side.gold.steps);
  const same = sameSteps(trajectories);
  const [first, ...rest] = sides;
  const folded =
    same > 0 &&
    el(
      "details.same",
      el("summary", plural(same, "identical step")),
      el(
        "ol.steps",
        first.gold.steps
          .slice(0, same)
          .map((step, n) =>
            add(
              stepCard(step, n, first.gold, { href: first.hrefOf(n), whose: " of A" }),
              rest.map((side) => modelCalls(side.id, side.gold.steps[n].calls, ` of step ${n}`, ` of ${side.letter}`)),
            ),
          ),
      ),
    );
  if (trajectories.every((steps) => steps.length === same))
    return el("div", folded, notice("Their trajectories are identical."));
  const parting = trajectories.map((steps) => steps[same]);
  const words = partingWords(parting);
  const column = (side, n) => {
    // Words that no other side has in the step at which they part.
    const others = parting
      .filter((step, other) => other !== n && step && step.tool === parting[n]?.tool)
      .map((step) => step.argument);
    const steps = trajectory(side.gold, side.hrefOf, {
      from: same,
      attributesOf: (number) => (number === same ? { "data-difference": words } : null),
      otherWords: (number) => (number === same && others.length && parting[n].argument ? others.join(" ") : null),
    });
    return el(
      "div.side",
      el("div.side-head", titled(side), el("span.about", plural(side.gold.steps.length, "step"))),
      side.gold.steps.length > same
        ? steps
        : el("p.ended", { "data-difference": words }, `Ends after ${plural(same, "step")}.`),
    );
  };
  return el(
    "div",
    folded,
    el("p.parting", el("b", `They diverge at step ${same}: `), words),
    scrollingColumns(sides, sides.map(column)),
  );
}

/** The sides of a comparison in columns; more than three scroll sideways. */
function scrollingColumns(sides, columns) {
  const box = el("div", { class: `columns of-${Math.min(sides.length, 4)}`, style: { "--sides": String(sides.length) } }, columns);
  return sides.length > 3 ? scrolling("Trajectories", box) : box;
}

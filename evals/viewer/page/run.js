// One run: what it reaches, where documents are lost, how it fails, and its queries, worst first.

async function runView({ ids: [id], params }) {
  const [{ runs, exported }, first] = await Promise.all([loadRuns(false), loadRun(id)]);
  let run = first;
  if (run.no_scores) return unscored(id, run);
  const about = runs.find((one) => one.id === id) ?? { id, mini: run.scores.data === "mini", ...run.scores };
  const metrics = Object.keys(run.values);
  const main = about.metric ?? run.scores.metric ?? metrics[0];
  const losses = run.scores.losses ?? null;
  const state = stateOf(params, main, metrics);
  const set = (key) => (value) => {
    state[key] = value;
    draw();
  };
  let rows = rowsOf(run);
  const list = queriesTable(run, rows, state, cutoffOf(main, losses), set("sort"));
  const shape = el("div");
  const title = el("span");
  const shown = el("span.about", { role: "status" });

  function draw() {
    keepInAddress({
      ...state,
      metric: state.metric === main ? "" : state.metric,
      sort: state.sort === "value" ? "" : state.sort,
    });
    const fitting = fittingRows(rows, state);
    list.show(fitting);
    lists.set(id, list.sorted.map((row) => row.queryId));
    shown.textContent = ofAll(fitting, rows, "query", "queries");
    title.textContent = `Queries by ${state.metric}`;
    shape.replaceChildren(histogram(rows.map((row) => row.values[state.metric]), state.metric));
    failures.mark();
  }

  const failures = failureKinds(run, state, set("error"));
  const live = el("div");
  const means = el("div");
  const fall = el("div");

  /** Draw what changes while a run goes. */
  function measure() {
    if (run.live) redraw(live, liveCard(run.live, { linked: false }));
    means.replaceChildren(scrolling("Metrics", metricsTable(run.scores.metrics, main)));
    fall.replaceChildren(fallSection([{ losses: run.scores.losses ?? null }]));
  }

  const node = el(
    "div",
    heading(
      foreign(about.named?.name || runName(about)),
      [
        about.named?.name && foreign(runName(about)),
        foreign(about.task),
        splitWords(about.split),
        foreign(asText(about.retriever ?? "")),
        foreign(asText(about.lm ?? "")),
        about.setting && foreign(about.setting),
      ],
      about.mini && miniBadge(),
      about.imported && badge("imported"),
      about.pool && badge(`pool: ${asText(about.pool)}`),
    ),
    run.live ? live : el("div.between", el("p", facts(costs(about))), compareWith(id, run.siblings, null, runs)),
    !run.live && runRemark(id, about.named, exported),
    run.why_no_fates && notice(run.why_no_fates),
    el(
      "div.halves",
      el("div", section("Metrics", null, means, boundsList(run.bounds)), failures.node),
      el("div", fall, section(title, null, shape)),
    ),
    panelSections({ id, run, exported, state, set }),
    section(
      "Queries",
      [shown, csvButton(`${labelOf(about)} queries`, () => queriesCsv(list.sorted, metrics))],
      queryFilters(run, rows, state, set, metrics),
      list.node,
    ),
    configuration(run),
  );
  measure();
  draw();
  // What the filters offer, and failures, are drawn with the view.
  const parts = ({ errors, fates }) => `${Object.keys(errors).length} ${new Set(fates?.flat()).size}`;
  if (run.live)
    follow(`run/${encodeId(id)}.json`, node, (answer) => {
      if (!answer.live || parts(answer) !== parts(run)) return again();
      const more = answer.live.done !== run.live.done;
      run = answer;
      if (!more) return redraw(live, liveCard(run.live, { linked: false }));
      rows = rowsOf(run);
      measure();
      draw();
    });
  return { title: `${runName(about)} on ${about.task}`, crumbs: [[runName(about), null]], node, up: link.overview() };
}

/** A run whose answered queries are not scored, as while its corpus is read; the view is made anew once they are. */
function unscored(id, run) {
  const live = el("div", liveCard(run.live, { linked: false }));
  const node = el(
    "div",
    heading(foreign(labelOf(run.live)), [foreign(run.live.task), splitWords(run.live.split)]),
    live,
    notice(run.no_scores),
  );
  follow(`run/${encodeId(id)}.json`, node, (answer) =>
    answer.no_scores ? redraw(live, liveCard(answer.live, { linked: false })) : again(),
  );
  return {
    title: `${runName(run.live)} on ${run.live.task}`,
    crumbs: [[labelOf(run.live), null]],
    node,
    up: link.overview(),
  };
}

/** What of the list of queries is wanted, from the address. */
function stateOf(params, main, metrics) {
  const state = stated(params, "text", "find", "fate", "error", "remark", "metric", "sort");
  if (!metrics.includes(state.metric)) state.metric = main;
  state.sort ||= "value";
  return state;
}

/** The queries of a run, as rows. */
function rowsOf(run) {
  const names = Object.keys(run.values);
  const remarks = new Map();
  for (const one of run.remarks ?? []) remarks.set(one.query_id, [...(remarks.get(one.query_id) ?? []), one]);
  return run.query_ids.map((queryId, n) => ({
    queryId,
    n,
    text: run.texts?.[n] ?? "",
    values: Object.fromEntries(names.map((name) => [name, run.values[name][n]])),
    error: Object.hasOwn(run.errors, queryId) ? run.errors[queryId] : "",
    fates: run.fates?.[n] ?? null,
    remarks: remarks.get(queryId) ?? [],
  }));
}

const kindOf = (error) => (error ? error.split(":", 1)[0].trim() || "error" : "");

const queriesCsv = (rows, metrics) => [
  ["query_id", "text", ...metrics, "fates", "error", "labels", "notes"],
  ...rows.map((row) => [
    row.queryId,
    row.text,
    ...metrics.map((name) => row.values[name]),
    (row.fates ?? []).join(" "),
    row.error,
    row.remarks.map((one) => one.label).filter(Boolean).join("; "),
    row.remarks.map((one) => one.note).filter(Boolean).join("; "),
  ]),
];

function fittingRows(rows, { text, fate, error, remark }) {
  const words = wordsOf(text);
  return rows.filter(
    (row) =>
      (!fate || row.fates?.includes(fate)) &&
      (!remark || (remark === "any" ? row.remarks.length : row.remarks.some((one) => `label:${one.label}` === remark))) &&
      (!error ||
        (error === "any" ? row.error : error === "none" ? !row.error : kindOf(row.error) === error.slice(5))) &&
      (!words.length || holds(`${row.queryId} ${row.text} ${row.error}`.toLowerCase(), words)),
  );
}

/** The order in which a run's queries are gone through when nobody has chosen one: as its list is first shown. */
function worstFirst(run, metric) {
  const values = run.values[metric] ?? [];
  const order = run.query_ids.map((queryId, n) => ({ queryId, n }));
  order.sort((a, b) => compareValues(values[a.n], values[b.n], better(metric) < 0) || a.n - b.n);
  return order.map((row) => row.queryId);
}

function queriesTable(run, rows, state, k, onSort) {
  const href = (row) => link.query(run.id, row.queryId);
  const value = (row) => row.values[state.metric];
  const found = (row) =>
    row.fates?.length ? row.fates.filter((fate) => fate === "found").length / row.fates.length : null;
  return sortable({
    caption: "Queries",
    sort: state.sort,
    tie: (a, b) => a.n - b.n,
    attributesOf: (row) => ({ "data-query": row.queryId }),
    open: href,
    onSort,
    columns: [
      ...queryColumns(href),
      numberColumn("found", "Relevant documents", found, (row) => fateMarks(row.fates, k)),
      numberColumn("value", "Value", value, (row) => measured(bar(value(row)), score(value(row))), {
        hint: "Of the metric selected above",
      }),
      rows.some((row) => row.error) &&
        columnOf("error", "Error", (row) => row.error, (row) => foreign(clipped(row.error, 120)), {
          className: "text bad",
        }),
      rows.some((row) => row.remarks.length) &&
        columnOf(
          "remark",
          "Remarks",
          (row) => row.remarks.length,
          (row) => row.remarks.map((one) => [one.label ? badge(one.label) : foreign(clipped(one.note ?? "", 30), "about"), " "]),
        ),
    ],
  });
}

function queryFilters(run, rows, state, set, metrics) {
  const fates = [...new Set(rows.flatMap((row) => row.fates ?? []))];
  const kinds = tally(Object.values(run.errors).map(kindOf));
  const labels = new Set((run.remarks ?? []).map((one) => one.label));
  const filter = (label, key, options) => choice(label, options, state[key], set(key));
  return el(
    "div.filters",
    { role: "search" },
    searchField("Text", state.text, set("text")),
    fates.length > 0 &&
      filter("Has a document that was", "fate", [
        ["", "any"],
        ...Object.keys(FATES)
          .filter((fate) => fates.includes(fate))
          .map((fate) => [fate, fateWords(fate, cutoffOf(run.scores.metric, run.scores.losses))]),
      ]),
    kinds.length > 0 &&
      filter("Failed", "error", [
        ["", "or not"],
        ["any", "yes"],
        ["none", "no"],
        ...kinds.map(([kind]) => [`kind:${kind}`, kind]),
      ]),
    labels.size > 0 &&
      filter("Remark", "remark", [
        ["", "any or none"],
        ["any", "with a remark"],
        ...[...labels].filter(Boolean).map((label) => [`label:${label}`, label]),
      ]),
    metricChoice(metrics, state.metric, set("metric")),
  );
}

/** What the headline should be read beside: bare retrievers, and rankings of pools. */
const boundsList = (bounds) =>
  bounds.length > 0 &&
  el("ul.about.bounds", bounds.map(({ label, mean, what }) => el("li", `${label} ${score(mean)} (`, foreign(what), ")")));

/** The metrics with their intervals. */
function metricsTable(metrics, main) {
  return tableOf(
    "metrics",
    "",
    [
      columnHead("Metric"),
      numberHead("Mean"),
      numberHead("95 % interval"),
      columnHead(spoken("Position between 0 and 1")),
    ],
    Object.entries(metrics).map(([name, value]) =>
      tableRow(
        name,
        name === main,
        el("td.number", el("b", score(value.mean))),
        el("td.number", defined(value.low) ? `${score(value.low)} – ${score(value.high)}` : "–"),
        el("td", interval(value, 1, 150)),
      ),
    ),
  );
}

/** Where recall is lost, at a cutoff that can be chosen. `runs` are { name, losses }. */
function fallSection(runs) {
  const { losses } = runs.find((run) => run.losses) ?? {};
  const cutoffs = Object.keys(losses?.at ?? {});
  if (!cutoffs.length)
    return section("Where recall is lost", null, notice("Unknown: an older version scored this run."));
  const first = String(losses.cutoff ?? cutoffs[0]);
  const box = el("div");
  const sets = narrow() ? runs.map((run) => [run]) : [runs];
  const draw = (k) =>
    box.replaceChildren(
      ...sets.map((one, n) =>
        scrolling(`Where recall is lost${n ? ` ${n + 1}` : ""}`, waterfall(one, Number(k), `Recall at ${k} and what it misses`)),
      ),
    );
  draw(first);
  return section("Where recall is lost", choice("Cutoff", cutoffs.map((k) => [k, k]), first, draw), box);
}

/** Failures by kind: what an error says before its first colon. A click shows those queries. */
function failureKinds(run, state, onChoose) {
  const kinds = tally(Object.values(run.errors).map(kindOf)).sort((a, b) => b[1] - a[1]);
  const buttons = kinds.map(([kind, n]) => {
    const key = `kind:${kind}`;
    const choose = () => onChoose(state.error === key ? "" : key);
    const words = [foreign(kind), bar(n / run.query_ids.length, "loss"), el("b", count(n))];
    return { key, chooses: button({ class: "row-button" }, choose, words) };
  });
  const node = section("Failures by kind", null, el("ul.kinds", buttons.map(({ chooses }) => el("li", chooses))));
  return {
    node: kinds.length ? node : null,
    mark: () =>
      buttons.forEach(({ key, chooses }) => chooses.setAttribute("aria-pressed", String(state.error === key))),
  };
}

/** What a run cost. */
function costs(run) {
  const usage = run.usage ?? {};
  return [
    plural(run.queries, "query", "queries"),
    run.failed > 0 ? el("span.bad", `${count(run.failed)} failed`) : "none failed",
    ...usageWords(usage),
    usage.calls > 0 && defined(usage.paid_usd) && usage.paid_usd !== usage.list_usd && `${usd(usage.paid_usd)} paid`,
  ];
}

/** A choice of runs that were asked the same, to put beside this one. */
function compareWith(id, siblings, queryId, runs) {
  if (!siblings?.length) return null;
  const names = new Map(runs.map((run) => [run.id, labelOf(run)]));
  const options = [["", "choose a run"], ...siblings.map((one) => [one, names.get(one) ?? one])];
  let other = "";
  const begin = button({ disabled: true }, () => go(link.compare([id, other], queryId)), "Compare");
  const field = choice("Beside", options, "", (chosen) => {
    other = chosen;
    begin.disabled = !chosen;
  });
  return el("div.beside", field, begin);
}

const isEmpty = (value) => (value ?? "") === "" || (typeof value === "object" && !Object.keys(value).length);

/** The lines of nested values, a key and a value each. */
function valueLines(values) {
  const line = (key, value) => el("div", el("dt", foreign(key)), el("dd", foreign(asText(isEmpty(value) ? "none" : value))));
  const nested = (value) =>
    value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
  return Object.entries(values).flatMap(([key, value]) =>
    nested(value) ? Object.entries(value).map(([inner, one]) => line(`${key}.${inner}`, one)) : [line(key, value)],
  );
}

/** Notes on the scores, what the agent had, and everything that determines the numbers. */
function configuration(run) {
  const { harness, ...provenance } = run.config.provenance ?? {};
  const config = harness ? { ...run.config, provenance } : run.config;
  const card = harness && { ...harness, withheld: [harness.withheld].flat().join("; ") };
  return el(
    "section",
    run.scores.notes?.length > 0 &&
      el("ul.notes", run.scores.notes.map((note) => el("li", foreign(note)))),
    card && el("details.config.harness", el("summary", "Harness card"), el("dl", valueLines(card))),
    el("details.config", el("summary", "Configuration"), el("dl", valueLines(config))),
  );
}

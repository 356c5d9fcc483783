// Two or three runs beside each other: what they reach, where they lose, on which queries they differ; and one query of
// theirs, from the first step at which they part.

const letter = (n) => "ABC"[n];

async function compareView(given) {
  const ids = [...new Set(given.ids)].filter(Boolean);
  if (ids.length < 2 || ids.length > MOST)
    throw new Error(`two or three runs can be compared, not ${ids.length}; choose them in the list of runs`);
  const [{ runs }, ...loaded] = await Promise.all([loadRuns(false), ...ids.map(loadRun)]);
  const sides = loaded.map((run, n) => {
    const about = runs.find((one) => one.id === ids[n]) ?? { id: ids[n], ...run.scores };
    return { id: ids[n], letter: letter(n), run, about, name: runName(about) };
  });
  return given.query === null ? compareRuns(sides, given.params) : compareQuery(sides, given);
}

const sideKey = (sides) => sides.map((side) => side.id).join(",");
const namesOf = (sides) => sides.map((side) => side.name).join(" and ");
const lettered = (side) => el("span", { class: `letter ${side.letter}` }, side.letter);
const titled = (side) => [lettered(side), " ", foreign(side.name), " ", el("span.id.digest", digest(side.id))];

/** Said when runs were not asked the same: their values then do not compare. */
function asked(sides) {
  const keys = ["task", "data", "split", "judgements", "metric", "pool", "queries"];
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
  const state = stated(params, "text", "metric", "sort");
  if (!metrics.includes(state.metric)) state.metric = main;
  const set = (key) => (value) => {
    state[key] = value;
    draw();
  };
  const rows = pairedRows(sides);
  const list = pairedTable(sides, rows, state, set("sort"));
  const shown = el("span.about", { role: "status" });

  function draw() {
    keepInAddress({ ...state, metric: state.metric === main ? "" : state.metric });
    const words = wordsOf(state.text);
    const fitting = rows.filter((row) => holds(`${row.queryId} ${row.text}`.toLowerCase(), words));
    list.show(fitting);
    lists.set(sideKey(sides), list.sorted.map((row) => row.queryId));
    const moved = rows.filter((row) => movedBy(row, state.metric) > 0).length;
    shown.textContent = `${count(moved)} of ${plural(rows.length, "query", "queries")} differ`;
  }

  const node = el(
    "div",
    heading(
      sides.map((side, n) => [n > 0 && el("span.versus", " and "), foreign(side.name)]),
      [foreign(sides[0].about.task), `${sides[0].about.split} split`],
      sides[0].about.mini && miniBadge(),
    ),
    asked(sides),
    el(
      "div.halves",
      section("Metrics", null, scrolling("Metrics", sidesTable(sides, metrics, main))),
      fallSection(
        sides.map((side) => ({ name: [lettered(side), " ", foreign(side.name)], losses: side.run.scores.losses })),
      ),
    ),
    section(
      "Queries by size of the difference",
      shown,
      el(
        "div.filters",
        { role: "search" },
        searchField("Text", state.text, set("text")),
        metricChoice(metrics, state.metric, set("metric")),
      ),
      list.node,
    ),
    el("p.about", "Confidence intervals and tests of the differences: ", el("code", "python -m evals.compare"), "."),
  );
  draw();
  return {
    title: `${namesOf(sides)} on ${sides[0].about.task}`,
    crumbs: [[namesOf(sides), null]],
    node,
    up: link.overview(),
  };
}

function sidesTable(sides, metrics, main) {
  const mean = (side, name) => side.run.scores.metrics[name]?.mean;
  const none = (usage) => (defined(usage?.calls) ? "no model calls" : "unknown");
  const used = (side) => usageWords(side.about.usage).join(" · ") || none(side.about.usage);
  const others = sides.slice(1);
  const last = (words, cell, of) =>
    tableRow(words, false, sides.map((side) => el(cell, of(side))), others.map(() => el("td")));
  return tableOf(
    "metrics.sides",
    "Metrics of the runs and their differences",
    [
      columnHead("Metric"),
      sides.map((side) => numberHead(el("a", { href: link.run(side.id) }, titled(side)))),
      others.map((side) => numberHead(`${side.letter} − A`)),
    ],
    metrics.map((name) =>
      tableRow(
        name,
        name === main,
        sides.map((side) =>
          el("td.number", el("b", score(mean(side, name))), interval(side.run.scores.metrics[name] ?? {}, 1, 60)),
        ),
        others.map((side) => el("td.number", signed(mean(side, name) - mean(sides[0], name)))),
      ),
    ),
    last("failed", "td.number", (side) => count(side.run.scores.failed ?? 0)),
    last("used", "td.number.about", used),
  );
}

/** A row for each query of any of the runs, with its values in each. */
function pairedRows(sides) {
  const made = new Map();
  for (const [n, { run }] of sides.entries())
    run.query_ids.forEach((queryId, place) => {
      if (!made.has(queryId))
        made.set(queryId, { queryId, n: made.size, text: "", values: sides.map(() => ({})), fates: [] });
      const row = made.get(queryId);
      row.text ||= run.texts?.[place] ?? "";
      row.values[n] = Object.fromEntries(Object.keys(run.values).map((name) => [name, run.values[name][place]]));
      row.fates[n] = run.fates?.[place] ?? null;
    });
  return [...made.values()];
}

/** B - A for two runs, the largest less the smallest for three; null where a value is missing. */
function difference(row, metric) {
  const values = row.values.map((one) => one[metric]);
  if (!values.every(defined)) return null;
  return values.length === 2 ? values[1] - values[0] : Math.max(...values) - Math.min(...values);
}

const movedBy = (row, metric) => Math.abs(difference(row, metric) ?? 0);

/** The queries of runs beside each other, the one that differs most first. */
const mostMoved = (rows, metric) =>
  [...rows].sort((a, b) => movedBy(b, metric) - movedBy(a, metric) || a.n - b.n).map((row) => row.queryId);

function pairedTable(sides, rows, state, onSort) {
  const ids = sides.map((side) => side.id);
  const href = (row) => link.compare(ids, row.queryId);
  const moved = (row) => difference(row, state.metric);
  return sortable({
    caption: "Queries",
    sort: state.sort,
    tie: (a, b) => movedBy(b, state.metric) - movedBy(a, state.metric) || a.n - b.n,
    attributesOf: (row) => ({ "data-query": row.queryId }),
    open: href,
    onSort,
    columns: [
      ...queryColumns(href),
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
  const answers = await Promise.all(ids.map((id) => loadQuery(id, queryId)));
  sides.forEach((side, n) => {
    side.answer = answers[n];
    side.gold = new Gold(answers[n], side.id);
    side.hrefOf = (number) => link.query(side.id, queryId, number);
    side.k = cutoffOf(side.about.metric, side.run.scores.losses);
  });
  const main = sides[0].about.metric;
  const kept = lists.get(sideKey(sides));
  const order = kept?.includes(queryId) ? kept : mostMoved(pairedRows(sides), main);
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
  const bodies = [0, 1, 2].map((n) => {
    const here = rows.filter((row) => group(row) === n);
    if (!here.length && n > 0) return null;
    return el(
      "tbody",
      { "data-group": ["differs", "missed", "found"][n] },
      el(
        "tr.group",
        el("th", { scope: "rowgroup", colspan: sides.length + 2 }, `${words[n]}: ${here.length || "none"}`),
      ),
      here.map(([unit, row]) => goldRow(sides, unit, row)),
    );
  });
  return scrolling(
    "Relevant documents",
    el(
      "table.relevant",
      el("caption.spoken", "Relevant documents and their outcome in each run"),
      tableHead(columnHead("Document"), numberHead("Grade"), sides.map((side) => columnHead(titled(side)))),
      bodies,
    ),
  );
}

function goldRow(sides, unit, row) {
  const documents = Object.assign({}, ...sides.map((side) => side.gold.documents));
  const docId = row.find((one) => one?.doc_id)?.doc_id ?? unit;
  return el(
    "tr.gold",
    { "data-doc": unit },
    relevantHead(unit, docId, documents),
    el("td.number", String(row.find(Boolean).grade)),
    sides.map((side, n) =>
      el("td", row[n] ? [fateChip(row[n], side.k, side.gold, side.hrefOf), fateStory(row[n], side.hrefOf)] : "–"),
    ),
  );
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
    el("div", { class: `columns of-${sides.length}` }, sides.map(column)),
  );
}

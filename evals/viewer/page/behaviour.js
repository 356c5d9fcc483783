// What the searcher of a run does, counted when it is asked for; each figure leads to its weakest steps.

addPanel(
  "behaviour",
  ({ id, run }) =>
    !run.why_no_fates &&
    !run.live &&
    closedSection(
      "What the searcher does",
      "Searches, notes, hops and losses",
      () => loadPanel(id, "behaviour"),
      (found) => behaviourTables(id, found),
    ),
);

function behaviourTables(id, { words, figures, kinds, failures, cutoff, costs, measured, named }) {
  const examples = (of) =>
    of.map(({ query_id, step, because }) =>
      el("a", { href: link.query(id, query_id, step), title: because }, idOf(query_id), ` ${step} `),
    );
  const row = (said, value, of) => tableRow(said, false, el("td.number", value), el("td", examples(of)));
  const head = (what, number, which) => [columnHead(what), numberHead(number), columnHead(which)];
  const table = (label, heads, rows) => scrolling(label, tableOf("metrics", "", heads, rows));
  const mean = (value) => el("td.number", String(Number((value ?? 0).toFixed(1))));
  const lost = (said, of) =>
    Object.keys(said).flatMap((kind) =>
      of[kind]?.documents ? [row(said[kind].replace("{k}", cutoff), count(of[kind].documents), of[kind].examples)] : [],
    );
  return [
    table(
      "What the searcher does",
      head("A mean over the run", "Mean", "Query and step where it is weakest"),
      Object.keys(words).map((key) => row(words[key], score(figures[key].mean), figures[key].examples)),
    ),
    table(
      "Losses by kind",
      head(`Relevant and not among the first ${cutoff}`, "Documents", "For example, query and step"),
      lost(kinds, failures),
    ),
    named &&
      table(
        "Losses by cause",
        head(`Why, as ${named.named_by} reads a sample`, "Documents", "For example, query and step"),
        lost(named.causes, named.failures),
      ),
    table(
      "By hop, model calls so far, and kind of step",
      [columnHead("Hop, model calls, or kind of step"), measured.map((name) => numberHead(name))],
      Object.keys(costs).map((key) =>
        tableRow(key, false, measured.map((name) => mean(costs[key][name]))),
      ),
    ),
  ].filter(Boolean);
}

// What the searcher of a run does, counted when it is asked for; each figure leads to its weakest steps.

function behaviourSection(id) {
  const box = el("div");
  const details = el("details", { class: "config" }, el("summary", null, "Searches, notes, hops and losses"), box);
  details.addEventListener("toggle", async () => {
    if (!details.open || box.children.length) return;
    box.replaceChildren(el("p", { class: "about", role: "status" }, "Counting…"));
    const found = await loadBehaviour(id).catch((error) => ({ why: error.message }));
    box.replaceChildren(...(found.why ? [notice(found.why, true)] : behaviourTables(id, found)));
  });
  return section("What the searcher does", null, details);
}

function behaviourTables(id, { words, figures, kinds, failures, cutoff, costs, measured, named }) {
  const examples = (of) =>
    of.map(({ query_id, step, because }) =>
      el("a", { href: link.query(id, query_id, step), title: because }, idOf(query_id), ` ${step} `),
    );
  const row = (said, value, of) =>
    el("tr", null, el("th", { scope: "row" }, said), el("td", { class: "number" }, value), el("td", null, examples(of)));
  const head = (...names) =>
    tableHead(names.map((name, n) => el("th", { scope: "col", class: n === 1 ? "number" : null }, name)));
  const table = (label, ...parts) => scrolling(label, el("table", { class: "metrics" }, ...parts));
  const lost = (said, of) =>
    Object.keys(said).flatMap((kind) =>
      of[kind]?.documents
        ? [row(said[kind].replace("{k}", cutoff), count(of[kind].documents), of[kind].examples)]
        : [],
    );
  return [
    table(
      "What the searcher does",
      head("A mean over the run", "Mean", "Query and step where it is weakest"),
      el("tbody", null, Object.keys(words).map((key) => row(words[key], score(figures[key].mean), figures[key].examples))),
    ),
    table(
      "Losses by kind",
      head(`Relevant and not among the first ${cutoff}`, "Documents", "For example, query and step"),
      el("tbody", null, lost(kinds, failures)),
    ),
    named &&
      table(
        "Losses by cause",
        head(`Why, as ${named.named_by} reads a sample`, "Documents", "For example, query and step"),
        el("tbody", null, lost(named.causes, named.failures)),
      ),
    table(
      "By hop, model calls so far, and kind of step",
      tableHead(
        el("th", { scope: "col" }, "Hop, model calls, or kind of step"),
        measured.map((name) => el("th", { scope: "col", class: "number" }, name)),
      ),
      el(
        "tbody",
        null,
        Object.keys(costs).map((key) =>
          el(
            "tr",
            null,
            el("th", { scope: "row" }, key),
            measured.map((name) => el("td", { class: "number" }, String(Number((costs[key][name] ?? 0).toFixed(1))))),
          ),
        ),
      ),
    ),
  ].filter(Boolean);
}

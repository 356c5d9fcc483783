// One query of a run: what was asked, what became of its relevant documents, and the trajectory step by step.

async function queryView({ ids: [id], query: queryId }) {
  const [{ runs, exported }, run, answer] = await Promise.all([loadRuns(false), loadRun(id), loadQuery(id, queryId)]);
  const about = runs.find((one) => one.id === id) ?? { id, ...run.scores };
  const main = about.metric ?? Object.keys(run.values)[0];
  const k = cutoffOf(main, run.scores.losses);
  const gold = new Gold(answer, id);
  const hrefOf = (number) => link.query(id, queryId, number);
  const order = lists.get(id)?.includes(queryId) ? lists.get(id) : worstFirst(run, main);
  const remarks = new Remarks(id, queryId, run.remarks ?? [], exported);
  const lost = lostSteps(gold);
  const node = el(
    "div",
    heading(
      el("span", spoken("Query "), idOf(queryId)),
      [el("a", { href: link.run(id) }, foreign(labelOf(about))), foreign(about.task), foreign(asText(about.lm ?? ""))],
      about.mini && miniBadge(),
    ),
    el(
      "div.between",
      neighbours(order, queryId, (one) => link.query(id, one)),
      compareWith(id, run.siblings, queryId, runs),
    ),
    sameFate(run, gold, order, queryId, k, (one) => link.query(id, one)),
    question(answer),
    el("div", remarks.box()),
    troubles(answer),
    valueList(answer.values, main, [seconds(answer.seconds), ...usageWords(answer.usage)]),
    section(
      "Relevant documents",
      null,
      relevantTable(answer, gold, k, hrefOf),
      panelSections({ id, queryId, answer, gold, hrefOf, exported }, queryPanels),
    ),
    section(
      "Trajectory",
      [
        lost.length > 0 && el("span", "Lost at ", facts(lost.map((n) => el("a", { href: hrefOf(n), "aria-keyshortcuts": "g" }, `step ${n}`)))),
        el("span.about", plural(gold.steps.length, "step")),
      ],
      timeSection(answer, gold, hrefOf),
      answer.no_documents && notice(answer.no_documents),
      withoutCalls(gold.steps, run),
      gold.steps.length ? [strip(gold, hrefOf), trajectory(gold, hrefOf, { remarks, findable: true })] : notice("No steps were recorded."),
      answer.calls?.length > 0 && el("div.about", "After the last step", modelCalls(id, answer.calls)),
      looseNotes(answer),
    ),
    section(
      "Final ranking",
      el("span.about", plural(answer.ranked ?? answer.ranking.length, "document")),
      rankingList(answer, gold, k),
    ),
  );
  return {
    title: `${queryId}, ${runName(about)} on ${about.task}`,
    crumbs: [[runName(about), link.run(id)], [queryId, null]],
    node,
    up: link.run(id),
    order: { ids: order, at: queryId, href: (one) => link.query(id, one) },
    stepping: { ...steppable(node, gold.steps.length, hrefOf), lost },
    reading: answer.reading,
  };
}

/** Which of how many queries this is, and the ways to those beside it. */
function neighbours(order, at, href) {
  const place = order.indexOf(at);
  const to = (one, words, key) =>
    one === undefined ? el("span.absent", words) : el("a", { href: href(one), "aria-keyshortcuts": key }, words);
  return el(
    "nav.neighbours",
    { "aria-label": "Queries" },
    to(order[place - 1], "← Previous", "k"),
    el("span.about", `${count(place + 1)} of ${count(order.length)}`),
    to(order[place + 1], "Next →", "j"),
  );
}

/** The steps in which relevant documents were lost, in order. */
function lostSteps(gold) {
  const lost = [...gold.relevant.values()].filter((one) => one.fate !== "found");
  const steps = lost.map((one) => decided(one, gold.steps.length)).filter((step) => step !== null);
  return [...new Set(steps)].sort((a, b) => a - b);
}

/** Links to the next queries that have a document of the same fate as one of this query. */
function sameFate(run, gold, order, at, k, href) {
  if (!run.fates) return null;
  const fates = new Set([...gold.relevant.values()].map((one) => one.fate).filter((fate) => fate !== "found"));
  const place = new Map(run.query_ids.map((queryId, n) => [queryId, n]));
  const from = order.indexOf(at);
  const after = [...order.slice(from + 1), ...order.slice(0, Math.max(from, 0))];
  const next = [...fates].map((fate) => [fate, after.find((queryId) => run.fates[place.get(queryId)]?.includes(fate))]);
  const links = next.filter(([, queryId]) => queryId !== undefined);
  if (!links.length) return null;
  const to = ([fate, queryId]) =>
    el("a", { href: href(queryId) }, el("i", { class: `swatch fate-${fate}`, "aria-hidden": "true" }), fateWords(fate, k));
  return el("p.about.same-fate", "Next query with a document that was ", facts(links.map(to)));
}

function question(answer) {
  return el(
    "div.question",
    longText(answer.text ?? "", 900),
    answer.objective && el("details", el("summary", "What counts as relevant"), longText(answer.objective, 1200)),
    answer.answer && el("details", { open: true }, el("summary", "Answer"), longText(answer.answer, 600)),
  );
}

/** What went wrong with a query. */
function troubles(answer) {
  const kinds = (counts) =>
    Object.entries(counts ?? {})
      .map(([kind, n]) => `${kind} (${n})`)
      .join(", ");
  const unusable = kinds(answer.unusable);
  const inPart = kinds(answer.used_in_part);
  const followed = Object.entries(answer.followed ?? {});
  return [
    answer.error &&
      el(
        "div.notice.bad",
        el("b", "Failed: "),
        longText(answer.error, 600),
        answer.traceback &&
          el("details", el("summary", "Traceback"), el("pre", { tabindex: "0" }, foreign(answer.traceback))),
      ),
    answer.invented_ids > 0 &&
      notice(`The model named ${plural(answer.invented_ids, "document")} that it had not been shown; dropped.`),
    unusable && notice(`Unusable answers: ${unusable}`),
    inPart && notice(`Answers used in part: ${inPart}`),
    answer.fallbacks > 0 && notice(`${plural(answer.fallbacks, "call")} went on without an answer.`),
    followed.length > 0 &&
      el(
        "p.notice",
        "Documents with instructions for the model, and what happened: ",
        facts(followed.map(([docId, what]) => el("span", idOf(docId), " ", foreign(what)))),
      ),
  ];
}

/** A query's values, the headline first, and what it used. */
function valueList(values, main, used) {
  const names = Object.keys(values ?? {});
  const ordered = [main, ...leading(names).filter((name) => name !== main)].filter((name) => names.includes(name));
  const others = names.filter((name) => !ordered.includes(name));
  const value = (name) =>
    el("div", { class: name === main ? "main" : null }, el("dt", name), el("dd", score(values[name])));
  return [
    el(
      "dl.values",
      ordered.map(value),
      used.filter(Boolean).length > 0 && el("div.used", el("dt", "Used"), el("dd", used.filter(Boolean).join(" · "))),
    ),
    others.length > 0 && el("details.others", el("summary", "By other judgements"), el("dl.values", others.map(value))),
  ];
}

/** Notes that no step of the trajectory has. */
function looseNotes(answer) {
  if (!answer.notes?.length || answer.steps.some((step) => step.tool === "note")) return null;
  return el(
    "details",
    el("summary", plural(answer.notes.length, "note")),
    el("ol.notes", answer.notes.map((note) => el("li", longText(note, 480)))),
  );
}

/**
 * Steps of a view that can be gone to: the one that the address names is marked, in the trajectory and in the strip.
 */
function steppable(node, many, href) {
  let current = null;
  const mark = (number) => {
    current = number;
    for (const one of node.querySelectorAll(".step.current, .block.current")) one.classList.remove("current");
    for (const one of node.querySelectorAll("[aria-current=step]")) one.removeAttribute("aria-current");
    const block = node.querySelector(`[data-block="${number}"]`);
    node.querySelector(`.step[data-step="${number}"]`)?.classList.add("current");
    block?.classList.add("current");
    block?.setAttribute("aria-current", "step");
    block?.parentNode.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  };
  return {
    href,
    /** The step after (1) or before (-1) the current one. */
    beside: (by) => Math.min(many - 1, Math.max(0, (current ?? (by > 0 ? -1 : many)) + by)),
    many,
    go: (number, smooth, call) => {
      const step = node.querySelector(`.step[data-step="${number}"]`);
      mark(number);
      if (!step) return;
      step.closest("details")?.setAttribute("open", "");
      step.scrollIntoView({ block: "start", behavior: smooth ? "smooth" : "auto" });
      step.querySelector("a.number").focus({ preventScroll: true });
      if (call) openCall(step, call);
    },
    clear: () => mark(null),
  };
}

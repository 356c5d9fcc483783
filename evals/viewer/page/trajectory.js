// A query's trajectory: its steps as cards, the strip above them, relevant documents and what became of them, rankings.

const SHOWN_HITS = 5; // of a search, before one asks for more; relevant ones are always there
const CHIPS = 8; // of a selection

/** What is known about a query's documents: which are gold, what is in them, what happened to each relevant one. */
class Gold {
  constructor(answer, run) {
    this.run = run; // its id
    this.units = answer.units ?? {};
    this.documents = answer.documents ?? {};
    this.relevant = new Map((answer.relevant ?? []).map((one) => [one.unit, one]));
    this.grades = answer.grades ?? {};
    this.steps = answer.steps ?? [];
    this.hops = new Map((answer.hops ?? []).map((hop) => [hop.first, hop]));
    this.events = new Map([...this.relevant.keys()].map((unit) => [unit, []])); // unit -> what happened to it
    this.news = this.steps.map((step, n) => this.seen(step, n));
  }

  unit(docId) {
    return own(this.units, docId) ?? docId;
  }

  /** "gold", "partial" (its grade is below that of a relevant document) or "". */
  kind(docId) {
    const unit = this.unit(docId);
    if (this.relevant.has(unit)) return "gold";
    return Object.hasOwn(this.grades, unit) ? "partial" : "";
  }

  /** Note what a step does with relevant units; { all, fresh } are those in it, and those that surface in it. */
  seen(step, number) {
    const found = new Map(); // unit -> place of its first document
    step.doc_ids.forEach((docId, place) => {
      const unit = this.unit(docId);
      if (this.relevant.has(unit) && !found.has(unit)) found.set(unit, place);
    });
    const fresh = [];
    for (const [unit, place] of found) {
      const events = this.events.get(unit);
      if (SURFACING.includes(step.tool) && !events.some((event) => SURFACING.includes(event.tool))) fresh.push(unit);
      events.push({ step: number, tool: step.tool, place, shown: Boolean(step.shown?.[place]) });
    }
    return { all: [...found.keys()], fresh };
  }

  /** The share of the relevant documents that is a search's: each is divided among the searches that returned it. */
  credit(number) {
    if (!this.isSearch(this.steps[number])) return 0;
    const shares = this.news[number].all.map(
      (unit) => 1 / this.events.get(unit).filter((event) => this.isSearch(this.steps[event.step])).length,
    );
    return shares.reduce((sum, share) => sum + share, 0) / this.relevant.size;
  }

  isSearch(step) {
    return SURFACING.includes(step.tool) && !step.refused && !step.among;
  }
}

/** A star in words and in sight: colour alone would not do. */
function star(kind) {
  if (!kind) return el("span.star.none");
  const words = kind === "gold" ? "relevant" : "graded, but not relevant";
  return el(
    "span",
    { class: `star ${kind === "gold" ? "" : "hollow"}`, title: words },
    el("span", { "aria-hidden": "true" }, kind === "gold" ? "★" : "☆"),
    spoken(`${words}: `),
  );
}

const idOf = (docId) => foreign(docId, "id");

/** A document: rank, star, id, how it begins, how much was shown; its text on demand. */
function hit(docId, { rank = "", gold, shown = null, length = null, value = null }) {
  const kind = gold.kind(docId);
  const known = own(gold.documents, docId) ?? null;
  const begins = known ? clipped(`${known.title ? `${known.title} — ` : ""}${known.text}`, 160) : "";
  const unit = gold.unit(docId);
  const row = [
    el("span.rank", rank),
    star(kind),
    idOf(docId),
    el("span.begins", begins ? foreign(begins) : null),
    shown === null
      ? el("span.much", value)
      : el(
          "span.much",
          { title: `${count(shown)} of ${plural(length, "character")} shown` },
          bar(length ? shown / length : 0, "thin"),
          shown >= length ? "whole" : `${count(shown)} / ${count(length)}`,
        ),
  ];
  const given = { class: `hit ${kind}`, "data-doc": docId };
  if (!known) return el("li", given, el("div.row", row));
  return el("li", given, el("details", el("summary.row", row), documentText(known, unit !== docId && unit)));
}

function documentText(known, unit) {
  const rest = known.length - known.text.length;
  return el(
    "div.document",
    known.title && el("p.title", foreign(known.title)),
    unit && el("p.about", "judged as ", idOf(unit)),
    el(
      "p",
      foreign(known.text, "long"),
      rest > 0 && el("span.about", ` … ${plural(rest, "character")} more in the corpus`),
    ),
  );
}

/** Hits, best first: the first few and all relevant ones; a button shows the others. `rankOf(place)` numbers them. */
function hits(docIds, options, { few = SHOWN_HITS, label, rankOf = (place) => place + 1, line = null }) {
  const list = el("ol.hits", { "aria-label": label });
  const item = (docId, place) => {
    const { shown, lengths, values } = options;
    const made = hit(docId, {
      rank: String(rankOf(place)),
      gold: options.gold,
      shown: shown?.length ? shown[place] : null,
      length: lengths?.length ? lengths[place] : null,
      value: values?.length && defined(values[place]) ? values[place].toPrecision(4) : null,
    });
    if (line !== null && rankOf(place) === line + 1) made.classList.add("below");
    return made;
  };
  const wanted = docIds
    .map((docId, place) => [docId, place])
    .filter(([docId, place]) => place < few || options.gold.kind(docId) === "gold");
  const hidden = docIds.length - wanted.length;
  let last = -1;
  for (const [docId, place] of hidden > 2 ? wanted : docIds.map((d, p) => [d, p])) {
    if (place > last + 1) list.append(el("li.gap", `${count(place - last - 1)} others`));
    list.append(item(docId, place));
    last = place;
  }
  if (hidden <= 2) return list;
  const all = () => {
    list.replaceChildren(...docIds.map(item));
    more.remove();
    list.querySelector("summary")?.focus();
  };
  const more = button({ class: "more" }, all, `Show all ${count(docIds.length)}`);
  return el("div", list, more);
}

/** Where among what came back the relevant ones are: a ruler from rank 1 to the last. */
function ruler(step, gold) {
  const n = step.doc_ids.length;
  const width = 120;
  const x = (place) => 4 + (n > 1 ? (place / (n - 1)) * (width - 8) : 0);
  const places = step.doc_ids.map((docId, place) => [gold.kind(docId), place]).filter(([kind]) => kind === "gold");
  return svg(
    "svg",
    { class: "ruler", viewBox: `0 0 ${width} 12`, width, height: 12, "aria-hidden": "true" },
    svg("line", { x1: 0, x2: width, y1: 6, y2: 6 }),
    places.map(([, place]) => svg("path", { d: `M${x(place)} 1 l4 5 l-4 5 l-4 -5z` })),
  );
}

const REPEATED = {
  search: "searched for before; no search was made",
  read: "read before; not shown again",
  note: "noted before; not added again",
};

const toolName = (tool) => tool.charAt(0).toUpperCase() + tool.slice(1);

/** What a step did about relevant documents, as a mark; nothing where it met none. */
function goldMark(step, number, gold) {
  const news = gold.news[number];
  if (!news.all.length) return null;
  const credit = gold.credit(number);
  const all = news.all.length;
  const words =
    {
      ...Object.fromEntries(
        SURFACING.map((tool) => [
          tool,
          news.fresh.length ? `${all} relevant, ${news.fresh.length} new` : `${all} relevant, known`,
        ]),
      ),
      forget: `${all} relevant forgotten`,
      select: `${all} relevant kept`,
      drop: `${all} relevant passed over`,
    }[step.tool] ?? `${all} relevant`;
  return el(
    "span",
    { class: `mark ${["drop", "forget"].includes(step.tool) ? "loss" : SURFACING.includes(step.tool) && !news.fresh.length ? "old" : ""}` },
    el("span", { "aria-hidden": "true" }, "★ "),
    words,
    credit > 0 && `, credit ${credit.toFixed(3)}`,
  );
}

/** A step as a card. `href` links to it; `others` are words of the same step of another run, to mark what differs. */
function stepCard(step, number, gold, { href, otherWords = null, whose = "", remarks = null }) {
  const name = toolName(step.tool);
  const [opensRemark, remark] = remarks?.box(number) ?? [];
  const setting = [
    step.retriever && `${step.retriever}`,
    step.k ? `k ${count(step.k)}` : "",
    step.cut ? `${plural(step.cut, "token")} cut off` : "",
  ];
  const cost = [seconds(step.seconds), ...usageWords(step.usage)];
  return el(
    "li",
    { class: `step ${step.tool}`, "data-step": number, "aria-label": `Step ${number}: ${name}` },
    el(
      "div.step-head",
      el("h4", null, el("a.number", { href, "aria-label": `Step ${number}` }, String(number)), " ", name),
      goldMark(step, number, gold),
      el("span.setting", facts(setting.filter(Boolean).map((s) => foreign(s)))),
      el("span.cost", cost.filter(Boolean).join(" · ")),
      opensRemark,
    ),
    step.refused && notice(`Refused: ${step.refused}`, false),
    stepBody(step, number, gold, otherWords),
    step.instruction &&
      el("details.instruction", el("summary", "Instruction of this search"), longText(step.instruction)),
    modelCalls(gold.run, step.calls, ` of step ${number}`, whose),
    remark,
  );
}

function stepBody(step, number, gold, otherWords) {
  const many = step.doc_ids.length;
  const options = { gold, shown: step.shown, lengths: step.lengths };
  const said =
    step.argument && el("blockquote", otherWords ? marked(step.argument, otherWords) : longText(step.argument, 480));
  const asTheyAre = step.shown?.length ? ", shown to a model unchanged" : "";
  switch (step.tool) {
    case "search":
      return [
        said,
        el(
          "p.came",
          gold.news[number].all.length > 0 && ruler(step, gold),
          `${many ? plural(many, "document") : "no documents"} returned${asTheyAre}`,
        ),
        many > 0 && hits(step.doc_ids, options, { label: "Results, best first" }),
      ];
    case "select":
    case "drop":
      return chips(step, gold, step.tool === "select" ? "kept" : "passed over");
    case "rank":
      return [said, many > 0 && hits(step.doc_ids, options, { label: "The order, best first" })];
    case "repeat":
      return [said, el("p.came", REPEATED[step.repeated] ?? "made before")];
    case "stop":
      return el("p.came", own(STOPS, step.argument) ?? foreign(step.argument));
    default: // read, judge, note, shorten, and what a later version may add
      return [said, many > 0 && hits(step.doc_ids, options, { label: "Documents shown" })];
  }
}

/** Ids that were kept or passed over, relevant ones first. */
function chips(step, gold, word) {
  const ids = [...step.doc_ids].sort((a, b) => Number(gold.kind(b) === "gold") - Number(gold.kind(a) === "gold"));
  if (!ids.length) return el("p.came", `nothing ${word}`);
  const chip = (docId) => {
    const kind = gold.kind(docId);
    const known = own(gold.documents, docId) ?? null;
    return el(
      "li",
      { class: `chip ${kind}`, title: known ? clipped(known.title || known.text, 160) : null },
      kind ? star(kind) : null,
      idOf(docId),
    );
  };
  const first = ids.slice(0, Math.max(CHIPS, ids.filter((docId) => gold.kind(docId) === "gold").length));
  const list = el("ul.chips", { "aria-label": `${count(ids.length)} ${word}` }, first.map(chip));
  const more = ids.length - first.length;
  const all = () => list.replaceChildren(...ids.map(chip));
  if (more > 0) list.append(el("li", button({ class: "more" }, all, `and ${count(more)} more`)));
  return list;
}

/** A text whose words that the other text lacks are marked. */
function marked(text, others) {
  const known = new Set(others.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []);
  const box = el("bdi.long", { dir: "auto" });
  // Runs of marked words and of others become one node each.
  let [run, differs] = ["", false];
  const flush = () => run && box.append(differs ? el("mark", run) : visible(run));
  for (const piece of clipped(text, 4000).split(/([\p{L}\p{N}]+)/u)) {
    const isWord = /[\p{L}\p{N}]/u.test(piece);
    const other = isWord ? !known.has(piece.toLowerCase()) : differs && !piece.includes("\n");
    if (other !== differs) {
      flush();
      [run, differs] = ["", other];
    }
    run += piece;
  }
  flush();
  if (text.length > 4000) box.append("…");
  return box;
}

/** What a hop did and spent, in a line. */
function hopWords(hop) {
  if (!hop) return null;
  const found = hop.relevant > 0 && el("span.mark", el("span", { "aria-hidden": "true" }, "★ "), `${count(hop.relevant)} relevant`);
  return el(
    "span.hop-words",
    facts([
      hop.searches > 0 && plural(hop.searches, "search", "searches"),
      hop.searches > 0 && [plural(hop.surfaced, "new document"), found && " ", found],
      hop.kept > 0 && `${count(hop.kept)} kept`,
      hop.dropped > 0 && `${count(hop.dropped)} passed over`,
      ...usageWords(hop.usage),
      seconds(hop.seconds),
    ]),
  );
}

/** Steps as cards, in a part for each hop that can be folded. `from` is the first step that is wanted. */
function trajectory(gold, hrefOf, given = {}) {
  const { from = 0, attributesOf = () => null, otherWords = () => null, remarks = null, findable = false } = given;
  const made = el("div.trajectory");
  let list = null;
  let hop = null;
  gold.steps.forEach((step, number) => {
    if (number < from) return;
    if (step.hop !== hop || !list) {
      hop = step.hop;
      list = el("ol.steps", { start: number });
      const title = el("h3.hop", hop ? `Hop ${hop}` : "Outside any hop");
      made.append(el("details.hop-part", { open: true }, el("summary", title, hopWords(gold.hops.get(number))), list));
    }
    const card = stepCard(step, number, gold, { href: hrefOf(number), otherWords: otherWords(number), remarks });
    attributes(card, attributesOf(number));
    list.append(card);
  });
  return findable ? [stepFinder(gold, made), made] : made;
}

/** A field that leaves only the steps with some words, and a button that folds all hops. */
function stepFinder(gold, box) {
  const said = el("span.about", { role: "status" });
  const parts = [...box.querySelectorAll("details.hop-part")];
  const textOf = (step) =>
    [step.tool, step.argument, step.instruction ?? "", step.retriever ?? "", ...step.doc_ids]
      .concat(step.shown?.length ? step.doc_ids.map((docId) => own(gold.documents, docId)?.text ?? "") : [])
      .join(" ")
      .toLowerCase();
  const find = (value) => {
    const words = wordsOf(value);
    let many = 0;
    for (const card of box.querySelectorAll(".step")) {
      const fits = !words.length || holds(textOf(gold.steps[Number(card.dataset.step)]), words);
      card.hidden = !fits;
      many += fits;
    }
    for (const part of parts) {
      part.hidden = !part.querySelector(".step:not([hidden])");
      if (words.length) part.open = true;
    }
    said.textContent = words.length ? `${count(many)} of ${plural(gold.steps.length, "step")}` : "";
  };
  const fold = () => {
    const open = parts.some((part) => part.open);
    for (const part of parts) part.open = !open;
  };
  return el(
    "div.filters",
    { role: "search", "aria-label": "Find in this trajectory" },
    searchField("Find in this trajectory", "", find),
    parts.length > 1 && button({ "data-fold": true, "aria-keyshortcuts": "f" }, fold, "Fold or unfold all hops"),
    said,
  );
}

/** All steps in a line: a block each, a star where relevant documents surface, a link to each. */
function strip(gold, hrefOf) {
  const hops = [];
  gold.steps.forEach((step, number) => {
    if (!hops.length || hops.at(-1).hop !== step.hop) hops.push({ hop: step.hop, numbers: [] });
    hops.at(-1).numbers.push(number);
  });
  const block = (number) => {
    const step = gold.steps[number];
    const { all, fresh } = gold.news[number];
    const words = [
      `Step ${number}: ${step.tool}`,
      fresh.length
        ? `${plural(fresh.length, "relevant document")} surfaced`
        : all.length && `${plural(all.length, "relevant document")} in it`,
    ];
    const said = words.filter(Boolean).join(", ");
    return el(
      "li",
      el(
        "a",
        {
          href: hrefOf(number),
          class: `block ${step.tool} ${all.length ? "met" : ""}`,
          "data-block": number,
          "aria-label": said,
          title: said,
        },
        fresh.length ? el("b", { "aria-hidden": "true" }, "★") : "",
      ),
    );
  };
  return el(
    "nav.strip",
    { "aria-label": "Steps" },
    hops.map(({ hop, numbers }) =>
      el(
        "div.strip-hop",
        { style: { "--steps": String(numbers.length) } },
        el("span", { "aria-hidden": "true" }, hop ? `hop ${hop}` : "–"),
        el("ol", numbers.map(block)),
      ),
    ),
  );
}

/** What happened to one relevant document over the steps: surfaced, shown, selected, passed over. */
function path(events, steps, width = 220) {
  const x = (step) => 6 + (steps > 1 ? (step / (steps - 1)) * (width - 12) : 0);
  return svg(
    "svg",
    { class: "path", viewBox: `0 0 ${width} 16`, width, height: 16, "aria-hidden": "true" },
    svg("line", { x1: 2, x2: width - 2, y1: 8, y2: 8 }),
    events.length > 0 && svg("line", { class: "known", x1: x(events[0].step), x2: width - 2, y1: 8, y2: 8 }),
    events.map(({ step, tool, shown }) => {
      const at = x(step);
      if (tool === "select") return svg("rect", { class: "kept", x: at - 4, y: 4, width: 8, height: 8, rx: 1.5 });
      if (tool === "drop" || tool === "forget") return svg("path", { class: "dropped", d: `M${at - 3.5} 4.5l7 7m0 -7l-7 7` });
      if (SURFACING.includes(tool)) return svg("circle", { class: shown ? "shown" : "surfaced", cx: at, cy: 8, r: 3.6 });
      return shown ? svg("circle", { class: "shown", cx: at, cy: 8, r: 3 }) : null;
    }),
  );
}

/** A fate as a chip, colour and words; it leads to the step that decided it, where one did. */
function fateChip(one, k, gold, hrefOf) {
  const step = decided(one, gold.steps.length);
  const said = [
    el("i", { class: `swatch fate-${one.fate}`, "aria-hidden": "true" }, one.fate === "found" ? "★" : ""),
    one.fate === "found" ? `found, place ${one.place}` : fateWords(one.fate, k),
  ];
  if (step === null) return el("span.fate", said);
  return el("a.fate", { href: hrefOf(step), title: `decided in step ${step}` }, said);
}

/** How it came to that, each piece a link to its step. */
function fateStory(one, hrefOf) {
  const pieces = story(one).map(([words, step]) => (step === null ? words : el("a", { href: hrefOf(step) }, words)));
  return el("span.story", facts(pieces));
}

/** The head of a relevant document's row, which shows its text on demand. */
function relevantHead(unit, docId, documents) {
  const known = own(documents, docId);
  if (!known) return rowHead(star("gold"), idOf(unit));
  const words = el("summary", foreign(clipped(known.title || known.text, 90)));
  const text = documentText(known, docId !== unit && unit);
  return rowHead(star("gold"), idOf(unit), el("details.peek", words, text));
}

/** The relevant documents of a query and what became of each. */
function relevantTable(answer, gold, k, hrefOf) {
  if (!answer.relevant?.length)
    return notice("No document is relevant by these judgements, or the run was scored by an older version.");
  const line = (one) => {
    const docId = one.doc_id || one.unit;
    return el(
      "tr.gold",
      { "data-doc": one.unit },
      relevantHead(one.unit, docId, gold.documents),
      el("td.number", String(one.grade)),
      el("td", fateChip(one, k, gold, hrefOf), fateStory(one, hrefOf)),
      el("td.path-cell", path(gold.events.get(one.unit), gold.steps.length)),
    );
  };
  return el(
    "div",
    scrolling(
      "Relevant documents",
      tableOf(
        "relevant",
        "Relevant documents and their outcome",
        [columnHead("Document"), numberHead("Grade"), columnHead("Outcome"), columnHead("By step")],
        answer.relevant.map(line),
      ),
    ),
    el("p.legend", Object.entries(LEGEND).map(([words, [tool, shown]]) => legendMark(words, tool, shown))),
  );
}

// What `path` draws -> the tool that did it, and whether the document was shown.
const LEGEND = { surfaced: ["search"], shown: ["search", true], selected: ["select"], "passed over": ["drop"] };
const legendMark = (words, tool, shown) => el("span", path([{ step: 0, tool, shown }], 1, 12), ` ${words}`);

/** The ranking that was handed in, with a line below the cutoff; places count units where several passages are one. */
function rankingList(answer, gold, k) {
  const seen = new Map();
  const places = answer.ranking.map((docId) => {
    const unit = gold.unit(docId);
    if (!seen.has(unit)) seen.set(unit, seen.size + 1);
    return seen.get(unit);
  });
  const more = answer.ranked - answer.ranking.length;
  return el(
    "div",
    answer.ranking.length
      ? hits(
          answer.ranking,
          { gold, values: answer.scores },
          {
            few: Math.max(10, Math.min(k, 20)),
            label: "Final ranking, best first",
            rankOf: (place) => places[place],
            line: k,
          },
        )
      : notice("Nothing was ranked."),
    more > 0 && el("p.about", `and ${count(more)} further down`),
  );
}

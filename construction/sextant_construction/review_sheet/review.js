// A sheet to be judged: one item at a time, in an order of each person's own. Answers are kept in this browser under
// the sheet's digest and the person's name, and go out as a file.

const TEXT = 4000; // characters of a text that are shown at once
const main = document.getElementById("main");

let sheet = null; // what is judged: { title, digest, sheets }
let items = []; // all of this person's, sheet after sheet; each knows its sheet as `of`
let rater = "";
let judgements = new Map(); // item -> { value, note }
let undone = []; // [item, what it had before], last one last
let at = -1; // place in items; -1 is the end
let marked = new Set(); // values of the shown item, where many apply
let losing = false; // answers are not kept by this browser, and not exported

/** A number of 32 bits, by which people see items in orders of their own (FNV-1a, and the last step of MurmurHash3). */
function hash(text) {
  let h = 2166136261;
  for (const c of text) h = Math.imul(h ^ c.codePointAt(0), 16777619);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

// --- what is kept

const home = () => `sextant review ${sheet.digest}`;
const place = () => `${home()} ${rater}`;
const judged = (item) => judgements.has(item.item) && judgements.get(item.item).value !== null;

function notify(words, bad = false) {
  const close = button({ class: "quiet" }, () => notice.remove(), "Close");
  const notice = el("div", { class: bad ? "notice bad" : "notice" }, el("span", words), close);
  document.querySelector(".notices").replaceChildren(notice);
}

/** Whether something is an answer to an item. */
function fits(item, answer) {
  if (typeof answer?.note !== "string") return false;
  if (answer.value === null) return true;
  const given = item.of.many ? answer.value : [answer.value];
  return Array.isArray(given) && given.every((value) => item.values.includes(value));
}

/** Take up what this browser has kept for this person; what is damaged is put aside, not lost. */
function recall() {
  judgements = new Map();
  const text = stored(place());
  let kept = {};
  try {
    kept = text === null ? {} : JSON.parse(text);
    if (kept?.constructor !== Object) throw new Error("not what this page writes");
    for (const { item, ...rest } of items) if (fits(rest, own(kept, item))) judgements.set(item, kept[item]);
  } catch {
    kept = null;
  }
  if (kept !== null && judgements.size === Object.keys(kept).length) return;
  notify("Some of what this browser had kept is damaged and was put aside. Import your last export, or go on.", true);
  store(`${place()} damaged`, text); // where that fails, it stays where it is until the next answer
}

function keep() {
  if (store(place(), JSON.stringify(Object.fromEntries(judgements)))) return;
  losing = true;
  notify("This browser keeps nothing for this page. Export your answers before you close it.", true);
}

function put(item, answer) {
  undone.push([item, judgements.get(item.item)]);
  if (answer.value === null && !answer.note) judgements.delete(item.item);
  else judgements.set(item.item, answer);
  keep();
}

function undo() {
  if (!undone.length) return;
  const [item, before] = undone.pop();
  if (before) judgements.set(item.item, before);
  else judgements.delete(item.item);
  keep();
  show(items.indexOf(item));
}

// --- files

function exportAnswers() {
  if (!rater) return;
  const rows = items.filter((item) => judgements.has(item.item));
  rows.sort((a, b) => (a.item < b.item ? -1 : 1));
  const lines = rows.map((item) => `${JSON.stringify({ item: item.item, rater, ...judgements.get(item.item) })}\n`);
  const link = el("a", {
    href: URL.createObjectURL(new Blob(lines, { type: "application/jsonl" })),
    download: `answers-${rater.replace(/[^\p{L}\p{N}._-]+/gu, "-")}.jsonl`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  losing = false;
  notify(`${plural(rows.length, "answer")} written to ${link.download}. Send that file back.`);
}

function importAnswers(text) {
  const known = new Map(items.map((item) => [item.item, item]));
  const counts = { taken: 0, strange: 0, different: 0 };
  for (const line of text.split("\n").filter((one) => one.trim())) {
    let row = null;
    try {
      row = JSON.parse(line);
    } catch {
      // It is counted.
    }
    const item = known.get(row?.item);
    const answer = { value: row?.value ?? null, note: row?.note ?? "" };
    if (!item || row.rater !== rater || !fits(item, answer)) counts.strange += 1;
    else if (!judged(item)) {
      put(item, answer);
      counts.taken += 1;
    } else if (JSON.stringify(judgements.get(item.item).value) !== JSON.stringify(answer.value)) counts.different += 1;
  }
  const left = [
    counts.strange && `${plural(counts.strange, "line")} left out: not of this sheet, or not by ${rater}`,
    counts.different && `${counts.different} left out that you have answered otherwise here`,
  ];
  next();
  notify([`${plural(counts.taken, "answer")} taken`, ...left.filter(Boolean)].join("; "), Boolean(left[0] || left[1]));
}

// --- what is shown

function frame(name) {
  document
    .querySelector(".crumbs")
    .replaceChildren(el("ol", el("li", foreign(sheet.title)), name && el("li", { "aria-current": "page" }, name)));
  document.title = visible(`${name || "Review"} · ${sheet.title}`);
  const who = document.getElementById("rater");
  for (const id of ["rater", "import", "export"]) document.getElementById(id).hidden = !rater;
  who.replaceChildren(foreign(rater));
  who.setAttribute("aria-label", `Judging as ${visible(rater)}; change`);
  const done = items.filter(judged).length;
  document.querySelector("#export span").textContent = rater ? ` ${done} of ${items.length}` : "";
  document.querySelector(".sheets").replaceChildren(
    ...(rater ? sheet.sheets : []).map((one) => {
      const of = items.filter((item) => item.of === one);
      const ready = of.filter(judged).length;
      return button(
        { "aria-current": name === one.name ? "true" : null },
        () => show(first(of)),
        el("span", one.name, el("span.about", `${ready} of ${of.length}`)),
        el("progress", { max: of.length || 1, value: ready, "aria-label": `${one.name}: ${ready} of ${of.length}` }),
      );
    }),
  );
}

/** The first of some items that is not judged yet, else the first of all; as a place. */
const first = (some) => items.indexOf(some.find((item) => !judged(item)) ?? some[0]);

/** The key that answers with a value: the value itself, where all are digits, else its number. */
function keyOf(item, value) {
  if (item.values.every((one) => /^[0-9]$/.test(one))) return value;
  const number = item.values.indexOf(value) + 1;
  return number <= 9 ? String(number) : "";
}

const named = (item, value) => [el("kbd", keyOf(item, value)), foreign(own(item.of.means, value) || value)];

function box(item, value) {
  const input = el("input", { type: "checkbox", "data-value": value, on: { change: () => mark(value) } });
  input.checked = marked.has(value);
  return input;
}

function part(item, [label, text]) {
  if (!item.of.many || !item.values.includes(label)) {
    return el("section.part", el("h2", foreign(label)), longText(text, TEXT));
  }
  const key = keyOf(item, label);
  const pick = el("label.pick", box(item, label), el("kbd", key), spoken(`choose ${key}`));
  return el("section.part.choice", pick, longText(text, TEXT));
}

function buttons(item) {
  if (!item.of.many) {
    const said = judgements.get(item.item)?.value ?? null;
    const press = (value) => ({ "aria-pressed": String(said === value) });
    return item.values.map((value) => button(press(value), () => answer(value), named(item, value)));
  }
  const shown = new Set(item.show.map(([label]) => label));
  const others = item.values.filter((value) => !shown.has(value));
  return [
    ...others.map((value) => el("label", box(item, value), named(item, value))),
    button({ class: "button" }, confirmMarked, el("span", { id: "these" }), el("kbd", "Enter")),
  ];
}

const head = (title, ...about) => el("div.head", el("h1", { tabindex: "-1" }, title), el("p.about", ...about));

const hint = (words) => el("span", el("kbd", words[0]), words.slice(1));

const these = () => (marked.size > 1 ? `These ${marked.size}` : marked.size ? "This one" : "None of these");

function show(to) {
  at = to;
  const item = items[at];
  if (!item) return finish();
  const answer = judgements.get(item.item);
  marked = new Set(item.of.many && answer?.value ? answer.value : []);
  frame(item.of.name);
  const of = items.filter((one) => one.of === item.of);
  const where = `${of.indexOf(item) + 1} of ${of.length}`;
  const state = el("span", { class: judged(item) && "strong" }, judged(item) ? "answered" : "not answered yet");
  const note = el("textarea", { "aria-label": "Note", placeholder: "Note (n)", rows: "1" });
  note.value = answer?.note ?? "";
  note.addEventListener("change", () => {
    put(item, { value: judgements.get(item.item)?.value ?? null, note: note.value.trim() });
  });
  main.replaceChildren(
    head(item.of.ask, `${where} · `, state),
    ...item.show.map((one) => part(item, one)),
    el(
      "div.answering",
      el("div.values-row", { role: "group", "aria-label": "Answers" }, buttons(item)),
      el("div.below", note, ["k back", "j on", "u undo"].map(hint)),
    ),
  );
  if (item.of.many) document.getElementById("these").textContent = these();
  main.dataset.view = "item";
  document.getElementById("said").textContent = `${where}, ${judged(item) ? "answered" : "not answered"}`;
  main.querySelector("h1").focus({ preventScroll: true });
  scrollTo(0, 0);
}

function finish() {
  at = -1;
  frame("");
  const left = items.filter((item) => !judged(item)).length;
  main.replaceChildren(
    head(left ? `${plural(left, "item")} left` : "All is judged"),
    el("p", "Export writes your answers into a file. Send it back to whoever gave you this page."),
    el("p.finished", button({ class: "button" }, exportAnswers, "Export")),
  );
  main.dataset.view = "done";
  main.querySelector("h1").focus({ preventScroll: true });
}

/** The next item that is not judged, after this one, then from the beginning. */
function next() {
  const order = [...items.keys()].map((place) => (place + at + 1) % items.length);
  show(order.find((place) => !judged(items[place])) ?? -1);
}

function beside(by) {
  if (items.length) show(at < 0 ? (by < 0 ? items.length - 1 : 0) : Math.min(items.length - 1, Math.max(0, at + by)));
}

// --- what a person does

function answer(value) {
  const item = items[at];
  document.activeElement?.blur(); // a note that is being written is kept first
  put(item, { value, note: judgements.get(item.item)?.note ?? "" });
  next();
}

function mark(value) {
  if (!marked.delete(value)) marked.add(value);
  for (const input of main.querySelectorAll("input[data-value]")) input.checked = marked.has(input.dataset.value);
  document.getElementById("these").textContent = these();
}

function confirmMarked() {
  if (items[at]?.of.many) answer(items[at].values.filter((value) => marked.has(value)));
}

function digit(key) {
  const item = items[at];
  const value = item?.values.find((one) => keyOf(item, one) === key);
  if (value === undefined) return;
  if (item.of.many) mark(value);
  else answer(value);
}

function begin(name) {
  rater = name;
  undone = [];
  items = sheet.sheets.flatMap((of) => {
    const some = of.items.map((one) => ({ ...one, of }));
    return some.sort((a, b) => hash(`${rater} ${a.item}`) - hash(`${rater} ${b.item}`) || (a.item < b.item ? -1 : 1));
  });
  recall();
  if (!store(home(), rater)) keep();
  at = -1;
  next();
}

/** Ask who is judging. */
function start() {
  rater = "";
  items = [];
  frame("");
  const name = el("input", { required: true, maxlength: "100", autocomplete: "name", "aria-label": "Your name" });
  const form = el(
    "form.start",
    el("label.field", "Your name, as it goes with your answers", name),
    el("button.button", "Begin"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (name.value.trim()) begin(name.value.trim());
  });
  const cells = (of) => [of.name, of.ask, String(of.items.length)].map((text) => el("td", text));
  const titles = ["sheet", "what is asked", "items"].map((title) => columnHead(title));
  const rows = sheet.sheets.map((of) => el("tr", cells(of)));
  const how = "You do not see what a model said, and the order is your own. Answer by digits; ? lists all keys.";
  main.replaceChildren(
    head("Judge what a benchmark is made of"),
    el("p", how),
    form,
    el("table", tableHead(titles), el("tbody", rows)),
  );
  main.dataset.view = "start";
  name.focus();
}

listen({
  ...Object.fromEntries([..."0123456789"].map((key) => [key, ({ repeat }) => repeat || digit(key)])),
  j: () => beside(1),
  k: () => beside(-1),
  ArrowRight: () => beside(1),
  ArrowLeft: () => beside(-1),
  n: () => main.querySelector("textarea")?.focus(),
  u: undo,
  e: exportAnswers,
});

// Enter works buttons and links; elsewhere it answers with what is marked.
document.addEventListener("keydown", (event) => {
  const working = "button, a, textarea, input:not([type=checkbox])";
  if (event.key !== "Enter" || event.repeat || dialog.open || event.target.closest?.(working)) return;
  event.preventDefault();
  confirmMarked();
});
document.getElementById("export").addEventListener("click", exportAnswers);
document.getElementById("rater").addEventListener("click", start);
document.getElementById("import").addEventListener("click", () => document.getElementById("file").click());
document.getElementById("file").addEventListener("change", async ({ target }) => {
  if (rater && target.files[0]) importAnswers(await target.files[0].text());
  target.value = "";
});
addEventListener("storage", (event) => {
  if (!rater || event.key !== place()) return;
  recall(); // another window of the same person
  if (!document.activeElement?.closest("textarea")) show(at);
});
addEventListener("beforeunload", (event) => losing && event.preventDefault());

load("sheet.json").then((read) => {
  sheet = read;
  const known = stored(home());
  if (known) begin(known);
  else start();
});

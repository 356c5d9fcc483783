// Remarks: a label and a note on a query or a step, a name, tags and a note of a run; and lists as CSV.

/** Have the server keep a remark on a run; it answers with what it wrote. */
async function sendRemark(id, remark) {
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(remark) };
  const answer = await fetch(`data/run/${encodeId(id)}/remark`, sent).catch(() => {
    throw new Error("no answer from the server; is sextant view still running?");
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  forget("runs.json", `run/${encodeId(id)}.json`);
  return told;
}

const textField = (label, value, tag = "input", given = {}) => {
  const input = el(tag, { autocomplete: "off", ...given }, tag === "textarea" && value);
  if (tag === "input") input.value = value;
  return { input, node: el("label.field.grow", el("span", label), input) };
};

/** A form of fields that is saved by a button or Enter; `save` gets their texts, and its words are said. */
function remarkForm(fields, save) {
  const said = el("span.about", { role: "status" });
  const form = el("form.filters.remark-form", Object.values(fields).map((field) => field.node), el("button", "Save"), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await save(Object.fromEntries(Object.entries(fields).map(([key, { input }]) => [key, input.value.trim()])));
      said.textContent = "Saved.";
      form.querySelector("button").focus(); // where the keys of the page are heard again
    } catch (error) {
      said.textContent = error.message;
    }
  });
  return form;
}

/** A label and a note in words. */
const remarkWords = ({ label, note }) => [label && badge(label), label && note && " ", note && foreign(note, "long")];

/**
 * [button, box]: the box has the remark on a query or a step, and the form to change it, which the button opens. `labels`
 * are those in use. In a file nothing can be saved.
 */
function remarkBox(id, subject, known, labels, exported, words = "Remark") {
  const shown = el("span", known ? remarkWords(known) : "");
  if (exported) return [null, known ? el("p.remark", shown) : null];
  let current = known ?? { label: "", note: "" };
  const make = () => {
    const list = `labels-${subject.query_id}-${subject.step ?? ""}`.replace(/\W/g, "_");
    const fields = {
      label: textField("Label", current.label ?? "", "input", { list }),
      note: textField("Note", current.note ?? "", "textarea", { rows: 2 }),
    };
    const form = remarkForm(fields, async (values) => {
      current = await sendRemark(id, { ...subject, ...values });
      shown.replaceChildren();
      add(shown, remarkWords(current));
    });
    return add(form, [el("datalist", { id: list }, labels.map((value) => el("option", { value })))]);
  };
  const where = subject.step === undefined ? "" : ` on step ${subject.step}`;
  const [opens, box] = disclosure([words, where && spoken(where)], make);
  return [opens, el("div.remark", shown, box)];
}

/** The remarks on a query and its steps. */
class Remarks {
  constructor(id, queryId, all, exported) {
    Object.assign(this, { id, queryId, exported });
    this.labels = [...new Set(all.map((one) => one.label).filter(Boolean))].sort(collator.compare);
    this.known = new Map(all.filter((one) => one.query_id === queryId).map((one) => [one.step ?? null, one]));
  }

  /** The box of a step, or of all of the query. */
  box(step = null) {
    const subject = step === null ? { query_id: this.queryId } : { query_id: this.queryId, step };
    const words = step === null ? "Remark on this query" : "Remark";
    return remarkBox(this.id, subject, this.known.get(step), this.labels, this.exported, words);
  }
}

/** The name, tags and note of a run, with the form for them. */
function runRemark(id, named, exported) {
  const { name = "", tags = [], note = "" } = named ?? {};
  const shown = note && el("p.about", foreign(note, "long"));
  if (exported) return shown;
  const make = () => {
    const fields = {
      name: textField("Name on the page", name),
      tags: textField("Tags, with commas", tags.join(", ")),
      note: textField("Note", note, "textarea", { rows: 2 }),
    };
    return remarkForm(fields, async (values) => {
      const list = values.tags.split(",").map((tag) => tag.trim()).filter(Boolean);
      await sendRemark(id, { ...values, tags: list });
      again();
    });
  };
  return el("div.remark", shown, disclosure("Name, tags and note", make));
}

/** A cell of CSV; what a spreadsheet would take for a formula gets an apostrophe before it. */
function csvCell(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "");
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** A button that saves what a list shows as a file; `rows()` returns lists of values, the first the head. */
function csvButton(name, rows) {
  const save = () => {
    const lines = rows().map((row) => `${row.map(csvCell).join(",")}\n`);
    const href = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
    el("a", { href, download: `${name.replace(/[^\p{L}\p{N}._-]+/gu, "-")}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
  };
  return button({ class: "quiet" }, save, "CSV");
}

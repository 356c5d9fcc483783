// Words in prompts, answers, searches, notes and documents, of a run or of all. The server looks for them, or the page in
// what a file holds.

/** The places in a run that have all of the words: the server looks for them, or the page in what a file holds. */
async function findIn(id, words, exported) {
  if (!exported) return loadPanel(id, "search", words, { fresh: true });
  const hits = [];
  const { query_ids: queryIds } = await loadRun(id);
  for (const queryId of queryIds) {
    const answer = await loadQuery(id, queryId);
    const texts = answer.steps.flatMap((step, n) => [
      [n, step.tool, step.argument],
      ...step.doc_ids.map((docId, place) => [n, `document ${docId}`, step.shown?.[place] ? own(answer.documents, docId)?.text : ""]),
    ]);
    const told = new Set();
    for (const [step, where, text] of [...texts, [null, "answer", answer.answer]])
      if (text && !told.has(text) && holds(text.toLowerCase(), wordsOf(words))) {
        told.add(text);
        const at = Math.max(...wordsOf(words).map((word) => text.toLowerCase().indexOf(word)));
        hits.push({ query_id: queryId, step, where, text: text.slice(Math.max(0, at - 90), at + 90), call: "" });
      }
    if (hits.length > 200) break;
  }
  return { hits: hits.slice(0, 200), more: hits.length > 200, unread: [] };
}

/** The field, and below it what was found in these runs. `words` are those of the address; `keep` puts others there. */
function findSection(ids, words, keep, exported, nameOf = () => null) {
  const input = el("input", { type: "search", value: words, placeholder: "All of these words", autocomplete: "off" });
  const said = el("p.about", { role: "status" });
  const box = el("div");
  const find = async () => {
    const asked = input.value;
    box.replaceChildren();
    said.textContent = asked.trim() && "Searching…";
    if (!asked.trim()) return;
    let [many, more] = [0, false];
    for (const id of ids) {
      const answer = await findIn(id, asked, exported).catch((error) => ({ hits: [], unread: [error.message] }));
      if (asked !== input.value) return;
      many += answer.hits.length;
      more ||= answer.more;
      add(box, [
        answer.unread.map((why) => notice(why)),
        answer.hits.length > 0 && [nameOf(id), foundList(id, answer.hits, wordsOf(asked))],
      ]);
    }
    said.textContent = more ? `The first ${plural(many, "place")}; there are more` : plural(many, "place");
  };
  const where = exported ? "In answers, searches, notes and the beginnings of documents shown" : "In prompts, answers, searches, notes and documents shown";
  const form = el(
    "form.filters",
    { role: "search", "aria-label": ids.length === 1 ? "Find words in this run" : "Find words in all runs" },
    el("label.field.grow", el("span", where), input),
    el("button", "Find"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keep(input.value);
    find();
  });
  if (words) find();
  return section("Find words", null, form, said, box);
}

function foundList(id, hits, words) {
  const line = ({ query_id: queryId, step, where, text, call }) =>
    el(
      "li",
      el(
        "a",
        { href: link.query(id, queryId, step) + (call ? `?call=${call}` : "") },
        idOf(queryId),
        step === null ? "" : `, step ${step}`,
      ),
      " ",
      foreign(where, "about"),
      " ",
      highlighted(text, words),
    );
  return el("ol.found", { "aria-label": "Found", tabindex: "0" }, hits.map(line));
}

/** A text with these words marked, in whatever case. */
function highlighted(text, words) {
  const any = words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|");
  const pieces = text.split(new RegExp(`(${any})`, "iu"));
  return add(foreign(""), pieces.map((piece, n) => (n % 2 ? el("mark", piece) : piece)));
}

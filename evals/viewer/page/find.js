// The search of a run: words in its prompts, answers, searches, notes and documents. The server looks for them.

addPanel("search", ({ id, exported, state, set }) =>
  exported
    ? el("p.about", "Words are found in the page that python -m evals.view serves.")
    : findSection(id, state.find, set("find")),
);

/** The field, and below it what was found. `words` are those of the address; `keep` puts others there. */
function findSection(id, words, keep) {
  const input = el("input", { type: "search", value: words, placeholder: "All of these words", autocomplete: "off" });
  const said = el("p.about", { role: "status" });
  const box = el("div");
  const find = async () => {
    const asked = input.value;
    box.replaceChildren();
    said.textContent = asked.trim() && "Searching…";
    if (!asked.trim()) return;
    const fresh = { fresh: true };
    const answer = await loadPanel(id, "search", asked, fresh).catch((error) => ({ hits: [], unread: [error.message] }));
    if (asked !== input.value) return;
    const places = plural(answer.hits.length, "place");
    said.textContent = answer.more ? `The first ${places}; there are more` : places;
    add(box, [
      answer.unread.map((why) => notice(why)),
      answer.hits.length > 0 && foundList(id, answer.hits, wordsOf(asked)),
    ]);
  };
  const form = el(
    "form.filters",
    { role: "search", "aria-label": "Find words in this run" },
    el("label.field.grow", el("span", "In prompts, answers, searches, notes and documents shown"), input),
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

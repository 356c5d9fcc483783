// The search of a run: words in its prompts, answers, searches, notes and documents. The server looks for them.

/** The field and, once asked for, what it found. `words` are those of the address; `keep` puts them there. */
function findSection(id, words, keep) {
  const input = el("input", { type: "search", value: words, placeholder: "All of these words", autocomplete: "off" });
  const box = el("div", { role: "status" });
  const find = async () => {
    if (!wordsOf(input.value).length) return box.replaceChildren();
    box.replaceChildren(el("p", { class: "about" }, "Searching…"));
    const asked = input.value;
    const answer = await loadFound(id, asked).catch((error) => ({ error }));
    if (asked === input.value) box.replaceChildren(answer.error ? notice(answer.error.message) : foundList(id, answer, asked));
    return null;
  };
  const form = el(
    "form",
    { class: "filters", role: "search", "aria-label": "Find words in this run" },
    el("label", { class: "field grow" }, el("span", null, "In prompts, answers, searches, notes and documents shown"), input),
    el("button", null, "Find"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keep(input.value);
    find();
  });
  if (words) find();
  return section("Find words", null, form, box);
}

function foundList(id, { hits: found, more, unread }, asked) {
  const line = ({ query_id: queryId, step, where, text, call }) =>
    el(
      "li",
      null,
      el("a", { href: link.query(id, queryId, step) + (call ? `?call=${call}` : "") }, idOf(queryId), step === null ? "" : `, step ${step}`),
      el("span", { class: "about" }, ` ${where} `),
      highlighted(text, wordsOf(asked)),
    );
  const many = more ? `The first ${count(found.length)} places; there are more` : plural(found.length, "place");
  return el(
    "div",
    null,
    el("p", { class: "about" }, many),
    unread.map((why) => notice(why)),
    found.length > 0 && el("ol", { class: "found", "aria-label": "Found", tabindex: "0" }, found.map(line)),
  );
}

/** A text with these words marked, in whatever case. */
function highlighted(text, words) {
  const any = words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|");
  const pieces = text.split(new RegExp(`(${any})`, "iu"));
  return add(foreign(""), pieces.map((piece, n) => (n % 2 ? el("mark", null, piece) : piece)));
}

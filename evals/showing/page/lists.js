// Tables that sort, filter and turn pages, with what they show in the address; heads of views; choices.

const PAGE = 200; // rows at a time: a run may have 10,000 queries
const collator = new Intl.Collator("en", { numeric: true });

/** Which of two values comes first; undefined ones come last, however it is sorted. */
function compareValues(a, b, down) {
  const [noA, noB] = [a === null || a === undefined || a === "", b === null || b === undefined || b === ""];
  if (noA || noB) return Number(noA) - Number(noB);
  const order = typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
  return down ? -order : order;
}

/**
 * A sortable table. Columns are { key, head, value(row), cell(row), number, hint, row }; `sort` is a key, with "-" before
 * it when the largest comes first. `attributesOf(row)` marks rows, `open(row)` is where a click on one leads. Rows may
 * come in groups, { of(row), order(a, b), head(row) }, which keep their order however the rows in them are sorted.
 * Returns { node, show(rows), sorted } where show draws the page of rows that is wanted.
 */
function sortable({ caption, columns, sort, tie, attributesOf, open, onSort, groups = null }) {
  const state = { sort, page: 0, rows: [] };
  const body = el("tbody");
  const heads = columns.map((column) =>
    el(
      "th",
      { scope: "col", class: column.number ? "number" : null, title: column.hint ?? null },
      column.value
        ? el("button", { type: "button", class: "sort", on: { click: () => turn(column) } }, column.head)
        : column.head,
    ),
  );
  const pager = el("nav", { class: "pager", "aria-label": `Pages of: ${caption}` });
  const node = el(
    "div",
    null,
    scrolling(
      caption,
      el("table", { class: "list" }, el("caption", { class: "spoken" }, caption), tableHead(heads), body),
    ),
    pager,
  );

  function turn(column) {
    const down = state.sort === column.key ? `-${column.key}` : column.key;
    state.sort = state.sort.replace("-", "") === column.key ? down : column.number ? `-${column.key}` : column.key;
    state.page = 0;
    onSort(state.sort); // which shows the rows again
  }

  function show(rows, { page = state.page } = {}) {
    state.rows = rows;
    const column = columns.find((one) => one.key === state.sort.replace("-", "") && one.value);
    const down = state.sort.startsWith("-");
    const within = (a, b) => (column && compareValues(column.value(a), column.value(b), down)) || tie(a, b);
    made.sorted = [...rows].sort((a, b) => groups?.order(a, b) || within(a, b));
    heads.forEach((head, n) => {
      if (columns[n] === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    state.page = Math.min(page, pages - 1);
    const listed = made.sorted.slice(state.page * PAGE, (state.page + 1) * PAGE);
    const begins = (row, n) => groups && (n === 0 || groups.of(row) !== groups.of(listed[n - 1]));
    body.replaceChildren(...listed.flatMap((row, n) => (begins(row, n) ? [groupHead(row), line(row)] : [line(row)])));
    if (!rows.length)
      body.append(
        el("tr", null, el("td", { colspan: columns.length, class: "absent" }, "Nothing fits these filters.")),
      );
    pager.replaceChildren(...(pages > 1 ? pageButtons(pages) : []));
  }

  function groupHead(row) {
    return el("tr", { class: "group" }, el("th", { colspan: columns.length, scope: "colgroup" }, groups.head(row)));
  }

  function line(row) {
    const tr = el(
      "tr",
      attributesOf(row),
      columns.map((column) =>
        el(
          column.row ? "th" : "td",
          {
            scope: column.row ? "row" : null,
            class: [column.number && "number", column.className].filter(Boolean).join(" ") || null,
          },
          column.cell(row),
        ),
      ),
    );
    // A click anywhere in the row; the link in it is what the keyboard and screen readers use.
    tr.addEventListener("click", (event) => {
      if (!event.target.closest("a, button, input, label, summary") && !String(getSelection())) go(open(row));
    });
    return tr;
  }

  function pageButtons(pages) {
    const to = (page, words) =>
      el("button", { type: "button", disabled: page < 0 || page >= pages, on: { click: () => turned(page) } }, words);
    const turned = (page) => {
      show(state.rows, { page });
      node.scrollIntoView({ block: "start" });
    };
    const first = state.page * PAGE;
    return [
      to(state.page - 1, "Previous"),
      el(
        "span",
        null,
        `${count(first + 1)} to ${count(Math.min(first + PAGE, state.rows.length))} of ${count(state.rows.length)}`,
      ),
      to(state.page + 1, "Next"),
    ];
  }

  const made = { node, show, sorted: [] };
  return made;
}

/** A labelled choice; options are [value, words]. */
function choice(label, options, value, onChange) {
  const select = el(
    "select",
    null,
    options.map(([key, words]) => el("option", { value: key, selected: key === value }, words)),
  );
  select.addEventListener("change", () => onChange(select.value));
  return el("label", { class: "field" }, el("span", null, label), select);
}

/** A search field; "/" goes to it. */
function searchField(label, value, onInput) {
  const input = el("input", {
    type: "search",
    value,
    placeholder: "Filter",
    "data-search": true,
    autocomplete: "off",
    spellcheck: "false",
  });
  input.addEventListener("input", () => onInput(input.value));
  return el("label", { class: "field grow" }, el("span", null, label), input);
}

/** Lower-case words of what was typed; all of them have to occur. */
const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
const holds = (text, words) => words.every((word) => text.includes(word));

/** The head of a view: its title, what it is about, marks. */
function heading(title, ...about) {
  return el("div", { class: "head" }, el("h1", { tabindex: "-1" }, title), el("p", { class: "about" }, ...about));
}

/** A section with a heading; `aside` stands at its right. */
function section(title, aside, ...children) {
  return el("section", null, el("div", { class: "section-head" }, el("h2", null, title), aside), ...children);
}

const miniBadge = () =>
  el(
    "span",
    { class: "badge mini", title: "Bundled, invented data: not comparable with published figures" },
    "mini: bundled, invented",
  );
const badge = (text, className = "") => el("span", { class: `badge ${className}` }, text);

/** Facts separated by points. */
function facts(list) {
  return list
    .filter(Boolean)
    .flatMap((fact, n) => [n > 0 && el("span", { class: "point", "aria-hidden": "true" }, " · "), fact]);
}

/** A notice in the page; `bad` ones are read out at once. */
function notice(text, bad = false) {
  return el("p", { class: `notice ${bad ? "bad" : ""}`, role: bad ? "alert" : null }, text);
}

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
function sortable({ caption, columns: wanted, sort, tie, attributesOf, open, onSort, groups = null }) {
  const columns = wanted.filter(Boolean);
  const state = { sort, page: 0, rows: [] };
  const body = el("tbody");
  const heads = columns.map((column) =>
    el(
      "th",
      { scope: "col", class: [column.number && "number", column.className].filter(Boolean).join(" ") || null, title: column.hint ?? null },
      column.value ? button({ class: "sort" }, () => turn(column), column.head) : column.head,
    ),
  );
  const pager = el("nav.pager", { "aria-label": `Pages of: ${caption}` });
  const node = el(
    "div",
    scrolling(caption, el("table.list", el("caption.spoken", caption), tableHead(heads), body)),
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
      body.append(el("tr", el("td", { colspan: columns.length, class: "absent" }, "Nothing fits these filters.")));
    pager.replaceChildren(...(pages > 1 ? pageButtons(pages) : []));
  }

  function groupHead(row) {
    return el("tr.group", el("th", { colspan: columns.length, scope: "colgroup" }, el("span.head", groups.head(row))));
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
    const to = (page, words) => button({ disabled: page < 0 || page >= pages }, () => turned(page), words);
    const turned = (page) => {
      show(state.rows, { page });
      node.scrollIntoView({ block: "start" });
    };
    const first = state.page * PAGE;
    return [
      to(state.page - 1, "Previous"),
      el(
        "span",
        `${count(first + 1)} to ${count(Math.min(first + PAGE, state.rows.length))} of ${count(state.rows.length)}`,
      ),
      to(state.page + 1, "Next"),
    ];
  }

  const made = { node, show, sorted: [] };
  return made;
}

/** What an address says of these, "" where nothing. */
const stated = (params, ...keys) => Object.fromEntries(keys.map((key) => [key, params.get(key) ?? ""]));

/** A labelled choice; options are [value, words]. */
function choice(label, options, value, onChange) {
  const on = { change: ({ target }) => onChange(target.value) };
  const made = options.map(([key, words]) => el("option", { value: key, selected: key === value }, words));
  return el("label.field", el("span", label), el("select", { on }, made));
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
    on: { input: ({ target }) => onInput(target.value) },
  });
  return el("label.field.grow", el("span", label), input);
}

/** A column of a list, and one of numbers; `more` is what else `sortable` knows of columns. */
const columnOf = (key, head, value, cell, more) => ({ key, head, value, cell, ...more });
const numberColumn = (key, head, value, cell, more) => columnOf(key, head, value, cell, { number: true, ...more });

/** The columns of a list of queries that say which one it is; `href(row)` leads to it. */
const queryColumns = (href) => [
  columnOf("query", "Query", (row) => row.queryId, (row) => el("a", { href: href(row) }, idOf(row.queryId)), {
    row: true,
  }),
  columnOf("text", "Text", (row) => row.text, (row) => foreign(clipped(row.text, 200)), { className: "text" }),
];

/** A mark and the value that it stands for. */
const measured = (mark, value) => el("span.measured", mark, el("b", value));

/** A choice among metrics. */
const metricChoice = (metrics, chosen, onChange) =>
  choice("Metric", metrics.map((name) => [name, name]), chosen, onChange);

/** Lower-case words of what was typed; all of them have to occur. */
const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
const holds = (text, words) => words.every((word) => text.includes(word));

/** The head of a view: its title, facts of what it is about, marks. */
function heading(title, about = [], ...marks) {
  const words = el("p.about", facts(about), marks.length > 0 && " ", marks);
  return el("div.head", el("h1", { tabindex: "-1" }, title), words);
}

/** A section with a heading; `aside` stands at its right. */
const section = (title, aside, ...children) =>
  el("section", el("div.section-head", el("h2", title), aside), ...children);

const miniBadge = () =>
  el(
    "span.badge.mini",
    { title: "Bundled, invented data: not comparable with published figures" },
    "mini: bundled, invented",
  );
const badge = (text, className = "") => el("span", { class: `badge ${className}` }, text);

/** Facts separated by points. */
function facts(list) {
  return list.filter(Boolean).flatMap((fact, n) => [n > 0 && el("span.point", { "aria-hidden": "true" }, " · "), fact]);
}

/** A notice in the page; `bad` ones are read out at once. */
function notice(text, bad = false) {
  return el("p", { class: `notice ${bad ? "bad" : ""}`, role: bad ? "alert" : null }, text);
}

// Elements out of names, attributes and text. Text of corpora and models is hostile: it only ever becomes a text node,
// with its invisible characters made visible. Nothing here, or anywhere on the page, parses text as HTML.

const SVG = "http://www.w3.org/2000/svg";

// Control characters, marks of direction, zero-width characters, tags, and surrogates without their half.
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\u{e0000}-\u{e007f}]/gu;

/** Text whose invisible characters are shown as ⟨U+202E⟩; line ends stay line ends. */
function visible(text) {
  return String(text)
    .replace(/\r\n/g, "\n")
    .replace(INVISIBLE, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Attributes that a reader sees or hears.
const READ = new Set(["title", "aria-label", "placeholder"]);

/** Set attributes, listeners (`on`) and styles (`style`, through CSSOM: the policy forbids style attributes). */
function attributes(node, given) {
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : READ.has(name) ? visible(value) : value);
  }
}

/** Add children: nodes, text, lists of them; null, undefined and false are left out. */
function add(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(node, child);
    else node.append(child instanceof Node ? child : visible(child));
  }
  return node;
}

/** An element: el("p.note", { title: "why" }, "text", el("b", "bold")); its classes follow the tag's name. */
function el(tag, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  node.classList.add(...classes);
  if (children[0]?.constructor === Object) attributes(node, children.shift());
  return add(node, children);
}

/** Replace what is in a box; what is focused or being typed in it, and how far its tables are scrolled, stay. */
function redraw(box, ...children) {
  const focused = box.contains(document.activeElement) ? document.activeElement : null;
  const { value, selectionStart: from, selectionEnd: to } = focused ?? {};
  const nameOf = (node) => node.getAttribute("href") ?? node.ariaLabel ?? (node.closest("label")?.firstChild ?? node).textContent;
  const tables = () => [...box.querySelectorAll(".scrolling")];
  const scrolls = tables().map((table) => table.scrollLeft);
  box.replaceChildren(...children.filter(Boolean));
  tables().forEach((table, n) => (table.scrollLeft = scrolls[n] ?? 0));
  const again = focused && [...box.querySelectorAll(focused.localName)].find((node) => nameOf(node) === nameOf(focused));
  again?.focus({ preventScroll: true });
  if (again && Number.isInteger(from)) {
    again.value = value;
    again.setSelectionRange(from, to);
  }
}

/** The same in SVG. */
function svg(tag, given, ...children) {
  const node = document.createElementNS(SVG, tag);
  attributes(node, given);
  return add(node, children);
}

/** Somebody else's text, isolated from the direction of what is around it. */
const foreign = (text, className = "") => el("bdi", { class: className || null, dir: "auto" }, text);

/** The first characters of a text, not cut within a character. */
function clipped(text, limit) {
  if (text.length <= limit) return text;
  const last = text.charCodeAt(limit - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? limit - 1 : limit);
}

/** A text of any length: its beginning, and a button for the rest. */
function longText(text, limit = 600, className = "") {
  const body = foreign(clipped(text, limit), `long ${className}`);
  if (text.length <= limit) return body;
  body.append("…");
  const all = () => {
    body.textContent = visible(text);
    more.remove();
  };
  const more = button({ class: "more" }, all, `Show all ${text.length.toLocaleString("en")} characters`);
  return el("div.longer", body, more);
}

/** A box that scrolls sideways by itself, so that the page need not, and that the keyboard can reach. */
const scrolling = (label, ...children) =>
  el("div.scrolling", { tabindex: "0", role: "region", "aria-label": label }, ...children);

/** What a table of ours has for a key that is somebody else's word. */
const own = (table, key) => (Object.hasOwn(table, key) ? table[key] : undefined);

/** What only a screen reader says. */
const spoken = (text) => el("span.spoken", text);

/** A whole number, and so many of something. */
const count = (n) => Math.round(n).toLocaleString("en");
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

const button = (given, click, ...children) => el("button", { type: "button", ...given, on: { click } }, ...children);

/** The head of a column, of one of numbers, and of a row. */
const columnHead = (...words) => el("th", { scope: "col" }, ...words);
const numberHead = (...words) => el("th.number", { scope: "col" }, ...words);
const rowHead = (...words) => el("th", { scope: "row" }, ...words);

/** The one row of a table's head. */
const tableHead = (...cells) => el("thead", el("tr", ...cells));

/** A table: the words of its caption for a screen reader, if any, the cells of its head, and its rows. */
const tableOf = (classes, caption, heads, ...rows) =>
  el(`table.${classes}`, caption && el("caption.spoken", caption), tableHead(heads), el("tbody", rows));

/** A row of a table: what it is of, and its cells; the `strong` one is the headline's. */
const tableRow = (words, strong, ...cells) => el("tr", { class: strong ? "main" : null }, rowHead(words), ...cells);

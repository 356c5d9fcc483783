// What an address shows, and the keys. Views are made by the other files; each returns its title, its node, and
// what the keys need: where up is, the list it is one of, its steps.

const lists = new Map(); // run, or runs -> the query ids in the order in which they were last listed
const addresses = new Map(); // path -> with what it listed, so that the way up leads back to the same list
const scrolled = new Map(); // address -> how far it was scrolled
const main = document.getElementById("main");
const progress = document.querySelector(".progress");
const views = { overview, run: runView, query: queryView, compare: compareView };

const READING = 1500; // milliseconds until the server is asked again for texts of a corpus that it was still reading

let current = null; // what is shown
let shownKey = null; // and the address of it, without the step
let turn = 0; // counts up, so that an answer that comes too late is dropped
let followed = false; // a link was followed: the new view begins at its top
let renewed = false; // the same view is shown once more

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Follow a link. */
function go(href) {
  followed = true;
  if (location.hash === href) show();
  else location.hash = href;
}

/** Keep what a list shows in the address, without a step in the history. */
function keepInAddress(state) {
  const [path] = location.hash.split("?", 1);
  const params = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""));
  const hash = `${path || "#/"}${params.size ? `?${params}` : ""}`;
  addresses.set(path || "#/", hash);
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

async function show() {
  const asked = route(location.hash);
  const key = JSON.stringify([asked.name, asked.ids, asked.query]);
  const [top, same] = [followed, renewed];
  [followed, renewed] = [false, false];
  if (key === shownKey && current?.stepping) return toStep(asked);
  const mine = ++turn;
  delete main.dataset.view;
  progress.classList.add("busy");
  let view;
  try {
    view = await views[asked.name](asked);
  } catch (error) {
    view = failure(asked, error);
  }
  if (mine !== turn) return;
  progress.classList.remove("busy");
  const first = current === null;
  [current, shownKey] = [view, key];
  if (view.reading) setTimeout(renew, READING, mine);
  document.title = visible(`${view.title} · Sextant`);
  crumbs(view.crumbs ?? []);
  const stepped = asked.step !== null && view.stepping;
  if (same && stepped) toStep(asked); // marked before it is on the page, so nothing scrolls
  if (same) redraw(main, view.node);
  else main.replaceChildren(view.node);
  main.dataset.view = asked.query !== null && asked.name === "compare" ? "compare" : asked.name;
  if (stepped && !same) return toStep(asked, { smooth: false });
  if (!first && !same) main.querySelector("h1")?.focus({ preventScroll: true });
  scrollTo(0, top || first ? 0 : (scrolled.get(location.hash) ?? 0));
}

/** The same view once more. */
function again() {
  scrolled.set(location.hash, scrollY);
  [shownKey, renewed] = [null, true];
  show();
}

/** The same view with texts of documents, unless another is shown meanwhile; later, if a remark is being written. */
function renew(mine) {
  if (mine !== turn) return;
  if (main.querySelector(".disclosed:not([hidden]) > .remark-form")) setTimeout(renew, READING, mine);
  else again();
}

function failure(asked, error) {
  return {
    title: "Cannot be shown",
    up: link.overview(),
    node: el(
      "div",
      heading("This cannot be shown"),
      notice(error.message || String(error), true),
      el("p", el("a", { href: link.overview() }, "All runs")),
    ),
  };
}

function toStep({ step, params }, { smooth = true } = {}) {
  if (step === null) current.stepping.clear();
  else current.stepping.go(Math.min(step, current.stepping.many - 1), smooth && !calm(), params.get("call"));
}

function crumbs(list) {
  document.querySelector(".crumbs").replaceChildren(
    el(
      "ol",
      list.map(([words, href]) =>
        el("li", href ? el("a", { href }, foreign(words)) : el("span", { "aria-current": "page" }, foreign(words))),
      ),
    ),
  );
}

/** The row after or before the focused one. */
function besideRow(by) {
  const rows = [...main.querySelectorAll(".list th a")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}

function besideQuery(by) {
  const { ids, at, href } = current.order;
  const next = ids[ids.indexOf(at) + by];
  if (next !== undefined) go(href(next));
}

const beside = (by) => (current?.order ? besideQuery(by) : besideRow(by));

function besideStep(by) {
  if (!current?.stepping?.many) return;
  history.replaceState(null, "", current.stepping.href(current.stepping.beside(by)));
  toStep(route(location.hash));
}

/** To the next step in which a relevant document was lost. */
function toLost() {
  const lost = current?.stepping?.lost;
  if (!lost?.length) return;
  const at = route(location.hash).step ?? -1;
  history.replaceState(null, "", current.stepping.href(lost.find((step) => step > at) ?? lost[0]));
  toStep(route(location.hash));
}

function up() {
  if (current?.up) go(addresses.get(current.up) ?? current.up);
}

/** To the search field; from a view without one, to that of the list it is in. */
async function search() {
  if (!main.querySelector("[data-search]") && current?.up) {
    up();
    await shownNext();
  }
  main.querySelector("[data-search]")?.focus();
}

/** Until the next view is there. */
function shownNext() {
  return new Promise((resolve) => {
    const seen = new MutationObserver(() => {
      if (!main.dataset.view) return;
      seen.disconnect();
      resolve();
    });
    seen.observe(main, { attributes: true, attributeFilter: ["data-view"] });
  });
}

listen({
  j: () => beside(1),
  k: () => beside(-1),
  n: () => besideStep(1),
  p: () => besideStep(-1),
  g: toLost,
  f: () => main.querySelector("[data-fold]")?.click(),
  u: up,
  Escape: up,
  "/": search,
});

document.addEventListener("click", (event) => {
  if (event.target.closest?.("a[href^='#/']")) followed = true;
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after # is the page's address
  main.focus();
});
addEventListener("scroll", () => current && scrolled.set(location.hash, scrollY), { passive: true });
addEventListener("hashchange", show);
history.scrollRestoration = "manual";

loadRuns(false)
  .then(({ fates, lower }) => {
    FATES = fates;
    LOWER = lower;
  })
  .catch(() => {}) // the view says what went wrong
  .finally(show);

// Where answers come from: blocks in the page when it was exported, the local server else. The last 50 are kept.

const KEPT = 50;
const answers = new Map(); // path -> promise of what it answers

/** The text again; what is no encoding at all stays as it is. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A run's id in a path: its slashes stay. */
const encodeId = (id) => id.split("/").map(encodeURIComponent).join("/");

let blocks = null; // decoded path -> the script element that holds the answer

function block(path) {
  if (!blocks) {
    blocks = new Map();
    for (const node of document.querySelectorAll("script[data-path]")) blocks.set(decode(node.dataset.path), node);
  }
  return blocks.get(decode(path));
}

/** What a block holds: JSON, compressed, in base64. */
async function unpacked(node) {
  const bytes = Uint8Array.from(atob(node.textContent.trim()), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function fetched(path) {
  if (location.protocol === "file:") {
    if (/^(compare|curves|behaviours)\//.test(path))
      throw new Error("this file has no comparison of these runs; the list of runs says which it has");
    const mend = path.includes("/call/") ? "with --prompts, where they may be passed on" : "with that query";
    throw new Error(`this file does not contain it; export the run again ${mend}`);
  }
  let answer;
  try {
    answer = await fetch(`data/${path}`);
  } catch {
    throw new Error("no answer from the server; is sextant view still running?");
  }
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error ?? `the server answers ${answer.status}`);
}

/** The answer to a path of the contract; `fresh` asks the server again. */
function load(path, { fresh = false } = {}) {
  const node = block(path);
  if (fresh && !node) answers.delete(path);
  let known = answers.get(path);
  answers.delete(path);
  known ??= node ? unpacked(node) : fetched(path);
  known.catch(() => answers.delete(path));
  answers.set(path, known);
  while (answers.size > KEPT) answers.delete(answers.keys().next().value);
  return known;
}

/** Have these paths asked for again. */
const forget = (...paths) => paths.forEach((path) => answers.delete(path));

const loadRuns = (fresh) => load("runs.json", { fresh });
const loadRun = (id) => load(`run/${encodeId(id)}.json`);
/** What is known of several runs together: "compare", "curves" or "behaviours". */
const loadTogether = (kind, ids, metric = "all") => {
  const path = (those, what) => `${kind}/${those.map(encodeId).join(",")}/${encodeURIComponent(what)}.json`;
  // A file has comparisons of its runs in their order.
  const found = [metric, "all"].map((what) => path(ids, what)).find(block);
  return load(found ?? path(ids, metric));
};
const loadCall = (id, key) => load(`run/${encodeId(id)}/call/${key}.json`);
const loadPanel = (id, name, argument = "all", options = {}) =>
  load(`run/${encodeId(id)}/${name}/${encodeURIComponent(argument)}.json`, options);

/** A query; while the server still reads the corpus, it answers without documents, and is asked again next time. */
async function loadQuery(id, queryId) {
  const path = `run/${encodeId(id)}/query/${encodeURIComponent(queryId)}.json`;
  const answer = await load(path);
  if (answer.reading) answers.delete(path);
  return answer;
}

// Links. What a list shows (sort, filters) follows a "?".
const link = {
  overview: () => "#/",
  run: (id) => `#/run/${encodeId(id)}`,
  query: (id, queryId, step = null) =>
    `#/run/${encodeId(id)}/q/${encodeURIComponent(queryId)}${step === null ? "" : `/s/${step}`}`,
  compare: (ids, queryId = null) =>
    `#/compare/${ids.map(encodeId).join(",")}${queryId === null ? "" : `/q/${encodeURIComponent(queryId)}`}`,
};

/** What an address asks for: { name, ids, query, step, params }. */
function route(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = path.split("/").slice(1);
  const made = { name: "overview", ids: [], query: null, step: null, params: new URLSearchParams(search) };
  if (parts[0] !== "run" && parts[0] !== "compare") return made;
  made.name = parts[0];
  const q = parts.indexOf("q", 2);
  const id = parts.slice(1, q < 0 ? undefined : q).join("/");
  made.ids = (made.name === "compare" ? id.split(",") : [id]).map(decode);
  if (q > 0) {
    made.query = decode(parts[q + 1] ?? "");
    if (parts[q + 2] === "s" && /^\d+$/.test(parts[q + 3] ?? "")) made.step = Number(parts[q + 3]);
    if (made.name === "run") made.name = "query";
  }
  return made;
}

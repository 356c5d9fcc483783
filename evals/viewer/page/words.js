// Numbers and outcomes of documents in words.

// Tools whose documents came out of the corpus.
const SURFACING = ["search", "more", "grep", "phrase"];
let FATES = {}; // fate -> words with {k}, in order; from runs.json
let LOWER = []; // families of metrics of which less is better; from runs.json

/** 1 if more of a metric is better, -1 if less is. */
const better = (metric) => (LOWER.includes(metric.split(/[@( ]/, 1)[0]) ? -1 : 1);

const ofAll = (some, all, ...words) =>
  `${some.length === all.length ? "" : `${count(some.length)} of `}${plural(all.length, ...words)}`;
const defined = (value) => typeof value === "number" && Number.isFinite(value);

/** A metric's value; a dash where it is undefined. */
const score = (value) => (defined(value) ? value.toFixed(3) : "–");

/** Names of metrics by the judgements that lead; those by others end in their name: "R@10 [pooled]". */
const leading = (names) => names.filter((name) => !name.includes(" ["));

/** A difference, with its sign. */
const signed = (value) =>
  defined(value) ? `${value < 0 ? "−" : value > 0 ? "+" : ""}${Math.abs(value).toFixed(3)}` : "–";

/** Dollars, to two figures below a cent. */
function usd(value) {
  if (!defined(value)) return "unknown";
  if (value === 0) return "$0";
  return `$${value >= 0.1 ? value.toFixed(2) : value.toPrecision(2)}`;
}

function seconds(value) {
  if (!defined(value)) return "";
  if (value < 0.0005) return "0 ms";
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`;
}

/** Calls, tokens and price, in a few words. Prices are list prices, so a cached answer costs the same. */
function usageWords(usage) {
  if (!usage?.calls) return [];
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return [
    plural(usage.calls, "call"),
    tokens > 0 && plural(tokens, "token"),
    usage.reasoning_tokens > 0 && `${count(usage.reasoning_tokens)} thinking`,
    usage.repairs > 0 && plural(usage.repairs, "repair"),
    usage.list_usd === null ? "price unknown" : usage.list_usd > 0 && usd(usage.list_usd),
  ].filter(Boolean);
}

/** A fate in words, at a cutoff. */
const fateWords = (fate, k) => (own(FATES, fate) ?? fate).replace("{k}", k);

/** The cutoff at which fates of single documents are told: that of the headline metric, 10 where it has none. */
function cutoffOf(metric, losses = null) {
  const k = Number(/@(\d+)$/.exec(metric ?? "")?.[1]);
  return losses?.cutoff ?? (k || 10);
}

/** Queries with a relevant document are what recall is averaged over; nothing where a run says no losses. */
const sharesAt = (losses, k) => losses?.at?.[String(k)] ?? null;

/** How a document came to its fate: pieces of a sentence, each with the step that it happened in (or null). */
function story(one) {
  const hop = (n) => (n ? ` at hop ${n}` : "");
  const at = (step) => (step === undefined ? null : step);
  const said = [];
  if (one.rank) said.push([`surfaced${hop(one.hop)}, rank ${one.rank}`, at(one.search)]);
  if (one.chars) {
    const whole = one.chars >= one.length;
    const much = whole
      ? `whole, ${plural(one.length, "character")}`
      : `${count(one.chars)} of ${plural(one.length, "character")}`;
    said.push([`shown${hop(one.shown_hop)}: ${much}`, at(one.shown_step)]);
  } else if (one.rank || one.place) said.push(["never shown", null]);
  if (one.decision)
    said.push([
      `${one.decision === "select" ? "selected" : "passed over"}${hop(one.decision_hop)}`,
      at(one.decision_step),
    ]);
  if (one.place && one.fate !== "found") said.push([`place ${one.place} in the ranking`, null]);
  return said;
}

/** The step that decided a relevant document's fate; null where none did. `steps` says how many there are. */
function decided(one, steps) {
  if (one.fate === "error" || (one.fate === "limit" && !one.rank)) return steps ? steps - 1 : null;
  if (one.fate === "found" || one.fate === "ranked_low")
    return one.decision === "select" ? one.decision_step : (one.shown_step ?? one.search ?? null);
  if (one.fate === "forgotten") return one.forgotten_step;
  if (one.fate === "not_selected" || one.fate === "shown_in_part")
    return (one.decision ? one.decision_step : one.shown_step) ?? null;
  return one.search ?? null;
}

// Why a session stopped, in words.
const STOPS = {
  done: "done",
  steps: "step limit reached",
  budget: "budget reached",
  time: "time limit reached",
  repeats: "repeated itself",
  unusable: "answers could not be used",
  error: "an error",
};

/** A split in words; `all` has the queries of every split. */
const splitWords = (split) => (split === "all" ? "all splits" : `${split} split`);

/** Whether sides stand one below the other. */
const narrow = () => matchMedia("(max-width: 44rem)").matches;

/** Width in pixels of a chart that fills the page. */
const chartWidth = () => Math.min(1180, innerWidth - 32);

/** The name of a run where its task is known. */
const runName = (run) => run.program + (run.compiled ? " (compiled)" : "");

/** What tells a run from others of its program: retriever and model, where they differ, and settings. */
const settingOf = (run) => [run.over, run.setting].filter(Boolean).join(", ");

/** A run among others: the name it was given, or its program with what tells it from others. */
const labelOf = (run) => run.named?.name || [runName(run), settingOf(run)].filter(Boolean).join(", ");

/** Plain text of any value. */
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** Task, queries and judgements; runs that differ in these are not comparable. */
const contractOf = (run) => `${run.contract} ${run.metric}`;

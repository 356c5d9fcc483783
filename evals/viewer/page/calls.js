// The model calls of a step: what was sent and what came back, fetched when a button opens it.

/** A button that shows and hides a box below it; `make` fills the box, in time, when it is first opened. */
function disclosure(words, make, given = {}) {
  const box = el("div.disclosed", { hidden: true });
  let made = false;
  const button = el("button", { type: "button", class: "more disclose", "aria-expanded": "false", ...given }, words);
  const fill = async () => {
    box.replaceChildren(el("p.about", { role: "status" }, "Reading…"));
    try {
      box.replaceChildren(await make());
      box.querySelector("input")?.focus();
      made = true;
    } catch (error) {
      box.replaceChildren(notice(error.message, true));
    }
  };
  button.addEventListener("click", () => {
    if (box.hidden && !made) fill();
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
  });
  return [button, box];
}

/** The model calls of a step: `where` says which, and `whose` of which run, where several stand side by side. */
function modelCalls(run, keys = [], where = "", whose = "") {
  const one = (key, words) =>
    disclosure([words, spoken(where), whose], async () => callView(await loadCall(run, key)), { "data-call": key });
  if (keys.length < 2) return keys.map((key) => el("div", one(key, "Model call")));
  const all = () => el("ol.disclosures", keys.map((key, n) => el("li", one(key, `Call ${n + 1}`))));
  const given = { "data-calls": keys.join(" ") };
  return el("div", disclosure([`${count(keys.length)} model calls`, spoken(where), whose], all, given));
}

/** Open the call with that key in a step, and go to it. */
async function openCall(step, key) {
  step?.querySelector(`[data-calls~="${key}"][aria-expanded=false]`)?.click();
  await null; // until the list of several calls is there
  const button = step?.querySelector(`[data-call="${key}"]`);
  if (button?.ariaExpanded === "false") button.click();
  button?.scrollIntoView({ block: "start" });
}

/** Why no call can be opened, where models were called; nothing where some can. */
function withoutCalls(steps, run) {
  if (steps.some((step) => step.calls?.length) || !steps.some((step) => step.usage?.calls)) return null;
  if (run.config.lm?.name === "offline") return notice("No prompts: the offline engine answered, by rules.");
  return notice("No prompts: this run was imported, or made by a version that did not keep them.");
}

/** What was sent and what came back. */
function callView(call) {
  const { input_tokens: sent = 0, output_tokens: received = 0, reasoning_tokens: thinking = 0 } = call.usage ?? {};
  return el(
    "div.call",
    el(
      "p.about",
      facts([
        foreign(call.model),
        seconds(call.seconds) + (defined(call.first) ? `, ${seconds(call.first)} to the first token` : ""),
        `${plural(sent, "token")} sent, ${count(received)} received${thinking > 0 ? ` (${count(thinking)} thinking)` : ""}`,
        foreign(`ended: ${call.finish || "unknown"}`),
        call.at > 0 && `${new Date(call.at * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`,
        idOf(call.key),
      ]),
    ),
    call.messages
      ? call.messages.map(message)
      : notice("What was sent was not kept: by --no-prompts, or by a version that kept only answers."),
    call.tools?.length > 0 && asWritten(plural(call.tools.length, "tool"), call.tools),
    Object.keys(call.settings ?? {}).length > 0 && asWritten("Settings", call.settings),
    call.reasoning && said("reasoning", call.reasoning),
    (call.outputs ?? []).map((output) => message(typeof output === "string" ? { content: output } : output)),
  );
}

/** A message, or an answer, which has no role; whatever a provider adds to its text is shown as JSON. */
function message({ role = "answer", content, text, ...rest }) {
  const asWords = (part) => (typeof part === "string" ? part : (part.text ?? written(part)));
  const parts = [content ?? text ?? ""].flat().map(asWords);
  const more = Object.entries(rest).filter(([, value]) => value !== null && asText(value) !== "[]");
  const about = more.map(([key]) => key).join(", ");
  return said(role, parts.join("\n"), about && asWritten(foreign(about), Object.fromEntries(more), true));
}

const said = (role, text, more) =>
  el(role === "answer" ? "div.said.answer" : "div.said", el("p.role", foreign(role)), text && longText(text, 900), more);

const written = (value) => JSON.stringify(value, null, 2);

const asWritten = (words, value, open = false) =>
  el("details", { open }, el("summary", words), el("pre", { tabindex: "0" }, foreign(written(value))));

// When the steps and model calls of a query were, and the tokens of each, on a line.

/** The time line of a query; nothing where the times of its steps are not known. */
const timeSection = ({ timeline: found }, gold, hrefOf) =>
  found?.steps.length > 1 && found.seconds > 0 && el("div.timeline", timeline(found, gold, hrefOf));

function timeline({ steps, seconds: end }, gold, hrefOf) {
  const width = chartWidth();
  const x = (value) => (value / end) * width;
  const most = Math.max(1, ...steps.map((step) => step.tokens));
  const wide = (value) => Math.max(1.5, x(value) - 0.75);
  const calls = steps.reduce((sum, step) => sum + step.calls.length, 0);
  const block = (step, n) => {
    const used = [seconds(step.seconds), step.tokens > 0 && plural(step.tokens, "token"), step.calls.length > 0 && plural(step.calls.length, "call")];
    const said = `Step ${n}, ${step.tool}: ${used.filter(Boolean).join(", ")}`;
    const tall = (step.tokens / most) * 26;
    return svg(
      "a",
      { href: hrefOf(n), "aria-label": said, tabindex: "-1" },
      svg("title", null, said),
      svg("rect", { class: `span ${step.tool} ${gold.news[n].fresh.length ? "met" : ""}`, x: x(step.started), y: 4, width: wide(step.seconds), height: 14 }),
      step.calls.map((call) =>
        svg("rect", { class: "call-span", x: x(call.started), y: 20, width: wide(call.seconds), height: 7 }, svg("title", null, `${seconds(call.seconds)}, ${plural(call.tokens, "token")}`)),
      ),
      step.tokens > 0 && svg("rect", { class: "tokens", x: x(step.started), y: 60 - tall, width: wide(step.seconds), height: tall }),
    );
  };
  const marks = ticks(end, width / 150).filter((t) => t > 0 && t <= end);
  return [
    svg(
      "svg",
      { viewBox: `0 0 ${width} 78`, role: "group", "aria-label": `Time line of ${seconds(end)}` },
      svg("line", { class: "base", x1: 0, x2: width, y1: 60, y2: 60 }),
      marks.map((t) => svg("text", { x: Math.min(x(t), width - 2), y: 74, "text-anchor": "end" }, seconds(t))),
      steps.map(block),
    ),
    el("p.about", `The steps took ${seconds(end)}${calls ? `; below them ${plural(calls, "model call")}` : ""}${most > 1 ? `, and at the bottom the tokens of each step, at most ${count(most)}` : ""}.`),
  ];
}

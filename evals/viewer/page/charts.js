// Charts: intervals, shares of fates, waterfalls, histograms, scatters. Every number that a chart shows is also text.

/** A value with its interval on a line from 0 to `top`. */
function interval({ mean, low, high }, top = 1, width = 96) {
  const x = (value) => (Math.min(value, top) / top) * (width - 6) + 3;
  return svg(
    "svg",
    { class: "interval", viewBox: `0 0 ${width} 12`, width, height: 12, "aria-hidden": "true" },
    svg("line", { class: "track", x1: 0, x2: width, y1: 6, y2: 6 }),
    defined(low) &&
      defined(high) &&
      svg("line", { class: "band", x1: x(low), x2: Math.max(x(high), x(low) + 0.5), y1: 6, y2: 6 }),
    defined(mean) && svg("circle", { cx: x(mean), cy: 6, r: 3 }),
  );
}

/** A bar for a value from 0 to 1. */
function bar(value, className = "") {
  return el(
    "span",
    { class: `bar ${className}`, "aria-hidden": "true" },
    el("i", { style: { width: `${100 * Math.max(0, Math.min(1, value || 0))}%` } }),
  );
}

/** A difference from -1 to 1, on both sides of a middle line. */
function balance(value) {
  const width = `${50 * Math.min(1, Math.abs(value || 0))}%`;
  return el(
    "span.balance",
    { "aria-hidden": "true" },
    defined(value) && value !== 0 && el("i", { class: value > 0 ? "more" : "less", style: { width } }),
  );
}

/** The fates of all relevant documents as one bar: found first, then what is lost, the furthest off last. */
function sharesBar(losses, k) {
  const shares = sharesAt(losses, k);
  if (!shares) return el("span.absent", "–");
  const parts = fateOrder().filter((fate) => shares[fate] > 0);
  const words = parts.map((fate) => `${fateWords(fate, k)} ${(100 * shares[fate]).toFixed(0)} %`).join(", ");
  return el(
    "span.shares",
    { role: "img", "aria-label": words, title: words },
    parts.map((fate) => el("i", { class: `fate-${fate}`, style: { "flex-grow": String(shares[fate]) } })),
  );
}

// Found, then the fates from the closest to being found to the furthest, then those that a limit or an error brought.
function fateOrder() {
  const order = ["found", "ranked_low", "forgotten", "not_selected", "shown_in_part", "not_shown", "never_surfaced"];
  return [...order, ...Object.keys(FATES).filter((fate) => !order.includes(fate))];
}

/** A small square for each relevant document of a query; a star for one that was found. */
function fateMarks(fates, k, most = 12) {
  if (!fates?.length) return el("span.absent", "–");
  const order = fateOrder();
  const sorted = [...fates].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const words = tally(sorted)
    .map(([fate, n]) => `${n} ${fateWords(fate, k)}`)
    .join(", ");
  return el(
    "span.marks",
    { role: "img", "aria-label": words, title: words },
    sorted.slice(0, most).map((fate) => el("i", { class: `fate-${fate}` }, fate === "found" ? "★" : "")),
    sorted.length > most && ` +${sorted.length - most}`,
  );
}

/** How often each value occurs, in the order of first occurrence. */
function tally(values) {
  const counted = new Map();
  for (const value of values) counted.set(value, (counted.get(value) ?? 0) + 1);
  return [...counted];
}

/** From all relevant documents down to recall: a table whose bars are the chart. `runs` are { name, losses }. */
function waterfall(runs, k, caption) {
  const known = runs.map((run) => sharesAt(run.losses, k));
  const lost = Object.keys(FATES).filter((fate) => fate !== "found" && known.some((shares) => shares?.[fate] > 0));
  const documents = k === runs[0].losses?.cutoff && runs.length === 1 ? runs[0].losses.documents : null;
  const left = runs.map(() => 1);
  const lane = (className, style) =>
    el("td.fall", el("span.lane", { "aria-hidden": "true" }, el("i", { class: className, style })));
  const cell = (index, fate) => {
    const share = known[index]?.[fate] ?? 0;
    if (fate !== "found") left[index] -= share;
    const start = fate === "found" ? 0 : Math.max(0, left[index]);
    const style = { left: `${100 * start}%`, width: `${100 * share}%` };
    const last = fate === "found";
    return [
      lane(`${share ? `fate-${fate}` : "nothing"} ${last ? "last" : ""}`, style),
      el("td.number", !known[index] ? "–" : last ? score(share) : share ? signed(-share) : "0"),
    ];
  };
  const all = runs.flatMap((_, index) => [
    lane("whole", { left: "0", width: "100%" }),
    el("td.number", known[index] ? "1.000" : "–"),
  ]);
  const row = (fate, words) =>
    el(
      "tr",
      { class: fate === "found" ? "total" : null },
      rowHead(el("i", { class: `swatch fate-${fate}`, "aria-hidden": "true" }), words),
      runs.map((_, index) => cell(index, fate)),
      documents && el("td.number", count(documents[fate] ?? 0)),
    );
  return el(
    "table",
    { class: `waterfall of-${runs.length}` },
    el("caption.spoken", caption),
    tableHead(
      columnHead("Outcome"),
      runs.map((run) => el("th", { scope: "colgroup", colspan: "2" }, run.name ?? "Share of recall, mean over queries")),
      documents && numberHead("Documents"),
    ),
    el(
      "tbody",
      el(
        "tr",
        rowHead(el("i.swatch.whole", { "aria-hidden": "true" }), "all relevant documents"),
        all,
        documents && el("td.number", count(Object.values(documents).reduce((a, b) => a + b, 0))),
      ),
      lost.map((fate) => row(fate, fateWords(fate, k))),
      row("found", `R@${k}: ${fateWords("found", k)}`),
    ),
  );
}

/** How many queries have which value: 0 by itself, then tenths. Values are from 0 to 1. */
function histogram(values, metric) {
  const counts = new Array(11).fill(0);
  const known = values.filter(defined);
  for (const value of known) counts[value <= 0 ? 0 : Math.min(10, Math.ceil(value * 10 - 1e-9))] += 1;
  const most = Math.max(1, ...counts);
  const names = counts.map((_, n) => (n === 0 ? "0" : n === 10 ? "≤1" : `≤.${n}`));
  const said = counts.map((n, i) => [i === 0 ? "exactly 0" : `up to ${(i / 10).toFixed(1)}`, n]);
  return el(
    "figure.histogram",
    el(
      "div.columns",
      { "aria-hidden": "true" },
      counts.map((n, i) =>
        el(
          "div",
          { class: i ? "" : "zero", title: `${said[i][0]}: ${plural(n, "query", "queries")}` },
          el("div", n > 0 && el("b", count(n)), n > 0 && el("i", { style: { height: `${(100 * n) / most}%` } })),
          el("span", names[i]),
        ),
      ),
    ),
    el(
      "table.spoken",
      el("caption", `Queries by their ${metric}`),
      tableHead(columnHead(metric), columnHead("Queries")),
      el("tbody", said.map(([words, n]) => el("tr", rowHead(words), el("td", count(n))))),
    ),
  );
}

/** Round steps for an axis from 0 to `top`. */
function ticks(top, wanted = 4) {
  const raw = top / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw - 1e-12);
  const made = [];
  for (let n = 0; n * step <= top * 1.0001; n += 1) made.push(n * step);
  return made;
}

/** Those of `points` ({ x, worth }) that no other beats: from the cheapest on, each better than all before. */
function front(points) {
  const made = [];
  for (const point of [...points].sort((a, b) => a.x - b.x || b.worth - a.worth))
    if (!made.length || point.worth > made.at(-1).worth) made.push(point);
  return made;
}

/** Cost against quality: points are { x, y, worth, name, href, said }; the Pareto front is a line and filled. */
function scatter(points, { xWords, xFormat, yWords, width = 400, height = 250 }) {
  const edge = { left: 40, right: 18, top: 24, bottom: 38 };
  const xTicks = ticks(Math.max(...points.map((p) => p.x)) * 1.08 || 1);
  const yTicks = ticks(Math.min(1, Math.max(0.05, ...points.map((p) => p.y)) * 1.18));
  const xTop = Math.max(xTicks.at(-1), Math.max(...points.map((p) => p.x)) * 1.08);
  const yTop = Math.max(yTicks.at(-1), Math.max(...points.map((p) => p.y)) * 1.12);
  const x = (value) => edge.left + (value / xTop) * (width - edge.left - edge.right);
  const y = (value) => height - edge.bottom - (value / yTop) * (height - edge.top - edge.bottom);
  const best = front(points);
  const steps =
    best.map((p, n) => (n ? `H${x(p.x)}V${y(p.y)}` : `M${x(p.x)} ${y(p.y)}`)).join("") + `H${width - edge.right}`;
  const axis = svg(
    "g",
    { class: "axis", "aria-hidden": "true" },
    yTicks.map((t) => [
      svg("line", { x1: edge.left, x2: width - edge.right, y1: y(t), y2: y(t) }),
      svg("text", { x: edge.left - 7, y: y(t) + 3.5, "text-anchor": "end" }, String(Number(t.toFixed(3)))),
    ]),
    xTicks.map((t) => svg("text", { x: x(t), y: height - edge.bottom + 16, "text-anchor": "middle" }, xFormat(t))),
    svg("text", { x: width - edge.right, y: height - 5, "text-anchor": "end", class: "name" }, xWords),
    svg("text", { x: edge.left, y: 9, class: "name" }, yWords),
  );
  // The best are named first, and drawn last, over the others.
  const drawn = points
    .map((p) => ({ ...p, cx: x(p.x), cy: y(p.y), top: best.includes(p) }))
    .sort((a, b) => Number(b.top) - Number(a.top));
  const scale = yTicks.map((t) => ({ x0: 0, x1: edge.left, y0: y(t) - 6, y1: y(t) + 6 }));
  const labels = placed(drawn, width, height - edge.bottom, scale);
  return svg(
    "svg",
    { class: "scatter", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${yWords} against ${xWords}` },
    axis,
    best.length > 0 && svg("path", { class: "front", d: steps }),
    drawn
      .toReversed()
      .map((p, n) =>
        svg(
          "a",
          { href: p.href, "aria-label": p.said, class: p.top ? "best" : null },
          svg("title", null, p.said),
          svg("circle", { class: "reach", cx: p.cx, cy: p.cy, r: 12 }),
          svg("circle", { class: "point", cx: p.cx, cy: p.cy, r: 4.5 }),
          named(labels.at(-1 - n), p.name),
        ),
      ),
  );
}

const named = (place, name) => place && svg("text", { x: place.x, y: place.y, "text-anchor": place.anchor }, name);

/** Where the names of points go: right, left, above or below, wherever they hide nothing; null where they would. */
function placed(points, width, bottom, others) {
  const taken = points.map((p) => ({ x0: p.cx - 5, x1: p.cx + 5, y0: p.cy - 5, y1: p.cy + 5 })).concat(others);
  const near = (p) => (other) => other.name === p.name && Math.hypot(other.cx - p.cx, other.cy - p.cy) < 24;
  return points.map((p, n) => {
    if (points.slice(0, n).some(near(p))) return null; // one name for runs of a program that fall together
    const w = p.name.length * 6.2 + 2;
    const middle = Math.max(w / 2 + 1, Math.min(p.cx, width - w / 2 - 1)); // not beyond the edge
    const tries = [
      { x: p.cx + 9, y: p.cy + 4, anchor: "start", x0: p.cx + 7 },
      { x: p.cx - 9, y: p.cy + 4, anchor: "end", x0: p.cx - 9 - w },
      { x: middle, y: p.cy - 10, anchor: "middle", x0: middle - w / 2 },
      { x: middle, y: p.cy + 17, anchor: "middle", x0: middle - w / 2 },
    ];
    for (const one of tries) {
      const box = { x0: one.x0, x1: one.x0 + w, y0: one.y - 10, y1: one.y + 3 };
      const free = taken.every((t) => box.x1 < t.x0 || box.x0 > t.x1 || box.y1 < t.y0 || box.y0 > t.y1);
      if (free && box.x0 > 0 && box.x1 < width && box.y0 > 0 && box.y1 < bottom) {
        taken.push(box);
        return one;
      }
    }
    return null;
  });
}

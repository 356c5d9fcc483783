// Where the relevant documents that never surfaced are under each search of a query, which is issued again when asked.

addQueryPanel("ranks", ({ id, queryId, answer, gold, hrefOf, exported }) => {
  const lost = [...gold.relevant.values()].filter((one) => !one.rank);
  if (!lost.length || !answer.steps.some((step) => SURFACING.includes(step.tool))) return null;
  const find = async () => rankTable(await loadPanel(id, "ranks", queryId), gold, hrefOf);
  const words = `Ranks of the ${lost.length > 1 ? `${count(lost.length)} documents` : "document"} that never surfaced, under each search`;
  return el("div", exported ? disclosure([words, spoken(", if this file has them")], find) : disclosure(words, find));
});

function rankTable({ depth, steps, ranks }, gold, hrefOf) {
  const rows = Object.entries(ranks).map(([unit, places]) => {
    const best = Math.min(...places.filter(defined));
    const cell = (rank) => el("td.number", defined(rank) ? el(rank === best ? "b" : "span", count(rank)) : el("span.absent", "–"));
    return el("tr", relevantHead(unit, unit, gold.documents), places.map(cell));
  });
  const heads = steps.map((n) => numberHead(el("a", { href: hrefOf(n) }, `step ${n}`)));
  return el(
    "div",
    scrolling("Ranks under each search", tableOf("relevant", "Ranks under each search", [columnHead("Document"), heads], rows)),
    el("p.about", `Each search issued again, to ${plural(depth, "document")}; – is not among these.`),
  );
}

// How likely the relevant documents that never surfaced were within the searches that a query made.

addQueryPanel("reach", ({ id, queryId, gold }) => {
  const lost = [...gold.relevant.values()].filter((one) => !one.rank);
  if (!lost.length) return null;
  return el(
    "div",
    disclosure("Could they have been found? Chances and words", async () =>
      reachTable(await loadPanel(id, "reach", queryId), gold),
    ),
  );
});

function reachTable({ lost, parts }, gold) {
  if (!lost.length) return el("p.about", "Not measured: sextant reach RUN does.");
  const rows = lost.map((one) =>
    el(
      "tr",
      relevantHead(one.unit, one.unit, gold.documents),
      el("td", { title: parts[one.part] }, one.part.replaceAll("_", " ")),
      el("td.number", one.within.toFixed(3)),
      el("td", one.rank ? foreign(one.best) : "–"),
      el("td.number", one.rank ? count(one.rank) : "–"),
    ),
  );
  const heads = [
    columnHead("Document"),
    columnHead("Found by these words"),
    numberHead("Chance within the searches made"),
    columnHead("Best search, by hindsight"),
    numberHead("Its rank"),
  ];
  return scrolling("Chances", tableOf("relevant", "Chances of documents that never surfaced", heads, rows));
}

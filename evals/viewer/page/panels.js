// Panels: sections of a run's page or a query's, each from a script of its own (evals/viewer/panels.py).

const panels = []; // [name, section] in the order of the page

/** Add a section: `section({ id, run, exported, state, set })` returns it, or nothing for a run that has none. */
const addPanel = (name, section) => panels.push([name, section]);

const queryPanels = [];

/** The same for the page of a query: `section({ id, queryId, answer, gold, hrefOf, exported })`. */
const addQueryPanel = (name, section) => queryPanels.push([name, section]);

/** The sections of a run or a query; in place of a section that cannot be drawn stands the reason. */
const panelSections = (given, those = panels) =>
  those.map(([name, section]) => {
    try {
      return section(given);
    } catch (error) {
      return notice(`panel ${name}: ${error.message}`, true);
    }
  });

/** A section that is closed at first: when it is opened, `load` gets its data, and `draw` makes a list of nodes. */
function closedSection(title, summary, load, draw) {
  const box = el("div");
  const details = el("details.config", el("summary", summary), box);
  details.addEventListener("toggle", async () => {
    if (!details.open || box.children.length) return;
    box.replaceChildren(el("p.about", { role: "status" }, "Counting…"));
    try {
      box.replaceChildren(...draw(await load()));
    } catch (error) {
      box.replaceChildren(notice(error.message, true));
    }
  });
  return section(title, null, details);
}

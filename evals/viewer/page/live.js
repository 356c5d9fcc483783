// Runs without scores: those under way, which are asked about again and again, and those that ended early.

const LOOK = 2000; // milliseconds between two looks

/** Ask for a path again and again while `node` is on the page; `take` gets each answer. */
function follow(path, node, take) {
  const look = async () => {
    if (!node.isConnected) return;
    if (!document.hidden) {
      const answer = await load(path, { fresh: true }).catch(() => null); // the server may have ended
      if (answer && node.isConnected) take(answer);
    }
    setTimeout(look, LOOK);
  };
  setTimeout(look, LOOK);
}

const clockWords = (value) => {
  const minutes = Math.floor(value / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${Math.floor(value % 60)} s` : `${Math.floor(value)} s`;
};

/** A run without scores: its state, how far it is, its mean so far, what it spent, what is in flight. */
function liveCard(run, { linked = true } = {}) {
  const title = foreign(labelOf(run));
  const to = (queryId) => el("a", { href: link.query(run.id, queryId) }, idOf(queryId));
  const flight = (run.in_flight ?? []).map(({ query_id: queryId, seconds: since }) => [
    idOf(queryId),
    ` ${clockWords(since)}`,
  ]);
  const mean = run.mean !== null && defined(run.mean);
  const line = (words, ...values) => el("div", el("dt", words), el("dd", values));
  const more = flight.length > 6 && ` and ${count(flight.length - 6)} more`;
  return el(
    "article.live",
    { "data-live": run.id, "data-state": run.state },
    el(
      "p.live-head",
      linked ? el("a", { href: link.run(run.id) }, el("b", title)) : el("b", title),
      foreign(run.task, "about"),
      run.mini && badge("mini", "mini"),
      el("span", { class: `state ${run.live ? run.state : "over"}` }, run.state),
      run.reason && foreign(run.reason, "about"),
    ),
    run.queries > 0 &&
      el("progress", { max: run.queries, value: run.done, "aria-label": `Queries of ${labelOf(run)}` }),
    el(
      "dl.live-facts",
      line(
        "Answered",
        el("b", count(run.done)),
        run.queries ? ` of ${plural(run.queries, "query", "queries")}` : "",
        run.failed > 0 && [", ", el("span.bad", `${count(run.failed)} failed`)],
        run.pending > 0 && `, ${count(run.pending)} pending`,
      ),
      mean &&
        line(
          `${run.metric} so far`,
          el("b", score(run.mean)),
          defined(run.low) && ` (${score(run.low)} – ${score(run.high)})`,
        ),
      run.usage?.calls > 0 && line("Spent", usageWords(run.usage).join(" · ")),
      run.live && run.calls_limit > 0 && line("Calls in flight", `${count(run.calls_in_flight)} of ${count(run.calls_limit)}`),
      defined(run.seconds) &&
        line("Time", clockWords(run.seconds), run.live && defined(run.left) && `, about ${clockWords(run.left)} left`),
    ),
    run.live && flight.length > 0 && el("p.about", "In flight: ", facts(flight.slice(0, 6)), more),
    run.newest?.length > 0 && el("p.about", "Newest: ", facts(run.newest.slice(0, 8).map(to))),
    run.remedy && el("p.about", foreign(run.remedy)),
  );
}

/** The section of the overview for runs without scores; it fills by itself, and `renew` is called when a run ends. */
function liveSection({ unfinished = [], version = "", exported }, renew) {
  const box = el("div");
  const part = section("Unfinished runs", null, box);
  const node = el("div", part);
  const draw = ({ unfinished: runs }) => {
    const under = runs.filter((run) => run.live);
    const ended = runs.filter((run) => !run.live);
    part.hidden = !runs.length;
    part.querySelector("h2").textContent = under.length ? "Under way" : "Unfinished runs";
    const wasOpen = box.querySelector("details")?.open ?? false;
    const list = el("div.lives", ended.map((run) => liveCard(run)));
    redraw(
      box,
      under.length > 0 && el("div.lives", under.map((run) => liveCard(run))),
      ended.length > 0 &&
        (under.length || ended.length > 4
          ? el("details", { open: wasOpen }, el("summary", `${plural(ended.length, "run")} ended early`), list)
          : list),
    );
  };
  draw({ unfinished });
  if (!exported) follow("live.json", node, (answer) => (answer.version === version ? draw(answer) : renew()));
  return node;
}

"use strict";
/* The page begins: every section draws itself from the data. */
(() => {
  const placewise = window.placewise, {data, make, format, named, say, ops, select} = placewise;
  const at = (id) => document.getElementById(id);
  document.title = `${data.title} – Placewise report`;
  at("title").replaceChildren(named(data.title));

  const tasks = placewise.tasks(), view = tasks ? placewise.timeView(tasks.end + samplesAfter(tasks)) : null;
  placewise.headline(at("headline"));
  placewise.stages(at("stages"));
  timeline(at("timeline"));
  placewise.memory(at("memory"), tasks, view);
  placewise.load(at("load"));
  if (placewise.graph && data.graph) placewise.graph(at("graph"), data);
  else placewise.titled(at("graph"), "The model by module", placewise.note(`Missing: ${data.missing || "there is no graph"}.`));
  placewise.cuts(at("cuts"));
  placewise.search(at("search"));
  placewise.leaderboard(at("leaderboard"));
  placewise.provenance(at("provenance"));
  contents();

  /* A pipeline is drawn for some samples after the first. */
  function samplesAfter({period, end}) {
    return period ? Math.min(2 + Math.floor(end / period), 6) * period : 0;
  }

  function timeline(section) {
    placewise.titled(section, "Timeline");
    if (!tasks) { section.append(placewise.note(`There is no timeline: ${data.no_timeline}.`)); return; }
    const drawn = new placewise.Timeline(section, tasks, view);
    placewise.shownTimeline = drawn;
    const button = (text, label, onclick) => make("button", {type: "button", onclick, "aria-label": label}, text);
    const what = tasks.activities ? stagesInWords() : tasks.period
      ? `One sample after the other through the full pipeline, a new one every ${format.seconds(tasks.period)}; every other sample is paler. `
      : "One sample from its first op to its last. The critical path, which sets the latency, is drawn in full with a bar on top; the rest is pale. ";
    const found = make("ul", {class: "found", "aria-label": "Ops found"});
    const input = make("input", {type: "search", id: "find-op", autocomplete: "off", spellcheck: "false", oninput: () => find(input.value, found)});
    section.append(
      make("p", {class: "muted"}, what, make("span", {id: "timeline-keys"},
        "Drag to move, Ctrl and the wheel (or two fingers) to zoom. Keys: arrows step from task to task, + and − zoom, 0 shows all, ",
        tasks.critical.length ? "N and C follow the critical path on and back." : "Home and End go to the ends of a row.")),
      make("div", {class: "tools"},
        button("−", "Zoom out", () => view.zoom(2, drawn.centre())), button("+", "Zoom in", () => view.zoom(0.5, drawn.centre())),
        button("←", "Earlier", () => view.pan(-0.4)), button("→", "Later", () => view.pan(0.4)), button("All", "Show all of the time", () => view.all()),
        tasks.critical.length ? button("Critical path", "Next step of the critical path", () => drawn.along(1)) : null,
        make("div", {class: "find"}, make("label", {for: "find-op"}, "Find an op "), input)),
      ...(tasks.activities ? [placewise.activityKey(tasks)] : []), found, drawn.canvas);
    const links = tasks.rows.filter(({device}) => device < 0).length;
    if (!tasks.period && links > drawn.links) {
      const more = make("button", {type: "button", onclick: () => { drawn.links = links; more.remove(); drawn.draw(); }}, `Show all ${links} links`);
      section.append(make("p", {}, more));
    }
    section.append(drawn.detail);
    if (tasks.critical.length) section.append(path());
  }

  function stagesInWords() {
    const many = `One micro-batch after the other through the full pipeline, a new one every ${format.seconds(tasks.period)}; on each row, every other one is paler. `;
    return `${tasks.period ? many : "One request from its first op to its last. "}${tasks.note} `;
  }

  /* Ops whose name holds a text, as buttons. */
  function find(text, list) {
    const asked = text.trim().toLowerCase(), hits = [];
    for (let op = 0; asked && op < ops.count && hits.length < 12; op++) if (ops.name(op).toLowerCase().includes(asked)) hits.push(op);
    list.replaceChildren(...hits.map((op) => make("li", {}, make("button", {type: "button", class: "link", onclick: () => select(op)}, named(ops.name(op))))));
    if (asked) say(hits.length ? `${hits.length === 12 ? "12 or more" : hits.length} found` : "none found");
    if (asked && !hits.length) list.append(make("li", {class: "muted"}, "no op has that in its name"));
  }

  /* The critical path in words: the same as the bars on top, for those who read. */
  function path() {
    const MOST = 200, {critical, start, seconds} = tasks;
    const body = make("details", {}, make("summary", {}, `The critical path as a list (${format.count(critical.length)} steps)`));
    body.addEventListener("toggle", () => {
      if (!body.open || body.childElementCount > 1) return;
      const longest = Array.from(critical).sort((a, b) => seconds[b] - seconds[a]).slice(0, MOST).sort((a, b) => start[a] - start[b]);
      body.append(placewise.table("Steps of the critical path", ["step", "on", "from ", "takes "], longest.map((task) => [
        tasks.isOp(task) ? placewise.opLink(task) : `copy of ${placewise.tensorName(tasks.tensorOf(task))}`,
        tasks.rows[tasks.row[task]].label, format.seconds(start[task]), format.seconds(seconds[task])])));
      if (critical.length > MOST) body.append(placewise.note(`The ${MOST} longest of its steps.`));
    });
    return body;
  }

  function contents() {
    const names = {headline: "In one minute", stages: "Stages", timeline: "Timeline", memory: "Memory", load: "Load", graph: "Graph", cuts: "Cuts", search: "Search", leaderboard: "Leaderboard", provenance: "Where from"};
    at("contents").append(...Object.entries(names).filter(([id]) => at(id).childElementCount).map(([id, name]) => make("a", {href: `#${id}`}, name)));
  }
})();

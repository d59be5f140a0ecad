"use strict";
/* The sections of words, bars and tables. */
(() => {
  const {data, colours, format, make, named, ops, swatch, paint, drawn, theme} = window.placewise;
  const {prepared} = window.placewise;

  const titled = (section, title, ...rest) => section.append(make("h2", {id: `${section.id}-title`}, title), ...rest);
  const note = (text) => make("p", {class: "muted"}, text);
  /* A table: columns that end in a space are numbers. It scrolls by itself where it is too wide. */
  function table(label, columns, rows) {
    const cell = (content, k) => make(k === 0 ? "th" : "td",
      {scope: k === 0 ? "row" : null, class: columns[k].endsWith(" ") ? "number" : null},
      typeof content === "string" ? named(content) : content);
    return make("div", {class: "scroll", role: "region", "aria-label": label, tabindex: "0"}, make("table", {},
      make("thead", {}, make("tr", {}, columns.map((name) =>
        make("th", {scope: "col", class: name.endsWith(" ") ? "number" : null}, name.trim())))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell))))));
  }
  const opLink = (op) => make("button", {type: "button", class: "link", onclick: () => window.placewise.select(op)}, named(ops.name(op)));
  const deviceCell = (d) => make("span", {class: "device"}, swatch(d), named(data.devices[d].name));

  function headline(section) {
    const {story} = data;
    section.append(make("h2", {id: "headline-title", class: "unseen"}, "In one minute"));
    if (story.unmet || story.value === null) section.append(make("p", {class: "verdict"}, `${story.status}: `, story.unmet || "no placement that can run"));
    if (story.verdict) section.append(make("p", {class: "verdict"}, named(story.verdict)));
    const tiles = [];
    const tile = (name, value, remark) => tiles.push(make("div", {class: "tile"}, make("dt", {}, name), make("dd", {}, make("strong", {}, value), remark ? make("span", {class: "muted"}, named(remark)) : null)));
    if (story.value !== null) tile(story.name, format.seconds(story.value), story.phases);
    if (story.bound !== null) tile("no placement is below", format.seconds(story.bound), story.method);
    if (story.bound !== null && story.value !== null) {
      tile("left to gain", ...(story.status === "optimal" ? ["nothing", "proved optimal"] : [story.left, `${story.status} (${story.reason})`]));
    }
    for (const [name, value, remark] of story.baselines) tile(name, value, remark);
    section.append(make("dl", {class: "tiles"}, tiles));
    window.placewise.overview(section);
    for (const [kind, message] of story.violations) section.append(make("p", {class: "broken"}, `✗ ${kind}: `, named(message)));
    section.append(...story.sentences.map(([title, text]) => make("p", {class: "said"}, make("strong", {}, `${title}. `), named(text))));
    if (story.hints.length) {
      section.append(make("p", {class: "said"}, make("strong", {}, "What could change.")),
        make("ul", {class: "hints"}, story.hints.map((hint) => make("li", {}, named(hint)))));
    }
    const told = data.provenance.warnings.length;
    if (told) section.append(make("p", {}, make("a", {href: "#provenance"}, `${told} ${told === 1 ? "warning" : "warnings"}, further down`)));
  }

  /* How the parts of a device's load lie: bars that add up, or lie over each other. */
  function tracks(device) {
    const {kind, how} = data.mode, {compute = 0, send = 0, receive = 0, sync = 0} = device;
    const own = ["compute", compute], sent = ["send", send], got = ["receive", receive], same = ["synchronization", sync];
    if (how === "overlap") return [[own], [got, sent, same]];
    if (how === "duplex" || (kind === "latency" && ["operator", "contention-free"].includes(how))) return [[own], [got], [sent]];
    return [[got, own, sent, same]];
  }

  const PARTS = {compute: "solid", receive: "falling", send: "rising", synchronization: "dots"};

  function loadBar(d, whole) {
    const device = data.devices[d], lines = tracks(device);
    const words = lines.flat().filter(([, seconds]) => seconds > 0).map(([name, seconds]) => `${name} ${format.seconds(seconds)}`);
    const canvas = make("canvas", {class: "bar", role: "img", "aria-label": words.join(", ") || "runs nothing"});
    const draw = drawn(canvas, () => {
      const [ctx, width] = prepared(canvas, 24);
      if (!width) return;
      ctx.fillStyle = theme("track");
      ctx.fillRect(0, 0, width, 24);
      lines.forEach((line, k) => {
        const high = 24 / lines.length;
        let from = 0;
        for (const [name, seconds] of line) {
          const wide = Math.min(seconds / whole, 1 - from) * width;
          ctx.fillStyle = name === "compute" ? paint(ctx, d) : part(ctx, name);
          ctx.fillRect(from * width, k * high, wide, high - 1);
          from += wide / width;
        }
      });
    });
    draw();
    return canvas;
  }

  /* The fill of a part of a load that is no compute. */
  function part(ctx, name) {
    const tile = make("canvas", {width: 8, height: 8}), on = tile.getContext("2d");
    on.fillStyle = theme("paper");
    on.fillRect(0, 0, 8, 8);
    on.strokeStyle = on.fillStyle = theme("muted");
    on.lineWidth = 2;
    on.beginPath();
    if (PARTS[name] === "dots") { on.fillRect(2, 2, 3, 3); }
    else if (PARTS[name] === "rising") { on.moveTo(-2, 10); on.lineTo(10, -2); }
    else { on.moveTo(-2, -2); on.lineTo(10, 10); }
    on.stroke();
    return ctx.createPattern(tile, "repeat");
  }

  function key(name) {
    const canvas = make("canvas", {width: 28, height: 14, "aria-hidden": "true", class: "key"}), ctx = canvas.getContext("2d");
    ctx.fillStyle = name === "compute" ? theme("ink") : part(ctx, name);
    ctx.fillRect(0, 0, 28, 14);
    return make("span", {class: "legend"}, canvas, name);
  }

  function load(section) {
    const known = data.devices.map((_, d) => d).filter((d) => data.devices[d].load !== undefined);
    if (!known.length) return;
    const {value} = data.story, loads = data.wires.map(([, seconds]) => seconds ?? 0);
    const whole = value ?? Math.max(...known.map((d) => data.devices[d].load ?? 0), 1e-12);
    const over = {overlap: "compute and copies lie over each other", duplex: "compute, receiving and sending lie over each other", operator: "copies run beside compute"}[data.mode.how];
    titled(section, "Load, transfers and idle time",
      note(`A full bar is ${format.seconds(whole)}, the ${data.story.name}; what is empty is idle.${over ? ` In this mode ${over}.` : ""}`),
      make("p", {class: "legends"}, Object.keys(PARTS).filter((name) => name !== "synchronization" || data.devices.some(({sync}) => sync > 0)).map(key)));
    const rows = known.map((d) => {
      const {load: busy, idle, compute, send, receive, ops: count, waits_for: waits, repeats, name} = data.devices[d];
      const why = name === data.bottleneck && count ? (data.mode.kind === "latency" ? "the busiest" : "sets the pace") : repeats ? `shares the stage of ${repeats}` : !count ? "unused" : waits;
      return [deviceCell(d), loadBar(d, whole), format.count(count), format.seconds(busy), format.seconds(compute), format.seconds(receive), format.seconds(send), idle === null ? "–" : `${format.seconds(idle)} (${format.share(idle / whole)})`, why];
    });
    section.append(table("Load of each device", ["device", "share of the time", "ops ", "load ", "compute ", "receive ", "send ", "idle ", "waits for"], rows));
    if (loads.length) section.append(make("h3", {}, "Shared links"), table("Load of each shared link", ["link", "load ", "share "], data.wires.map(([name, seconds]) => [name, format.seconds(seconds), format.share((seconds ?? 0) / whole)])));
  }

  function memory(section, tasks, view) {
    const known = data.devices.map((_, d) => d).filter((d) => data.devices[d].peak !== undefined);
    if (!known.length) return;
    titled(section, "Memory against capacity");
    if (tasks && data.held) {
      section.append(note(data.mode.memory === "sum" ? "The memory model counts what stays resident, so that nothing changes over time." : "What each device holds while it works: the dotted line stays resident (weights, state), what is above it are live tensors. Each row reaches up to its own peak, or to the capacity (dashed) where the peak comes near it. The window in time is the timeline's."), window.placewise.memoryChart(tasks, view));
    } else if (data.stages.length) section.append(note("What holds the memory of a stage, and for how many micro-batches at once, is under Stages."));
    else section.append(note(`Memory over time is missing: ${data.missing || data.no_timeline}.`));
    section.append(table("Memory of each device", ["device", "resident ", "peak ", "capacity ", "used ", "free "], known.map((d) => {
      const {resident, peak, capacity} = data.devices[d], limited = capacity !== null;
      const free = limited ? (capacity >= peak ? format.bytes(capacity - peak) : `lacks ${format.bytes(peak - capacity)}`) : "–";
      return [deviceCell(d), format.bytes(resident), format.bytes(peak), format.bytes(capacity), limited && capacity > 0 ? format.share(peak / capacity) : "–", free];
    })));
    if (data.peaks.length) section.append(make("ul", {class: "hints"}, data.peaks.map((line) => make("li", {}, named(line)))));
  }

  function cuts(section) {
    const made = data.cuts;
    titled(section, "The most expensive cuts");
    if (!made) { section.append(note(`Missing: ${data.missing || "the plan has no placement"}.`)); return; }
    if (!made.cuts.length) { section.append(note("No tensor moves from one memory to another.")); return; }
    section.append(note("Every transfer route between two memories, most expensive first, with its most expensive tensors. “host” is the memory of the machine itself."));
    made.cuts.forEach((cut, k) => {
      const head = make("summary", {}, named(`${cut.source} → ${cut.target}`), make("span", {class: "muted"}, ` ${format.seconds(cut.seconds)} (${format.share(cut.seconds / made.seconds)} of all copies), ${format.bytes(cut.bytes)} in ${format.count(cut.count)} ${cut.count === 1 ? "copy" : "copies"}`), share(cut.seconds / made.cuts[0].seconds));
      const body = make("details", {open: k === 0, class: "cut"}, head);
      const fill = () => {
        if (!body.open || body.childElementCount > 1) return;
        body.append(table(`Tensors from ${cut.source} to ${cut.target}`, ["tensor", "shape", "size ", "takes ", "made by", "read by"], cut.tensors.map((tensor) => [
          tensor.name, tensor.dtype === "unknown" && !tensor.shape ? "unknown" : `${tensor.shape || "a scalar"}, ${tensor.dtype}`, format.bytes(tensor.bytes), format.seconds(tensor.seconds),
          tensor.maker < 0 ? "the model's input" : opLink(tensor.maker),
          tensor.readers.length ? make("span", {}, ...tensor.readers.flatMap((op, k_) => k_ ? [", ", opLink(op)] : [opLink(op)]), tensor.more ? ` and ${format.count(tensor.more)} more` : "") : "the model's output",
        ])));
        if (cut.count > cut.tensors.length) body.append(note(`and ${format.count(cut.count - cut.tensors.length)} smaller ones`));
      };
      body.addEventListener("toggle", fill);
      fill();
      section.append(body);
    });
    if (made.left) section.append(note(`and ${format.count(made.left)} other ways that take less`));
  }

  /* A share as a thin bar; the figure stands beside it. */
  function share(value) {
    const bar = make("span", {class: "share", "aria-hidden": "true"}), inner = make("span");
    inner.style.width = `${100 * value}%`;
    bar.append(inner);
    return bar;
  }

  /* A bar of parts that add up, each with a pattern of its own; the figures stand in its label. */
  function partBar(parts, whole, say) {
    const shown = parts.filter(([, amount]) => amount > 0);
    const bar = make("span", {class: "stagebar", role: "img", "aria-label": shown.map(([name, amount]) => `${name} ${say(amount)}`).join(", ")});
    for (const [name, amount, k] of parts.map(([name_, amount_], k_) => [name_, amount_, k_])) {
      if (!(amount > 0)) continue;
      const inner = make("span", {class: `part p${k % 6}`, title: `${name} ${say(amount)}`});
      inner.style.width = `${Math.min(100 * amount / whole, 100)}%`;
      bar.append(inner);
    }
    return bar;
  }

  const partKey = (names) => make("p", {class: "legends"}, names.map((name, k) =>
    make("span", {class: "legend"}, make("span", {class: `part key p${k % 6}`, "aria-hidden": "true"}), name)));

  function stages(section) {
    const rows = data.stages;
    if (!rows.length) return;
    const total = (parts) => parts.reduce((sum, [, amount]) => sum + amount, 0);
    const slowest = Math.max(...rows.map(({seconds}) => total(seconds)), 1e-12);
    titled(section, "Stages", note(`A full bar of time is the slowest stage, ${format.seconds(slowest)}; a full bar of memory is a device.`),
      partKey(rows[0].seconds.map(([name]) => name)));
    section.append(table("Time of each stage", ["stage", "holds", "devices", "split", "replicas", "recomputed", "time ", "parts of the time"],
      rows.map(({words, seconds}, k) => [String(k), ...words, format.seconds(total(seconds)), partBar(seconds, slowest, format.seconds)])));
    section.append(make("h3", {}, "Memory of each device of a stage"), partKey(rows[0].bytes.map(([name]) => name)),
      table("Memory of each stage", ["stage", "in flight ", "bytes ", "capacity ", "held by"], rows.map(({bytes, capacity, in_flight: held}, k) =>
        [String(k), format.count(held), format.bytes(total(bytes)), format.bytes(capacity), partBar(bytes, capacity ?? total(bytes), format.bytes)])));
  }

  function search(section) {
    const found = data.history.filter(([, value]) => value !== null);
    if (!found.length) return;
    titled(section, "How the search went");
    if (found.length > 1) section.append(window.placewise.searchChart(data.story.bound));
    section.append(make("details", {open: found.length <= 8}, make("summary", {}, `${found.length} ${found.length === 1 ? "answer" : "answers, each better than the one before"}`),
      table("Answers of the search", ["found by", "after ", "value ", "better by "], found.map(([seconds, value, placer], k) => [placer, format.seconds(seconds), format.seconds(value), k ? format.share(1 - value / found[k - 1][1]) : "–"]))));
  }

  function leaderboard(section) {
    if (!data.leaderboard.length) return;
    const placed = data.leaderboard.filter(({value}) => value !== null), others = data.leaderboard.filter(({value}) => value === null);
    const best = placed[0]?.value, worst = Math.max(...placed.map(({value}) => value));
    titled(section, "Leaderboard", note("Every placer had the same time; the shortest bar is the best."));
    section.append(table("Leaderboard", ["placer", "value ", "", "beside the best ", "own bound ", "answer", "took ", "devices "], placed.map(({placer, value, bound, status, seconds, devices}) =>
      [placer, format.seconds(value), share(value / worst), best > 0 ? `${(value / best).toFixed(3)}×` : "–", bound > 0 ? format.seconds(bound) : "–", status, format.seconds(seconds), String(devices)])));
    if (others.length) section.append(make("details", {}, make("summary", {}, `${others.length} without a placement`), table("Placers without a placement", ["placer", "why"], others.map(({placer, remark, status}) => [placer, remark || status]))));
  }

  function provenance(section) {
    const {facts, devices, links, assumed, warnings, notes} = data.provenance;
    titled(section, "Where it is from");
    const list = (title, lines, open) => lines.length ? section.append(make("details", {open}, make("summary", {}, `${title} (${lines.length})`), make("ul", {}, lines.map((line) => make("li", {}, named(line)))))) : null;
    list("Warnings: what was assumed", warnings, true);
    list("Notes of the placer", notes, true);
    section.append(make("dl", {class: "facts wide"}, facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, named(text))))));
    if (devices.length) section.append(make("details", {}, make("summary", {}, `Devices (${devices.length})`), table("Devices", ["device", "kind", "memory ", "speed ", "bandwidth "], devices)));
    if (links.length) section.append(make("details", {}, make("summary", {}, `Links (${links.length})`), table("Links", ["link", "bandwidth ", "latency ", "wire"], links)));
    list("Figures of the devices that are the catalogue's or assumed", assumed, false);
  }

  Object.assign(window.placewise, {headline, stages, load, memory, cuts, search, leaderboard, provenance, table, titled, note, opLink});
})();

"use strict";
/* What there is to say of a task: beside the pointer, below the timeline, and to those who listen. */
(() => {
  const {data, colours, format, make, named, ops, column} = window.placewise;

  function shortName(tasks, task) {
    if (!tasks.isOp(task) && tasks.activities) {
      const about = tasks.about(task);
      return about < 0 ? tasks.what(task) : `${tasks.what(task)}, ${shortName(tasks, about)}`;
    }
    if (!tasks.isOp(task)) return window.placewise.tensorName(tasks.tensorOf(task));
    const name = ops.name(task), parts = name.split(/[/.]/).filter(Boolean);
    return parts.length > 1 ? parts.slice(-2).join("/") : name;
  }

  let held = null;
  /* What there is to say of a task: [word, text] each; the name first. */
  function factsOf(tasks, task, sample = 0) {
    const late = sample * (tasks.activities && tasks.period ? tasks.period : 0);
    const start = tasks.start[task] + late, seconds = tasks.seconds[task];
    const row = tasks.rows[Math.max(window.placewise.rowOf(tasks.rows, tasks.row[task], sample), 0)];
    const when = [["takes", format.seconds(seconds)], ["from", `${format.seconds(start)} to ${format.seconds(start + seconds)}`]];
    const path = tasks.onPath[task] ? [["", "on the critical path"]] : [];
    if (tasks.activities) return stageFacts(tasks, task, sample, row, when);
    if (!tasks.isOp(task)) {
      const tensor = tasks.tensorOf(task), bytes = column(data.tensors.bytes)[tensor];
      return [["copy of", window.placewise.tensorName(tensor)], ["over", row.label], ["size", format.bytes(bytes)], ...when, ...path];
    }
    held ??= column(data.held);
    const device = ops.device(task), found = [["op", ops.name(task)]];
    if (ops.kind(task)) found.push(["kind", ops.kind(task)]);
    if (ops.scope(task)) found.push(["in", ops.scope(task)]);
    found.push(["on", `${colours[device].name} (${colours[device].letter})`], ...when);
    if (held.length) found.push([`${colours[device].name} holds`, format.bytes(held[task])]);
    return [...found, ...path];
  }

  /* The same of stages whose ops are split: all devices of the row do it together. */
  function stageFacts(tasks, task, sample, row, when) {
    const about = tasks.about(task), tensor = tasks.isOp(task) ? -1 : tasks.tensorOf(task);
    const found = tasks.isOp(task) ? [["op", ops.name(task)]] : [["", tasks.what(task)]];
    if (!tasks.isOp(task) && about >= 0) found.push(["for", ops.name(about)]);
    if (tensor >= 0) found.push(["of", window.placewise.tensorName(tensor)], ["whole size", format.bytes(column(data.tensors.bytes)[tensor])]);
    if (about >= 0 && ops.kind(about)) found.push(["kind", ops.kind(about)]);
    if (about >= 0 && ops.scope(about)) found.push(["in", ops.scope(about)]);
    if (tasks.period) found.push(["micro-batch", String(sample)]);
    return [...found, ["on", row.label], ...when];
  }

  function card(facts) {
    return make("dl", {class: "facts"}, facts.map(([name, text]) =>
      make("div", {}, make("dt", {}, name || "and"), make("dd", {}, named(text)))));
  }

  function showTip(event, facts) {
    const tip = document.getElementById("tip");
    tip.replaceChildren(...facts.map(([name, text]) =>
      make("div", {}, name ? make("span", {class: "muted"}, `${name} `) : "", named(text.length > 160 ? `${text.slice(0, 160)}…` : text))));
    tip.hidden = false;
    const wide = tip.offsetWidth, high = tip.offsetHeight, x = event.clientX + 14, y = event.clientY + 14;
    tip.style.left = `${Math.max(4, Math.min(x, innerWidth - wide - 8))}px`;
    tip.style.top = `${y + high > innerHeight - 4 ? Math.max(4, event.clientY - high - 10) : y}px`;
  }

  Object.assign(window.placewise, {shortName, factsOf, card, showTip});
})();

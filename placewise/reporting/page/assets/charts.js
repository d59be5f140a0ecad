"use strict";
/* Memory over time against capacity, under the timeline's window; and the way of the search to its answer. */
(() => {
  const {data, colours, format, make, column, paint, theme, drawn} = window.placewise;
  const {ticks, prepared, fitted, movable} = window.placewise;
  const HIGH = 64, GAP = 22, TOP = 6, ROOM = 4;

  /* What each device holds, step by step: [moments, bytes], by the tasks of the timeline. */
  function steps(tasks) {
    const held = column(data.held), lists = data.devices.map(() => []);
    for (let op = 0; op < data.ops.count; op++) lists[window.placewise.ops.device(op)]?.push(op);
    return lists.map((list) => {
      const order = Int32Array.from(list).sort((a, b) => tasks.start[a] - tasks.start[b] || a - b);
      const until = list.reduce((last, op) => Math.max(last, tasks.start[op] + tasks.seconds[op]), 0);
      return {at: Float64Array.from(order, (op) => tasks.start[op]), bytes: Float64Array.from(order, (op) => held[op]), until};
    });
  }

  /* A chart for every device that holds anything, all in one canvas. */
  function memoryChart(tasks, view) {
    const shown = data.devices.map((_, d) => d).filter((d) => data.devices[d].peak > 0), lines = steps(tasks);
    const canvas = make("canvas", {class: "time", role: "img", "aria-label": `Memory over time of ${shown.length} devices; ` +
      "the table below says the same in figures"});
    const left = () => canvas.clientWidth < 560 ? 76 : 168;
    const draw = drawn(canvas, () => {
      const [ctx, width] = prepared(canvas, shown.length * (HIGH + GAP) + TOP);
      if (width) shown.forEach((d, k) => device(ctx, d, lines[d], TOP + k * (HIGH + GAP), left(), width));
    });

    function device(ctx, d, line, top, x0, width) {
      const {peak, resident, capacity} = data.devices[d], finite = capacity !== null && capacity > 0;
      const full = finite && peak > capacity / ROOM, most = (full ? Math.max(peak, capacity) : peak) * 1.06;
      const y = (bytes) => top + HIGH * (1 - bytes / most), x = (moment) => x0 + (moment - view.from) / (view.to - view.from) * (width - x0);
      ctx.fillStyle = theme("track");
      ctx.fillRect(x0, top, width - x0, HIGH);
      ctx.save();
      ctx.beginPath();
      ctx.rect(x0, top, width - x0, HIGH);
      ctx.clip();
      area(ctx, d, line, x, y, top + HIGH, x0, width);
      rule(ctx, y(resident ?? 0), x0, width, [2, 3], theme("muted"));
      if (full) rule(ctx, y(capacity), x0, width, [7, 4], theme("critical"));
      ctx.restore();
      label(ctx, d, top, x0);
      const words = finite
        ? `peak ${format.bytes(peak)} of ${format.bytes(capacity)} (${format.share(peak / capacity)})${full ? ", dashed" : ""}`
        : `peak ${format.bytes(peak)}, no limit`;
      ctx.fillStyle = theme("muted");
      ctx.textAlign = "left";
      ctx.fillText(fitted(ctx, words, width - x0), x0, top + HIGH + 10);
    }

    /* The area under a line of steps, of every pixel the most; what stays resident lies under it all of the time. */
    function area(ctx, d, {at, bytes, until}, x, y, bottom, x0, width) {
      ctx.fillStyle = paint(ctx, d);
      const low = y(data.devices[d].resident ?? 0), pixel = (view.to - view.from) / Math.max(width - x0, 1);
      ctx.globalAlpha = 0.5;
      ctx.fillRect(x0, low, width - x0, bottom - low);
      ctx.globalAlpha = 1;
      for (let late = 0; late <= view.to && at.length; late += tasks.period ?? Infinity) {
        let k = Math.max(after(at, view.from - late) - 1, 0);
        while (k < at.length && at[k] + late < view.to) {
          const begin = at[k] + late;
          let most = bytes[k], next = k + 1;
          while (next < at.length && at[next] + late < begin + pixel) most = Math.max(most, bytes[next++]);
          const end = late + (next < at.length ? at[next] : until);
          ctx.fillRect(x(begin), y(most), Math.max(x(end) - x(begin), 1), bottom - y(most));
          k = next;
        }
      }
    }

    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse" || event.buttons) return;
      const k = Math.floor((event.offsetY - TOP) / (HIGH + GAP)), d = shown[k];
      if (d === undefined || event.offsetX < left()) { hide(); return; }
      const line = lines[d], at = after(line.at, time(event.offsetX) - offset(line, time(event.offsetX))) - 1;
      if (at < 0 || at >= line.at.length) { hide(); return; }
      window.placewise.showTip(event, [["", data.devices[d].name], ["holds", format.bytes(line.bytes[at])]]);
    });
    const offset = (line, moment) => {
      if (!tasks.period || !line.at.length) return 0;
      return Math.max(Math.floor((moment - line.at[0]) / tasks.period), 0) * tasks.period;
    };
    const hide = () => { document.getElementById("tip").hidden = true; };
    canvas.addEventListener("pointerleave", hide);
    const time = movable(canvas, view, left, () => {});
    view.watch(draw);
    return canvas;
  }

  /* How many moments are not after this one. */
  function after(at, moment) {
    let low = 0, high = at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle] <= moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  function rule(ctx, y, from, to, dash, colour) {
    ctx.setLineDash(dash);
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.moveTo(from, y);
    ctx.lineTo(to, y);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  function label(ctx, d, top, x0) {
    const look = colours[d];
    ctx.fillStyle = look.colour;
    ctx.fillRect(0, top, 18, 18);
    ctx.fillStyle = look.ink;
    ctx.textAlign = "center";
    ctx.fillText(look.letter, 9, top + 10, 16);
    ctx.textAlign = "left";
    ctx.fillStyle = theme("ink");
    ctx.fillText(fitted(ctx, look.name, x0 - 32), 24, top + 10);
  }

  /* The best value so far over the seconds of the search, with the bound that it cannot pass. */
  function searchChart(bound) {
    const found = data.history.filter(([, value]) => value !== null), last = found[found.length - 1];
    const canvas = make("canvas", {class: "search", role: "img", "aria-label": `The search: from ${format.seconds(found[0][1])} to ` +
      `${format.seconds(last[1])} in ${format.seconds(last[0])}; the table below names every step`});
    const draw = drawn(canvas, () => {
      const [ctx, width] = prepared(canvas, 190), x0 = 78, bottom = 162, end = last[0] * 1.04 || 1;
      const high = Math.max(...found.map(([, value]) => value)), low = Math.min(bound ?? last[1], last[1]);
      const room = (high - low || high || 1) * 0.08, base = Math.max(low - room, 0);
      const x = (s) => x0 + s / end * (width - x0 - 8), y = (v) => bottom - 18 - (v - base) / (high + room - base) * (bottom - 28);
      if (!width) return;
      ctx.fillStyle = theme("muted");
      ctx.textAlign = "right";
      for (const [at, text] of ticks(base, high + room, 4)) {
        ctx.fillText(text, x0 - 8, y(at));
        rule(ctx, y(at), x0, width, [], theme("line"));
      }
      ctx.textAlign = "center";
      for (const [at, text] of ticks(0, end, Math.max(Math.floor(width / 130), 2))) ctx.fillText(text, Math.max(x(at), x0), bottom + 16);
      ctx.strokeStyle = theme("accent");
      ctx.lineWidth = 2.5;
      ctx.beginPath();
      found.forEach(([seconds, value], k) => {
        if (k) ctx.lineTo(x(seconds), y(found[k - 1][1])); else ctx.moveTo(x(seconds), y(value));
        ctx.lineTo(x(seconds), y(value));
      });
      ctx.lineTo(width, y(last[1]));
      ctx.stroke();
      ctx.fillStyle = theme("accent");
      for (const [seconds, value] of found) { ctx.beginPath(); ctx.arc(x(seconds), y(value), 4, 0, 7); ctx.fill(); }
      if (bound === null) return;
      rule(ctx, y(bound), x0, width, [7, 4], theme("critical"));
      ctx.textAlign = "left";
      ctx.fillStyle = theme("critical");
      ctx.fillText(`lower bound ${format.seconds(bound)}`, x0 + 6, y(bound) + 10);
    });
    draw();
    return canvas;
  }

  Object.assign(window.placewise, {memoryChart, searchChart});
})();

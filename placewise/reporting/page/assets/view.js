"use strict";
/* The stretch of time that the timeline and the memory below it show, one for both; and round numbers on an axis. */
(() => {
  const {format} = window.placewise;

  /* A window [from, to] into [0, end] seconds; everyone who draws it is told when it moves. */
  function window_(end) {
    const watchers = [], least = end / 1e7;
    const view = {
      from: 0, to: end, end,
      watch(watcher) { watchers.push(watcher); },
      set(from, to) {
        const span = Math.min(Math.max(to - from, least), end);
        view.from = Math.min(Math.max(from, 0), end - span);
        view.to = view.from + span;
        for (const watcher of watchers) watcher();
      },
      zoom(factor, at = (view.from + view.to) / 2) {
        view.set(at - (at - view.from) * factor, at + (view.to - at) * factor);
      },
      pan(share) {
        const step = share * (view.to - view.from);
        view.set(view.from + step, view.to + step);
      },
      all() { view.set(0, end); },
      /* Bring a stretch into sight, and make it wide enough to be seen. */
      reveal(start, finish) {
        const span = view.to - view.from, own = finish - start;
        if (own > span / 400 && own <= span && start >= view.from && finish <= view.to) return;
        const wide = own > span || own < span / 400 ? Math.max(own * 20, least) : span, middle = (start + finish) / 2;
        view.set(middle - wide / 2, middle + wide / 2);
      },
    };
    return view;
  }

  /* Round moments between two, at most so many, and what to write at them. */
  function ticks(from, to, most) {
    const raw = (to - from) / Math.max(most, 1), size = 10 ** Math.floor(Math.log10(raw));
    const step = size * [1, 2, 5, 10].find((times) => times * size >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to * (1 + 1e-12); k++) found.push(k * step);
    return found.map((at) => [at, label(at, step)]);
  }

  /* A moment, with as many digits as its neighbours need to be told apart. */
  function label(at, step) {
    if (at === 0) return "0";
    const [unit, scale] = at >= 1 ? ["s", 1] : at >= 1e-3 ? ["ms", 1e-3] : ["µs", 1e-6];
    const places = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / scale) - 1e-9)));
    return `${(at / scale).toFixed(places)} ${unit}`;
  }

  /* A canvas ready to be drawn on in its own pixels: [context, width]. */
  function prepared(canvas, height) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    ctx.textBaseline = "middle";
    return [ctx, width];
  }

  /* As much of a text as fits, kept apart from what stands around it, whichever way it runs. */
  function fitted(ctx, text, width) {
    const most = Math.floor(width / 5);
    let cut = text.length > most ? `${text.slice(0, Math.max(most - 1, 0))}…` : text;
    while (cut.length > 1 && ctx.measureText(cut).width > width) cut = `${cut.slice(0, -2)}…`;
    return ctx.measureText(cut).width <= width ? `\u2068${cut}\u2069` : "";
  }

  /* Takes places for labels, most important first: whether a box is free, and if so, it is taken. */
  function labelRoom() {
    const taken = [];
    return (left, top, right, bottom) => {
      if (taken.some(([a, b, c, d]) => left < c && a < right && top < d && b < bottom)) return false;
      taken.push([left, top, right, bottom]);
      return true;
    };
  }

  /* Drag, wheel with Ctrl, pinch and double click move the window. `left` is where time begins, in pixels. */
  function movable(canvas, view, left, tapped) {
    const fingers = new Map();
    let moved = false, before = null;
    const time = (x) => view.from + (view.to - view.from) * (x - left()) / Math.max(canvas.clientWidth - left(), 1);
    const spread = () => {
      const [one, other] = [...fingers.values()];
      return {gap: Math.max(Math.abs(one - other), 20), middle: (one + other) / 2};
    };
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), time(event.offsetX));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan((event.deltaX || event.deltaY) / 1000);
      else return;
      event.preventDefault();
    }, {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event.offsetX);
      moved = fingers.size > 1;
      before = fingers.size > 1 ? spread() : event.offsetX;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, event.offsetX);
      const pixels = Math.max(canvas.clientWidth - left(), 1);
      if (fingers.size > 1) {
        const now = spread();
        view.zoom(before.gap / now.gap, time(now.middle));
        before = now;
      } else if (moved || Math.abs(event.offsetX - before) > 4) {
        if (!moved && canvas.setPointerCapture) canvas.setPointerCapture(event.pointerId);
        moved = true;
        view.pan((before - event.offsetX) / pixels);
        before = event.offsetX;
      }
    });
    const release = (event) => {
      if (fingers.delete(event.pointerId) && event.type === "pointerup" && !moved) tapped(event);
      if (fingers.size === 1) before = [...fingers.values()][0];
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("dblclick", (event) => view.zoom(0.25, time(event.offsetX)));
    return time;
  }

  Object.assign(window.placewise, {timeView: window_, ticks, prepared, fitted, labelRoom, movable, axisLabel: format.seconds});
})();

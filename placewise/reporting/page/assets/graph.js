"use strict";
/* The graph by module: boxes in layers that unfold, by mouse and by keyboard; the same as a table. */
window.placewise.graph = (element) => {
  const {make, named, paint, colours, format, say, select, layered, ops} = window.placewise;
  const tree = window.placewise.modules();
  const WIDE = 188, TALL = 57, PAD = 12, HEAD = 68, STEP = 1.25, TURN = 20, LETTER_WIDTH = 7;
  const FIRST = 24, BUSY = 0.15; // boxes at first, and the share of the time of those that are unfolded then
  const open = new Set([0]);
  let current = 0, chosen = -1, zoom = 1, asTable = false;

  const stage = make("div", {class: "stage", role: "tree", "aria-labelledby": "graph-title"});
  const sized = make("div", {class: "sized"}, stage);
  const view = make("div", {class: "graph-view"}, sized);
  const table = make("div", {class: "graph-table", tabindex: "0", role: "region", "aria-label": "Modules and ops", hidden: true});
  const details = make("div", {class: "graph-details"});
  const find = make("input", {type: "search", id: "graph-find", autocomplete: "off", spellcheck: "false"});
  const button = (text, onclick, label) => make("button", {type: "button", onclick, "aria-label": label}, text);
  const other = button("As a table", () => { asTable = !asTable; draw(); });
  const tools = make("div", {class: "tools"},
    button("Unfold more", () => { unfold(Math.max(FIRST, 2 * shown().length)); draw(); }), button("Fold all", () => { open.clear(); open.add(0); to(0); }),
    button("−", () => scale(zoom / STEP), "Smaller"), button("+", () => scale(zoom * STEP), "Larger"),
    button("Fit", () => fit()), other,
    make("form", {class: "find", role: "search", onsubmit: (event) => { event.preventDefault(); search(find.value); }},
      make("label", {for: "graph-find"}, "Find an op or module "), find, make("button", {}, "Find")));

  element.append(
    make("h2", {id: "graph-title"}, "The model by module"),
    make("p", {class: "muted"}, "Every box is a module or an op; its strip shows the devices by their share of the " +
      "time. A click, or Enter, unfolds a module; arrow keys walk. Thick dashed lines are tensors that move from one " +
      "memory to another."),
    tools, make("div", {class: "graph-body"}, make("div", {class: "graph-main"}, view, table), details));

  /* Modules that take so much time open, from the busiest on, while there are no more than so many boxes. */
  function unfold(most, least = 0) {
    for (let size = shown().length; ;) {
      const closed = shown().filter((k) => !tree.isOp(k) && !open.has(k) && tree.seconds(k) >= least &&
        size + tree.members(k).length <= most);
      if (!closed.length) break;
      const next = closed.reduce((a, b) => tree.seconds(b) > tree.seconds(a) ? b : a);
      open.add(next);
      size += tree.members(next).length;
    }
  }

  /* Everything in sight, in the order of the drawing. */
  function shown(k = 0) {
    return [k, ...open.has(k) ? tree.members(k).flatMap(shown) : []];
  }

  function toggle(k) {
    if (tree.isOp(k)) return select(tree.opOf(k));
    if (open.has(k)) open.delete(k); else open.add(k);
    say(`${tree.name(k)} ${open.has(k) ? `unfolded, ${tree.members(k).length} members` : "folded"}`);
    return to(k);
  }

  /* Everything around a node opens, and it becomes the one that keys move from. */
  function to(k, focus = true) {
    for (const module of tree.around(k)) open.add(module);
    current = k;
    draw();
    if (focus) (asTable ? rowOf(k)?.querySelector("button") : boxOf(k))?.focus({preventScroll: true});
    inSight(k);
  }

  const boxOf = (k) => stage.querySelector(`[data-node="${k}"]`);
  const rowOf = (k) => table.querySelector(`[data-node="${k}"]`);

  function inSight(k) {
    const box = (asTable ? rowOf(k) : boxOf(k))?.querySelector(".head, th");
    if (!box) return;
    const frame = asTable ? table : view, a = box.getBoundingClientRect(), b = frame.getBoundingClientRect();
    if (a.top < b.top || a.bottom > b.bottom) frame.scrollTop += a.top - b.top - (b.height - a.height) / 2;
    if (a.left < b.left || a.right > b.right) frame.scrollLeft += a.left - b.left - (b.width - a.width) / 2;
  }

  /* What is where: sizes from the inside outwards. */
  function arranged(k, room) {
    if (!open.has(k)) return {k, width: WIDE, height: TALL};
    const inside = tree.members(k), number = new Map(inside.map((m, at) => [m, at]));
    const less = {width: room.width - 2 * PAD, height: room.height};
    const parts = inside.map((m) => arranged(m, less)), edges = tree.edgesOf(k);
    const drawing = layered(parts, edges.map(({from, to}) => [number.get(from), number.get(to)]), less);
    return {
      k, parts, edges, drawing,
      width: Math.max(WIDE, drawing.width + 2 * PAD), height: HEAD + drawing.height + PAD,
    };
  }

  function draw() {
    other.textContent = asTable ? "As a drawing" : "As a table";
    table.hidden = !asTable;
    view.hidden = asTable;
    if (asTable) table.replaceChildren(window.placewise.moduleTable(tree, open, current, toggle));
    else drawTree();
    details.replaceChildren(...window.placewise.moduleDetails(tree, current, open, {to, toggle}));
  }

  function drawTree() {
    const plan = arranged(0, {width: view.clientWidth - 40, height: view.clientHeight - HEAD - 3 * PAD});
    stage.replaceChildren(box(plan, 0, 0, 1, 1));
    stage.style.width = `${plan.width}px`;
    stage.style.height = `${plan.height}px`;
    scale(zoom);
  }

  function box(plan, x, y, place, among) {
    const {k, width, height} = plan, whole = !tree.isOp(k), unfolded = open.has(k);
    const strip = make("canvas", {class: "strip", "aria-hidden": "true"});
    const item = make("div", {
      class: `node ${whole ? "module" : "op"}${unfolded ? " open" : ""}${k === chosen ? " chosen" : ""}`,
      role: "treeitem", "data-node": k, tabindex: k === current ? "0" : "-1", "aria-level": tree.depth[k] + 1,
      "aria-posinset": place, "aria-setsize": among, "aria-expanded": whole ? String(unfolded) : null,
      "aria-label": spoken(k), "aria-selected": String(k === chosen),
    }, make("div", {class: "head", title: tree.name(k), onclick: () => toggle(k)},
      make("div", {class: "label"}, whole ? make("span", {class: "fold"}, unfolded ? "▾" : "▸") : null, named(tree.name(k))),
      make("div", {class: "figures"}, tree.figures(k)), strip));
    Object.assign(item.style, {left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px`});
    item.addEventListener("focus", () => near(item, k));
    item.addEventListener("pointerenter", () => near(item, k));
    strips(strip, tree.sharesOf(k), width - 3);
    if (unfolded) item.append(inside(plan));
    return item;
  }

  function inside({parts, edges, drawing, width}) {
    const left = (width - drawing.width) / 2;
    const group = make("div", {role: "group"}, wires(edges, drawing, left));
    parts.forEach((part, at) => group.append(box(part, left + drawing.x[at], HEAD + drawing.y[at], at + 1, parts.length)));
    return group;
  }

  function spoken(k) {
    const parts = tree.sharesOf(k), whole = parts.reduce((sum, part) => sum + part.seconds, 0);
    const where = parts.map(({device, seconds}) => {
      const name = colours[device]?.name ?? "no device";
      return parts.length > 1 && whole > 0 ? `${name} ${format.share(seconds / whole)}` : name;
    });
    return `${tree.name(k)}, ${tree.figures(k)}, on ${where.join(", ")}`;
  }

  /* The devices of a box: as wide as their share of the time, each with its colour, pattern and letter. */
  function strips(canvas, parts, width) {
    const height = 15, sharp = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    const ctx = canvas.getContext("2d");
    ctx.scale(sharp, sharp);
    const timed = parts.some((part) => part.seconds > 0), weight = (part) => timed ? part.seconds : part.ops;
    const whole = parts.reduce((sum, part) => sum + weight(part), 0) || 1;
    let x = 0;
    for (const part of parts) {
      const wide = Math.max(width * weight(part) / whole, 2), look = colours[part.device];
      ctx.fillStyle = paint(ctx, part.device);
      ctx.fillRect(x, 0, wide, height);
      if (wide >= 18) letter(ctx, look, x + wide / 2, height / 2);
      x += wide;
    }
  }

  function letter(ctx, look, x, y) {
    ctx.fillStyle = look?.colour ?? "#7f8c99";
    ctx.beginPath();
    ctx.arc(x, y, 7, 0, 7);
    ctx.fill();
    ctx.fillStyle = look?.ink ?? "#000000";
    ctx.font = "bold 11px system-ui, sans-serif";
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillText(look?.letter ?? "–", x, y + 1, 13);
  }

  const SVG = "http://www.w3.org/2000/svg";
  function drawn(tag, attributes, text) {
    const shape = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
    if (text) shape.textContent = text;
    return shape;
  }

  function wires(edges, drawing, left) {
    const svg = drawn("svg", {class: "wires", "aria-hidden": "true", width: drawing.width + 2, height: drawing.height});
    Object.assign(svg.style, {left: `${left}px`, top: `${HEAD}px`});
    const order = edges.map((_, k) => k).sort((a, b) => edges[a].moved - edges[b].moved);
    for (const k of order) {
      const {from, to, moved} = edges[k], path = drawing.paths[k];
      const line = drawn("path", {
        class: moved ? "wire moved" : "wire", d: curve(path), "data-from": from, "data-to": to,
        "stroke-width": moved ? Math.min(2 + Math.log2(1 + moved / 65536) / 4, 5) : 1.3,
      });
      svg.append(line, drawn("path", {class: moved ? "tip moved" : "tip", d: tip(path)}));
    }
    const room = window.placewise.labelRoom();
    for (const k of order.filter((edge) => edges[edge].moved).slice(-40).reverse()) {
      const [[x, y], [u, v, lane]] = drawing.paths[k].slice(-2), text = format.bytes(edges[k].moved);
      const left = (lane ?? (x + u) / 2) + 6, base = (y + v) / 2 + 3;
      if (room(left, base - 11, left + LETTER_WIDTH * text.length, base + 4)) svg.append(drawn("text", {x: left, y: base}, text));
    }
    return svg;
  }

  function curve([[x, y], ...rest]) {
    let d = `M${x} ${y}`;
    for (const [u, v, lane] of rest) {
      const half = (v - y) / 2;
      if (lane !== undefined) d += `C${x} ${y + TURN} ${lane} ${y + TURN} ${lane} ${y - 4}V${v + 4}C${lane} ${v - TURN} ${u} ${v - TURN} ${u} ${v}`;
      else d += u === x ? `V${v}` : `C${x} ${y + half} ${u} ${v - half} ${u} ${v}`;
      [x, y] = [u, v];
    }
    return d;
  }

  function tip(path) {
    const [[, before], [x, y, lane]] = path.slice(-2), side = before < y || lane !== undefined ? -7 : 7;
    return `M${x} ${y}l-4 ${side}h8z`;
  }

  /* The lines of one box stand out. */
  function near(item, k) {
    for (const line of stage.querySelectorAll(".near")) line.classList.remove("near");
    for (const line of item.parentNode.querySelectorAll?.(":scope > svg > .wire") ?? []) {
      if (line.dataset.from === String(k) || line.dataset.to === String(k)) line.classList.add("near");
    }
  }

  function scale(wanted) {
    zoom = Math.min(Math.max(wanted, 0.1), 2);
    stage.style.transform = `scale(${zoom})`;
    sized.style.width = `${stage.offsetWidth * zoom}px`;
    sized.style.height = `${stage.offsetHeight * zoom}px`;
  }

  function fit() {
    scale(Math.min((view.clientWidth - 24) / stage.offsetWidth, (view.clientHeight - 24) / stage.offsetHeight, 1));
  }

  /* A mouse that is held down moves the picture; a click stays a click. */
  function dragged(frame) {
    let from = null;
    frame.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) from = {x: event.clientX, y: event.clientY, moved: false};
    });
    frame.addEventListener("pointermove", (event) => {
      if (!from || (!from.moved && Math.hypot(event.clientX - from.x, event.clientY - from.y) < 5)) return;
      frame.scrollBy(from.x - event.clientX, from.y - event.clientY);
      from = {x: event.clientX, y: event.clientY, moved: true};
    });
    window.addEventListener("pointerup", () => {
      const moved = from?.moved;
      from = null;
      if (!moved) return;
      const stop = (event) => event.stopPropagation();
      frame.addEventListener("click", stop, true);
      setTimeout(() => frame.removeEventListener("click", stop, true));
    });
  }

  let looked = "";
  /* The next op or module whose name or scope has the words in it. */
  function search(words) {
    const wanted = words.trim().toLowerCase();
    if (!wanted) return;
    const start = wanted === looked ? current : -1;
    looked = wanted;
    const fits = (k) => (tree.isOp(k) ? `${tree.name(k)} ${ops.scope(tree.opOf(k))}` : tree.name(k)).toLowerCase().includes(wanted);
    for (let step = 1; step <= tree.total; step++) {
      const k = (start + step) % tree.total;
      if (fits(k)) { to(k); return; }
    }
    say(`nothing is called ${words}`);
    details.replaceChildren(make("p", {}, "Nothing is called ", named(words), "."));
  }

  const step = (by) => { const all = shown(); return all[Math.min(Math.max(all.indexOf(current) + by, 0), all.length - 1)]; };
  const KEYS = {
    ArrowDown: () => to(step(1)), ArrowUp: () => to(step(-1)), Home: () => to(0), End: () => to(shown().at(-1)),
    ArrowRight: () => tree.isOp(current) ? to(current) : open.has(current) ? to(tree.members(current)[0]) : toggle(current),
    ArrowLeft: () => open.has(current) && current ? toggle(current) : to(Math.max(tree.parent[current], 0)),
    Enter: () => toggle(current), " ": () => toggle(current),
    "+": () => scale(zoom * STEP), "=": () => scale(zoom * STEP), "-": () => scale(zoom / STEP), 0: () => scale(1),
  };
  stage.addEventListener("keydown", (event) => {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    scale(zoom * (event.deltaY < 0 ? STEP : 1 / STEP));
  }, {passive: false});
  dragged(view);
  document.addEventListener("placewise:select", ({detail}) => {
    chosen = tree.of(detail.op);
    to(chosen, stage.contains(document.activeElement) || table.contains(document.activeElement));
  });

  unfold(FIRST, BUSY * tree.seconds(0));
  window.placewise.drawn(element, draw);
};

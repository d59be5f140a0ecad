"use strict";
/* What runs when: a row per device and link. Only what is in sight is drawn. */
(() => {
  const {data, colours, format, make, paint, say, theme, column} = window.placewise;
  const {visit, firstAfter, ticks, prepared, fitted, movable, shortName, factsOf, card, showTip, rowOf} = window.placewise;
  const AXIS = 24, DEVICE = 30, LINK = 18, LEAST = 5, GAP = 4, BAND = 15, MOST_LINKS = 12, MOST_LEADS = 3000;
  const FAINT = 0.42, ACTIVITY = 13;

  const tiles = new Map();
  /* The fill of what a stage does besides its ops: each activity has a pattern of its own. */
  function activityFill(ctx, activity) {
    const colour = theme(activity === "collectives" ? "warn" : activity === "gradient exchange" ? "critical" : "muted"), key = `${activity} ${colour}`;
    if (!tiles.has(key)) {
      const tile = make("canvas", {width: 8, height: 8}), on = tile.getContext("2d");
      on.fillStyle = colour;
      if (activity === "collectives") on.fillRect(0, 0, 5, 8);
      else if (activity === "transfers") on.fillRect(0, 0, 8, 5);
      else if (activity === "recomputation") { on.fillRect(0, 0, 4, 4); on.fillRect(4, 4, 4, 4); }
      else on.fillRect(0, 0, 8, 8);
      tiles.set(key, tile);
    }
    return ctx.createPattern(tiles.get(key), "repeat");
  }

  /* The activities of stages and their fills, in words; null where devices have one lane for all. */
  function activityKey(tasks) {
    if (!tasks.activities) return null;
    return make("p", {class: "legends"}, "Lanes of a row, from the top: ", tasks.activities.map((name, k) => {
      const canvas = make("canvas", {width: 28, height: 14, "aria-hidden": "true", class: "key"}), ctx = canvas.getContext("2d");
      ctx.fillStyle = k ? activityFill(ctx, name) : theme("ink");
      ctx.fillRect(0, 0, 28, 14);
      return make("span", {class: "legend"}, canvas, name);
    }));
  }

  /* What a timeline of this section needs: its tasks, where its rows stand, how far right its names reach. */
  class Timeline {
    constructor(section, tasks, view) {
      Object.assign(this, {section, tasks, view, focus: -1, hover: -1, links: MOST_LINKS, sample: 0});
      this.samples = tasks.period ? Math.ceil(view.end / tasks.period) + 1 : 1;
      this.linksAt = dearest(tasks);
      // The names of modules can wait until the first picture stands.
      this.bands = null;
      setTimeout(() => { this.bands = window.placewise.scopeBands(tasks); this.draw(); });
      this.canvas = make("canvas", {
        class: "time", tabindex: "0", role: "application", "aria-roledescription": "timeline",
        "aria-label": `Timeline of ${tasks.rows.length} rows and ${format.count(tasks.count)} tasks`,
        "aria-describedby": "timeline-keys",
      });
      this.detail = make("div", {class: "detail", id: "timeline-detail"});
      this.draw = window.placewise.drawn(this.canvas, () => this.paint());
      view.watch(this.draw);
      const time = movable(this.canvas, view, () => this.left, (event) => this.tap(event));
      this.canvas.addEventListener("pointermove", (event) => this.point(event, time));
      this.canvas.addEventListener("pointerleave", () => this.unpoint());
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.canvas.addEventListener("focus", this.draw);
      this.canvas.addEventListener("blur", this.draw);
      document.addEventListener("placewise:select", (event) => this.show(event.detail.op));
    }

    /* Where time begins, right of the names; asked of the page once per drawing. */
    get left() { return this.leftAt ??= this.canvas.clientWidth < 560 ? 76 : 168; }

    /* The rows that are shown, with their top and the height of a lane. */
    places() {
      const found = new Map(), {rows} = this.tasks;
      let top = AXIS;
      rows.forEach((row, k) => {
        if (row.device < 0 && !this.tasks.period && this.linksAt.get(k) >= this.links) return;
        const whole = row.device < 0 ? LINK : DEVICE;
        const lane = this.tasks.activities ? ACTIVITY : row.lanes > 1 ? Math.max(LEAST, Math.min(whole * 0.6, 120 / row.lanes)) : whole;
        found.set(k, {top, lane, height: lane * row.lanes});
        top += lane * row.lanes + (this.bands?.has(row.of ?? k) ? BAND : 0) + GAP;
      });
      this.height = top + 2;
      return found;
    }

    x(moment) {
      const {view} = this;
      return this.left + (moment - view.from) / (view.to - view.from) * (this.width - this.left);
    }

    paint() {
      this.leftAt = undefined;
      const rows = this.rowsAt = this.places(), [ctx, width] = prepared(this.canvas, this.height);
      if (!width) return;
      Object.assign(this, {ctx, width, ink: theme("ink"), paper: theme("paper"), path: theme("critical"), track: theme("track")});
      const {tasks, view} = this, pixel = (view.to - view.from) / Math.max(width - this.left, 1);
      this.axis();
      ctx.save();
      ctx.beginPath();
      ctx.rect(this.left, 0, width - this.left, this.height);
      ctx.clip();
      for (const {top, height} of rows.values()) {
        ctx.fillStyle = this.track;
        ctx.fillRect(this.left, top, width - this.left, height);
      }
      const hasPath = tasks.critical.length > 0;
      for (const lane of tasks.lanes) {
        for (let sample = 0; sample < this.samples; sample++) {
          const late = sample * (tasks.period ?? 0), row = rowOf(tasks.rows, lane.row, sample), at = rows.get(row);
          const faint = hasPath ? FAINT : Math.floor(sample / (tasks.rows[lane.row].turns ?? 1)) % 2 ? 0.55 : 1;
          if (view.to < late) break;
          if (!at) continue;
          const top = at.top + lane.lane * at.lane, height = at.lane - (at.lane > 8 ? 0 : 1);
          visit(tasks, lane, view.from - late, view.to - late, pixel,
            (task, from, to) => this.block(task, row, from + late, to + late, top, height, hasPath && tasks.onPath[task] ? 1 : faint),
            (from, to, share, marked) => this.dense(row, lane.lane, from + late, to + late, share, marked, top, height, faint));
        }
      }
      this.leads();
      this.modules();
      this.ring(this.hover, 1.5);
      if (this.focus >= 0) this.ring(this.focus, document.activeElement === this.canvas ? 3 : 2);
      ctx.restore();
      this.names();
    }

    axis() {
      const {ctx, view, width} = this;
      ctx.fillStyle = theme("muted");
      ctx.strokeStyle = theme("line");
      ctx.lineWidth = 1;
      ctx.textAlign = "left";
      const last = format.seconds(view.to), edge = width - ctx.measureText(last).width;
      const marks = ticks(view.from, view.to, Math.max(Math.floor((width - this.left) / 110), 2));
      for (const [at, text] of marks) {
        const x = Math.round(this.x(at)) + 0.5;
        ctx.beginPath();
        ctx.moveTo(x, AXIS - 6);
        ctx.lineTo(x, this.height);
        ctx.stroke();
        if (x + 14 + ctx.measureText(text).width < edge) ctx.fillText(text, x + 4, AXIS / 2 - 1);
      }
      ctx.fillText(last, edge, AXIS / 2 - 1);
    }

    fill(row) {
      const device = this.tasks.rows[row].device;
      return device >= 0 ? paint(this.ctx, device) : paint(this.ctx, -1);
    }

    /* Where a sample runs the tasks of a row; undefined if that row is not shown. */
    placeOf(row, sample) { return this.rowsAt?.get(rowOf(this.tasks.rows, row, sample)); }

    block(task, row, from, to, top, height, strength) {
      const {ctx, tasks} = this, left = Math.max(this.x(from), this.left - 2), right = Math.min(this.x(to), this.width + 2);
      const wide = right - left, look = colours[tasks.rows[row].device];
      const plain = tasks.period && !tasks.isOp(task);
      ctx.globalAlpha = strength;
      const activity = tasks.activities?.[tasks.lanes[tasks.laneOf[task]].lane];
      ctx.fillStyle = plain || activity ? this.fillOf(row, activity) : this.fill(row);
      ctx.fillRect(left, top, wide - (wide > 6 ? 1 : 0), height);
      ctx.globalAlpha = 1;
      if (tasks.onPath[task]) {
        ctx.fillStyle = this.path;
        ctx.fillRect(left, top, wide - (wide > 6 ? 1 : 0), Math.min(4, height));
      }
      if (wide < 38 || height < 12) return;
      const text = fitted(ctx, shortName(tasks, task), wide - 10);
      if (!text) return;
      const size = ctx.measureText(text).width, middle = top + height / 2 + (height > 20 ? 1.5 : 1);
      const solid = strength === 1 && look && !plain;
      ctx.fillStyle = solid ? look.colour : this.paper;
      ctx.globalAlpha = solid ? 1 : 0.86;
      ctx.fillRect(left + 3, middle - Math.min(height / 2 - 4, 8), size + 4, Math.min(height - 8, 16));
      ctx.globalAlpha = 1;
      ctx.fillStyle = solid ? look.ink : this.ink;
      ctx.textAlign = "left";
      ctx.fillText(text, left + 5, middle);
    }

    /* The fill of a lane of a stage, or of a copy. */
    fillOf(row, activity) {
      if (!activity) return paint(this.ctx, -1);
      return activity === "compute" ? this.fill(row) : activityFill(this.ctx, activity);
    }

    dense(row, lane, from, to, share, marked, top, height, faint) {
      const {ctx} = this, left = this.x(from), wide = this.x(to) - left + 0.1, activity = this.tasks.activities?.[lane];
      ctx.fillStyle = activity ? this.fillOf(row, activity) : this.fill(row);
      ctx.globalAlpha = Math.max(share, 0.18) * (marked ? 1 : faint);
      ctx.fillRect(left, top, wide, height);
      ctx.globalAlpha = 1;
      if (marked) {
        ctx.fillStyle = this.path;
        ctx.fillRect(left, top, wide, Math.min(4, height));
      }
    }

    /* Lines along the critical path from row to row. */
    leads() {
      const {ctx, tasks, view} = this, {critical, start, seconds} = tasks;
      let low = 0, high = critical.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (start[critical[middle]] + seconds[critical[middle]] < view.from) low = middle + 1; else high = middle;
      }
      const lines = [], width = Math.max(this.width - this.left, 1);
      let last = "";
      for (let k = Math.max(low, 1); k < critical.length && lines.length < MOST_LEADS; k++) {
        const before = critical[k - 1], task = critical[k];
        if (start[before] > view.to) break;
        if (tasks.row[before] === tasks.row[task] && tasks.laneOf[before] === tasks.laneOf[task]) continue;
        const from = this.middle(before), to = this.middle(task);
        if (!from || !to) continue;
        const x = this.x(start[before] + seconds[before]), u = this.x(start[task]), key = `${Math.round(x)} ${from} ${to}`;
        if (key === last) continue;
        last = key;
        lines.push([x, from, u, to]);
      }
      const crowd = lines.length / (width / 12);
      ctx.strokeStyle = this.path;
      ctx.globalAlpha = crowd > 1 ? Math.max(0.07, 0.5 / crowd) : 1;
      ctx.lineWidth = crowd > 1 ? 1 : 1.5;
      for (const [x, from, u, to] of lines) {
        ctx.beginPath();
        ctx.moveTo(x, from);
        ctx.lineTo(u, to);
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
    }

    /* Below each device the modules that it works in. */
    modules() {
      for (const [row, band] of this.bands ?? []) {
        const room = window.placewise.labelRoom();
        for (let sample = 0; sample < this.samples; sample++) {
          const late = sample * (this.tasks.period ?? 0), at = this.placeOf(row, sample);
          if (!at) continue;
          const {top, height} = at;
          window.placewise.drawBand(this.ctx, this.tasks, band, (moment) => this.x(moment), late, top + height, this.left, this.width, room);
        }
      }
    }

    /* Where a task's lane has its middle; 0 if its row is not shown. */
    middle(task, sample = 0) {
      const at = this.placeOf(this.tasks.row[task], sample);
      return at ? at.top + (this.tasks.lanes[this.tasks.laneOf[task]].lane + 0.5) * at.lane : 0;
    }

    ring(task, thick) {
      const {ctx, tasks} = this, at = task < 0 ? undefined : this.placeOf(tasks.row[task], this.sample);
      if (!at) return;
      const {lane} = at, middle = this.middle(task, this.sample);
      const late = this.sample * (tasks.period ?? 0), from = this.x(tasks.start[task] + late);
      const wide = Math.max(this.x(tasks.start[task] + tasks.seconds[task] + late) - from, 3);
      ctx.strokeStyle = this.paper;
      ctx.lineWidth = thick + 3;
      ctx.strokeRect(from, middle - lane / 2, wide, lane);
      ctx.strokeStyle = this.ink;
      ctx.lineWidth = thick;
      ctx.strokeRect(from, middle - lane / 2, wide, lane);
    }

    /* The names of the rows, to the left. */
    names() {
      const {ctx, tasks} = this, narrow = this.left < 100;
      ctx.textAlign = "left";
      for (const [k, {top, height}] of this.rowsAt) {
        const {label, device, ends} = tasks.rows[k], middle = top + height / 2;
        const short = ends ? ends.map((end) => colours[end]?.letter ?? "host").join(" → ") : tasks.activities ? `stage ${label.split(":")[0]}` : label;
        const brief = narrow ? short : label;
        let x = 0;
        if (device >= 0) {
          ctx.fillStyle = colours[device].colour;
          ctx.fillRect(0, middle - 9, 18, 18);
          ctx.fillStyle = colours[device].ink;
          ctx.textAlign = "center";
          ctx.fillText(colours[device].letter, 9, middle + 1, 16);
          ctx.textAlign = "left";
          x = 24;
        }
        ctx.fillStyle = device >= 0 ? this.ink : theme("muted");
        ctx.fillText(fitted(ctx, brief, this.left - x - (narrow ? 4 : 8)), x, middle + 1);
      }
    }

    /* The task under a point of the canvas, −1 if none; of a pipeline also which sample. */
    at(x, y) {
      const {tasks, view} = this;
      if (x < this.left || !this.rowsAt) return -1;
      const pixel = (view.to - view.from) / Math.max(this.width - this.left, 1), moment = view.from + (x - this.left) * pixel;
      for (const lane of tasks.lanes) {
        for (let sample = 0; sample < this.samples; sample++) {
          const at = this.placeOf(lane.row, sample);
          if (!at || y < at.top + lane.lane * at.lane || y >= at.top + (lane.lane + 1) * at.lane) continue;
          const own = moment - sample * (tasks.period ?? 0), next = firstAfter(lane, tasks.start, own);
          const near = [next - 1, next].filter((k) => k >= 0 && k < lane.list.length).map((k) => lane.list[k]);
          const away = (task) => Math.max(tasks.start[task] - own, own - tasks.start[task] - tasks.seconds[task], 0);
          const best = near.sort((a, b) => away(a) - away(b))[0];
          if (best !== undefined && away(best) <= 3 * pixel) {
            this.pointed = sample;
            return best;
          }
        }
      }
      return -1;
    }

    point(event) {
      if (event.pointerType !== "mouse" || event.buttons) { this.unpoint(); return; }
      const task = this.at(event.offsetX, event.offsetY);
      this.canvas.classList.toggle("over", task >= 0);
      if (task < 0) { this.unpoint(); return; }
      if (task !== this.hover) {
        this.hover = task;
        if (this.focus < 0) this.sample = this.pointed;
        this.draw();
      }
      showTip(event, factsOf(this.tasks, task, this.pointed));
    }

    unpoint() {
      document.getElementById("tip").hidden = true;
      if (this.hover >= 0) { this.hover = -1; this.draw(); }
    }

    tap(event) {
      const task = this.at(event.offsetX, event.offsetY);
      if (task < 0) return;
      this.sample = this.pointed;
      this.turn(task, false);
    }

    /* Look at a task: the ring around it, its details below, and every other view told if it is an op. */
    turn(task, moves = true) {
      this.focus = task;
      if (this.tasks.isOp(task)) window.placewise.select(task); else this.told(task);
      if (moves) this.see(task);
      this.draw();
    }

    see(task) {
      const late = this.sample * (this.tasks.period ?? 0), start = this.tasks.start[task] + late;
      this.view.reveal(start, start + this.tasks.seconds[task]);
    }

    /* An op that was chosen anywhere. */
    show(op) {
      if (op < 0 || op >= this.tasks.count) return;
      if (this.focus !== op) { this.focus = op; this.sample = 0; this.see(op); }
      this.told(op);
      this.draw();
    }

    told(task) {
      const facts = factsOf(this.tasks, task, this.sample);
      this.detail.replaceChildren(card(facts), this.ways(task));
      say(facts.map(([name, text]) => name ? `${name} ${text}` : text).join(", "));
    }

    /* Where to go from a task: along the path, to the maker of a copied tensor, to the graph. */
    ways(task) {
      const {tasks} = this, rank = tasks.rank[task], bar = make("p", {class: "bar"});
      const go = (text, other) => bar.append(make("button", {type: "button", onclick: () => this.turn(other)}, text));
      if (rank > 0) go("← before it on the path", tasks.critical[rank - 1]);
      if (rank >= 0 && rank + 1 < tasks.critical.length) go("after it on the path →", tasks.critical[rank + 1]);
      const maker = tasks.isOp(task) ? -1 : tasks.activities && tasks.about(task) >= 0 ? tasks.about(task) : column(data.tensors.maker)[tasks.tensorOf(task)] ?? -1;
      if (maker >= 0 && tasks.activities && tasks.about(task) >= 0) go("the op that it is for", maker);
      else if (maker >= 0) go("the op that made it", maker);
      if (tasks.isOp(task) && data.graph) bar.append(make("a", {href: "#graph"}, "see it in the graph"));
      return bar;
    }

    key(event) {
      const {tasks, view} = this, {key} = event;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (key === "+" || key === "=") view.zoom(0.5, this.centre());
      else if (key === "-" || key === "_") view.zoom(2, this.centre());
      else if (key === "0") view.all();
      else if (event.shiftKey && key === "ArrowLeft") view.pan(-0.25);
      else if (event.shiftKey && key === "ArrowRight") view.pan(0.25);
      else if (key === "ArrowLeft" || key === "ArrowRight") this.step(key === "ArrowRight" ? 1 : -1);
      else if (key === "ArrowUp" || key === "ArrowDown") this.climb(key === "ArrowDown" ? 1 : -1);
      else if (key === "Home" || key === "End") this.turn(this.ends(key === "End"));
      else if (key === "c" || key === "C") this.along(-1);
      else if (key === "n" || key === "N") this.along(1);
      else if (key === "Escape") { this.focus = -1; this.draw(); } else return;
      event.preventDefault();
    }

    centre() {
      if (this.focus < 0) return undefined;
      return this.tasks.start[this.focus] + this.tasks.seconds[this.focus] / 2 + this.sample * (this.tasks.period ?? 0);
    }

    /* The lane that the keyboard is on, and the place of its task there. */
    here() {
      const {tasks} = this;
      if (this.focus < 0) return null;
      const lane = tasks.lanes[tasks.laneOf[this.focus]];
      let place = firstAfter(lane, tasks.start, tasks.start[this.focus]);
      while (lane.list[place] !== this.focus) place++;
      return {lane, place};
    }

    begin() { return this.tasks.critical[0] ?? this.tasks.lanes.find((lane) => lane.list.length)?.list[0] ?? -1; }

    step(by) {
      const here = this.here();
      if (!here) { this.turn(this.begin()); return; }
      const task = here.lane.list[here.place + by];
      if (task !== undefined) this.turn(task);
    }

    climb(by) {
      const {tasks} = this, here = this.here();
      if (!here) { this.turn(this.begin()); return; }
      for (let k = tasks.laneOf[this.focus] + by; k >= 0 && k < tasks.lanes.length; k += by) {
        const lane = tasks.lanes[k];
        if (!lane.list.length || !this.rowsAt.get(lane.row)) continue;
        const place = firstAfter(lane, tasks.start, tasks.start[this.focus]);
        this.turn(lane.list[Math.min(place, lane.list.length - 1)]);
        return;
      }
    }

    ends(last) {
      const list = (this.here()?.lane ?? this.tasks.lanes.find((lane) => lane.list.length)).list;
      return list[last ? list.length - 1 : 0];
    }

    along(by) {
      const {critical, rank} = this.tasks;
      if (!critical.length) { say("no critical path"); return; }
      const at = this.focus >= 0 ? rank[this.focus] : -1;
      const next = at < 0 ? (by > 0 ? 0 : critical.length - 1) : at + by;
      if (next >= 0 && next < critical.length) this.turn(critical[next]);
      else say(by > 0 ? "the end of the path" : "the start of the path");
    }
  }

  /* The rank of each link: those of the critical path first, then those that are busy longest. */
  function dearest({rows, row, seconds, critical}) {
    const worth = rows.map(() => [0, 0]);
    for (const task of critical) worth[row[task]][0] += seconds[task];
    for (let task = 0; task < row.length; task++) worth[row[task]][1] += seconds[task];
    const links = rows.map((_, k) => k).filter((k) => rows[k].device < 0);
    links.sort((a, b) => worth[b][0] - worth[a][0] || worth[b][1] - worth[a][1]);
    return new Map(links.map((k, rank) => [k, rank]));
  }

  Object.assign(window.placewise, {Timeline, activityKey});
})();

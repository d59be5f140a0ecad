"use strict";
/* Which module a device works in, written below its row: as deep as there is room for the words. */
(() => {
  const {data, theme, fitted, column} = window.placewise;
  const DEEPEST = 6, LEAST = 44, DEEPER = 76;

  /* The modules of each scope, from the outermost: [depth][scope] → a number, and its last word. */
  function prefixes() {
    const values = data.ops.scope?.values ?? [], known = new Map(), words = [];
    const numbers = Array.from({length: DEEPEST}, () => new Int32Array(values.length));
    values.forEach((scope, k) => {
      const parts = scope.split(/[./]+/);
      for (let depth = 0, module = -1; depth < DEEPEST; depth++) {
        if (depth < parts.length) {
          const key = `${module}/${parts[depth]}`;
          if (!known.has(key)) {
            known.set(key, words.length);
            // A number alone says little: the word before it stands with it.
            words.push(depth && /^\d+$/.test(parts[depth]) ? `${parts[depth - 1]}.${parts[depth]}` : parts[depth]);
          }
          module = known.get(key);
        }
        numbers[depth][k] = module;
      }
    });
    return {numbers, words};
  }

  /* Stretches of ops in one module, on each depth, for every row of a device; null where ops have no scopes. */
  function scopeBands(tasks) {
    if (!data.ops.scope || data.ops.scope.values.every((scope) => !scope)) return null;
    const {numbers, words} = prefixes(), codes = column(data.ops.scope.codes), rows = new Map(), begins = new Set(tasks.begins);
    for (const lane of tasks.lanes) {
      if (tasks.rows[lane.row].device < 0 || (tasks.activities ? lane.lane : tasks.rows[lane.row].lanes > 1)) continue;
      const list = lane.list.filter((task) => tasks.isOp(task));
      if (!list.length) continue;
      const edges = numbers.map((of) => {
        const found = [0];
        for (let k = 1; k < list.length; k++) if (of[codes[list[k]]] !== of[codes[list[k - 1]]] || begins.has(list[k])) found.push(k);
        return Int32Array.from([...found, list.length]);
      });
      rows.set(lane.row, {list, edges, word: (k, depth) => words[numbers[depth][codes[list[k]]]]});
    }
    return rows.size ? rows : null;
  }

  /* Write the band of a row: `x` turns a moment into pixels, `late` is how much later the sample runs, `room` takes places for words. */
  function drawBand(ctx, tasks, band, x, late, top, left, right, room) {
    const {start, seconds} = tasks, {list, edges, word} = band;
    const from = (k) => x(start[list[k]] + late), to = (k) => x(start[list[k]] + seconds[list[k]] + late);
    ctx.strokeStyle = ctx.fillStyle = theme("muted");
    ctx.lineWidth = 1;
    ctx.textAlign = "left";
    ctx.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

    function inside(low, high, depth) {
      for (let e = place(edges[depth], low); edges[depth][e] < high; e++) {
        const first = edges[depth][e], last = Math.min(edges[depth][e + 1], high) - 1;
        const a = from(first), b = to(last);
        if (b < left || b - a < LEAST) continue;
        if (a > right) break;
        if (depth + 1 < DEEPEST && divides(first, last + 1, depth + 1)) inside(first, last + 1, depth + 1);
        else write(Math.max(a, left), Math.min(b, right), called(first, last, depth));
      }
    }

    /* A module by its name; of one whose parts are numbered also which of them run here. */
    function called(first, last, depth) {
      if (depth + 1 >= DEEPEST) return word(first, depth);
      const one = word(first, depth + 1), other = word(last, depth + 1), number = /\.(\d+)$/;
      if (!number.test(one) || !number.test(other)) return word(first, depth);
      return one === other ? one : `${one} – ${other.match(number)[1]}`;
    }

    /* Whether a module shows more if it is opened: the widest of its parts has room for its name. */
    function divides(low, high, depth) {
      const list_ = edges[depth];
      let e = place(list_, low);
      if (list_[e + 1] >= high) return depth + 1 < DEEPEST && divides(low, high, depth + 1);
      for (let seen = 0; list_[e] < high && seen < 64; e++, seen++) if (to(Math.min(list_[e + 1], high) - 1) - from(list_[e]) >= DEEPER) return true;
      return false;
    }

    function write(a, b, text) {
      ctx.beginPath();
      ctx.moveTo(a + 0.5, top + 4);
      ctx.lineTo(a + 0.5, top + 1.5);
      ctx.lineTo(b - 1.5, top + 1.5);
      ctx.lineTo(b - 1.5, top + 4);
      ctx.stroke();
      const said = fitted(ctx, text, b - a - 4);
      // Samples in a pipeline run one into the other: words that would stand on others are left out.
      if (said && room(a + 3, top, a + 3 + ctx.measureText(said).width, top + 15)) ctx.fillText(said, a + 3, top + 9);
    }

    inside(0, list.length, 0);
    ctx.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  }

  /* The last edge that is not after a place. */
  function place(list, at) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] <= at) low = middle + 1; else high = middle;
    }
    return Math.max(low - 1, 0);
  }

  Object.assign(window.placewise, {scopeBands, drawBand});
})();

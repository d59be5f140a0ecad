"use strict";
/* A layered drawing (Sugiyama, Tagawa and Toda, IEEE Trans. SMC 1981): boxes in rows, edges downwards.

   `boxes` [{width, height}] stand in topological order as far as there is one, `edges` are [from, to]; an edge to an
   earlier box goes upwards, and does not count. What is taller than `room` {width, height} is broken into columns, as a
   newspaper is, while they fit. Gives {width, height, x, y} of the boxes' corners and, per edge, the points
   [[x, y], …] that it passes; a third number is the place between two columns where it goes back up. */
window.placewise.layered = (() => {
  const ACROSS = 18, DOWN = 30, THIN = 10;
  const WIDEST = 6; // boxes in a row; more go into rows of their own
  const BETWEEN = 52, TURN = 18; // columns, and how far an edge leaves one
  const SWEEPS = 6, STIFF = 6; // how much more a passing line than a box wants to be straight

  /* The row of every box: below all that feed it; what nothing feeds stands right above its first reader. */
  function rowsOf(count, down) {
    const row = new Array(count).fill(0), after = Array.from({length: count}, () => []), fed = new Array(count).fill(0);
    for (const [from, to] of down) { after[from].push(to); fed[to]++; }
    for (let k = 0; k < count; k++) for (const to of after[k]) row[to] = Math.max(row[to], row[k] + 1);
    for (let k = count - 1; k >= 0; k--) {
      if (!fed[k] && after[k].length) row[k] = Math.min(...after[k].map((to) => row[to])) - 1;
    }
    return narrow(row);
  }

  function narrow(row) {
    const held = [];
    row.forEach((r, k) => (held[r] ??= []).push(k));
    let next = 0;
    for (const boxes of held.filter(Boolean)) {
      const rows = Math.ceil(boxes.length / WIDEST), each = Math.ceil(boxes.length / rows);
      boxes.forEach((k, place) => { row[k] = next + Math.floor(place / each); });
      next += rows;
    }
    return row;
  }

  /* Where an edge passes rows it has a thin point in each; the edges of one box share theirs. */
  function points(count, row, down) {
    const node = Array.from({length: count}, (_, k) => ({row: row[k], box: k, up: [], down: []}));
    const passing = new Map();
    const ways = down.map(([from, to]) => {
      const way = [from];
      for (let r = row[from] + 1; r < row[to]; r++) {
        const key = `${from} ${r}`;
        if (!passing.has(key)) passing.set(key, node.push({row: r, box: -1, up: [], down: []}) - 1);
        way.push(passing.get(key));
      }
      return [...way, to];
    });
    const joined = new Set();
    for (const way of ways) {
      for (let k = 1; k < way.length; k++) {
        const key = `${way[k - 1]} ${way[k]}`;
        if (joined.has(key)) continue;
        joined.add(key);
        node[way[k - 1]].down.push(way[k]);
        node[way[k]].up.push(way[k - 1]);
      }
    }
    return {node, ways};
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  /* Order within rows: by the mean place of the neighbours, down and up again. */
  function ordered(node) {
    const rows = [];
    node.forEach((point, k) => (rows[point.row] ??= []).push(k));
    const place = new Array(node.length);
    const number = (row) => row.forEach((k, at) => { place[k] = at - (row.length - 1) / 2; });
    rows.forEach(number);
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
      const side = sweep % 2 ? "down" : "up";
      for (const row of sweep % 2 ? [...rows].reverse() : rows) {
        const wish = new Map(row.map((k) => [k, node[k][side].length ? mean(node[k][side].map((j) => place[j])) : place[k]]));
        row.sort((a, b) => wish.get(a) - wish.get(b));
        number(row);
      }
    }
    return rows;
  }

  /* The places nearest to the wished ones that keep order and distances: least squares by pooling neighbours. */
  function settled(wish, weight, apart) {
    const pools = [];
    let offset = 0;
    const offsets = wish.map((_, k) => (offset += k ? apart[k] : 0));
    wish.forEach((value, k) => {
      let pool = {sum: (value - offsets[k]) * weight[k], weight: weight[k], size: 1};
      while (pools.length && pools.at(-1).sum / pools.at(-1).weight > pool.sum / pool.weight) {
        const before = pools.pop();
        pool = {sum: before.sum + pool.sum, weight: before.weight + pool.weight, size: before.size + pool.size};
      }
      pools.push(pool);
    });
    return pools.flatMap((pool) => new Array(pool.size).fill(pool.sum / pool.weight)).map((x, k) => x + offsets[k]);
  }

  /* The middle of every point. */
  function middles(node, rows, width) {
    const x = new Array(node.length).fill(0);
    for (let sweep = 0; sweep <= SWEEPS; sweep++) {
      const sides = sweep === 0 ? [] : sweep === SWEEPS ? ["up", "down"] : [sweep % 2 ? "up" : "down"];
      for (const row of sweep % 2 ? rows : [...rows].reverse()) {
        const apart = row.map((k, at) => at ? (width(row[at - 1]) + width(k)) / 2 + ACROSS : 0);
        const wish = row.map((k) => {
          const near = sides.flatMap((side) => node[k][side]);
          return near.length ? mean(near.map((j) => x[j])) : x[k];
        });
        settled(wish, row.map((k) => node[k].box < 0 ? STIFF : 1), apart).forEach((at, k) => { x[row[k]] = at; });
      }
    }
    return x;
  }

  /* Where the rows of every column begin, the last one ends, and how far each row is moved. */
  function columns(top, tall, width, room) {
    const height = top.at(-1) + tall.at(-1);
    const wanted = Math.min(Math.ceil(height / room.height), Math.floor((room.width + BETWEEN) / (width + BETWEEN)), top.length);
    if (!(wanted > 1)) return {column: top.map(() => 0), across: 0, up: top.map(() => 0), width, height};
    let column = 0, first = 0, tallest = 0;
    const number = [], up = [];
    top.forEach((y, r) => {
      const end = y + tall[r] - top[first];
      if (r > first && column < wanted - 1 && end > height / wanted + tall[r] / 2) { column++; first = r; }
      number.push(column);
      up.push(top[first] - TURN);
      tallest = Math.max(tallest, y + tall[r] - top[first]);
    });
    const across = width + BETWEEN;
    return {column: number, across, up, width: across * column + width, height: tallest + 2 * TURN};
  }

  return (boxes, edges, room = {width: 0, height: Infinity}) => {
    if (!boxes.length) return {width: 0, height: 0, x: [], y: [], paths: []};
    const down = edges.filter(([from, to]) => from < to);
    const row = rowsOf(boxes.length, down);
    const {node, ways} = points(boxes.length, row, down);
    const rows = ordered(node);
    const width = (k) => node[k].box < 0 ? THIN : boxes[node[k].box].width;
    const middle = middles(node, rows, width);
    const left = Math.min(...node.map((_, k) => middle[k] - width(k) / 2));
    const right = Math.max(...node.map((_, k) => middle[k] + width(k) / 2));
    const tall = rows.map((points) => Math.max(...points.map((k) => node[k].box < 0 ? 0 : boxes[node[k].box].height)));
    const top = [];
    tall.reduce((y, height) => { top.push(y); return y + height + DOWN; }, 0);
    const page = columns(top, tall, right - left, room);
    const along = (k) => middle[k] - left + page.column[node[k].row] * page.across;
    const x = boxes.map((box, k) => along(k) - box.width / 2);
    const y = boxes.map((box, k) => top[row[k]] - page.up[row[k]] + (tall[row[k]] - box.height) / 2);
    const wayOf = new Map(ways.map((way) => [`${way[0]} ${way.at(-1)}`, way]));
    const paths = edges.map(([from, to]) => from < to
      ? downwards(wayOf.get(`${from} ${to}`))
      : [[x[from] + boxes[from].width / 2, y[from]], [x[to] + boxes[to].width / 2, y[to] + boxes[to].height]]);
    return {width: page.width, height: page.height, x, y, paths};

    function downwards(way) {
      return way.flatMap((k, place) => {
        const {box, row: r} = node[k], at = along(k), high = box < 0 ? top[r] - page.up[r] : y[box];
        if (place === 0) return [[at, high + boxes[box].height]];
        const turns = page.column[r] > page.column[node[way[place - 1]].row];
        const lane = page.column[r] * page.across - BETWEEN / 2 + (way[0] * 7) % 22 - 11;
        const entry = turns ? [at, high, lane] : [at, high];
        return box >= 0 ? [entry] : [entry, [at, high + tall[r]]];
      });
    }
  };
})();

"use strict";
/* The tasks of a timeline lane by lane, so that what a stretch of pixels shows is found without looking at the rest. */
(() => {
  const {data, column} = window.placewise;

  /* The timeline's columns decoded, with its lanes; null if there is none. */
  function tasks() {
    const made = data.timeline;
    if (!made) return null;
    const row = column(made.row);
    const lane = made.lane ? column(made.lane) : new Uint8Array(row.length), start = column(made.start), seconds = column(made.seconds);
    const critical = column(made.critical), onPath = new Uint8Array(start.length), rank = new Int32Array(start.length).fill(-1);
    critical.forEach((task, k) => { onPath[task] = 1; rank[task] = k; });
    const n = data.ops.count;
    const found = {
      count: start.length, row, start, seconds, critical, onPath, rank, rows: made.rows,
      period: made.period, end: made.end, tensor: column(made.tensor),
      activities: made.activities ?? null, note: made.note ?? "", begins: column(made.begins),
      isOp: (task) => task < n,
      tensorOf: (task) => found.tensor[task - n],
    };
    if (made.activities) {
      const codes = column(made.what.codes), about = column(made.op);
      found.what = (task) => task < n ? "" : made.what.values[codes[task - n]];
      found.about = (task) => task < n ? task : about[task - n];
    }
    found.lanes = split(found, lane);
    return found;
  }

  /* The row in which a sample runs the tasks of a row: replicas take samples in turns; -1 if that one has no row. */
  function rowOf(rows, row, sample) {
    const {turns, shown} = rows[row];
    if (!turns) return row;
    return sample % turns < shown ? row + sample % turns : -1;
  }

  let makers = null;
  /* A copied tensor's name: its own, or that of the op that makes it. */
  function tensorName(tensor) {
    makers ??= column(data.tensors.maker);
    return data.tensors.name[tensor] ?? window.placewise.ops.name(makers[tensor]);
  }

  /* One list of tasks per lane of each row, by start; sums of seconds and of critical tasks up to each of them. */
  function split(found, lane) {
    const {row, start, seconds, onPath, rows} = found, first = [0];
    for (const {lanes} of rows) first.push(first[first.length - 1] + lanes);
    const total = first[first.length - 1], size = new Int32Array(total + 1), key = new Int32Array(start.length);
    for (let task = 0; task < start.length; task++) size[(key[task] = first[row[task]] + lane[task]) + 1]++;
    for (let k = 0; k < total; k++) size[k + 1] += size[k];
    const next = size.slice(), order = new Int32Array(start.length);
    for (let task = 0; task < start.length; task++) order[next[key[task]]++] = task;
    const found_ = [];
    found.laneOf = key;
    for (let r = 0, k = 0; r < rows.length; r++) {
      for (let at = 0; at < rows[r].lanes; at++, k++) {
        const list = order.subarray(size[k], size[k + 1]).sort((a, b) => start[a] - start[b] || a - b);
        const busy = new Float64Array(list.length + 1), marked = new Int32Array(list.length + 1);
        list.forEach((task, place) => {
          busy[place + 1] = busy[place] + seconds[task];
          marked[place + 1] = marked[place] + onPath[task];
        });
        found_.push({row: r, lane: at, list, busy, marked});
      }
    }
    return found_;
  }

  /* The first place in a lane whose task begins at a moment or later. */
  function firstAfter(lane, start, moment) {
    let low = 0, high = lane.list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[lane.list[middle]] < moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  /* What a lane shows between two moments: `block(task, from, to)` where a task is wide enough to be seen, else
     `dense(from, to, share, marked)` for a pixel or two, their busy share, and whether the path goes through. */
  function visit(found, lane, from, to, pixel, block, dense) {
    const {start, seconds} = found, {list, busy, marked} = lane;
    let place = Math.max(firstAfter(lane, start, from) - 1, 0);
    while (place < list.length && start[list[place]] < to) {
      const task = list[place], begin = start[task], finish = begin + seconds[task];
      if (finish < from) { place++; continue; }
      if (finish - begin >= 1.5 * pixel) {
        block(task, begin, finish);
        place++;
        continue;
      }
      const left = from + Math.floor((begin - from) / pixel) * pixel;
      let after = Math.max(firstAfter(lane, start, left + pixel), place + 1);
      // Only the last task that begins in this pixel can be wide: the others end before it.
      if (after > place + 1 && seconds[list[after - 1]] >= 1.5 * pixel) after--;
      const last = list[after - 1];
      const right = Math.max(left + pixel, Math.min(start[last] + seconds[last], left + 2.5 * pixel));
      dense(left, right, Math.min((busy[after] - busy[place]) / (right - left), 1), marked[after] > marked[place]);
      place = after;
    }
  }

  Object.assign(window.placewise, {tasks, visit, firstAfter, tensorName, rowOf});
})();

"use strict";
/* The tree of modules and ops, and the edges between the members of each module.

   Modules have the numbers 0 … modules − 1, 0 the whole; op k is `modules + k`. */
window.placewise.modules = () => {
  const {data, column, ops, format} = window.placewise;
  const {modules, tensors} = data.graph, count = modules.name.length, total = count + ops.count;
  const home = column(data.graph.home), location = data.graph.location;
  const parent = new Int32Array(total), depth = new Int32Array(total), first = new Int32Array(total).fill(ops.count);
  parent.set(column(modules.parent));
  for (let k = 0; k < ops.count; k++) parent[count + k] = home[k];
  for (let k = 1; k < total; k++) depth[k] = depth[parent[k]] + 1;
  for (let k = 0; k < ops.count; k++) {
    for (let at = count + k; at >= 0 && first[at] > k; at = parent[at]) first[at] = k;
  }
  const members = Array.from({length: count}, () => []);
  for (let k = 1; k < total; k++) members[parent[k]].push(k);
  for (const inside of members) inside.sort((a, b) => first[a] - first[b] || a - b);

  const sums = {ops: column(modules.ops), seconds: column(modules.seconds), bytes: column(modules.bytes)};
  const shares = Array.from({length: count}, () => []);
  const rows = Object.fromEntries(Object.entries(modules.shares).map(([name, value]) => [name, column(value)]));
  rows.module.forEach((module, k) => {
    shares[module].push({device: rows.device[k], ops: rows.ops[k], seconds: rows.seconds[k]});
  });

  const isOp = (k) => k >= count;
  const seconds = (k) => isOp(k) ? ops.seconds(k - count) : sums.seconds[k];

  /* [{device, ops, seconds}], the busiest first. */
  function sharesOf(k) {
    if (isOp(k)) return [{device: ops.device(k - count), ops: 1, seconds: seconds(k)}];
    return [...shares[k]].sort((a, b) => b.seconds - a.seconds || b.ops - a.ops);
  }

  /* Edges by module: of each, a map from "from × total + to" to {from, to, bytes, tensors, moved}, where `moved` are
     the bytes of tensors that go to another memory. */
  let found = null;
  function edgesOf(module) {
    found ??= collected();
    return found.get(module) ?? [];
  }

  function collected() {
    const producer = column(tensors.producer), bytes = column(tensors.bytes);
    const readers = column(tensors.readers), reader = column(tensors.reader);
    const place = (op) => ops.device(op) < 0 ? -1 : location[ops.device(op)];
    const maps = new Map();
    for (let t = 0, at = 0; t < producer.length; t++) {
      const seen = new Set(), here = place(producer[t]);
      for (const end = at + readers[t]; at < end; at++) {
        const [from, to] = siblings(count + producer[t], count + reader[at]), there = place(reader[at]);
        const key = from * total + to, inside = parent[from];
        if (!maps.has(inside)) maps.set(inside, new Map());
        const edges = maps.get(inside);
        if (!edges.has(key)) edges.set(key, {from, to, bytes: 0, tensors: 0, moved: 0});
        const edge = edges.get(key);
        if (!seen.has(key)) { edge.bytes += bytes[t]; edge.tensors++; }
        if (here !== there && !seen.has(`${key} ${there}`)) edge.moved += bytes[t];
        seen.add(key).add(`${key} ${there}`);
      }
    }
    return new Map([...maps].map(([module, edges]) => [module, [...edges.values()]]));
  }

  /* The members of one module in which two ops are. */
  function siblings(a, b) {
    while (depth[a] > depth[b]) a = parent[a];
    while (depth[b] > depth[a]) b = parent[b];
    while (parent[a] !== parent[b]) { a = parent[a]; b = parent[b]; }
    return [a, b];
  }

  /* All modules around a node, the outermost first. */
  function around(k) {
    const found = [];
    for (let at = parent[k]; at >= 0; at = parent[at]) found.unshift(at);
    return found;
  }

  return {
    total, count, parent, depth, isOp, sharesOf, edgesOf, around, seconds,
    opOf: (k) => k - count,
    of: (op) => count + op,
    name: (k) => isOp(k) ? ops.name(k - count) : modules.name[k],
    members: (k) => isOp(k) ? [] : members[k],
    opsIn: (k) => isOp(k) ? 1 : sums.ops[k],
    bytes: (k) => isOp(k) ? 0 : sums.bytes[k],
    figures: (k) => isOp(k)
      ? [ops.kind(k - count), format.seconds(seconds(k))].filter(Boolean).join(" · ")
      : [`${format.count(sums.ops[k])} ops`, format.seconds(sums.seconds[k]),
        ...sums.bytes[k] ? [format.bytes(sums.bytes[k])] : []].join(" · "),
  };
};

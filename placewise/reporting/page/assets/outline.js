"use strict";
/* Modules and ops in words: a table of what is unfolded, and the details of one of them. */
(() => {
  const {make, named, swatch, colours, format, ops} = window.placewise;
  const LISTED = 8;

  const device = (k) => make("span", {class: "device"}, k >= 0 ? swatch(k) : "–", " ", named(colours[k]?.name ?? "no device"));

  function places(tree, k) {
    const parts = tree.sharesOf(k), whole = parts.reduce((sum, part) => sum + part.seconds, 0);
    return parts.map((part) => make("div", {class: "place"}, device(part.device),
      parts.length > 1 && whole > 0 ? ` ${format.share(part.seconds / whole)}` : null));
  }

  /* A table of everything that is unfolded, modules with a button that unfolds them. */
  window.placewise.moduleTable = (tree, open, current, toggle) => {
    const body = make("tbody"), columns = ["module or op", "ops, or kind", "time", "weights", "devices"];
    const add = (k, level) => {
      const fold = tree.isOp(k) ? null : make("button", {
        type: "button", class: "fold", "aria-expanded": String(open.has(k)), "aria-label": `Members of ${tree.name(k)}`,
        onclick: () => toggle(k),
      }, open.has(k) ? "▾" : "▸");
      const name = make("th", {scope: "row"}, fold, " ", named(tree.name(k)));
      name.style.paddingLeft = `${0.4 + Math.min(level, 10) * 1.1 + (fold ? 0 : 1.6)}rem`;
      const kind = tree.isOp(k) ? ops.kind(tree.opOf(k)) : format.count(tree.opsIn(k));
      body.append(make("tr", {"data-node": k, class: k === current ? "current" : ""}, name, make("td", {}, kind),
        make("td", {class: "number"}, format.seconds(tree.seconds(k))),
        make("td", {class: "number"}, tree.bytes(k) ? format.bytes(tree.bytes(k)) : "–"), make("td", {}, places(tree, k))));
      if (open.has(k)) for (const member of tree.members(k)) add(member, level + 1);
    };
    add(0, 0);
    return make("table", {}, make("caption", {class: "unseen"}, "Modules and ops that are unfolded"),
      make("thead", {}, make("tr", {}, columns.map((text) => make("th", {scope: "col"}, text)))), body);
  };

  /* What one module or op is, and what goes in and out of it. */
  window.placewise.moduleDetails = (tree, k, open, {to, toggle}) => {
    const edges = k ? tree.edgesOf(tree.parent[k]) : [];
    const facts = make("dl", {}, ...facing(tree, k).flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
    return [
      make("h3", {}, named(tree.name(k))), facts,
      ...neighbours("Reads from", tree, edges.filter((edge) => edge.to === k), (edge) => edge.from, to),
      ...neighbours("Read by", tree, edges.filter((edge) => edge.from === k), (edge) => edge.to, to),
      ...tree.isOp(k) ? [] : [make("button", {type: "button", onclick: () => toggle(k)}, open.has(k) ? "Fold" : "Unfold")],
    ];
  };

  function facing(tree, k) {
    const found = [];
    if (tree.isOp(k)) found.push(["kind", ops.kind(tree.opOf(k)) || "–"], ["scope", named(ops.scope(tree.opOf(k)) || "–")]);
    else found.push(["ops", format.count(tree.opsIn(k))]);
    found.push(["time per sample", format.seconds(tree.seconds(k))]);
    if (tree.bytes(k)) found.push(["weights and state", format.bytes(tree.bytes(k))]);
    found.push([tree.sharesOf(k).length > 1 ? "devices, by time" : "device", places(tree, k)]);
    return found;
  }

  function neighbours(title, tree, edges, end, to) {
    if (!edges.length) return [];
    const most = [...edges].sort((a, b) => b.bytes - a.bytes);
    const rows = most.slice(0, LISTED).map((edge) => make("li", {},
      make("button", {type: "button", class: "link", onclick: () => to(end(edge))}, named(tree.name(end(edge)))),
      ` ${format.bytes(edge.bytes)}`, edge.moved ? make("span", {class: "moves"}, ` (${format.bytes(edge.moved)} moves)`) : null));
    const rest = most.length - LISTED;
    return [make("h4", {}, title), make("ul", {}, rows, rest > 0 ? make("li", {class: "muted"}, `and ${rest} more`) : null)];
  }
})();

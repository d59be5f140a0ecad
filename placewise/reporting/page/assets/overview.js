"use strict";
/* The first picture: the model as a strip of its devices, and a card for each of them. */
(() => {
  const {data, colours, format, make, named, paint, swatch, drawn} = window.placewise;
  const {prepared, fitted} = window.placewise;
  const HIGH = 40, LETTER = 22, NAMED = 84, MOST_CARDS = 8;
  const countOps = (count) => `${format.count(count)} ${count === 1 ? "op" : "ops"}`;
  const FIGURES = {assumed: "assumed figures", unknown: "figures unknown", catalogue: "catalogue figures"};

  /* From shares to pixels: [left, right] of each stretch, without holes; the last one ends at the right edge. */
  function stretches(shares, width) {
    const whole = shares.reduce((sum, share) => sum + share, 0) || 1;
    let sum = 0;
    return shares.map((share) => {
      const left = Math.round(sum / whole * width);
      sum += share;
      return [left, Math.round(sum / whole * width)];
    });
  }

  function strip(parts) {
    const canvas = make("canvas", {class: "strip-of-devices", role: "img", "aria-label": "The model from its first op to its last: " +
      parts.map(([d, share, name]) => `${name} on ${data.devices[d].name}, ${format.share(share)}`).join("; ")});
    const draw = drawn(canvas, () => {
      const [ctx, width] = prepared(canvas, HIGH), places = stretches(parts.map(([, share]) => share), width);
      if (!width) return;
      parts.forEach(([d, , name], k) => segment(ctx, d, name, ...places[k], k + 1 < parts.length));
    });
    return canvas;
  }

  /* A stretch in its device's colour, with as much of its name as has room: name, letter, nothing. */
  function segment(ctx, d, name, left, right, gap) {
    const wide = right - left - (gap && right - left > 4 ? 1 : 0), look = colours[d];
    ctx.fillStyle = paint(ctx, d);
    ctx.fillRect(left, 0, wide, HIGH);
    if (wide < LETTER) return;
    ctx.fillStyle = look.colour;
    const text = wide >= NAMED ? fitted(ctx, name, wide - 40) : "";
    ctx.fillRect(left + 3, 10, text ? Math.min(ctx.measureText(text).width + 30, wide - 6) : 16, 20);
    ctx.fillStyle = look.ink;
    ctx.textAlign = "center";
    ctx.fillText(look.letter, left + 11, HIGH / 2 + 1, 14);
    ctx.textAlign = "left";
    if (text) ctx.fillText(text, left + 24, HIGH / 2 + 1);
  }

  /* Memory on the device's own scale: what stays resident is solid, what comes and goes above it is pale. */
  function memory(card) {
    const {device: d, memory: shares} = card, {peak, capacity} = data.devices[d];
    if (peak === null || peak === undefined) return null;
    if (!shares) return make("p", {class: "muted"}, `${format.bytes(peak)} of memory, no limit`);
    const over = capacity !== null && peak > capacity;
    const bar = make("div", {class: over ? "meter over" : "meter", "aria-hidden": "true"});
    for (const [kind, share] of [["peak", shares[1]], ["resident", shares[0]]]) {
      const part = make("span", {class: kind});
      Object.assign(part.style, {width: `${(100 * share).toFixed(2)}%`, background: colours[d].colour});
      bar.append(part);
    }
    const words = over ? `${format.bytes(peak)} of ${format.bytes(capacity)}: lacks ${format.bytes(peak - capacity)}`
      : `${format.bytes(peak)} of ${format.bytes(capacity)}${capacity > 0 ? ` (${format.share(peak / capacity)})` : ""}`;
    return make("div", {}, bar, make("p", {class: over ? "broken" : "muted"}, words));
  }

  function card(entry) {
    const {device: d, node, words, figures, share, parts, more} = entry, {name, ops} = data.devices[d];
    const facts = [ops ? countOps(ops) : "", share === null || !ops ? "" : `${format.share(share)} of the compute`].filter(Boolean);
    const list = parts.length < 2 ? null : make("details", {}, make("summary", {}, `${format.count(parts.length + more)} parts`),
      make("ul", {class: "parts"}, parts.map(([part, count, seconds, bytes]) => make("li", {}, named(part),
        make("span", {class: "muted"}, ` ${countOps(count)}, ${format.seconds(seconds)}, ${format.bytes(bytes)}`))),
      more ? make("li", {class: "muted"}, `${format.count(more)} smaller parts`) : null));
    return make("li", {class: "card"},
      make("h3", {}, swatch(d), named(name), node ? make("span", {class: "muted"}, " in ", named(node)) : null, FIGURES[figures] ? make("span", {class: `tag ${figures}`}, FIGURES[figures]) : null),
      words ? make("p", {class: "holds"}, named(words)) : null, memory(entry),
      facts.length ? make("p", {class: "muted"}, facts.join(", ")) : null, list);
  }

  function overview(section) {
    const {cards, unused, strip: parts, figures} = data.overview;
    if (!cards.length) return;
    const all = cards.map(card), body = make("div", {class: "overview"});
    if (parts.length > 1) body.append(strip(parts));
    body.append(make("ul", {class: "cards"}, all.slice(0, MOST_CARDS)));
    if (all.length > MOST_CARDS) {
      body.append(make("details", {}, make("summary", {}, `${all.length - MOST_CARDS} more devices`), make("ul", {class: "cards"}, all.slice(MOST_CARDS))));
    }
    if (unused.length) body.append(make("p", {class: "muted"}, "Unused: ", named(unused.join(", "))));
    if (figures.length) body.append(make("p", {class: "said"}, named(figures.join(" ")), " ", make("a", {href: "#provenance"}, "All that is assumed")));
    section.append(body);
  }

  Object.assign(window.placewise, {overview, stretches});
})();

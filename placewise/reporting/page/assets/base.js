"use strict";
/* What every view shares: the data, numbers as people read them, names as text, and a look for every device. */
window.placewise = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const TYPES = {f8: Float64Array, f4: Float32Array, i4: Int32Array, u2: Uint16Array, u1: Uint8Array};

  /* A column of the data as a typed array. */
  function column(value) {
    if (value === null || value === undefined || Array.isArray(value) || ArrayBuffer.isView(value)) return value ?? [];
    const [kind, text] = Object.entries(value)[0];
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
    return new TYPES[kind](bytes.buffer);
  }

  function digits(value, count) {
    const text = value.toPrecision(count);
    return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  }

  const format = {
    seconds(value) {
      if (value === null || value === undefined || !Number.isFinite(value)) return "∞";
      if (value === 0) return "0 s";
      const size = Math.abs(value);
      if (size >= 1) return `${digits(value, 4)} s`;
      return size >= 1e-3 ? `${digits(value * 1e3, 4)} ms` : `${digits(value * 1e6, 4)} µs`;
    },
    bytes(value) {
      if (value === null || value === undefined || !Number.isFinite(value)) return "unlimited";
      const units = ["B", "KiB", "MiB", "GiB", "TiB"];
      let step = 0;
      while (Math.abs(value) >= 1024 && step < units.length - 1) { value /= 1024; step++; }
      return step ? `${digits(value, Math.abs(value) < 1000 ? 3 : 4)} ${units[step]}` : `${Math.round(value)} B`;
    },
    share: (value) => value > 0 && value < 0.001 ? "under 0.1 %" : `${digits(100 * value, value < 0.1 ? 2 : 3)} %`,
    count: (value) => value.toLocaleString("en-GB"),
  };

  /* An element: attributes by name, children as text or elements. Text is only ever text. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  /* A name that others chose: it may run from right to left, and stays by itself. */
  const named = (text) => make("bdi", {class: "name"}, text);

  /* Okabe and Ito's colours, told apart with every kind of colour blindness; patterns and letters say it again. */
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7f8c99"];
  const PATTERNS = ["solid", "rising", "dots", "across", "falling", "upright", "grid", "checks"];
  const letterOf = (k) => k < 26 ? String.fromCharCode(65 + k) : letterOf(Math.floor(k / 26) - 1) + letterOf(k % 26);
  const light = (colour) => {
    const part = (at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2;
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  };
  const colours = data.devices.map((device, k) => {
    const colour = COLOURS[k % COLOURS.length];
    const pattern = PATTERNS[(k + Math.floor(k / COLOURS.length)) % PATTERNS.length];
    return {name: device.name, colour, pattern, letter: letterOf(k), ink: light(colour) > 0.18 ? "#000000" : "#ffffff"};
  });

  function marks(ctx, pattern, size) {
    const strokes = {
      rising: [[0, size, size, 0]], falling: [[0, 0, size, size]], across: [[0, size / 2, size, size / 2]],
      upright: [[size / 2, 0, size / 2, size]], grid: [[0, size / 2, size, size / 2], [size / 2, 0, size / 2, size]],
    };
    ctx.lineWidth = 1.5;
    for (const [x, y, u, v] of strokes[pattern] ?? []) {
      ctx.beginPath();
      ctx.moveTo(x, y);
      ctx.lineTo(u, v);
      ctx.stroke();
    }
    if (pattern === "dots") ctx.fillRect(size / 2 - 1, size / 2 - 1, 2, 2);
    if (pattern === "checks") { ctx.fillRect(0, 0, size / 2, size / 2); ctx.fillRect(size / 2, size / 2, size / 2, size / 2); }
  }

  const tiles = new Map();
  /* The fill of a device on a canvas: its colour with its pattern. */
  function paint(ctx, device) {
    if (!tiles.has(device)) {
      const {colour, pattern, ink} = colours[device] ?? {colour: "#7f8c99", pattern: "rising", ink: "#000000"};
      const tile = make("canvas", {width: 8, height: 8}), on = tile.getContext("2d");
      on.fillStyle = colour;
      on.fillRect(0, 0, 8, 8);
      on.globalAlpha = 0.4;
      on.strokeStyle = on.fillStyle = ink;
      marks(on, pattern, 8);
      tiles.set(device, tile);
    }
    return ctx.createPattern(tiles.get(device), "repeat");
  }

  /* The sign of a device in text: its letter on its colour and pattern. */
  function swatch(device) {
    const look = colours[device];
    const canvas = make("canvas", {width: 40, height: 40, "aria-hidden": "true"}), ctx = canvas.getContext("2d");
    ctx.scale(2, 2);
    ctx.fillStyle = paint(ctx, device);
    ctx.fillRect(0, 0, 20, 20);
    ctx.fillStyle = look.colour;
    ctx.beginPath();
    ctx.arc(10, 10, 7.5, 0, 7);
    ctx.fill();
    ctx.fillStyle = look.ink;
    ctx.font = "bold 11px system-ui, sans-serif";
    ctx.textAlign = "center";
    ctx.fillText(look.letter, 10, 14, 16);
    return make("span", {class: "swatch"}, canvas, make("span", {class: "unseen"}, `${look.letter} `));
  }

  const columns = Object.fromEntries(
    ["device", "seconds"].map((name) => [name, column(data.ops[name])]));
  const words = (name) => {
    const {values, codes} = data.ops[name] ?? {values: [""], codes: null}, at = codes ? column(codes) : null;
    return (op) => at ? values[at[op]] : "";
  };
  const ops = {
    count: data.ops.count,
    name: (op) => data.ops.name[op],
    kind: words("kind"),
    scope: words("scope"),
    device: (op) => columns.device[op],
    seconds: (op) => columns.seconds.length ? columns.seconds[op] : NaN,
  };

  /* Show an op in every view. */
  function select(op) {
    document.dispatchEvent(new CustomEvent("placewise:select", {detail: {op}}));
  }

  /* Say something to those who cannot see it. */
  function say(text) { document.getElementById("spoken").textContent = text; }

  /* Draw when the element is (nearly) in sight, whenever its width or the theme changes. */
  function drawn(element, draw) {
    let width = -1, waits = false;
    const again = () => {
      if (waits) return;
      waits = true;
      requestAnimationFrame(() => { waits = false; draw(); });
    };
    new ResizeObserver(() => {
      if (element.clientWidth !== width) { width = element.clientWidth; again(); }
    }).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    return again;
  }

  const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  return {data, colours, column, format, make, named, ops, paint, swatch, select, say, drawn, theme};
})();

/* Runs the scripts of a report page without a browser: a document that is just enough for them, of a given width.
   `node page_dom.js PAGE WIDTH` prints what every canvas has written, the texts of the page, and its labels in SVG. */
"use strict";
const fs = require("fs");
const [, , path, width] = process.argv;
const html = fs.readFileSync(path, "utf8"), WIDTH = Number(width), LETTER = 6.6;

class Element {
  constructor(tag) {
    Object.assign(this, {tagName: tag, children: [], attributes: {}, dataset: {}, listeners: {}, parentNode: null, hidden: false, value: ""});
    this.style = {};
    this.texts = [];
    const classes = this.classes = new Set();
    this.classList = {
      add: (name) => classes.add(name), remove: (name) => classes.delete(name), contains: (name) => classes.has(name),
      toggle: (name, on = !classes.has(name)) => { if (on) classes.add(name); else classes.delete(name); },
    };
  }
  set className(text) { this.classes.clear(); for (const name of String(text).split(" ")) this.classes.add(name); }
  get className() { return [...this.classes].join(" "); }
  set id(text) { this.attributes.id = text; }
  get id() { return this.attributes.id ?? ""; }
  get open() { return "open" in this.attributes; }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name === "class") this.className = String(value);
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = String(value);
  }
  removeAttribute(name) { delete this.attributes[name]; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(name, listener) { (this.listeners[name] ??= []).push(listener); }
  append(...parts) { for (const part of parts) { this.children.push(part); if (part instanceof Element) part.parentNode = this; } }
  replaceChildren(...parts) { this.children = []; this.append(...parts); }
  remove() { if (this.parentNode) this.parentNode.children = this.parentNode.children.filter((child) => child !== this); }
  replaceWith(other) { if (this.parentNode) { const all = this.parentNode.children; all[all.indexOf(this)] = other; } }
  contains(other) { for (let at = other; at; at = at.parentNode) if (at === this) return true; return false; }
  focus() {} scrollBy() {} scrollIntoView() {} setPointerCapture() {}
  get childElementCount() { return this.children.filter((child) => child instanceof Element).length; }
  get firstChild() { return this.children[0] ?? null; }
  get lastElementChild() { return this.children.at(-1) ?? null; }
  get textContent() { return this.children.map((child) => child instanceof Element ? child.textContent : String(child)).join(""); }
  set textContent(text) { this.children = [text]; }
  get clientWidth() { return this.tagName === "canvas" && this.classes.has("bar") ? 120 : WIDTH - (WIDTH > 560 ? 40 : 26); }
  get clientHeight() { return 400; }
  get offsetWidth() { return parseFloat(this.style.width) || this.clientWidth; }
  get offsetHeight() { return parseFloat(this.style.height) || 400; }
  getBoundingClientRect() { return {left: 0, top: 0, x: 0, y: 0, right: this.offsetWidth, bottom: this.offsetHeight, width: this.offsetWidth, height: this.offsetHeight}; }
  *all() { for (const child of this.children) if (child instanceof Element) { yield child; yield* child.all(); } }
  querySelectorAll(asked) {
    const name = asked.split(" ").at(-1).replace(/^\./, "");
    return [...this.all()].filter((element) => element.classes.has(name));
  }
  querySelector(asked) { return this.querySelectorAll(asked)[0] ?? null; }
  closest() { return null; }
  getContext() { return this.context ??= context(this); }
}

/* A canvas that remembers its words and where they stand; a new size wipes it. */
function context(canvas) {
  const state = {textAlign: "left", font: ""};
  const known = {
    fillText(text, x, y) {
      const wide = this.measureText(text).width;
      const left = state.textAlign === "center" ? x - wide / 2 : state.textAlign === "right" ? x - wide : x;
      canvas.texts.push([left, y - 6, left + wide, y + 6, text]);
    },
    measureText: (text) => ({width: LETTER * [...text.replace(/[\u2066-\u2069]/g, "")].length}),
    setTransform() { canvas.texts = []; },
    createPattern: () => "pattern",
  };
  return new Proxy(state, {get: (_, name) => name in known ? known[name] : name in state ? state[name] : () => {}});
}

const queue = [], byId = {};
const body = new Element("body");
for (const [, tag, id] of html.matchAll(/<(\w+)[^>]*\bid="([^"]+)"/g)) {
  const element = byId[id] = new Element(tag);
  element.id = id;
  body.append(element);
}
byId.data.textContent = html.match(/<script type="application\/json" id="data">(.*?)<\/script>/s)[1];
const find = (id) => byId[id] ?? [...body.all()].find((element) => element.id === id) ?? null;
global.document = {
  documentElement: body, body, activeElement: body, title: "", getElementById: find,
  createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag),
  addEventListener() {}, dispatchEvent() {}, querySelectorAll: (asked) => body.querySelectorAll(asked),
};
global.window = {devicePixelRatio: 1, addEventListener() {}, innerWidth: WIDTH, innerHeight: 740};
global.matchMedia = () => ({matches: false, addEventListener() {}});
global.getComputedStyle = () => ({getPropertyValue: () => "#123456"});
global.requestAnimationFrame = (draw) => { queue.push(draw); };
global.setTimeout = (draw) => { queue.push(draw); };
global.CustomEvent = class {};
global.ResizeObserver = class { constructor(told) { this.told = told; } observe() { this.told([]); } };
const script = [...html.matchAll(/<script>(.*?)<\/script>/gs)].at(-1)[1];
(0, eval)(script);
while (queue.length) queue.shift()(0);

const svg = [...body.all()].filter((element) => element.tagName === "svg").map((element) =>
  element.children.filter((child) => child.tagName === "text").map((child) => {
    const x = Number(child.attributes.x), y = Number(child.attributes.y), text = child.textContent;
    return [x, y - 10, x + LETTER * text.length, y + 2, text];
  })).filter((texts) => texts.length);
process.stdout.write(JSON.stringify({
  canvases: [...body.all()].filter((element) => element.tagName === "canvas" && element.texts.length)
    .map((element) => ({class: element.className, width: element.clientWidth, texts: element.texts})),
  sections: Object.fromEntries([...body.children].map((element) => [element.id, element.textContent])),
  meters: [...body.all()].filter((element) => element.classes.has("meter")).map((element) => element.children.map((part) => part.style.width)),
  svg,
}));

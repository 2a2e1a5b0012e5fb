// Elements from data. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

export function table(caption, heads, rows) {
  const head = heads.map((name) => el("th", { scope: "col" }, name));
  return el(
    "table",
    {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))))),
  );
}

const states = new WeakMap(); // by element: what it shows, as JSON

// Replaces what is in an element only when `state` differs from the last time, so that focus and selection survive.
export function renewed(element, state, make) {
  const text = JSON.stringify(state);
  if (states.get(element) === text) return;
  states.set(element, text);
  element.replaceChildren(...[make()].flat());
}

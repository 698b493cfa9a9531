// Making elements, writing numbers, asking the server. Every text becomes a text node: nothing is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element; children are elements or texts, `on…` attributes are listeners. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, made likewise. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A number with at most `digits` decimals and a real minus; – for none. */
export function num(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const text = Number(value).toFixed(digits);
  const short = text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  return (short === "-0" ? "0" : short).replace("-", "−");
}

/** The same with its sign, as rewards are written. */
export function signed(value, digits = 2) {
  return value > 0 ? `+${num(value, digits)}` : num(value, digits);
}

export function count(value, one, many = `${one}s`) {
  return `${Number(value).toLocaleString("en")} ${value === 1 ? one : many}`;
}

/** Seconds since 1970 as a local time, and as how long ago that was. */
export function when(seconds) {
  if (!seconds) return el("span", { class: "soft" }, "–");
  const date = new Date(seconds * 1000);
  return el("time", { datetime: date.toISOString(), title: date.toLocaleString() }, ago((Date.now() - date) / 1000, date));
}

function ago(seconds, date) {
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 30 * 86400) return `${Math.round(seconds / 86400)} d ago`;
  return date.toISOString().slice(0, 10);
}

/** Ids of 32 hex digits are shown by their first eight; others as they are, up to a length. */
export function shortId(id) {
  if (/^[0-9a-f]{32}$/.test(id)) return id.slice(0, 8);
  return id.length > 60 ? `${id.slice(0, 57)}…` : id;
}

/** The address of a page: parameters that are empty are left out, lists are repeated. */
export function address(parameters) {
  const query = encode(parameters);
  return query ? `/viewer?${query}` : "/viewer";
}

export function encode(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  return query.toString();
}

export function link(parameters, attributes, ...children) {
  return el("a", { href: address(parameters), ...attributes }, ...children);
}

/** Thrown for an answer that is no success; its message is the server's sentence. */
export class Refused extends Error {}

/** Ask the server. Without a session the whole page is loaded again, which gives the form. */
export async function api(path, parameters, signal) {
  const response = await fetch(`/viewer/api/${path}?${encode(parameters)}`, { signal });
  if (response.status === 401) {
    location.reload();
    return new Promise(() => {});
  }
  const body = await response.json();
  if (!response.ok) throw new Refused(body.error?.message ?? "the server failed");
  return body;
}

const ICONS = {
  start: "M3 3h2v10H3zM13 3v10L6 8z",
  up: "M8 3v10L2 8zM14 3v10L8 8z",
  back: "M11 3v10L4 8z",
  play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  on: "M5 3v10l7-5z",
  down: "M8 3v10l6-5zM2 3v10l6-5z",
  end: "M11 3h2v10h-2zM3 3v10l7-5z",
};

/** A small drawing for a button, since not every system has these signs in a font. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, svg("path", { d: ICONS[name], fill: "currentColor" }));
}

/** A badge that says how an episode ended. */
export function badge(status) {
  return el("span", { class: `badge ${status}` }, status.replace("_", " "));
}

// One episode as a strip: a bar per decision for its reward, events as labelled marks, advantages below the axis.
// Drawn on a scale that is handed in, so that several strips can share one.

import { el, num, signed, svg } from "/viewer/static/dom.js";

const LANE = 15;
const GLYPH = 6.1;
const LEFT = 34;
const RIGHT = 10;
const WIDEST_BAR = 48;

/** The scale that holds every decision of every strip: turns, highest and lowest reward, largest advantage. */
export function scaleOf(strips) {
  const all = strips.flat();
  const rewards = all.map((one) => one.reward ?? 0);
  return {
    turns: Math.max(1, ...strips.map((strip) => strip.length)),
    high: Math.max(1, ...rewards),
    low: Math.min(0, ...rewards),
    advantage: Math.max(0, ...all.map((one) => Math.abs(one.advantage ?? 0))),
  };
}

/** A strip as SVG of `width` pixels: {node, xOf(index, share), decisionAt(x)}. */
export function drawStrip(decisions, { width, scale, lanes = 3, barHeight = 64, axis = true, onpick = null }) {
  const band = (width - LEFT - RIGHT) / scale.turns;
  const xOf = (index, share = 0) => LEFT + band * (index + share);
  const placed = placeLabels(marksOf(decisions, xOf), width, lanes);
  const top = placed.lanes * LANE + 14;
  const span = scale.high - scale.low;
  const y = (value) => top + ((scale.high - value) / span) * barHeight;
  const second = scale.advantage > 0 && decisions.some((one) => one.advantage !== null) ? 34 : 0;
  const foot = top + barHeight + (axis ? 18 : 4);
  const height = foot + second + (second && axis ? 6 : 0);
  const node = svg("svg", { class: "timeline", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  node.append(
    svg("line", { class: "zero", x1: LEFT, x2: xOf(decisions.length), y1: y(0), y2: y(0) }),
    ...(axis ? axisOf(scale, xOf, y, top + barHeight, band) : []),
    ...decisions.map((one, index) => bar(one, index, { band, xOf, y, height, top, onpick, scale, foot, second })),
    ...placed.marks.map((mark) => leader(mark, top)).filter(Boolean), // below every label, also of other marks
    ...placed.marks.map((mark) => markNode(mark, top)),
  );
  if (second) node.append(svg("text", { class: "axis", x: LEFT - 6, y: foot + second / 2 + 3, "text-anchor": "end" }, "adv"));
  const decisionAt = (x) => {
    const place = Math.min(decisions.length - 1e-9, Math.max(0, (x - LEFT) / band));
    return { index: Math.floor(place), share: place - Math.floor(place) };
  };
  return { node, xOf, decisionAt, top, height };
}

function bar(one, index, { band, xOf, y, height, top, onpick, scale, foot, second }) {
  const wide = Math.max(1, Math.min(WIDEST_BAR, band - 2 * Math.min(3, band * 0.18)));
  const left = xOf(index, 0.5) - wide / 2;
  const value = one.reward ?? 0;
  const group = svg("g", { class: "decision", "data-turn": one.turn });
  const title = `decision ${one.turn}: reward ${one.reward === null ? "none" : num(one.reward, 3)}${one.failed ? ", unreadable answer" : ""}`;
  group.append(svg("title", {}, title), svg("rect", { class: "band", x: xOf(index), y: top - 12, width: band, height: height - top + 12 }));
  const [from, to] = [y(Math.max(0, value)), y(Math.min(0, value))];
  const kind = one.reward === null ? "none" : value > 0 ? "gain" : value < 0 ? "loss" : "nil";
  const tall = Math.max(kind === "nil" || kind === "none" ? 2 : 3, to - from);
  group.append(svg("rect", { class: `bar ${kind}`, x: left, width: wide, y: value < 0 ? from : to - tall, height: tall, rx: Math.min(2, wide / 6) }));
  if (value && band >= 22 && tall >= 14) group.append(svg("text", { class: "value", x: xOf(index, 0.5), y: value < 0 ? from + tall - 3 : to - tall + 11, "text-anchor": "middle" }, signed(value)));
  if (one.failed) group.append(svg("text", { class: "failed", x: xOf(index, 0.5), y: y(0) - 5, "text-anchor": "middle" }, "✗"));
  if (second && one.advantage !== null && one.advantage !== undefined) {
    const middle = foot + second / 2;
    const size = Math.max(1, (Math.abs(one.advantage) / scale.advantage) * (second / 2 - 2));
    group.append(svg("rect", { class: `advantage ${one.advantage < 0 ? "minus" : "plus"}`, x: left, width: wide, y: one.advantage < 0 ? middle : middle - size, height: size, rx: 1 }));
  }
  if (onpick) group.addEventListener("click", () => onpick(one));
  return group;
}

/** Every event with its place; the first of its name in the episode is `fresh`. */
function marksOf(decisions, xOf) {
  const seen = new Set();
  const marks = [];
  decisions.forEach((one, index) => {
    for (const [step, name] of one.events) {
      marks.push({ name, turn: one.turn, x: xOf(index, (step + 0.5) / Math.max(1, one.steps)), fresh: !seen.has(name) });
      seen.add(name);
    }
  });
  return marks;
}

/** Labels of fresh marks in lanes, where they do not touch; the rest stay marks with a title. */
function placeLabels(marks, width, lanes) {
  const ends = Array(lanes).fill(-Infinity);
  let used = 0;
  for (const mark of marks.filter((one) => one.fresh)) {
    const size = mark.name.length * GLYPH + 4;
    const start = Math.max(0, Math.min(mark.x - 3, width - size - 2));
    const lane = ends.findIndex((end) => start > end + 6);
    if (lane < 0) continue;
    ends[lane] = start + size;
    Object.assign(mark, { lane, start });
    used = Math.max(used, lane + 1);
  }
  return { marks, lanes: used };
}

function baselineOf(mark, top) {
  return top - 17 - mark.lane * LANE;
}

function leader(mark, top) {
  return mark.lane === undefined ? null : svg("path", { class: "leader", d: `M${mark.x} ${top - 7}V${baselineOf(mark, top) + 3}` });
}

function markNode(mark, top) {
  const y = top - 7;
  const node = svg("g", { class: `event ${mark.fresh ? "fresh" : "again"}`, "data-event": mark.name });
  node.append(svg("title", {}, `${mark.name}, decision ${mark.turn}${mark.fresh ? "" : ", again"}`));
  if (mark.lane !== undefined) {
    node.append(svg("text", { class: "label", x: mark.start, y: baselineOf(mark, top) }, mark.name));
  }
  const size = mark.fresh ? 4 : 2.5;
  node.append(svg("path", { class: "mark", d: `M${mark.x} ${y - size}l${size} ${size}l${-size} ${size}l${-size} ${-size}z` }));
  return node;
}

/** Turns below the bars, as many as fit, and the reward at the left. */
function axisOf(scale, xOf, y, bottom, band) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((one) => one * band >= 24) ?? 2000;
  const ticks = [];
  for (let turn = step === 1 ? 1 : step; turn <= scale.turns; turn += step) ticks.push(turn);
  if (step > 1) ticks.unshift(1);
  return [
    ...ticks.map((turn) => svg("text", { class: "axis", x: xOf(turn - 1, 0.5), y: bottom + 13, "text-anchor": "middle" }, turn)),
    svg("text", { class: "axis", x: LEFT - 6, y: y(scale.high) + 8, "text-anchor": "end" }, num(scale.high)),
    svg("text", { class: "axis", x: LEFT - 6, y: y(0) + (scale.low < 0 ? 3 : 0), "text-anchor": "end" }, "0"),
    scale.low < 0 && svg("text", { class: "axis", x: LEFT - 6, y: y(scale.low) + 3, "text-anchor": "end" }, num(scale.low)),
    svg("text", { class: "axis", x: LEFT - 6, y: bottom + 13, "text-anchor": "end" }, "turn"),
  ].filter(Boolean);
}

/** Draw again whenever the width of `box` changes. Gives a function that stops this. */
export function whenWide(box, draw) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    const now = Math.floor(box.clientWidth);
    if (now > 0 && now !== width) draw((width = now));
  });
  observer.observe(box);
  return () => observer.disconnect();
}

export function legend(withAdvantage) {
  const item = (kind, text) => el("span", { class: `key ${kind}` }, text);
  return el("p", { class: "legend", "aria-hidden": "true" }, item("gain", "reward of a decision"), item("fresh", "event, first time"), item("again", "again"), withAdvantage ? item("plus", "advantage") : null);
}

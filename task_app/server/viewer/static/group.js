// The members of a group, one strip each, all on one scale: the same world, played G times.

import { address, api, badge, count, el, link, num, shortId } from "/viewer/static/dom.js";
import { drawStrip, legend, scaleOf, whenWide } from "/viewer/static/timeline.js";

export async function groupPage(query, { signal, go }) {
  const [run, group, update] = ["run", "group", "update"].map((name) => query.get(name));
  const found = await api("group", { run, group, update }, signal);
  const members = found.members;
  const scale = scaleOf(members.map((member) => member.timeline));
  const title = `Group ${group}`;
  const where = [update === null ? null : `update ${update}`, members.length ? `seed ${members[0].seed}` : null];
  const rows = members.map((member) => memberRow(member, members, scale, go));
  let stop = () => {};
  const list = el("ol", { class: "members panel" }, rows.map((row) => row.node));
  return {
    title,
    trail: [[{ run }, run], [{ run, group, update }, group]],
    nodes: [
      el("div", { class: "heading" }, el("h1", {}, title), el("p", { class: "soft" }, [count(members.length, "member"), ...where].filter(Boolean).join(" · ")), summary(members)),
      list,
      legend(scale.advantage > 0),
      unlockTable(members),
    ],
    start() {
      stop = whenWide(rows[0].strip, (width) => rows.forEach((row, index) => row.draw(width, index === rows.length - 1)));
    },
    stop: () => stop(),
  };
}

/** Which member did what, and at which turn first: a row an achievement, a column a member. */
function unlockTable(members) {
  const turns = members.map((member) => new Map(member.unlocks.map(([turn, name]) => [name, turn])));
  const names = [...new Set(turns.flatMap((found) => [...found.keys()]))];
  if (!names.length) return el("p", { class: "empty" }, "No member achieved anything.");
  const have = (name) => turns.filter((found) => found.has(name)).length;
  const first = (name) => Math.min(...turns.map((found) => found.get(name) ?? Infinity));
  names.sort((a, b) => first(a) - first(b) || have(b) - have(a) || (a < b ? -1 : 1));
  const head = [el("th", { scope: "col" }, "First at turn"), ...members.map((member) => el("th", { scope: "col", class: "n" }, `#${member.member}`)), el("th", { scope: "col", class: "n" }, "members")];
  const cell = (name, found) => {
    const turn = found.get(name);
    return el("td", { class: turn === undefined ? "n soft" : turn === first(name) ? "n strong" : "n" }, turn ?? "–");
  };
  const body = names.map((name) => el("tr", {}, el("th", { scope: "row" }, name), turns.map((found) => cell(name, found)), el("td", { class: "n soft" }, `${have(name)} of ${members.length}`)));
  return el("div", { class: "scroll unlocks", tabindex: "0", role: "region", "aria-label": "First unlocks" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

function summary(members) {
  const outcomes = members.map((member) => member.outcome).filter((outcome) => outcome !== null);
  if (!outcomes.length) return el("p", { class: "soft" }, "no member carries a reward");
  const mean = outcomes.reduce((sum, one) => sum + one, 0) / outcomes.length;
  return el("p", { class: "stats" }, stat("mean outcome", num(mean)), stat("lowest", num(Math.min(...outcomes))), stat("highest", num(Math.max(...outcomes))));
}

function stat(name, value) {
  return el("span", { class: "stat" }, el("b", {}, value), ` ${name}`);
}

function memberRow(member, members, scale, go) {
  const strip = el("div", { class: "strip-box" });
  const node = el(
    "li",
    { class: "member" },
    el(
      "div",
      { class: "who" },
      link({ episode: member.episode_id }, { class: "id", title: member.episode_id }, `#${member.member} `, el("span", { class: "soft" }, shortId(member.episode_id))),
      el("p", { class: "stats" }, stat("outcome", num(member.outcome)), stat("return", num(member.return))),
      el("p", { class: "soft small" }, badge(member.status), ` ${member.policy} · ${count(member.decisions, "turn")}`),
    ),
    strip,
  );
  const onpick = (one) => go(address({ episode: member.episode_id, step: one.first_step || null, turn: one.turn > 1 ? one.turn : null }));
  const draw = (width, axis) => strip.replaceChildren(drawStrip(member.timeline, { width, scale, axis, lanes: width > 700 ? 3 : 2, barHeight: members.length > 6 ? 38 : 52, onpick }).node);
  return { node, strip, draw };
}

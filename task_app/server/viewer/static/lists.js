// The list of runs, and the table of episodes (of one run or of all) with its filters; both pages by pages.

import { api, badge, count, el, link, num, shortId, svg, when } from "/viewer/static/dom.js";

const PAGE = 50;
const FILTERS = ["policy", "model", "status", "achievement", "min_return", "max_return"];
const LABELS = { policy: "Policy", model: "Model", status: "Status" };

export async function runsPage(query, { signal }) {
  const offset = Number(query.get("offset") ?? 0);
  const { runs, total, note } = await api("runs", { limit: PAGE, offset }, signal);
  const best = Math.max(0, ...runs.map((run) => run.outcome ?? 0));
  const body = runs.map((run) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, link({ run: run.run }, { class: "id", title: run.run }, run.run)),
      el("td", { class: "soft" }, run.command || "–"),
      el("td", { class: "n" }, run.episodes.toLocaleString("en")),
      el("td", { class: "n" }, run.groups.toLocaleString("en")),
      el("td", { class: "n" }, num(run.outcome)),
      el("td", { class: "wide" }, meter(run.outcome, best)),
      el("td", { class: "soft" }, when(run.started_at)),
    ),
  );
  const head = ["Run", "Command", "Episodes", "Groups", "Mean outcome", "", "Started"];
  return {
    title: "Runs",
    trail: [],
    nodes: [
      heading("Runs", total ? `${count(total, "run")}, newest first` : "", total > 0 && link({ view: "episodes" }, {}, "All episodes")),
      note && el("p", { class: "empty" }, `${capital(note)}.`),
      !total && !note && el("p", { class: "empty" }, "The database holds no run yet."),
      total > 0 && table(head.map((text, index) => el("th", { scope: "col", class: index > 1 && index < 5 ? "n" : null }, text)), body),
      pager(query, offset, total),
    ].filter(Boolean),
  };
}

export async function episodesPage(query, { signal, go }) {
  const run = query.get("run");
  const tab = run && query.get("view") === "groups" ? "groups" : "episodes";
  const asking = api("choices", { run }, signal);
  const list = await (tab === "groups" ? groupsOf(query, signal) : episodesOf(query, signal, asking, go));
  const choices = await asking;
  const title = run ?? "All episodes";
  const tabs = el(
    "nav",
    { class: "tabs", "aria-label": "What is listed" },
    [["episodes", `Episodes`], ["groups", "Groups"]].map(([name, text]) =>
      link({ run, view: name === "groups" ? name : null }, { "aria-current": tab === name ? "page" : null }, text),
    ),
  );
  return {
    title,
    trail: [[{ run }, title]],
    nodes: [heading(title, count(choices.episodes, "episode"), run && tabs), ...list],
  };
}

async function groupsOf(query, signal) {
  const run = query.get("run");
  const offset = Number(query.get("offset") ?? 0);
  const { groups, total } = await api("groups", { run, limit: PAGE, offset }, signal);
  const best = Math.max(0, ...groups.map((group) => group.highest ?? 0));
  const body = groups.map((group) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, link({ run, update: group.update, group: group.group }, { class: "id" }, group.group)),
      el("td", { class: "n" }, group.update ?? "–"),
      el("td", { class: "n" }, group.seed),
      el("td", {}, group.policies),
      el("td", { class: "n" }, group.members),
      el("td", { class: "n" }, num(group.outcome)),
      el("td", { class: "wide" }, span(group, best)),
      el("td", { class: "n" }, num(group.return)),
      el("td", { class: "soft" }, when(group.started_at)),
    ),
  );
  const head = ["Group", "Update", "Seed", "Policy", "Members", "Mean outcome", "lowest to highest", "Mean return", "Started"];
  const numeric = new Set([1, 2, 4, 5, 7]);
  return [
    total
      ? table(head.map((text, index) => el("th", { scope: "col", class: numeric.has(index) ? "n" : null }, text)), body)
      : el("p", { class: "empty" }, "The run has no group."),
    pager(query, offset, total),
  ];
}

async function episodesOf(query, signal, asking, go) {
  const run = query.get("run");
  const offset = Number(query.get("offset") ?? 0);
  const asked = { run, sort: query.get("sort"), limit: PAGE, offset };
  for (const name of FILTERS) asked[name] = query.getAll(name);
  let found;
  const choices = await asking;
  try {
    found = await api("episodes", asked, signal);
  } catch (error) {
    if (signal.aborted) throw error;
    return [filters(query, choices, go), el("p", { class: "empty", role: "alert" }, `${capital(error.message)}.`)];
  }
  const { episodes, total } = found;
  const turns = Math.max(1, ...episodes.map((episode) => Math.max(episode.decisions, episode.max_decisions)));
  const head = [
    column("Episode"),
    !run && column("Run"),
    column("Group"),
    column("Seed", "seed", query),
    column("Policy"),
    column("Status"),
    column("Outcome", "outcome", query),
    column("Return", "return", query),
    column("Turns", "decisions", query),
    column("Steps", "steps", query),
    column("Achievements by turn"),
    column("Started"),
  ].filter(Boolean);
  return [
    filters(query, choices, go),
    el("p", { class: "found", role: "status" }, filtered(query) ? `${count(total, "episode")} of ${choices.episodes.toLocaleString("en")}` : ""),
    total ? table(head, episodes.map((episode) => row(episode, run, turns))) : el("p", { class: "empty" }, "No episode passes these filters."),
    pager(query, offset, total),
  ];
}

function row(episode, run, turns) {
  const { policy, model } = episode;
  const where = { run: episode.run, update: episode.update, group: episode.group };
  const update = episode.update === null ? "" : `${episode.update} · `;
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, link({ episode: episode.episode_id }, { class: "id", title: episode.episode_id }, shortId(episode.episode_id))),
    !run && el("td", {}, link({ run: episode.run }, { class: "quiet" }, shortId(episode.run))),
    el("td", {}, link(where, { class: "quiet" }, `${update}${shortId(episode.group)}`), el("span", { class: "soft" }, ` #${episode.member}`)),
    el("td", { class: "n" }, episode.seed),
    el("td", {}, policy, model && model !== policy ? el("span", { class: "soft" }, ` ${model}`) : null),
    el("td", { title: episode.cause }, badge(episode.status), episode.parse_failures ? el("span", { class: "bad", title: "answers that could not be read" }, ` ${episode.parse_failures}✗`) : null),
    el("td", { class: "n strong" }, num(episode.outcome)),
    el("td", { class: "n" }, num(episode.return)),
    el("td", { class: "n" }, episode.decisions),
    el("td", { class: "n" }, episode.steps),
    el("td", { class: "wide" }, strip(episode, turns)),
    el("td", { class: "soft" }, when(episode.started_at)),
  );
}

/** First unlocks as marks along the turns; the same scale in every row of the page. */
function strip(episode, turns) {
  const width = 200;
  const x = (turn) => ((turn - 0.5) / turns) * width;
  const byTurn = Map.groupBy ? Map.groupBy(episode.unlocks, ([turn]) => turn) : grouped(episode.unlocks);
  const names = episode.unlocks.map(([turn, name]) => `${turn}: ${name}`).join("\n");
  return svg(
    "svg",
    { class: "strip", viewBox: `0 0 ${width} 18`, role: "img", "aria-label": count(episode.unlocks.length, "achievement") },
    svg("title", {}, names || "none"),
    svg("line", { class: "rail", x1: 0, x2: (episode.decisions / turns) * width, y1: 15.5, y2: 15.5 }),
    [...byTurn].map(([turn, unlocks]) =>
      svg("rect", { class: "unlock", x: x(turn) - 1.75, width: 3.5, y: 14 - Math.min(13, 4 * unlocks.length), height: Math.min(13, 4 * unlocks.length), rx: 1 }),
    ),
  );
}

function grouped(unlocks) {
  const found = new Map();
  for (const one of unlocks) found.set(one[0], [...(found.get(one[0]) ?? []), one]);
  return found;
}

function filters(query, choices, go) {
  const apply = (name, value) => {
    const next = new URLSearchParams(query);
    next.delete("offset");
    next.delete(name);
    for (const one of [value].flat()) if (one !== "") next.append(name, one);
    go(`/viewer?${next}`);
  };
  const achievements = query.getAll("achievement");
  const rest = choices.achievement.filter((name) => !achievements.includes(name));
  return el(
    "form",
    { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    Object.keys(LABELS).map((name) => field(LABELS[name], select(name, choices[name], query.get(name), apply))),
    field(
      "Achievement",
      el(
        "select",
        { name: "achievement", onchange: (event) => apply("achievement", [...achievements, event.target.value]) },
        el("option", { value: "" }, achievements.length ? "and …" : "any"),
        rest.map((name) => el("option", { value: name }, name)),
      ),
    ),
    achievements.map((name) =>
      el("button", { type: "button", class: "chip", "aria-label": `Without the filter ${name}`, onclick: () => apply("achievement", achievements.filter((other) => other !== name)) }, name, el("span", { "aria-hidden": "true" }, " ×")),
    ),
    field("Return from", bound("min_return", query, apply)),
    field("to", bound("max_return", query, apply)),
    filtered(query) && link({ run: query.get("run"), view: query.get("view"), sort: query.get("sort") }, { class: "clear" }, "Clear"),
  );
}

function select(name, options, chosen, apply) {
  const listed = options.some(([value]) => value === chosen) || !chosen ? options : [...options, [chosen, 0]];
  return el(
    "select",
    { name, onchange: (event) => apply(name, event.target.value) },
    el("option", { value: "" }, "any"),
    listed.map(([value, found]) => el("option", { value, selected: value === chosen }, `${value} (${found.toLocaleString("en")})`)),
  );
}

function bound(name, query, apply) {
  return el("input", { name, type: "number", step: "any", value: query.get(name) ?? "", onchange: (event) => apply(name, event.target.value) });
}

function field(text, control) {
  return el("label", { class: "field" }, el("span", {}, text), control);
}

function filtered(query) {
  return FILTERS.some((name) => query.has(name));
}

/** A column's head; one that can be sorted by is a link that turns the order round. */
function column(text, sort, query) {
  if (!sort) return el("th", { scope: "col" }, text);
  const now = query.get("sort");
  const next = new URLSearchParams(query);
  next.delete("offset");
  next.set("sort", now === `-${sort}` ? sort : `-${sort}`);
  const order = now === sort ? "ascending" : now === `-${sort}` ? "descending" : null;
  const arrow = order ? el("span", { "aria-hidden": "true" }, order === "ascending" ? " ↑" : " ↓") : null;
  return el("th", { scope: "col", class: "n", "aria-sort": order }, el("a", { href: `/viewer?${next}` }, text, arrow));
}

function table(head, body) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

function heading(text, aside, ...more) {
  return el("div", { class: "heading" }, el("h1", {}, text), el("p", { class: "soft" }, aside), ...more);
}

function pager(query, offset, total) {
  if (total <= PAGE && !offset) return el("span", {});
  const to = (place) => {
    const next = new URLSearchParams(query);
    if (place > 0) next.set("offset", place);
    else next.delete("offset");
    return `/viewer?${next}`;
  };
  const last = Math.min(total, offset + PAGE);
  return el(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    offset > 0 ? el("a", { href: to(Math.max(0, offset - PAGE)), rel: "prev" }, "← before") : null,
    el("span", { class: "soft" }, `${(total ? offset + 1 : 0).toLocaleString("en")}–${last.toLocaleString("en")} of ${total.toLocaleString("en")}`),
    last < total ? el("a", { href: to(offset + PAGE), rel: "next" }, "next →") : null,
  );
}

function meter(value, most) {
  const width = most > 0 && value > 0 ? (value / most) * 160 : 0;
  return svg("svg", { class: "meter", viewBox: "0 0 160 8", "aria-hidden": "true" }, svg("rect", { class: "rail", width: 160, height: 8, rx: 2 }), svg("rect", { class: "full", width, height: 8, rx: 2 }));
}

function span(group, most) {
  const x = (value) => (most > 0 ? (Math.max(0, value ?? 0) / most) * 156 : 0);
  const from = x(group.lowest);
  return svg(
    "svg",
    { class: "meter", viewBox: "0 0 160 8", role: "img", "aria-label": `outcomes ${num(group.lowest)} to ${num(group.highest)}` },
    svg("title", {}, `${num(group.lowest)} to ${num(group.highest)}`),
    svg("rect", { class: "rail", width: 160, height: 8, rx: 2 }),
    svg("rect", { class: "range", x: from, width: Math.max(4, x(group.highest) - from + 4), height: 8, rx: 2 }),
    group.outcome === null ? null : svg("rect", { class: "full", x: x(group.outcome), width: 4, height: 8, rx: 1 }),
  );
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}


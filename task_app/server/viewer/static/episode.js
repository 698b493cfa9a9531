// The page of one episode: timeline, picture, the current decision, and one cursor through all of them.

import { address, api, badge, el, icon, link, num, shortId } from "/viewer/static/dom.js";
import * as cursors from "/viewer/static/cursor.js";
import { decisionPanel, factsPanel, promptPanel } from "/viewer/static/panels.js";
import { Screen } from "/viewer/static/screen.js";
import { drawStrip, legend, scaleOf, whenWide } from "/viewer/static/timeline.js";

const ADDRESS_DELAY_MS = 250;
const RATES = [2, 4, 8, 16];

export async function episodePage(query, context) {
  const episode = await api("episode", { id: query.get("episode") }, context.signal);
  const page = new EpisodePage(episode, query, context.go);
  return {
    title: shortId(episode.episode_id),
    trail: [
      [{ run: episode.run }, episode.run],
      [groupAddress(episode), `${episode.group} #${episode.member}`],
      [{ episode: episode.episode_id }, shortId(episode.episode_id)],
    ],
    nodes: page.nodes,
    start: () => page.start(),
    stop: () => page.stop(),
    leave: () => page.leave(),
    key: (event) => page.key(event),
  };
}

function groupAddress(episode) {
  return { run: episode.run, update: episode.update, group: episode.group };
}

class EpisodePage {
  constructor(episode, query, go) {
    this.episode = episode;
    this.decisions = episode.decisions;
    this.go = go;
    this.rate = 4;
    this.timer = this.addressTimer = null;
    this.stopWidth = () => {};
    this.screen = new Screen(episode);
    const [step, turn] = [Number(query.get("step") ?? 0), Number(query.get("turn") ?? 0)];
    this.cursor = this.decisions.length ? cursors.cursorOf(this.decisions, step, turn) : null;
    this.build();
  }

  build() {
    const { episode } = this;
    this.strip = el("div", { class: "slider", role: "slider", tabindex: "0", "aria-label": "Timeline of the episode", "aria-valuemin": 0, "aria-valuemax": episode.steps });
    this.strip.addEventListener("pointerdown", (event) => this.scrub(event, true));
    this.strip.addEventListener("pointermove", (event) => this.scrub(event, false));
    this.caption = el("p", { class: "caption", "aria-live": "polite" });
    this.panel = el("div", { class: "decision-box" });
    this.prompt = el("div", {});
    this.playButton = el("button", { type: "button", class: "play", "aria-label": "Play", onclick: () => this.play() }, icon("play"));
    const withAdvantage = this.decisions.some((one) => one.advantage !== null);
    const timeline = this.cursor
      ? el("section", { class: "panel", "aria-label": "Timeline" }, this.strip, el("div", { class: "under" }, legend(withAdvantage), episode.rewards_note ? el("p", { class: "note" }, `${episode.rewards_note}.`) : null))
      : el("p", { class: "empty" }, `No decision was made: ${episode.cause || episode.status}.`);
    const picture = el("section", { class: "panel view", "aria-label": "The world" }, this.screen.node, this.cursor && this.controls(), this.caption);
    this.nodes = [this.heading(), timeline, el("div", { class: "desk" }, picture, this.panel), this.prompt, factsPanel(episode)];
  }

  heading() {
    const { episode } = this;
    const stat = (name, value) => el("span", { class: "stat" }, el("b", {}, value), ` ${name}`);
    const at = episode.siblings.findIndex((one) => one.episode_id === episode.episode_id);
    const sibling = (by, text, label) => {
      const other = at >= 0 ? episode.siblings[at + by] : null;
      return other ? link({ episode: other.episode_id }, { class: "sibling", title: label }, text) : null;
    };
    return el(
      "div",
      { class: "heading" },
      el("h1", { title: episode.episode_id }, shortId(episode.episode_id)),
      el("p", {}, badge(episode.status), episode.superseded ? el("span", { class: "badge aborted" }, "superseded") : null),
      el("p", { class: "stats" }, stat("outcome", num(episode.outcome)), stat("return", num(episode.return)), stat("turns", this.decisions.length), stat("steps", episode.steps), stat("seed", episode.task.seed), el("span", { class: "stat" }, el("b", {}, episode.policy), episode.model && episode.model !== episode.policy ? ` ${episode.model}` : "")),
      el("p", { class: "siblings" }, sibling(-1, `[ #${episode.member - 1}`, "member before"), link(groupAddress(episode), {}, "group"), sibling(1, `#${episode.member + 1} ]`, "next member")),
    );
  }

  controls() {
    const button = (move, label) => el("button", { type: "button", "aria-label": label, title: label, onclick: () => this.move(move) }, icon(move));
    const rate = el("select", { "aria-label": "Steps a second", onchange: (event) => (this.rate = Number(event.target.value)) }, RATES.map((one) => el("option", { value: one, selected: one === this.rate }, `${one}/s`)));
    return el("div", { class: "controls", role: "group", "aria-label": "Playing" }, button("start", "To the beginning"), button("up", "The decision before"), button("back", "One step back"), this.playButton, button("on", "One step on"), button("down", "The next decision"), button("end", "To the end"), rate);
  }

  start() {
    if (!this.cursor) {
      this.screen.show(0);
      this.prompt.replaceChildren(promptPanel(this.episode, null));
      return;
    }
    const scale = scaleOf([this.decisions]);
    this.stopWidth = whenWide(this.strip, (width) => {
      const shown = this.decisions.map((one) => ({ ...one, steps: one.steps.length, failed: one.failure !== null, events: one.steps.flatMap((step, index) => step.events.map((name) => [index, name])) }));
      this.drawn = drawStrip(shown, { width, scale, lanes: width > 700 ? 4 : 3 });
      this.head = this.drawn.node.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
      this.head.setAttribute("class", "head");
      this.strip.replaceChildren(this.drawn.node);
      this.highlight();
    });
    this.render();
    this.strip.focus({ preventScroll: true });
  }

  stop() {
    this.pause();
    clearTimeout(this.addressTimer);
    this.stopWidth();
  }

  /** Before another page takes over: the place is remembered now, not in a moment. */
  leave() {
    if (this.addressTimer !== null) this.remember();
  }

  move(how) {
    const { decisions, cursor } = this;
    const places = {
      start: () => ({ index: 0, done: 0 }),
      end: () => cursors.last(decisions),
      on: () => cursors.onwards(decisions, cursor),
      back: () => cursors.back(decisions, cursor),
      up: () => cursors.decisionBy(decisions, cursor, -1),
      down: () => cursors.decisionBy(decisions, cursor, 1),
    };
    this.pause();
    this.set(places[how]());
  }

  set(cursor) {
    const changed = cursor.index !== this.cursor.index;
    this.cursor = cursor;
    this.render(changed);
    clearTimeout(this.addressTimer);
    this.addressTimer = setTimeout(() => this.remember(), ADDRESS_DELAY_MS); // browsers refuse a flood of addresses
  }

  remember() {
    clearTimeout(this.addressTimer);
    this.addressTimer = null;
    const step = cursors.stepAt(this.decisions, this.cursor);
    const plain = cursors.cursorOf(this.decisions, step, 0);
    const turn = plain.index === this.cursor.index ? null : this.cursor.index + 1;
    history.replaceState(null, "", address({ episode: this.episode.episode_id, step: step || null, turn }));
  }

  render(changed = true) {
    const decision = this.decisions[this.cursor.index];
    const step = cursors.stepAt(this.decisions, this.cursor);
    const shown = this.screen.show(step);
    this.highlight();
    this.panel.replaceChildren(decisionPanel(this.episode, decision, this.cursor.done, (done) => this.set({ index: this.cursor.index, done })));
    if (changed) this.prompt.replaceChildren(promptPanel(this.episode, decision, this.prompt.firstChild));
    this.caption.replaceChildren(...this.said(decision, step));
    return shown;
  }

  said(decision, step) {
    const action = decision.steps[this.cursor.done - 1];
    const after = action ? ["after ", el("b", {}, action.action)] : [decision.failure ? "nothing ran" : "what it was shown"];
    return [`step ${step} of ${this.episode.steps} · `, ...after];
  }

  highlight() {
    const decision = this.decisions[this.cursor.index];
    const step = cursors.stepAt(this.decisions, this.cursor);
    this.strip.setAttribute("aria-valuenow", step);
    this.strip.setAttribute("aria-valuetext", this.valueText(decision));
    if (!this.drawn) return;
    this.drawn.node.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.drawn.node.querySelector(`[data-turn="${decision.turn}"]`)?.setAttribute("aria-current", "true");
    const x = this.drawn.xOf(this.cursor.index, this.cursor.done / Math.max(1, decision.steps.length));
    this.head.setAttribute("d", `M${x} ${this.drawn.top - 12}V${this.drawn.height}m-4.5 ${12 - this.drawn.height + this.drawn.top - 19}h9l-4.5 7z`);
  }

  valueText(decision) {
    const done = decision.steps[this.cursor.done - 1];
    const events = decision.record.all.length ? `, ${decision.record.all.join(", ")}` : "";
    const reward = decision.reward === null ? "no reward" : `reward ${num(decision.reward)}`;
    return `decision ${decision.turn} of ${this.decisions.length}, ${done ? `after ${done.action}` : "before it acts"}, ${reward}${events}`;
  }

  scrub(event, begins) {
    if (!this.drawn || (begins ? event.button !== 0 : !this.strip.hasPointerCapture(event.pointerId))) return;
    if (begins) this.strip.setPointerCapture(event.pointerId);
    const { index, share } = this.drawn.decisionAt(event.clientX - this.strip.getBoundingClientRect().left);
    const done = Math.round(share * this.decisions[index].steps.length);
    this.pause();
    if (index !== this.cursor.index || done !== this.cursor.done) this.set({ index, done });
  }

  play() {
    if (this.timer !== null) return this.pause();
    const end = cursors.last(this.decisions);
    if (this.cursor.index === end.index && this.cursor.done === end.done) this.set({ index: 0, done: 0 });
    this.playButton.replaceChildren(icon("pause"));
    this.playButton.setAttribute("aria-label", "Pause");
    const tick = async () => {
      const next = cursors.onwards(this.decisions, this.cursor);
      if (next.index === this.cursor.index && next.done === this.cursor.done) return this.pause();
      this.set(next);
      this.timer = setTimeout(tick, 1000 / this.rate);
    };
    this.timer = setTimeout(tick, 1000 / this.rate);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.playButton.replaceChildren(icon("play"));
    this.playButton.setAttribute("aria-label", "Play");
  }

  /** Whether the key was one of ours. Arrows that scroll a text the reader has focused stay the text's. */
  key(event) {
    const target = event.target;
    if (event.key === "[" || event.key === "]") return this.sibling(event.key === "[" ? -1 : 1);
    if (event.key === "g") return this.go(address(groupAddress(this.episode))) ?? true;
    if (!this.cursor || target.closest("pre, summary, .scroll")) return false;
    const moves = { ArrowRight: event.shiftKey ? "down" : "on", ArrowLeft: event.shiftKey ? "up" : "back", ArrowDown: "down", ArrowUp: "up", Home: "start", End: "end" };
    if (event.key === " " && !target.closest("button, a")) this.play();
    else if (moves[event.key]) this.move(moves[event.key]);
    else return false;
    return true;
  }

  sibling(by) {
    const at = this.episode.siblings.findIndex((one) => one.episode_id === this.episode.episode_id);
    const other = at >= 0 ? this.episode.siblings[at + by] : null;
    if (other) this.go(address({ episode: other.episode_id }));
    return true;
  }
}

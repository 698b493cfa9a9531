// The picture of the current step: the newest one asked for wins, the next is fetched ahead, a sentence where none is.

import { el, encode } from "/viewer/static/dom.js";

export class Screen {
  constructor(episode) {
    this.episode = episode;
    this.node = el("div", { class: "screen" });
    this.wanted = null;
    this.shown = null;
    this.busy = false;
    this.refusedFrom = Infinity; // where a replay departs, all that follows does
    if (episode.picture.state !== "ready") this.say(episode.picture.note);
  }

  url(step) {
    return `/viewer/api/frame?${encode({ id: this.episode.episode_id, step, key: this.episode.picture.key })}`;
  }

  /** Show the world after `step` steps; resolves when it, or a later one, is there. */
  async show(step) {
    this.wanted = step;
    if (this.episode.picture.state !== "ready" || this.busy) return;
    this.busy = true;
    while (this.shown !== this.wanted) await this.load(this.wanted);
    this.busy = false;
    if (this.wanted < Math.min(this.episode.steps, this.refusedFrom - 1)) new Image().src = this.url(this.wanted + 1);
  }

  async load(step) {
    this.shown = step;
    if (step >= this.refusedFrom) return this.say(this.refusal);
    const image = el("img", { class: "world", src: this.url(step), alt: `The world after ${step} steps`, width: 432, height: 432, draggable: "false", "data-step": step });
    try {
      await image.decode();
      this.node.replaceChildren(image);
    } catch {
      const answer = await fetch(this.url(step)).catch(() => null);
      const body = answer && !answer.ok ? await answer.json().catch(() => null) : null;
      this.say(body?.error?.message ?? "the picture cannot be loaded");
      if (body?.error?.code === "no_picture") [this.refusedFrom, this.refusal] = [step, body.error.message];
    }
  }

  say(sentence) {
    const text = sentence.charAt(0).toUpperCase() + sentence.slice(1);
    this.node.replaceChildren(el("p", { class: "no-picture", role: "status" }, `${text}.`));
  }
}

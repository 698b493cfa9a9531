// What an episode's page says of the current decision, of its prompt, and of the episode as a whole.

import { count, el, num, signed } from "/viewer/static/dom.js";

/** The decision: what ran, what it earned, what it was shown, what the policy said. */
export function decisionPanel(episode, decision, done, ongo) {
  const shown = decision.observation === null ? null : episode.messages[decision.observation];
  return el(
    "section",
    { class: "panel decision-panel", "aria-label": "Decision" },
    el("header", {}, el("h2", {}, `Decision ${decision.turn}`, el("span", { class: "soft" }, ` of ${episode.decisions.length}`)), pills(decision)),
    executed(decision, done, ongo),
    record(decision.record),
    el(
      "div",
      { class: "talk" },
      el("div", {}, el("h3", {}, "Shown"), el("pre", { class: "text", tabindex: "0", "aria-label": "Observation text" }, shown ? shown.text : "(nothing)")),
      el("div", {}, el("h3", {}, "Said", numbers(decision)), said(decision)),
    ),
  );
}

function pills(decision) {
  const pill = (name, value) => el("span", { class: `pill ${value > 0 ? "gain" : value < 0 ? "loss" : ""}` }, `${name} `, el("b", {}, value === null ? "none" : signed(value, 3)));
  return el("p", { class: "pills" }, pill("reward", decision.reward), decision.advantage === null ? null : pill("advantage", decision.advantage));
}

function executed(decision, done, ongo) {
  if (decision.failure) {
    return el("p", { class: "failure", role: "status" }, el("b", {}, decision.failure.reason), ` · ${decision.failure.detail} · nothing ran`);
  }
  const chip = (index, ...content) => el("li", {}, el("button", { type: "button", class: "action", "aria-current": done === index ? "step" : null, onclick: () => ongo(index) }, ...content));
  return el(
    "ol",
    { class: "actions", "aria-label": "Executed actions" },
    chip(0, el("span", { class: "soft" }, "shown")),
    decision.steps.map((step, index) =>
      chip(
        index + 1,
        el("span", {}, step.action),
        step.reward ? el("span", { class: `own ${step.reward < 0 ? "loss" : "gain"}`, title: "the step's own reward" }, signed(step.reward)) : null,
        step.events.map((name) => el("span", { class: "happened" }, name)),
      ),
    ),
  );
}

function record(record) {
  const list = (names) => (names.length ? names.join(", ") : "none");
  return el(
    "dl",
    { class: "record", "aria-label": "Decision record" },
    [["turn", record.turn], ["ach_delta", record.ach_delta], ["unique_delta", record.unique_delta], ["all", list(record.all)], ["unique", list(record.unique)]].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    record.stored ? null : el("div", {}, el("dd", { class: "soft" }, "no record stored under these flags; told from the events")),
  );
}

function said(decision) {
  const { text, calls, finish_reason: reason } = decision.said;
  return el(
    "div",
    { class: "said" },
    text ? el("pre", { class: "text", tabindex: "0", "aria-label": "What the policy said" }, text) : null,
    calls.map((call) => el("div", { class: "call" }, el("span", { class: "name" }, call.name || "(no name)"), el("pre", { class: "arguments", tabindex: "0", "aria-label": "Raw arguments" }, call.arguments || "(no arguments)"))),
    !text && !calls.length ? el("p", { class: "soft" }, "(nothing)") : null,
    reason === "stop" || reason === "tool_calls" ? null : el("p", { class: "note" }, `stopped because of: ${reason}`),
  );
}

function numbers(decision) {
  const parts = [];
  if (decision.prompt_tokens !== null) parts.push(`${decision.prompt_tokens.toLocaleString("en")} tokens in`);
  if (decision.completion_tokens !== null) parts.push(`${decision.completion_tokens.toLocaleString("en")} out`);
  if (decision.latency_s >= 0.0005) parts.push(decision.latency_s < 1 ? `${Math.round(decision.latency_s * 1000)} ms` : `${num(decision.latency_s)} s`);
  return parts.length ? el("span", { class: "soft small" }, parts.join(" · ")) : null;
}

/** The prompt, folded; whether it was open before is kept. */
export function promptPanel(episode, decision, before) {
  const messages = (decision?.prompt ?? []).map((index) => episode.messages[index]);
  return el(
    "details",
    { class: "panel fold", open: before?.open ?? false },
    el("summary", {}, "Prompt ", el("span", { class: "soft" }, `${count(messages.length, "message")} · ${count(episode.tools.length, "tool")} · hash ${episode.prompt_hash}`)),
    messages.map((message) => el("div", {}, el("h3", {}, message.role), el("pre", { class: "text", tabindex: "0" }, message.text))),
    episode.tools.length ? el("div", {}, el("h3", {}, "tools"), el("pre", { class: "text", tabindex: "0" }, JSON.stringify(episode.tools, null, 2))) : null,
  );
}

/** Everything that is true of the whole episode. */
export function factsPanel(episode) {
  const { task, flags } = episode;
  const rewarding = flags.mode === "decision_stepwise" ? `${flags.mode}, ${flags.kind}, lambda ${num(flags.indicator_lambda, 4)}, beta ${num(flags.beta, 4)}, horizon ${flags.horizon}` : flags.mode;
  const facts = [
    ["episode", episode.episode_id],
    ["run", episode.run],
    ["task", `${task.app} ${task.version}, seed ${task.seed}`],
    ["options", JSON.stringify(task.options)],
    ["policy", [episode.policy, episode.policy_version && `version ${episode.policy_version}`, episode.model, episode.provider].filter(Boolean).join(" · ")],
    ["status", [episode.status, episode.cause, episode.terminated && "the world ended it", episode.truncated && "a limit ended it"].filter(Boolean).join(" · ")],
    ["outcome", num(episode.outcome, 4)],
    ["return", `${num(episode.return, 4)} (Σ r)`],
    ["environment return", num(episode.environment_return, 4)],
    ["Σ ach_delta, Σ unique_delta", `${episode.ach_delta}, ${episode.unique_delta}`],
    ["step rewards", rewarding],
    ["turn limit", episode.max_decisions],
    ["unreadable answers", episode.parse_failures],
    ["tokens in, out", episode.prompt_tokens === null ? "–" : `${episode.prompt_tokens.toLocaleString("en")}, ${(episode.completion_tokens ?? 0).toLocaleString("en")}`],
    ["waited for the policy", `${num(episode.latency_s)} s`],
    ["started", new Date(episode.started_at * 1000).toISOString()],
    ["prompt hash", episode.prompt_hash],
  ];
  return el(
    "details",
    { class: "panel fold facts" },
    el("summary", {}, "Facts ", el("span", { class: "soft" }, `${task.app} ${task.version} · ${rewarding}`)),
    el("dl", {}, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    el("p", { class: "verify" }, "Verify with ", el("code", {}, episode.verify)),
  );
}

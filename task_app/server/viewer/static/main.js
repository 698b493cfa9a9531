// Which page an address stands for, links without loading anew, and the trail at the top.

import { el, link } from "/viewer/static/dom.js";
import { episodePage } from "/viewer/static/episode.js";
import { groupPage } from "/viewer/static/group.js";
import { episodesPage, runsPage } from "/viewer/static/lists.js";

const main = document.getElementById("page");
const trail = document.getElementById("trail");
let current = {};
let loading = new AbortController();

/** The page of an address: a function of (parameters, context) that gives {title, trail, nodes, …}. */
function pageOf(query) {
  if (query.has("episode")) return episodePage;
  if (query.has("run") && query.has("group")) return groupPage;
  if (query.has("run") || query.has("view")) return episodesPage;
  return runsPage;
}

async function show({ fresh = true } = {}) {
  loading.abort();
  loading = new AbortController();
  current.stop?.(); // at once: a page that is left must not write its place over the next one's address
  current = {};
  const { signal } = loading;
  const query = new URLSearchParams(location.search);
  main.setAttribute("aria-busy", "true");
  let page;
  try {
    page = await pageOf(query)(query, { signal, go });
  } catch (error) {
    if (signal.aborted) return;
    page = failure(error);
  }
  if (signal.aborted) return;
  current = page;
  document.title = `${page.title} · traces`;
  trail.replaceChildren(...crumbs(page.trail));
  main.replaceChildren(...page.nodes);
  main.removeAttribute("aria-busy");
  if (fresh) {
    window.scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  page.start?.();
}

function failure(error) {
  const text = error.message || "the page cannot be shown";
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return {
    title: "Not found",
    trail: [],
    nodes: [el("h1", {}, "Nothing to show"), el("p", { class: "empty", role: "alert" }, `${sentence}.`)],
  };
}

function crumbs(steps) {
  const all = [[{}, "Runs"], ...steps];
  return all.map(([where, text], index) =>
    index === all.length - 1
      ? el("span", { class: "crumb", "aria-current": "page" }, text)
      : link(where, { class: "crumb" }, text),
  );
}

/** Go to an address of ours; `replace` leaves no entry to come back to. */
export function go(href, { replace = false } = {}) {
  current.leave?.();
  history[replace ? "replaceState" : "pushState"](null, "", href);
  show({ fresh: !replace });
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!anchor || !plain || event.defaultPrevented || anchor.target) return;
  const url = new URL(anchor.href);
  if (url.origin !== location.origin || url.pathname !== "/viewer" || url.hash) return;
  event.preventDefault();
  go(url.pathname + url.search);
});

const help = document.getElementById("help");
document.getElementById("keys").addEventListener("click", () => help.showModal());

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") help.showModal();
  else if (!current.key?.(event)) return;
  event.preventDefault();
});

window.addEventListener("popstate", () => show());
show();

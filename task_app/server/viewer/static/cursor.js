// Where one is in an episode: a decision, and how many of its actions have run. Pure functions over the decisions.
//
// A cursor is {index, done}: `index` counts decisions from 0; `done` 0 is what the decision was shown, before
// anything ran. A decision that ran nothing (an unreadable answer) has that one place only.

/** How many steps of the episode have run at a cursor; the number of its picture. */
export function stepAt(decisions, cursor) {
  return decisions[cursor.index].first_step + cursor.done;
}

/** The cursor of an address: after `step` steps, in the decision `turn` if one is named and it is there then. */
export function cursorOf(decisions, step, turn) {
  const named = decisions[turn - 1];
  if (named && step >= named.first_step && step <= named.first_step + named.steps.length) {
    return { index: turn - 1, done: step - named.first_step };
  }
  const index = decisions.findIndex((one) => one.first_step < step && step <= one.first_step + one.steps.length);
  if (index >= 0) return { index, done: step - decisions[index].first_step };
  return step > 0 ? last(decisions) : { index: 0, done: 0 };
}

export function last(decisions) {
  const index = decisions.length - 1;
  return { index, done: decisions[index].steps.length };
}

/** One step on; from a decision's last action to the first of the next one. */
export function onwards(decisions, { index, done }) {
  if (done < decisions[index].steps.length) return { index, done: done + 1 };
  if (index + 1 === decisions.length) return { index, done };
  return { index: index + 1, done: Math.min(1, decisions[index + 1].steps.length) };
}

/** One step back; the very first place is what the first decision was shown. */
export function back(decisions, { index, done }) {
  if (done > 1) return { index, done: done - 1 };
  if (index === 0) return { index: 0, done: 0 };
  return { index: index - 1, done: decisions[index - 1].steps.length };
}

/** What the decision `by` further on was shown. */
export function decisionBy(decisions, { index }, by) {
  return { index: Math.min(decisions.length - 1, Math.max(0, index + by)), done: 0 };
}

// The first thing to read: is it healthy, and if not, what does it wait for?

import { byId, made, say, show } from "./dom.js";
import { at, age, plural } from "./words.js";

const WORDS = { healthy: "Healthy", waiting: "Waiting", stuck: "Stuck", down: "Down" };
const SIGNS = { healthy: "✓", waiting: "…", stuck: "!", down: "✕" }; // colour is never alone
const TELL_MS = 4000; // a screen reader is told of changes, not of every figure

let told = "";
let toldAt = 0;

export function showVerdict(event, linked) {
  const state = event?.state ?? null;
  const verdict = linked && state ? state.verdict : "none";
  document.body.dataset.verdict = verdict;
  const word = !linked ? "No connection" : (WORDS[verdict] ?? (event.feed === null ? "No feed yet" : "Not known"));
  say(byId("verdict-word"), word);
  say(byId("verdict-sign"), SIGNS[verdict] ?? "?");
  document.title = `${word}${state ? `: ${state.feed}` : ""} – Penstock`;

  const sentences = explanation(event, linked);
  // One paragraph; its first sentence is to be read from afar.
  say(byId("lead"), sentences[0] ?? "");
  say(byId("rest"), sentences.length > 1 ? ` ${sentences.slice(1).join(" ")}` : "");
  const advice = linked && state ? state.advice : [];
  const list = byId("advice");
  if (list.dataset.words !== advice.join("\n")) {
    list.dataset.words = advice.join("\n");
    list.replaceChildren(...advice.map((one) => made("li", { textContent: one })));
  }
  show(list, advice.length > 0);
  say(byId("problem"), event?.problem ?? "");
  show(byId("problem"), Boolean(event?.problem) && state !== null);
  say(byId("where"), state ? where(event) : "");
  tell(verdict, word, sentences);
}

function explanation(event, linked) {
  if (!linked) {
    const since = event === null ? "" : ` What is below is of ${at(event.now)}.`;
    return [`The page has lost the process that serves it: it has ended, or cannot be reached.${since}`];
  }
  if (event.state) return event.state.explanation;
  if (event.problem) return [event.problem];
  return [`No feed has said anything yet in ${event.places.join(", ")}. One that starts is shown here by itself.`];
}

function where({ state, alive, now }) {
  const kind = state.consumer?.kind === "spark" ? "Spark" : "penstock shuffle";
  const what = [...new Set(state.bindings.map((one) => one.collection))].join(", ");
  const life = alive ? `running for ${age(now - state.started)}` : `last heard at ${at(state.written)}`;
  return `${what || state.feed} to ${kind}, ${state.members.length ? `${plural(state.members.length, "member")}, ` : ""}process ${state.process} on ${state.host}, ${life}`;
}

function tell(verdict, word, sentences) {
  const now = performance.now();
  const first = sentences[0] ?? "";
  const changed = verdict !== told.split("\n")[0];
  if (!changed && (verdict === "healthy" || now - toldAt < TELL_MS || shape(first) === shape(told.split("\n")[1] ?? ""))) return;
  told = `${verdict}\n${first}`;
  toldAt = now;
  say(byId("told"), `${word}. ${sentences.join(" ")}`);
}

// A sentence without its figures: whether something else is said, or the same of a later moment.
const shape = (sentence) => sentence.replace(/[\d.,:]+/g, "#");

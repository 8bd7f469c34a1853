// What is read as a list: waits, transactions, vnodes, disk, restarts, aborts.

import { askToAbort } from "./abort.js";
import { byId, fillCard, fillRows, made, say, show } from "./dom.js";
import { age, at, bytesWords, count, inKafka, journalWord, plural, seconds } from "./words.js";

const JOURNALS_MAX = 3;
const HELD_SECONDS = 2; // a commit that is carried out is over sooner, and no reason to look
let latest = null;

export function showWaits(state, now) {
  fillCard(
    byId("waits"),
    state.waits,
    (wait) => `${wait.kind} ${wait.who}`,
    (wait) => [
      { for: `${wait.kind} ${wait.is_stall}`, make: () => made("span", { className: `tag ${wait.is_stall ? "stuck" : "soft"}`, textContent: wait.kind.replaceAll("_", " ") }) },
      wait.who,
      { text: age(now - wait.since), class: "n" },
      wait.text,
    ],
    (wait) => (wait.is_stall ? "stall" : ""),
  );
}

export function showJournals(state) {
  const { count: all, shown } = state.journals;
  const word = journalWord(state);
  say(byId("journals-title"), word === "partition" ? "Partitions" : "Journals");
  fillCard(
    byId("journals"),
    shown,
    (one) => `${one.journal} ${one.binding}`,
    (one) => [
      { text: one.journal, class: "id" },
      { text: count(one.rows_behind), class: "n" },
      { text: count(one.rows_per_second), class: "n" },
      { text: one.clock === null ? "none yet" : `${age(state.written - one.clock)} ago`, class: "n" },
      { text: count(one.offset), class: "n" },
      { text: count(one.head), class: "n" },
      { text: `member ${one.member}`, class: "n" },
    ],
  );
  say(byId("journals-more"), `${plural(all - shown.length, `other ${word}`)} less far behind.`);
  show(byId("journals-more"), all > shown.length);
}

export function showTransactions(event) {
  latest = event;
  const { state, now } = event;
  const { count: all, shown } = state.transactions;
  const held = (one) => one.holds_up && now - one.since > HELD_SECONDS;
  fillCard(
    byId("transactions"),
    shown,
    (one) => `${one.producer} ${one.cohort}`,
    (one) => [
      { text: one.producer, class: "id" },
      { text: age(now - one.since), class: "n" },
      journals(one.touched),
      one.awaited.length ? `${journals(one.awaited)}${one.hinted_by ? `, hinted by ${one.hinted_by}` : ""}` : "–",
      { text: count(one.rows), class: "n" },
      { text: bytesWords(one.bytes), class: "n" },
      { for: `${one.holds_up} ${held(one)}`, make: () => (one.holds_up ? made("span", { className: `tag ${held(one) ? "stuck" : "soft"}`, textContent: "holds up" }) : made("span", { textContent: "nothing" })) },
      { for: one.producer, make: () => abortButton(one.producer), class: "n" },
    ],
    (one) => (held(one) ? "stall" : ""),
  );
  say(byId("transactions-more"), `${plural(all - shown.length, "younger one")} more.`);
  show(byId("transactions-more"), all > shown.length);
}

function journals(names) {
  if (!names.length) return "–";
  const more = names.length - JOURNALS_MAX;
  return names.slice(0, JOURNALS_MAX).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function abortButton(producer) {
  const button = made("button", { type: "button", className: "row-action", textContent: "Abort…" });
  button.setAttribute("aria-label", `Abort the transaction of producer ${producer}`);
  button.addEventListener("click", () => {
    const parts = latest.state.transactions.shown.filter((other) => other.producer === producer);
    if (parts.length) askToAbort(parts.reduce(together), latest.feed, latest.state);
  });
  return button;
}

// A transaction in several cohorts is one: it is aborted in all of them.
function together(one, other) {
  const both = (a, b) => [...new Set([...a, ...b])];
  const sum = (a, b) => (a === null || b === null ? null : a + b);
  return {
    ...one,
    since: Math.min(one.since, other.since),
    touched: both(one.touched, other.touched),
    awaited: both(one.awaited, other.awaited),
    hinted_by: one.hinted_by ?? other.hinted_by,
    rows: sum(one.rows, other.rows),
    bytes: sum(one.bytes, other.bytes),
  };
}

export function showVnodes(state) {
  const map = byId("vnode-map");
  state.vnodes.forEach((member, vnode) => {
    const cell = map.children[vnode] ?? map.appendChild(document.createElement("i"));
    const group = String(member % 8);
    if (cell.dataset.member !== group) cell.dataset.member = group;
    cell.title = `vnode ${vnode}: member ${member}`;
  });
  while (map.children.length > state.vnodes.length) map.lastChild.remove();
  fillRows(
    byId("vnode-table").tBodies[0],
    state.members,
    (member) => member.member,
    (member) => [
      { for: String(member.member), make: () => made("span", {}, made("span", { className: "swatch", data: { member: String(member.member % 8) }, "aria-hidden": "true" }), String(member.member)) },
      { text: count(member.vnodes), class: "n" },
      { text: count(member.queue?.rows_per_second), class: "n" },
    ],
  );
}

export function showDisk(state) {
  fillRows(
    byId("disk-table").tBodies[0],
    state.members.filter((member) => member.queue),
    (member) => member.member,
    (member) => {
      const disk = member.queue.disk;
      const share = Math.min(disk.size_bytes / disk.limit_bytes, 1);
      const level = disk.is_pressed || disk.overdrawn_bytes ? "hot" : share > 0.75 ? "warm" : "calm";
      const word = disk.overdrawn_bytes ? `over by ${bytesWords(disk.overdrawn_bytes)}` : disk.is_pressed ? "holds up" : "";
      return [
        `Member ${member.member}`,
        {
          for: "fill",
          make: () => made("div", {}, made("span"), made("div", { className: "fill" }, document.createElement("i"))),
          update: (place) => {
            const [words, fill] = place.firstChild.children;
            say(words, `${bytesWords(disk.size_bytes)} (${Math.round(share * 100)} %)`);
            fill.dataset.level = level;
            fill.firstChild.style.width = `${share * 100}%`;
          },
        },
        { text: bytesWords(disk.limit_bytes), class: "n" },
        { for: word, make: () => (word ? made("span", { className: "tag stuck", textContent: word }) : document.createTextNode("")) },
      ];
    },
  );
}

export function showRecovery(state) {
  const recovery = state.recovery;
  show(byId("recovery"), recovery !== null);
  if (recovery === null) return;
  const left = recovery.seconds_left === null ? "" : `; about ${age(recovery.seconds_left)} left`;
  say(byId("recovery-words"), `What was lost is read again: ${count(recovery.rows_done)} of ${count(recovery.rows_total)} rows${left}.`);
  byId("recovery-bar").max = Math.max(recovery.rows_total, 1);
  byId("recovery-bar").value = recovery.rows_done;
}

export function showRestarts(state) {
  fillCard(
    byId("restarts"),
    state.restarts.events.toReversed(),
    (event) => event.at,
    (event) => [at(event.at), event.reason, { text: event.recovered === null ? "not yet" : seconds(event.recovered - event.at), class: "n" }],
  );
}

export function showAborts(aborts, state) {
  say(byId("aborts").querySelector(".none"), inKafka(state) ? "Kafka keeps no record of these." : "No transaction of this store was aborted by hand.");
  fillCard(
    byId("aborts"),
    aborts,
    (abort) => abort.producer,
    (abort) => [at(abort.at), { text: abort.producer, class: "id" }, abort.by, abort.outcome ?? "left to recovery"],
  );
}

// Aborting a transaction: it is named what will be lost, and a word has to be typed.

import { byId, fillPairs, say, show } from "./dom.js";
import { age, bytesWords, count, inKafka, journalWord } from "./words.js";

const dialog = byId("abort");
const typed = byId("abort-typed");
const yes = byId("abort-yes");
let about = null;

export function askToAbort(transaction, feed, state) {
  const there = inKafka(state);
  about = { transaction, feed };
  const rows = transaction.rows === null ? "all its rows" : `${count(transaction.rows)} rows (${bytesWords(transaction.bytes)})`;
  const fenced = there ? `Producer ${transaction.producer} is fenced until it begins anew.` : `Producer ${transaction.producer} is fenced, alive or not: it can never write again.`;
  say(byId("abort-words"), transaction.awaited.length
    ? `${fenced} Its commit was decided, for another journal has it: it is carried out in its place, and nothing is lost.`
    : `${fenced} Its open transaction is rolled back in every ${journalWord(state)}, and ${rows} are lost.`);
  say(byId("abort-command"), `penstock abort ${quoted(transaction.producer)} --store ${state.store}`);
  show(byId("abort-here"), !there);
  show(byId("abort-there"), there);
  show(yes, !there);
  fillPairs(byId("abort-facts"), [
    ["Producer", transaction.producer],
    ["Open for", age(Date.now() / 1000 - transaction.since)],
    ["Touched", transaction.touched.join(", ") || "not known"],
    ["Awaited in", transaction.awaited.join(", ") || null],
    ["Hinted by", transaction.hinted_by],
  ]);
  typed.value = "";
  yes.disabled = true;
  show(byId("abort-answer"), false);
  dialog.showModal();
  (there ? byId("abort-command") : typed).focus();
}

// As a shell takes it for one word, whatever is in it.
const quoted = (text) => (/^[\w.:@%+=/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const isTyped = () => typed.value.trim().toLowerCase() === "abort";

async function abort() {
  if (!isTyped() || about === null) return;
  yes.disabled = true;
  const { transaction, feed } = about;
  let answer;
  try {
    const response = await fetch(`/abort?feed=${encodeURIComponent(feed)}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      // Which one was seen: the producer may have opened another since.
      body: JSON.stringify({ producer: transaction.producer, confirm: "abort", journals: [...new Set([...transaction.touched, ...transaction.awaited])], since: transaction.since }),
    });
    answer = response.ok ? null : (await response.text()).trim();
  } catch (error) {
    answer = `The server did not answer: ${error.message}`;
  }
  if (answer === null) {
    dialog.close();
    return;
  }
  say(byId("abort-answer"), answer);
  show(byId("abort-answer"), true);
  yes.disabled = !isTyped();
}

typed.addEventListener("input", () => {
  yes.disabled = !isTyped();
});
dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  abort();
});
yes.addEventListener("click", abort);
byId("abort-no").addEventListener("click", () => dialog.close());

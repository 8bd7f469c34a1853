// Figures as people read them. What is not known is a dash, never a nought.

const DASH = "–";

export function count(value) {
  if (value === null || value === undefined) return DASH;
  return Math.round(value).toLocaleString("en-GB");
}

// A short form for large figures: [figure, unit].
export function short(value) {
  if (value === null || value === undefined) return [DASH, ""];
  const size = Math.abs(value);
  if (size >= 1e9) return [(value / 1e9).toFixed(size >= 1e10 ? 1 : 2), "bn"];
  if (size >= 1e6) return [(value / 1e6).toFixed(size >= 1e7 ? 1 : 2), "m"];
  if (size >= 1e5) return [(value / 1e3).toFixed(0), "k"];
  if (size >= 1e4) return [(value / 1e3).toFixed(1), "k"];
  return [count(value), ""];
}

export const shortWords = (value) => short(value).join("");

export function bytes(value) {
  if (value === null || value === undefined) return [DASH, ""];
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  let rest = value;
  while (Math.abs(rest) >= 1024 && index < units.length - 1) {
    rest /= 1024;
    index += 1;
  }
  return [index === 0 || rest >= 100 ? rest.toFixed(0) : rest.toFixed(1), units[index]];
}

export const bytesWords = (value) => bytes(value).join(" ");

export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  const size = Math.max(value, 0);
  if (size < 0.9995) return `${Math.round(size * 1000)} ms`;
  if (size < 60) return `${size.toFixed(1)} s`;
  return age(size);
}

// Whole seconds: it is shown twice a second and should not flicker.
export function age(value) {
  if (value === null || value === undefined) return DASH;
  const whole = Math.max(Math.floor(value), 0);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

export function at(value) {
  if (value === null || value === undefined) return DASH;
  const date = new Date(value * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-GB")} ${time}`;
}

export function percent(value) {
  return value === null || value === undefined ? DASH : `${Math.round(value * 100)} %`;
}

// What a feed reads: journals of ours, or partitions of Kafka's topics.
export const inKafka = (state) => state.store.startsWith("kafka://");
export const journalWord = (state) => (inKafka(state) ? "partition" : "journal");

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// Numbers and times in words. A dash is what is not known.

export const DASH = "–";

export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 120) return `${value.toFixed(value < 1 ? 2 : value < 100 ? 1 : 0)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 120) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} days`;
}

export function speed(value) {
  return value === null || value === undefined ? DASH : value.toFixed(value < 100 ? 1 : 0);
}

export function percent(value) {
  return value === null || value === undefined ? DASH : `${Math.round(100 * value)}%`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

export function clock(moment) {
  return new Date(moment).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

export function cut(text, length) {
  return text.length <= length ? text : `${text.slice(0, Math.max(1, length - 1))}…`;
}

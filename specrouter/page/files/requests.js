// The requests of now, and those that ended last.

import { byId, el, renewed, table } from "./dom.js";
import { DASH, clock, cut, percent, plural, seconds, speed } from "./words.js";

const SHOWN = 40;
const LONGEST = 80; // characters of a name
const HEADS = ["Time", "Route", "Server", "Decoding", "Tokens", "First", "tok/s", "Accepted", "Status"];

// Tells a request from all others. Its id alone does not: a client chooses it.
export function keyOf(record) {
  return `${record.started} ${record.request_id}`;
}

export function showRequests(status) {
  const current = [...status.current].reverse();
  const shown = [...current.map((record) => [record, true]), ...status.recent.map((record) => [record, false])].slice(0, SHOWN);
  const state = shown.map(([record, runs]) => (runs ? [keyOf(record), record.confirmed, Math.floor(record.duration)] : keyOf(record)));
  renewed(byId("request-table"), state, () =>
    shown.length
      ? table("Requests, the latest first", HEADS, shown.map(([record, runs]) => cells(record, runs)))
      : el("p", { class: "muted empty" }, "No request yet. Ask something in the playground."),
  );
}

function cells(record, runs) {
  const { draft_n: drafted, draft_n_accepted: accepted } = record;
  return [
    el("time", { datetime: record.started }, clock(record.started)),
    named(record.model ?? record.route ?? `${record.method} ${record.path}`),
    record.server ?? DASH,
    [
      el("span", { class: record.decoding === "plain" || record.decoding === null ? "how" : "how drafts" }, record.decoding ?? DASH),
      ...oddities(record).map((text) => el("span", { class: "why" }, text)),
    ],
    record.tokens === null ? DASH : String(record.tokens),
    seconds(record.first_token),
    record.seconds_per_token ? speed(1 / record.seconds_per_token) : DASH,
    drafted ? [`${accepted} / ${drafted} `, el("span", { class: "muted" }, percent(accepted / drafted))] : DASH,
    runs ? el("span", { class: "running" }, `▸ ${seconds(record.duration)}`) : ending(record),
  ];
}

// Clients choose what they ask for, and must not push everything else out of sight.
function named(name) {
  return el("span", { class: "named", title: name }, cut(name, LONGEST));
}

function oddities(record) {
  const found = [record.reason, record.ended_early && `drafting ended: ${record.ended_early}`];
  if (record.stood_down) found.push("drafting stood down");
  if (record.takeovers) found.push(`took over from ${plural(record.takeovers, "target")}`);
  if (record.queued > 0.05) found.push(`queued ${seconds(record.queued)}`);
  return found.filter(Boolean);
}

function ending(record) {
  if (record.client_left) return el("span", { class: "muted" }, "client left");
  const failed = record.error_code !== null || (record.status ?? 0) >= 400 || !record.is_complete;
  return failed ? el("b", { class: "bad" }, `✕ ${record.error_code ?? record.status ?? "incomplete"}`) : String(record.status);
}

// A card for each route: how it does now, and the speed and acceptance of its requests over the last minutes.

import { byId, el, renewed, svg } from "./dom.js";
import { keyOf } from "./requests.js";
import { isDrafting, obstacleOf } from "./topology.js";
import { DASH, percent, plural, seconds, speed } from "./words.js";

const MINUTES = 10;
const KEPT_MS = MINUTES * 60000;

const MOST = 200; // requests of a route; more than the router tells at once, or one would be seen twice

const seen = new Map(); // by route: what was told of requests that ended, also of those the router has forgotten

export function showRoutes(status) {
  remember(status);
  const now = Date.parse(status.time);
  const cards = status.routes.map((route) => {
    return { route, points: [...(seen.get(route.name)?.values() ?? [])] };
  });
  // The time axis moves every five seconds: by less there is nothing to see.
  renewed(byId("route-cards"), [cards, Math.floor(now / 5000)], () => cards.map((one) => card(one, now)));
}

function remember(status) {
  for (const record of [...status.recent].reverse()) {
    if (record.route === null) continue;
    if (!seen.has(record.route)) seen.set(record.route, new Map());
    const points = seen.get(record.route);
    const key = keyOf(record);
    if (points.has(key)) continue;
    points.set(key, {
      at: Date.parse(record.started) + 1000 * record.duration,
      speed: record.seconds_per_token ? 1 / record.seconds_per_token : null,
      acceptance: record.draft_n ? record.draft_n_accepted / record.draft_n : null,
      plain: record.decoding === "plain",
      stoodDown: (record.stood_down ?? 0) > 0 || record.reason_class === "stood_down",
    });
  }
  const oldest = Date.parse(status.time) - KEPT_MS;
  for (const points of seen.values()) {
    for (const [key, one] of points) if (one.at < oldest || points.size > MOST) points.delete(key);
  }
}

function card({ route, points }, now) {
  const drafted = Object.entries(route.lately.speed).filter(([name]) => name !== "plain");
  const stood = points.filter((one) => one.stoodDown).length;
  return el(
    "article",
    { class: "card route", "data-route": route.name, "aria-label": `Route ${route.name}` },
    el("h3", {}, route.name, ...route.aliases.map((name) => el("span", { class: "alias" }, name))),
    el("p", { class: "state" }, ...stateOf(route)),
    el(
      "dl",
      { class: "figures" },
      ...drafted.map(([name, value]) => figure(name, speed(value), "tok/s")),
      figure("plain", speed(route.lately.speed.plain), "tok/s"),
      route.draft === null ? null : figure("accepted", percent(route.lately.acceptance_rate)),
      route.draft === null ? null : figure("length", speed(route.lately.acceptance_length)),
      figure("first token", seconds(route.lately.first_token)),
      figure("running · queue", `${route.running} · ${route.waiting}`),
      stood ? figure("stood down", `${stood}×`) : null,
      route.lately.failed ? figure("failed", `${route.lately.failed} of ${route.lately.requests}`) : null,
    ),
    el("div", { class: "sparks" }, spark("tok/s", points, "speed", now), route.draft === null ? null : spark("accepted", points, "acceptance", now)),
  );
}

function stateOf(route) {
  if (route.served_by === null) return [el("b", { class: "bad" }, "✕ no target is up")];
  if (route.draft === null) return [`answered by ${route.served_by}, no drafts declared`];
  const from = [route.draft.strategy, ...route.draft.servers].join(" ");
  if (isDrafting(route)) return [`answered by ${route.served_by}, drafts: ${from}`];
  return [el("b", { class: "warn" }, "▲ does not draft: "), obstacleOf(route) ?? DASH];
}

function figure(name, value, unit) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, unit && value !== DASH ? el("small", {}, ` ${unit}`) : null));
}

const [WIDTH, HEIGHT] = [240, 44];

// Filled dots are answers with drafts, joined by a line; rings are plain ones.
function spark(name, points, key, now) {
  const known = points.filter((one) => one[key] !== null).sort((a, b) => a.at - b.at);
  const top = key === "acceptance" ? 1 : Math.max(1, ...known.map((one) => one[key])) * 1.1;
  const x = (one) => WIDTH - 5 - ((now - one.at) / KEPT_MS) * (WIDTH - 10);
  const y = (one) => HEIGHT - 5 - (one[key] / top) * (HEIGHT - 10);
  const last = known.at(-1);
  const said = last === undefined ? "nothing yet" : `last ${key === "speed" ? `${speed(last.speed)} tok/s` : percent(last.acceptance)}`;
  const line = known.filter((one) => !one.plain);
  return el(
    "figure",
    {},
    svg(
      "svg",
      { class: "spark", role: "img", "aria-label": `${name}, last ${MINUTES} minutes: ${plural(known.length, "answer")}, ${said}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}` },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
      line.length > 1 ? svg("path", { class: "trace", d: `M${line.map((one) => `${x(one).toFixed(1)} ${y(one).toFixed(1)}`).join("L")}` }) : null,
      known.map((one) => svg("circle", { class: one.plain ? "dot plain" : "dot", cx: x(one).toFixed(1), cy: y(one).toFixed(1), r: 2.5 })),
    ),
    el("figcaption", {}, `${name}, ${MINUTES} min`),
  );
}

// Draws a topology, and says the same as a table and a list.

import { byId, el, renewed, svg, table } from "./dom.js";
import { modelOf } from "./topology.js";
import { DASH, cut, plural } from "./words.js";

const ROW = 66;
const BOX = 46;
const TOP = 34;
const AROUND = 44; // what an edge takes that goes around the last column

export function showTopology(status, width) {
  const model = modelOf(status);
  renewed(byId("picture"), [model, width], () => drawn(model, width));
  renewed(byId("obstacles"), model.obstacles, () => model.obstacles.map(obstacle));
  // Without what changes each second: a reader would lose its place.
  const state = [status.routes.map(({ lately, ...rest }) => rest), status.servers];
  renewed(byId("topology-table"), state, () => [routeTable(status.routes), serverTable(status.servers)]);
}

function obstacle({ route, target, reason }) {
  return el("li", {}, el("strong", {}, route), target === null ? " does not draft: " : ` does not draft on ${target}: `, el("span", {}, reason));
}

function routeTable(routes) {
  return table("Routes", ["Route", "Targets", "Answers now", "Drafts", "In the way", "Running", "Waiting"], routes.map((route) => [
    [route.name, ...(route.aliases.length ? [` (${route.aliases.join(", ")})`] : [])],
    route.targets.join(", "),
    route.served_by ?? "nobody",
    route.draft === null ? "none declared" : [route.draft.strategy, ...route.draft.servers].join(" "),
    modelOf({ routes: [route], servers: [] }).obstacles.map((one) => one.reason).join("; ") || DASH,
    String(route.running),
    String(route.waiting),
  ]));
}

function serverTable(servers) {
  return table("Servers", ["Server", "State", "Why", "Model", "Build", "Slots", "Context", "Running"], servers.map((server) => [
    server.name,
    server.state,
    server.state === "up" ? DASH : server.reason,
    server.model ?? DASH,
    server.build ?? DASH,
    String(server.slots ?? DASH),
    String(server.context ?? DASH),
    String(server.running),
  ]));
}

function drawn(model, width) {
  const narrow = width < 600;
  const shown = model.columns.filter((column, index) => column.nodes.length && !(narrow && index === 0));
  const last = new Set(shown.at(-1).nodes.map((node) => node.id));
  const room = width - (model.edges.some((edge) => last.has(edge.from) && last.has(edge.to)) ? AROUND : 4);
  const gap = narrow ? 20 : Math.min(110, width * 0.09);
  const box = Math.min(250, (room - gap * (shown.length - 1)) / shown.length);
  const between = shown.length > 1 ? (room - box * shown.length) / (shown.length - 1) : 0;
  const rows = Math.max(...shown.map((column) => column.nodes.length));
  const height = TOP + rows * ROW;
  const places = new Map();
  shown.forEach((column, index) => {
    const offset = TOP + ((rows - column.nodes.length) * ROW) / 2;
    column.nodes.forEach((node, row) => {
      places.set(node.id, { x: 2 + index * (box + between), y: offset + row * ROW + (ROW - BOX) / 2 });
    });
  });
  const edges = model.edges.filter((edge) => places.has(edge.from) && places.has(edge.to));
  return svg(
    "svg",
    { class: "topology", role: "img", "aria-label": `Picture of the topology: ${summary(model)}`, width, height, viewBox: `0 0 ${width} ${height}` },
    svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { class: "tip", d: "M0.5 0.5 7 4 0.5 7.5" }))),
    shown.map((column, index) => svg("text", { class: "title", x: 2 + index * (box + between), y: 16 }, column.title)),
    edges.map((edge) => line(edge, places.get(edge.from), places.get(edge.to), box)),
    shown.flatMap((column) => column.nodes).map((node) => boxOf(node, places.get(node.id), box)),
    edges.map((edge) => badge(edge, places.get(edge.from), places.get(edge.to), box)),
  );
}

function summary({ columns }) {
  const [, routes, targets, drafts] = columns.map((column) => column.nodes);
  const down = [...targets, ...drafts].filter((node) => node.state === "down").map((node) => node.name);
  const words = `${plural(routes.length, "route")}, ${plural(targets.length + drafts.length, "server")}`;
  return down.length ? `${words}, down: ${down.join(", ")}` : words;
}

function ends(edge, from, to, box) {
  const [y1, y2] = [from.y + BOX / 2, to.y + BOX / 2];
  if (edge.kind !== "draft") return { x1: from.x + box, y1, x2: to.x - 1, y2 };
  // From one target to another: around the right side.
  const x1 = from.x === to.x ? from.x + box : from.x;
  return { x1, y1: y1 + 7, x2: to.x + box + 1, y2: y2 + 7 };
}

function line(edge, from, to, box) {
  const { x1, y1, x2, y2 } = ends(edge, from, to, box);
  const bend = from.x === to.x ? 40 : (x2 - x1) / 2;
  const d = from.x === to.x ? `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 + bend} ${y2} ${x2} ${y2}` : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
  const classes = ["edge", edge.kind, edge.broken && "broken", edge.busy && "busy"].filter(Boolean).join(" ");
  return svg("path", { class: classes, d, "marker-end": "url(#tip)" });
}

// What draft edges say: the verifier, or a cross where drafts do not get through.
function badge(edge, from, to, box) {
  if (edge.kind !== "draft" && !edge.broken) return null;
  const { x1, y1, x2, y2 } = ends(edge, from, to, box);
  const [x, y] = [(x1 + x2) / 2 + (from.x === to.x ? 30 : 0), (y1 + y2) / 2];
  if (edge.broken) return svg("g", { class: "cross" }, svg("circle", { cx: x, cy: y, r: 8 }), svg("path", { d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6` }));
  if (Math.abs(x2 - x1) < 60 || !edge.label) return null;
  const width = edge.label.length * 6.6 + 12;
  return svg("g", { class: "badge" }, svg("rect", { x: x - width / 2, y: y - 9, width, height: 18, rx: 9 }), svg("text", { x, y: y + 4, "text-anchor": "middle" }, edge.label));
}

function boxOf(node, { x, y }, box) {
  const bad = node.state === "down";
  const indent = box < 130 ? 24 : 29;
  const room = box - indent - 6;
  const words = bad ? `DOWN${node.reason ? ` · ${node.reason}` : ""}` : node.detail;
  return svg(
    "g",
    { class: `node ${node.state}`, "data-node": node.id },
    svg("title", {}, `${node.name}: ${node.detail}${node.reason ? ` (${node.reason})` : ""}`),
    svg("rect", { class: "frame", x, y, width: box, height: BOX, rx: 9 }),
    mark(node.state, x + indent - 13, y + 17),
    svg("text", { class: "name", x: x + indent, y: y + 21 }, cut(node.name, Math.floor(room / 8.4))),
    svg("text", { class: "detail", x: x + indent, y: y + 37 }, cut(words, Math.floor(room / 6.8))),
    node.running ? svg("text", { class: "running", x: x + box - 10, y: y + 21, "text-anchor": "end" }, `${node.running} ▸`) : null,
  );
}

// A shape for each state, so that colour is not needed.
function mark(state, x, y) {
  const shapes = {
    up: () => [svg("circle", { cx: x, cy: y, r: 5 })],
    drafting: () => [svg("circle", { cx: x, cy: y, r: 5 })],
    down: () => [svg("path", { class: "stroke", d: `M${x - 4.5} ${y - 4.5}l9 9m0 -9l-9 9` })],
    loading: () => [svg("circle", { class: "ring", cx: x, cy: y, r: 4.5 }), svg("path", { d: `M${x} ${y - 4.5}a4.5 4.5 0 0 1 0 9z` })],
    blocked: () => [svg("path", { d: `M${x} ${y - 5.5}l6 10.5h-12z` })],
    plain: () => [svg("circle", { class: "ring", cx: x, cy: y, r: 4.5 })],
  };
  return svg("g", { class: "mark" }, (shapes[state] ?? (() => [svg("circle", { class: "ring dashed", cx: x, cy: y, r: 4.5 })]))());
}

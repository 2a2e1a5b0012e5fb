// What the picture of a topology shows: nodes in columns, edges between them. Only data; `picture` draws it.

import { plural } from "./words.js";

export function modelOf(status) {
  const servers = new Map(status.servers.map((server) => [server.name, server]));
  const targets = new Set();
  const drafters = new Set();
  for (const route of status.routes) {
    for (const name of route.targets) targets.add(name);
    const draft = route.draft;
    if (draft === null) continue;
    // Where a strategy's server answers itself, its pair is about no other server.
    for (const pair of draft.pairs) targets.add(pair.target);
    for (const name of draft.servers) drafters.add(name);
  }
  const server = (name) => serverNode(servers.get(name) ?? { name, state: "unknown", reason: "not in the topology" });
  const edges = new Map();
  const strategies = [];
  for (const route of status.routes) routeEdges(route, targets, edges, strategies, servers);
  const running = status.routes.reduce((sum, route) => sum + route.running + route.waiting, 0);
  const unused = [...servers.keys()].filter((name) => !targets.has(name) && !drafters.has(name));
  return {
    columns: [
      { title: "Clients", nodes: [{ id: "clients", name: "clients", detail: running ? plural(running, "request") : "quiet", state: "plain" }] },
      { title: "Routes", nodes: status.routes.map(routeNode) },
      { title: "Targets", nodes: [...targets, ...unused].map(server) },
      { title: "Drafts", nodes: [...[...drafters].filter((name) => !targets.has(name)).map(server), ...strategies] },
    ],
    edges: [...edges.values()],
    obstacles: status.routes.flatMap(obstaclesOf),
  };
}

function serverNode(server) {
  const detail = server.state === "up" ? modelName(server) || "up" : server.state;
  const reason = server.state === "up" ? "" : (server.reason ?? "").replace(`server '${server.name}': `, "");
  return { id: `server ${server.name}`, name: server.name, detail, reason, state: server.state, running: server.running ?? 0 };
}

function modelName(server) {
  return (server.model ?? "").split("/").at(-1).replace(/\.gguf$/i, "");
}

function routeNode(route) {
  const id = `route ${route.name}`;
  if (route.served_by === null) return { id, name: route.name, detail: "no target", reason: "no target is up", state: "down" };
  if (route.draft === null) return { id, name: route.name, detail: "no drafts declared", state: "plain" };
  const pair = pairOf(route);
  if (isDrafting(route)) return { id, name: route.name, detail: `drafts: ${pair.verifier}`, state: "drafting" };
  return { id, name: route.name, detail: "does not draft", reason: obstacleOf(route), state: "blocked" };
}

function pairOf(route) {
  return route.draft.pairs.find((pair) => pair.target === route.served_by) ?? route.draft.pairs[0];
}

// Whether a request that comes now would be drafted for, as far as the route decides.
export function isDrafting(route) {
  if (route.draft === null || route.draft.obstacle !== null) return false;
  const pair = route.draft.pairs.find((one) => one.target === route.served_by);
  return pair !== undefined && pair.obstacle === null && pair.verifier !== null;
}

export function obstacleOf(route) {
  return route.draft.obstacle ?? pairOf(route)?.obstacle ?? null;
}

function obstaclesOf(route) {
  if (route.draft === null) return [];
  const found = route.draft.pairs.map((pair) => ({ route: route.name, target: pair.target, reason: pair.obstacle }));
  if (route.draft.obstacle !== null) found.unshift({ route: route.name, target: null, reason: route.draft.obstacle });
  const said = found.filter((one) => one.reason !== null);
  return said.filter((one, index) => said.findIndex((other) => other.reason === one.reason) === index);
}

function routeEdges(route, targets, edges, strategies, servers) {
  const id = `route ${route.name}`;
  const add = (edge) => {
    const key = `${edge.from}|${edge.to}`;
    const known = edges.get(key);
    // One line for all routes that draft in the same way; broken only where it is for all of them.
    edges.set(key, known ? { ...edge, broken: known.broken && edge.broken, label: known.broken ? edge.label : known.label } : edge);
  };
  add({ from: "clients", to: id, kind: "ask", busy: route.running > 0, broken: route.served_by === null });
  const answering = new Set([...route.targets, ...(route.draft?.pairs ?? []).map((pair) => pair.target)]);
  for (const name of answering) {
    const broken = servers.get(name)?.state === "down";
    add({ from: id, to: `server ${name}`, kind: name === route.served_by ? "ask" : "spare", busy: route.running > 0 && name === route.served_by, broken });
  }
  if (route.draft === null) return;
  const { draft } = route;
  if (draft.workers !== null) {
    const state = { healthy: "up", away: "down", returning: "loading" }[draft.workers.state] ?? "unknown";
    const reason = state === "up" ? "" : draft.workers.reason;
    strategies.push({ id: `workers ${route.name}`, name: plural(draft.workers.number, "RPC worker"), detail: state, reason, state });
  } else if (!draft.servers.length) {
    strategies.push({ id: `strategy ${route.name}`, name: draft.strategy, detail: "in the router", state: "plain" });
  }
  for (const pair of draft.pairs) {
    const obstacle = draft.obstacle ?? pair.obstacle;
    const helpers = draft.servers.filter((name) => name !== pair.target).map((name) => `server ${name}`);
    if (draft.workers !== null) helpers.push(`workers ${route.name}`);
    else if (!draft.servers.length) helpers.push(`strategy ${route.name}`);
    for (const from of helpers) {
      add({ from, to: `server ${pair.target}`, kind: "draft", broken: obstacle !== null, label: obstacle === null ? pair.verifier : "", busy: false });
    }
  }
}

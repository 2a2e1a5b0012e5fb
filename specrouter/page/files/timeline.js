// A picture of when tokens came: one column for each step of the target, one cell for each of its tokens.

import { svg } from "./dom.js";
import { plural, seconds } from "./words.js";

const HEIGHT = 84;
const FLOOR = 64;
const COLUMN = 4;
const INSET = 6;

// `span` is what the whole width stands for, in seconds: the same for answers that are compared.
export function timeline(steps, span, width) {
  const tallest = Math.max(4, ...steps.map((step) => step.accepted + step.own + step.unknown));
  const cell = Math.min(9, (FLOOR - 4) / tallest);
  const x = (at) => INSET + (at / span) * (width - 2 * INSET - COLUMN);
  const tokens = steps.reduce((sum, step) => sum + step.accepted + step.own + step.unknown, 0);
  const label = steps.length
    ? `${plural(tokens, "token")} in ${plural(steps.length, "step")}, from ${seconds(steps[0].at)} to ${seconds(steps.at(-1).at)}`
    : "No token yet";
  return svg(
    "svg",
    { class: "timeline", role: "img", "aria-label": `Timeline: ${label}`, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` },
    ticks(span).map((at) => [
      svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: FLOOR }),
      svg("text", { class: "tick", x: x(at), y: HEIGHT - 6, "text-anchor": at === 0 ? "start" : "middle" }, `${at} s`),
    ]).flat(),
    svg("line", { class: "axis", x1: 0, x2: width, y1: FLOOR + 0.5, y2: FLOOR + 0.5 }),
    steps.map((step) => column(step, x(step.at), cell)).flat(),
  );
}

// The target's own token stands on the floor, the accepted ones on it.
function column(step, x, cell) {
  const kinds = ["unknown", "own", "accepted"].flatMap((kind) => Array(step[kind]).fill(kind));
  return kinds.map((kind, index) => {
    const size = Math.max(cell - 1, 1);
    const y = FLOOR - (index + 1) * cell;
    // Outlined, so that it differs in more than colour.
    const inset = kind === "accepted" && size > 3 ? 0.5 : 0;
    return svg("rect", { class: `cell ${kind}`, x: x + inset, y: y + inset, width: COLUMN - 2 * inset, height: size - 2 * inset });
  });
}

function ticks(span) {
  const rough = span / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let at = 0; at <= span * 0.97; at += step) found.push(Number(at.toPrecision(3)));
  return found;
}

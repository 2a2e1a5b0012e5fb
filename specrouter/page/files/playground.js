// Asks one prompt twice: of the route, and of its target without drafts. One after the other, so that neither is in the
// other's way, and each time of a target that has forgotten what it said before.

import { Answer } from "./answer.js";
import { FORGET, Refused, ask } from "./client.js";
import { byId, el, renewed } from "./dom.js";
import { ACCEPTED, OWN, UNKNOWN } from "./origins.js";
import { percent, plural, speed } from "./words.js";

const EXAMPLE = "Count from 1 to 40 in words, one number on each line.";
const ALONE = { "x-specrouter-draft": "none" };
const PAUSE_MS = 80; // between two redrawings
const SHORTEST = 16; // tokens from which speeds are worth comparing

let routes = [];
let running = null;
let shown = null; // the last comparison

export function startPlayground() {
  byId("prompt").value = EXAMPLE;
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width === width) return;
    width = entry.contentRect.width;
    shown?.show();
  }).observe(byId("sides"));
}

export function offerRoutes(status) {
  routes = status.routes;
  const select = byId("route");
  const names = routes.map((route) => route.name);
  const before = select.value;
  renewed(select, names, () => names.map((name) => el("option", { value: name }, name)));
  const first = routes.find((route) => route.draft !== null) ?? routes[0];
  const wanted = names.includes(before) ? before : (first?.name ?? "");
  // Whoever is choosing now is not to be disturbed.
  if (select.value !== wanted) select.value = wanted;
}

async function run() {
  if (running !== null) return;
  const route = routes.find((one) => one.name === byId("route").value);
  if (route === undefined) return;
  running = new AbortController();
  byId("run").disabled = true;
  byId("stop").disabled = false;
  const drafts = route.draft !== null;
  const comparison = new Comparison(route, drafts && byId("compare").checked, running.signal);
  shown = comparison;
  try {
    await comparison.run();
    say(comparison.summary());
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (!stopped) comparison.fail(error.message);
    say(stopped ? "Stopped." : `Failed: ${error.message}`);
  } finally {
    comparison.show();
    running = null;
    byId("run").disabled = false;
    byId("stop").disabled = true;
    byId("results").dataset.done = "yes";
  }
}

function say(text) {
  byId("progress").textContent = text;
}

class Comparison {
  #drawn = 0;

  constructor(route, compares, signal) {
    this.route = route;
    this.signal = signal;
    this.notes = new Set();
    this.body = {
      model: route.name,
      messages: [{ role: "user", content: byId("prompt").value }],
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("max-tokens").value),
      seed: 1,
      stream: true,
      timings_per_token: true,
      // So that neither side finds the prompt evaluated by the other.
      cache_prompt: false,
    };
    this.drafted = new Answer(route.draft === null ? "The target alone" : "With drafts");
    this.alone = compares ? new Answer("The target alone") : null;
    this.current = this.drafted;
    byId("verdict").replaceChildren();
    byId("notes").replaceChildren();
    byId("results").hidden = false;
    delete byId("results").dataset.done;
    byId("sides").replaceChildren(...this.#answers().map((answer) => answer.element));
    this.show();
  }

  #answers() {
    return [this.drafted, this.alone].filter((answer) => answer !== null);
  }

  async run() {
    if (this.alone !== null) await this.#forget();
    await this.#askWithDrafts();
    if (this.route.draft !== null && /^plain/.test(this.drafted.decoding)) this.notes.add(`This answer was not drafted for: ${this.drafted.decoding}.`);
    if (this.alone === null) return;
    this.current = this.alone;
    await this.#forget();
    await this.#answer(this.alone, ALONE);
    if (this.alone.origins.drafted) this.notes.add("Alone, the target still drafts from its own pool what it has read and said within this answer.");
    if (this.#isShort()) this.notes.add("Too few tokens to compare speeds: ask for a longer answer.");
    const equal = this.drafted.text === this.alone.text;
    this.notes.add(equal ? "Both answers are the same text." : this.body.temperature > 0 ? "The answers differ: they were sampled." : "The answers differ: a near tie fell the other way in a batch of another size.");
  }

  async #askWithDrafts() {
    if (await this.#answer(this.drafted, {}, (decoding) => !/cache_prompt/.test(decoding))) return;
    // Drafts that are verified stepwise live on the target's cache.
    delete this.body.cache_prompt;
    if (this.alone !== null) this.notes.add("The second answer finds the prompt evaluated: its first token comes sooner than it would.");
    await this.#answer(this.drafted, {});
  }

  async #answer(answer, headers, wanted = () => true) {
    say(answer === this.alone ? "The target answers alone…" : this.route.draft === null ? "Answering…" : "Answering with drafts…");
    const answered = await answer.run(this.body, { headers, signal: this.signal, wanted, changed: () => this.#progress() });
    this.show();
    return answered;
  }

  async #forget() {
    say("Emptying the target's pool of what it has said…");
    for (const { name, memory } of await this.#emptied()) {
      if (memory === "kept") this.notes.add(`Server ${name} did not forget what it has said: the second answer may be drafted from the first.`);
    }
    if (/^(prompt_lookup|first_of)$/.test(this.route.draft?.strategy ?? "")) {
      this.notes.add(`${this.route.draft.strategy} also drafts from earlier answers: asked again, a prompt is drafted from what was said the last time.`);
    }
  }

  // What the servers did. Where one fails at it, it may still answer.
  async #emptied() {
    try {
      const response = await ask(FORGET, { body: { model: this.route.name }, signal: this.signal });
      return (await response.json()).servers;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.notes.add(`It could not be tried whether the target forgets what it has said: ${error.message}`);
      return [];
    }
  }

  #progress() {
    const now = performance.now();
    if (now - this.#drawn < PAUSE_MS) return;
    this.#drawn = now;
    this.show();
  }

  fail(message) {
    this.current.fail(message);
  }

  show() {
    const answers = this.#answers();
    const span = Math.max(0.5, ...answers.map((answer) => answer.lastToken ?? 0));
    for (const answer of answers) answer.show(span);
    byId("legend").replaceChildren(...legend(answers));
    byId("notes").replaceChildren(...[...this.notes].map((note) => el("li", {}, note)));
    const ratio = this.#ratio();
    if (ratio !== null) {
      byId("verdict").replaceChildren(
        el("strong", {}, `×${ratio.toFixed(2)}`),
        el("span", {}, ` ${speed(this.drafted.speed)} tokens per second with drafts, ${speed(this.alone.speed)} alone`),
      );
    }
  }

  #isShort() {
    return this.#answers().some((answer) => answer.origins.tokens < SHORTEST);
  }

  #ratio() {
    if (this.alone === null || this.drafted.ended === null || this.alone.ended === null || this.#isShort()) return null;
    return this.alone.speed && this.drafted.speed ? this.drafted.speed / this.alone.speed : null;
  }

  summary() {
    const { origins } = this.drafted;
    const words = [`Done. ${plural(origins.tokens, "token")}, ${origins.count(ACCEPTED)} of them accepted drafts`];
    if (origins.drafted) words.push(`${percent(origins.accepted / origins.drafted)} of ${origins.drafted} draft tokens accepted`);
    const ratio = this.#ratio();
    if (ratio !== null) words.push(`×${ratio.toFixed(2)} the speed of the target alone`);
    return `${words.join(", ")}.`;
  }
}

function legend(answers) {
  const total = (kind) => answers.reduce((sum, answer) => sum + answer.origins.count(kind), 0);
  const counts = (kind) => answers.map((answer) => answer.origins.count(kind)).join(" · ");
  const entry = (kind, words) => el("li", {}, el("span", { class: `token ${kind}` }, "token"), ` ${words} `, el("b", { "data-count": kind }, counts(kind)));
  const found = [entry(ACCEPTED, "accepted draft"), entry(OWN, "the target's own")];
  if (total(UNKNOWN)) found.push(entry(UNKNOWN, "not told by the server"));
  const unsaid = answers[0].origins.unsaid;
  if (unsaid > 0) found.push(el("li", {}, `${plural(unsaid, "accepted token")} behind the end of the answer`));
  if (answers.length > 1) found.push(el("li", {}, "(with drafts · alone)"));
  return found;
}

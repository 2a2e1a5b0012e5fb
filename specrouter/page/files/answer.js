// One answer of the playground: asked for, read as it comes, and shown with each token marked by its origin.

import { CHAT, ask, events } from "./client.js";
import { el } from "./dom.js";
import { ACCEPTED, OWN, Origins, UNKNOWN } from "./origins.js";
import { timeline } from "./timeline.js";
import { DASH, percent, plural, seconds, speed } from "./words.js";

const WORDS = { [ACCEPTED]: "accepted draft token", [OWN]: "the target's own token", [UNKNOWN]: "token of unknown origin" };

export class Answer {
  constructor(title) {
    this.origins = new Origins();
    this.text = "";
    this.decoding = null;
    this.firstToken = null; // seconds since the request
    this.lastToken = null;
    this.firstTokens = 0; // tokens that came with the first
    this.ended = null;
    this.figures = el("dl", { class: "figures" });
    this.how = el("p", { class: "state" });
    this.said = el("div", { class: "said", tabindex: "0", role: "region", "aria-label": `Answer: ${title}` });
    this.picture = el("div", { class: "timeline-box" });
    this.element = el("article", { class: "card side", "aria-label": title }, el("h3", {}, title), this.how, this.figures, this.said, this.picture);
  }

  // Whether it was answered: what is decoded in a way that is not wanted is given up at once. Throws Refused, TypeError
  // where the router is away, AbortError when stopped.
  async run(body, { headers, signal, wanted, changed }) {
    this.how.textContent = "waiting for the first token";
    const started = performance.now();
    const response = await ask(CHAT, { body, headers, signal });
    this.decoding = response.headers.get("x-specrouter-decoding") ?? "";
    if (!wanted(this.decoding)) {
      await response.body.cancel();
      return false;
    }
    this.how.textContent = this.decoding;
    for await (const batch of events(response)) {
      const at = (performance.now() - started) / 1000;
      for (const data of batch) if (data !== "[DONE]") this.#take(JSON.parse(data), at);
      changed();
    }
    if (this.ended === null) throw new Error("the answer broke off");
    return true;
  }

  fail(message) {
    this.element.append(el("p", { class: "problem", role: "alert" }, `✕ ${message}`));
  }

  #take(event, at) {
    if (event.error) throw new Error(String(event.error.message));
    const choice = event.choices?.[0] ?? {};
    const delta = choice.delta ?? {};
    const thought = delta.reasoning_content ?? "";
    const text = thought || (delta.content ?? "");
    const found = this.origins.add(text, event.timings, at);
    if (choice.finish_reason) this.ended = choice.finish_reason;
    if (!found.length) {
      this.#append(text, [], thought);
      return;
    }
    if (this.firstToken === null) [this.firstToken, this.firstTokens] = [at, found.length];
    this.lastToken = at;
    this.#append(text, found, thought);
  }

  #append(text, found, thought) {
    this.text += text;
    if (!text && !found.length) return;
    const kinds = new Set(found);
    const kind = kinds.size === 1 ? found[0] : found.length ? "mixed" : UNKNOWN;
    const words = kinds.size === 1 ? (found.length > 1 ? `${found.length} × ${WORDS[kind]}` : WORDS[kind]) : `${plural(found.length, "token")} of one character`;
    const classes = ["token", kind];
    if (thought) classes.push("thought");
    if (!text) classes.push("silent");
    if (/^\s*\n\s*$/.test(text)) classes.push("break");
    const accepted = found.filter((one) => one === ACCEPTED).length;
    const shown = { class: classes.join(" "), "data-tokens": found.length, "data-accepted": accepted };
    this.said.append(el("span", { ...shown, title: text ? words : `${words}, without text` }, text));
  }

  // Tokens per second after the first one, as they arrived here.
  get speed() {
    const time = this.lastToken - this.firstToken;
    const tokens = this.origins.tokens - this.firstTokens;
    return this.firstToken === null || time <= 0 || tokens < 1 ? null : tokens / time;
  }

  show(span) {
    const { origins } = this;
    const figure = (name, value, unit) => el("div", {}, el("dt", {}, name), el("dd", {}, value, unit && value !== DASH ? el("small", {}, ` ${unit}`) : null));
    this.figures.replaceChildren(
      figure("speed", speed(this.speed), "tok/s"),
      figure("first token", seconds(this.firstToken)),
      figure("tokens", String(origins.tokens)),
      figure("accepted", origins.drafted ? `${origins.accepted} of ${origins.drafted}` : DASH, origins.drafted ? percent(origins.accepted / origins.drafted) : null),
    );
    this.element.dataset.unsaid = origins.unsaid;
    const width = Math.max(240, Math.floor(this.picture.clientWidth));
    this.picture.replaceChildren(timeline(origins.steps, span, width));
  }
}

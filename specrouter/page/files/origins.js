// Which tokens of an answer were accepted draft tokens, told from a stream with `timings_per_token`.
//
// Each chunk says how many tokens (`predicted_n`) and accepted draft tokens (`draft_n_accepted`) there are by then. A
// step of the target that accepts `a` draft tokens adds `a` to the second before any of its tokens is sent; then come
// the accepted ones, then one of the target's own. Within a character of several tokens a step may have begun at any of
// them: their number is right, and the first is taken for its beginning.

export const ACCEPTED = "accepted";
export const OWN = "own";
export const UNKNOWN = "unknown";

export class Origins {
  origins = [];
  steps = [];
  tokens = 0;
  drafted = 0; // as the target says
  accepted = 0;
  #acceptedUntil = 0;
  #stepIsOpen = false;
  #isVague = false; // something was said of which the origin is not known
  #draftedBefore = 0; // by another target, when one took over
  #acceptedBefore = 0;

  // One chunk, received `at` some time: the origins of its tokens. Where the target says nothing, a text is one token.
  add(text, timings, at) {
    const first = this.tokens;
    if (!timings) {
      this.#isVague ||= Boolean(text);
      if (text) this.#say(UNKNOWN, at);
    } else {
      if (this.#acceptedBefore + (timings.draft_n_accepted ?? 0) < this.accepted) this.#takeOver();
      const accepted = this.#acceptedBefore + (timings.draft_n_accepted ?? 0);
      if (accepted > this.accepted) this.#acceptedUntil = first + accepted - this.accepted;
      this.accepted = accepted;
      this.drafted = this.#draftedBefore + (timings.draft_n ?? 0);
      while (this.tokens < timings.predicted_n) {
        this.#say(this.#isVague ? UNKNOWN : this.tokens < this.#acceptedUntil ? ACCEPTED : OWN, at);
      }
    }
    return this.origins.slice(first);
  }

  // The answer's tokens are counted on, drafts begin anew.
  #takeOver() {
    [this.#acceptedBefore, this.#draftedBefore] = [this.accepted, this.drafted];
  }

  // A step is accepted tokens, and the target's own one behind them.
  #say(origin, at) {
    if (!this.#stepIsOpen) this.steps.push({ at, accepted: 0, own: 0, unknown: 0 });
    this.steps.at(-1)[origin] += 1;
    this.#stepIsOpen = origin === ACCEPTED;
    this.origins.push(origin);
    this.tokens += 1;
  }

  count(origin) {
    return this.origins.filter((one) => one === origin).length;
  }

  // Accepted behind the end of the answer: verified, and never said.
  get unsaid() {
    return this.accepted - this.count(ACCEPTED);
  }
}

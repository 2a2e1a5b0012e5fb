// Questions to the router. The key lives in this tab's storage and goes into a header, nowhere else.

const STORED = "specrouter-key";
const PATIENCE_MS = 10000;

export const STATUS = "status";
export const FORGET = "forget";
export const CHAT = "../v1/chat/completions";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function setKey(key) {
  sessionStorage.setItem(STORED, key);
}

export function hasKey() {
  return sessionStorage.getItem(STORED) !== null;
}

// The response to a question, whose body is still to be read. Throws Refused for an error of the router.
export async function ask(path, { body, headers = {}, signal } = {}) {
  const key = sessionStorage.getItem(STORED);
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: {
      ...headers,
      ...(key === null ? {} : { authorization: `Bearer ${key}` }),
      ...(body === undefined ? {} : { "content-type": "application/json" }),
    },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function getStatus() {
  const response = await ask(STATUS, { signal: AbortSignal.timeout(PATIENCE_MS) });
  return response.json();
}

async function refusal(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new Refused(response.status, error.code, String(error.message));
  } catch {
    return new Refused(response.status, null, text.slice(0, 300) || `status ${response.status}`);
  }
}

// The data of each event of a stream, as text. Events that arrived at once are yielded at once. Whoever stops reading
// ends the answer.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = parts.pop();
      const found = parts
        .map((part) => part.split("\n").filter((line) => line.startsWith("data:")))
        .filter((lines) => lines.length)
        .map((lines) => lines.map((line) => line.slice(5).trimStart()).join("\n"));
      if (found.length) yield found;
    }
  } finally {
    // Why it broke off was thrown above.
    await reader.cancel().catch(() => {});
  }
}

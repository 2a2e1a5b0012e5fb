// Starts the page, asks for a key where one is needed, and keeps it up to date about once a second while it is seen.

import { getStatus, hasKey, setKey } from "./client.js";
import { byId } from "./dom.js";
import { showTopology } from "./picture.js";
import { offerRoutes, startPlayground } from "./playground.js";
import { showRequests } from "./requests.js";
import { showRoutes } from "./routes.js";
import { clock, seconds } from "./words.js";

const PAUSE_MS = 1000;

let status = null;
let version = null; // the router's when this page was opened
let timer = null;
let asking = false;
let lostSince = null;

async function refresh() {
  if (asking || document.hidden) return;
  clearTimeout(timer);
  asking = true;
  let found = null;
  try {
    found = await getStatus();
  } catch (error) {
    if (error.status === 401 || error.code === "key_not_allowed") {
      askForKey(error);
      return;
    }
    lost(error.status === undefined ? "The router cannot be reached" : `The router says: ${error.message}`);
  } finally {
    asking = false;
  }
  timer = setTimeout(refresh, PAUSE_MS);
  if (found !== null && !document.hidden) received(found);
}

function received(found) {
  version ??= found.version;
  const reload = found.version === version ? "" : ` · this page is of version ${version}: reload it`;
  try {
    show(found);
  } catch (error) {
    lost(`This page cannot show what the router says${reload}`);
    throw error;
  }
  lostSince = null;
  connected(reload ? "outdated" : "live", `Live · version ${found.version} · up ${seconds(found.uptime)}${reload}`);
}

function show(found) {
  status = found;
  byId("key-form").hidden = true;
  byId("live").hidden = false;
  document.body.classList.remove("stale");
  showTopology(status, pictureWidth());
  showRoutes(status);
  showRequests(status);
  offerRoutes(status);
}

function pictureWidth() {
  const style = getComputedStyle(byId("picture"));
  const width = byId("picture").clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return Math.max(240, Math.floor(width));
}

function connected(kind, text) {
  const place = byId("connection");
  place.className = `connection ${kind}`;
  // Told to those who listen only when it changes; the time it is up is for those who see it.
  place.setAttribute("aria-live", place.dataset.kind === kind ? "off" : "polite");
  place.dataset.kind = kind;
  place.textContent = text;
}

function lost(what) {
  lostSince ??= new Date();
  document.body.classList.add("stale");
  connected("lost", `✕ ${what}, since ${clock(lostSince)}. Trying again.`);
}

function askForKey(error) {
  byId("live").hidden = true;
  byId("key-form").hidden = false;
  byId("key-message").textContent =
    error.code === "key_not_allowed"
      ? "This key opens some routes only, and the page shows all of them. Use a key without “routes”."
      : hasKey()
        ? "The router does not know this key."
        : "Use one of its “listen.api_keys”, one that opens all routes.";
  connected("locked", "Waiting for a key");
  byId("key").focus();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    byId("key-message").textContent = "A key has visible ASCII characters only, and no spaces.";
    return;
  }
  setKey(key);
  byId("key").value = "";
  refresh();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(timer);
    connected("paused", "Paused while this tab is hidden");
  } else {
    refresh();
  }
});

new ResizeObserver(() => status && !byId("live").hidden && showTopology(status, pictureWidth())).observe(byId("picture"));

startPlayground();
refresh();

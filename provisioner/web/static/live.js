// Renews the page when the record changes. Without it the page is the same; a reader or a keyboard is not disturbed.
"use strict";

const LEAST_PAUSE_MS = 2000;
const RETRY_MS = 5000;
const MOST_PAUSE_MS = 30000; // a controller that has stopped sends no event
const age = document.getElementById("age");
let due = 0;

function inUse() {
  const main = document.getElementById("main");
  return document.hidden || main.contains(document.activeElement) || String(getSelection()) !== "";
}

async function renew() {
  due = 0;
  if (inUse()) return later();
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getElementById("main").replaceChildren(...page.getElementById("main").childNodes);
    document.title = page.title;
    age.textContent = page.getElementById("age").textContent;
  } catch {
    lost();
  }
}

function later() {
  due ||= setTimeout(renew, LEAST_PAUSE_MS);
}

function lost() {
  age.textContent = "The service does not answer. This page is not up to date; it updates when the service is back.";
}

function connect() {
  const stream = new EventSource("/api/v1/events/stream");
  stream.onopen = later;
  for (const kind of ["message", "step", "event", "tick"]) stream.addEventListener(kind, later);
  stream.onerror = () => {
    lost();
    if (stream.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(connect, RETRY_MS);
  };
}

connect();
setInterval(later, MOST_PAUSE_MS);

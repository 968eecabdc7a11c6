// Talks to the appliance that served this page. Knows addresses and framing; knows no page.

import { apiKey } from "/web/store.js";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const key = apiKey();
  const headers = { ...(key ? { authorization: `Bearer ${key}` } : {}), ...options.headers };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) throw new Refused(response.status, await reason(response));
  return response;
}

async function reason(response) {
  try {
    const { error, message } = await response.json();
    return (typeof error === "string" ? error : error?.message) ?? message ?? response.statusText;
  } catch {
    return response.statusText || `status ${response.status}`;
  }
}

export const getJson = async (path) => (await ask(path)).json();

function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// Health answers with a body also when it is 503, and never asks for a key.
export const health = async () => (await fetch("/health")).json();

export async function* chat(body, signal) {
  const response = await post("/v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(500, chunk.error.message);
    yield chunk;
  }
  throw new Refused(0, "the connection ended before the answer did");
}

export async function* snapshots(signal) {
  for await (const data of events(await ask("/system/v1/events", { signal }))) yield JSON.parse(data);
}

export async function* pull(name) {
  for await (const line of lines(await post("/api/pull", { model: name }))) {
    if (!line) continue;
    const status = JSON.parse(line);
    if (status.error) throw new Refused(500, status.error);
    yield status;
  }
}

async function* events(response) {
  for await (const line of lines(response)) if (line.startsWith("data: ")) yield line.slice(6);
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (rest) yield rest;
}

// Shows one conversation and streams answers into it. Knows the server's chat and the store; knows no dialogs.

import { byId, element, icon } from "/web/element.js";
import { copyText, show } from "/web/markdown.js";
import * as server from "/web/server.js";
import { save } from "/web/store.js";

const NEAR_END_PX = 80;
const SAVE_EVERY_MS = 2000;
const COPY = "M7 7V4.5A1.5 1.5 0 0 1 8.5 3h7A1.5 1.5 0 0 1 17 4.5v7a1.5 1.5 0 0 1-1.5 1.5H13M4.5 7h7A1.5 1.5 0 0 1 13 8.5v7a1.5 1.5 0 0 1-1.5 1.5h-7A1.5 1.5 0 0 1 3 15.5v-7A1.5 1.5 0 0 1 4.5 7z";
const AGAIN = "M16 10a6 6 0 1 1-1.8-4.3M16 3v3.5h-3.5";

export class ConversationView {
  constructor({ request, changed, refused }) {
    this.request = request; // () -> the fields of a request; `system` goes before the messages, and is not kept
    this.changed = changed;
    this.refused = refused; // (error) -> true where it was dealt with
    this.messages = byId("messages");
    this.scroller = byId("scroller");
    this.running = null; // the AbortController of the answer under way
    this.isFollowing = true;
    this.scroller.addEventListener("scroll", () => { this.isFollowing = this.isNearEnd(); }, { passive: true });
  }

  open(chat) {
    this.stop();
    this.chat = chat;
    this.messages.replaceChildren(...chat.messages.map((message) => this.messageNode(message)));
    this.isFollowing = true;
    this.settle();
  }

  get isAnswering() { return this.running !== null; }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  async send(text) {
    this.add({ role: "user", content: text });
    await this.answer();
  }

  async again() {
    if (this.isAnswering) return;
    while (this.chat.messages.at(-1)?.role === "assistant") {
      this.chat.messages.pop();
      this.messages.lastChild.remove();
    }
    if (this.chat.messages.length) await this.answer();
  }

  add(message) {
    this.chat.messages.push(message);
    const node = this.messageNode(message);
    this.messages.append(node);
    this.isFollowing = true;
    this.settle();
    return node;
  }

  async answer() {
    const chat = this.chat;
    const history = chat.messages.filter((m) => m.content && !m.failed).map(({ role, content }) => ({ role, content }));
    const message = { role: "assistant", content: "", thoughts: "" };
    const controller = new AbortController();
    this.running = controller;
    const node = this.add(message);
    this.changed();
    const painter = new Painter(() => { paint(node, message); this.follow(); }, () => save(chat));
    try {
      const { system, ...fields } = this.request();
      const messages = system ? [{ role: "system", content: system }, ...history] : history;
      await this.receive(message, { ...fields, messages }, controller.signal, painter);
    } catch (error) {
      if (controller.signal.aborted) message.stopped = true;
      else await this.fail(message, error);
    } finally {
      painter.finish();
      if (this.running === controller) this.running = null;
      if (this.chat === chat) { node.replaceWith(this.messageNode(message)); this.settle(); }
      if (!save(chat)) say("This browser has no room left: export or delete conversations to keep new ones.");
      this.changed();
      announce(message);
    }
  }

  async receive(message, body, signal, painter) {
    const began = performance.now();
    for await (const chunk of server.chat(body, signal)) {
      const choice = chunk.choices?.[0];
      const { content, reasoning_content: thoughts } = choice?.delta ?? {};
      if (content || thoughts) message.firstMs ??= performance.now() - began;
      message.content += content ?? "";
      message.thoughts += thoughts ?? "";
      if (choice?.finish_reason) message.reason = choice.finish_reason;
      if (chunk.usage) message.tokens = chunk.usage.completion_tokens;
      painter.request();
    }
    message.totalMs = performance.now() - began;
  }

  async fail(message, error) {
    if (this.refused(error)) message.failed = "Send it again once the key is set.";
    else message.failed = error instanceof server.Refused ? error.message : "The appliance does not answer. Is it still running?";
  }

  messageNode(message) {
    if (message.role === "user") return element("article", { className: "message user", "aria-label": "You" }, element("div", { className: "bubble" }, message.content));
    const node = element("article", { className: "message model", "aria-label": "Model" },
      element("details", { className: "thoughts", hidden: true }, element("summary", {}, "Thoughts"), element("div")),
      element("div", { className: "text" }));
    paint(node, message);
    if (message.failed) node.append(element("p", { className: "error", role: "alert" }, message.failed));
    if (message !== this.chat.messages.at(-1) || !this.isAnswering) node.append(this.foot(message));
    else node.classList.add("arriving");
    return node;
  }

  foot(message) {
    const copyLabel = element("span", {}, "Copy");
    const copy = element("button", { type: "button", on: { click: () => copyText(message.content, copyLabel) } }, icon(COPY), copyLabel);
    const again = element("button", { type: "button", className: "again", on: { click: () => this.again() } }, icon(AGAIN), "Again");
    return element("footer", { className: "foot" }, message.content ? copy : null, again, element("span", { className: "facts" }, facts(message)));
  }

  isNearEnd() { return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < NEAR_END_PX; }
  follow() { if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight; }

  settle() {
    byId("welcome").hidden = this.chat.messages.length > 0;
    this.follow();
  }
}

// At most one painting a frame, and one saving every few seconds, however fast tokens come.
class Painter {
  constructor(paintNow, saveNow) {
    this.paintNow = paintNow;
    this.frame = 0;
    this.timer = setInterval(saveNow, SAVE_EVERY_MS);
  }

  request() { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.paintNow(); }); }

  finish() {
    cancelAnimationFrame(this.frame);
    clearInterval(this.timer);
    this.paintNow();
  }
}

function paint(node, message) {
  const [thoughts, text] = node.children;
  thoughts.hidden = !message.thoughts;
  if (message.thoughts) show(thoughts.lastChild, message.thoughts);
  show(text, message.content);
}

function facts({ tokens, firstMs, totalMs, stopped, reason }) {
  const parts = [];
  if (stopped) parts.push("stopped");
  if (reason === "length") parts.push("cut off at the longest answer");
  if (tokens) parts.push(`${tokens} tokens`);
  if (tokens > 1 && totalMs > firstMs) parts.push(`${((tokens - 1) / (totalMs - firstMs) * 1000).toFixed(1)} per second`);
  if (firstMs) parts.push(`first after ${firstMs < 1000 ? `${firstMs.toFixed(0)} ms` : `${(firstMs / 1000).toFixed(1)} s`}`);
  return parts.join(" · ");
}

// Read aloud once, whole: a live region that grows token by token cannot be followed.
const announce = (message) => say(message.failed ?? `${message.stopped ? "Stopped. " : ""}${message.content}`);
export const say = (text) => { byId("announcer").textContent = text; };

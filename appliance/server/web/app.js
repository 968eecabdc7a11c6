// The page's wiring: phases, conversations, settings, the key. The parts it wires know each other not.

import { ConversationView, say } from "/web/conversation_view.js";
import { byId, element, icon } from "/web/element.js";
import { LivePanel } from "/web/live_panel.js";
import { ModelList } from "/web/model_list.js";
import * as server from "/web/server.js";
import * as store from "/web/store.js";

const BIN = "M4 6h12M8 6V4h4v2m-6.5 0 .7 10h7.6l.7-10";
const POLL_MS = { ready: 5000, other: 500 };
const PHASES = { starting: "Starting", loading: "Loading the model", warming: "Warming up", draining: "Shutting down", failed: "The model could not be loaded", gone: "The appliance does not answer" };
const EXAMPLES = ["Explain what a KV cache is, in three sentences.", "Write a haiku about rain on a tin roof.", "What should I check before a long bicycle trip?"];
const SAMPLING = ["temperature", "top_p", "max_tokens", "seed"];
const NARROW = matchMedia("(max-width: 760px)");

let settings = store.settings();
let phase = "";
let current;
let recommended = {}; // fields of a request by model, as its makers advise to set them

const view = new ConversationView({ request, changed, refused });
const panel = new LivePanel(refused);
const models = new ModelList({ chosen: chooseModel, refused });

function request() {
  const model = settings.model ?? byId("model-name").dataset.id;
  const fields = { ...recommended[model], model };
  for (const name of SAMPLING) if (typeof settings[name] === "number") fields[name] = settings[name];
  const system = settings.system?.trim();
  return system ? { ...fields, system } : fields;
}

function refused(error) {
  if (error?.status !== 401) return false;
  askForKey();
  return true;
}

function askForKey() {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key-wrong").hidden = !store.apiKey();
  byId("key").value = "";
  dialog.showModal();
}

function openChat(chat) {
  current = chat;
  view.open(chat);
  closeSidebar();
  changed();
}

function changed() {
  byId("send").hidden = view.isAnswering;
  byId("stop").hidden = !view.isAnswering;
  byId("send").disabled = phase !== "ready" || !byId("composer-text").value.trim();
  byId("messages").setAttribute("aria-busy", view.isAnswering);
  byId("export").disabled = !current?.messages.length;
  listConversations();
}

function listConversations() {
  const lines = store.conversations().map((chat) => {
    const title = store.titleOf(chat);
    const open = element("button", { type: "button", className: "ellipsis", on: { click: () => openChat(chat.id === current.id ? current : chat) } }, title);
    if (chat.id === current?.id) open.setAttribute("aria-current", "true");
    const bin = element("button", { type: "button", className: "icon-button", "aria-label": `Delete: ${title}`, on: { click: () => deleteChat(chat) } }, icon(BIN));
    return element("li", {}, open, bin);
  });
  byId("conversations").replaceChildren(...lines);
}

async function deleteChat(chat) {
  if (!(await ask(`Delete “${store.titleOf(chat)}”? It cannot be brought back.`))) return;
  if (chat.id === current.id) { view.stop(); openChat(store.newConversation()); }
  store.remove(chat.id);
  changed();
}

function ask(text) {
  const dialog = byId("ask-dialog");
  byId("ask-text").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

function send() {
  const field = byId("composer-text");
  const text = field.value.trim();
  if (!text || view.isAnswering || phase !== "ready") return;
  field.value = "";
  grow();
  view.send(text);
}

function grow() {
  const field = byId("composer-text");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, innerHeight * 0.4)}px`;
  changed();
}

function exportChat() {
  const blob = new Blob([store.asMarkdown(current)], { type: "text/markdown" });
  const address = URL.createObjectURL(blob);
  const name = store.titleOf(current).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
  element("a", { href: address, download: `${name}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// ---- phases of the appliance

async function watchPhase() {
  for (;;) {
    await lookAtPhase();
    await new Promise((resolve) => setTimeout(resolve, phase === "ready" ? POLL_MS.ready : POLL_MS.other));
  }
}

async function lookAtPhase() {
  let state = { phase: "gone", detail: "Trying again.", progress: null };
  try { state = await server.health(); } catch { /* the page waits for it */ }
  const wasReady = phase === "ready";
  phase = state.phase;
  byId("phase-dot").className = `dot ${phase}`;
  byId("phase").hidden = phase === "ready";
  byId("phase").classList.toggle("bad", phase === "failed");
  if (phase !== "ready") showPhase(state);
  if ((phase === "ready") !== wasReady) { if (phase === "ready") await showModel(); changed(); }
}

function showPhase({ detail, progress }) {
  byId("phase-title").textContent = PHASES[phase] ?? phase;
  byId("phase-detail").textContent = detail;
  const bar = byId("phase-progress");
  bar.hidden = phase === "failed" || phase === "gone";
  if (typeof progress === "number") bar.value = progress;
  else bar.removeAttribute("value");
}

async function showModel() {
  try {
    const [{ data }, { model }] = await Promise.all([server.getJson("/v1/models"), server.getJson("/system/v1/snapshot")]);
    recommended = Object.fromEntries(data.map((card) => [card.id, card.recommended]));
    const name = byId("model-name");
    name.dataset.id = model?.id ?? data[0]?.id ?? "";
    if (settings.model && !data.some(({ id }) => id === settings.model)) chooseModel(undefined);
    name.textContent = settings.model ?? (name.dataset.id || "Choose a model");
  } catch (error) { refused(error); }
}

function chooseModel(id) {
  settings.model = id;
  store.saveSettings(settings);
  if (id) byId("model-name").textContent = id;
  if (id && !recommended[id]) showModel();
}

// ---- settings

function openSettings() {
  byId("set-system").value = settings.system ?? "";
  for (const name of SAMPLING) byId(`set-${name}`).value = settings[name] ?? "";
  byId("set-theme").value = settings.theme ?? "";
  byId("settings-dialog").showModal();
}

function takeSettings() {
  settings.system = byId("set-system").value;
  settings.theme = byId("set-theme").value;
  for (const name of SAMPLING) {
    const { value, validity } = byId(`set-${name}`);
    settings[name] = value === "" || !validity.valid ? undefined : Number(value);
  }
  store.saveSettings(settings);
  applyTheme();
}

function applyTheme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
}

// ---- sidebar

function openSidebar() {
  document.body.classList.add("with-sidebar");
  byId("shade").hidden = false;
  byId("toggle-sidebar").setAttribute("aria-expanded", "true");
  byId("new-chat").focus();
}

function closeSidebar() {
  document.body.classList.remove("with-sidebar");
  byId("shade").hidden = true;
  byId("toggle-sidebar").setAttribute("aria-expanded", "false");
}

// ---- what people do

const on = (id, type, listener) => byId(id).addEventListener(type, listener);

on("composer", "submit", (event) => { event.preventDefault(); send(); });
on("composer-text", "input", grow);
on("composer-text", "keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
on("stop", "click", () => { view.stop(); byId("composer-text").focus(); });
on("new-chat", "click", () => { openChat(store.newConversation()); byId("composer-text").focus(); });
on("export", "click", exportChat);
on("choose-model", "click", () => models.open(settings.model ?? byId("model-name").dataset.id));
on("open-settings", "click", openSettings);
on("settings-dialog", "close", takeSettings);
on("toggle-live", "click", () => panel.toggle());
on("close-live", "click", () => { panel.toggle(false); byId("toggle-live").focus(); });
on("toggle-sidebar", "click", () => (document.body.classList.contains("with-sidebar") ? closeSidebar() : openSidebar()));
on("shade", "click", closeSidebar);
on("forget-all", "click", async () => {
  byId("settings-dialog").close();
  if (!(await ask("Delete every conversation kept in this browser?"))) return;
  view.stop();
  store.removeAll();
  openChat(store.newConversation());
  say("All conversations are deleted.");
});
on("key-form", "submit", () => {
  store.saveKey(byId("key").value.trim(), byId("key-keep").checked);
  showModel();
  panel.sync();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (view.isAnswering) view.stop();
    else if (!byId("shade").hidden) { closeSidebar(); byId("toggle-sidebar").focus(); }
  }
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); byId("composer-text").focus(); }
});
addEventListener("storage", () => listConversations());

byId("examples").append(...EXAMPLES.map((text) => element("li", {}, element("button", {
  type: "button",
  on: { click: () => { byId("composer-text").value = text; grow(); byId("composer-text").focus(); } },
}, text))));

applyTheme();
openChat(store.conversations()[0] ?? store.newConversation());
if (!NARROW.matches) panel.toggle(innerWidth >= 1180);
// On a phone the keyboard would cover the page before anything was read.
grow(); // what was written before this script came
if (matchMedia("(pointer: fine)").matches) byId("composer-text").focus();
watchPhase();

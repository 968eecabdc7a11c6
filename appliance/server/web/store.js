// Keeps conversations and settings in this browser. Each conversation has its own entry, so that two tabs do not
// overwrite each other. Knows no server.

const CHAT = "appliance.chat.";
const SETTINGS = "appliance.settings";
const KEY = "appliance.key";

export function conversations() {
  const found = [];
  for (let i = 0; i < localStorage.length; i += 1) {
    const name = localStorage.key(i);
    if (name.startsWith(CHAT)) found.push(parsed(localStorage.getItem(name)));
  }
  return found.filter((chat) => chat?.id && Array.isArray(chat.messages)).sort((a, b) => b.changed - a.changed);
}

export function newConversation() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return { id: [...random].map((part) => part.toString(36)).join(""), changed: Date.now(), messages: [] };
}

export function titleOf(chat) {
  const first = chat.messages.find((message) => message.role === "user");
  return first ? first.content.trim().split("\n")[0].slice(0, 80) : "New conversation";
}

// False where the browser has no room: the conversation still lives until the page closes.
export function save(chat) {
  chat.changed = Date.now();
  return write(CHAT + chat.id, JSON.stringify(chat));
}

export const remove = (id) => localStorage.removeItem(CHAT + id);
export const removeAll = () => conversations().forEach((chat) => remove(chat.id));

export const settings = () => parsed(localStorage.getItem(SETTINGS)) ?? {};
export const saveSettings = (values) => write(SETTINGS, JSON.stringify(values));

export const apiKey = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);

export function saveKey(key, isKept) {
  sessionStorage.setItem(KEY, key);
  if (isKept) write(KEY, key);
  else localStorage.removeItem(KEY);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
}

export function asMarkdown(chat) {
  const parts = chat.messages.map(({ role, content }) => `## ${role === "user" ? "You" : "Model"}\n\n${content}\n`);
  return `# ${titleOf(chat)}\n\n${parts.join("\n")}`;
}

function write(name, text) {
  try {
    localStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

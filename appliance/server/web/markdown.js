// Markdown to DOM nodes: paragraphs, headings, lists, quotes, tables, code, emphasis, links. HTML in it stays text.

import { element, icon } from "/web/element.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
const COPY = "M7 7V4.5A1.5 1.5 0 0 1 8.5 3h7A1.5 1.5 0 0 1 17 4.5v7a1.5 1.5 0 0 1-1.5 1.5H13M4.5 7h7A1.5 1.5 0 0 1 13 8.5v7a1.5 1.5 0 0 1-1.5 1.5h-7A1.5 1.5 0 0 1 3 15.5v-7A1.5 1.5 0 0 1 4.5 7z";
const DEEPEST = 12; // nested lists and quotes beyond this stay text

// Show `text` in `container`. Blocks that did not change since the last call keep their nodes.
export function show(container, text) {
  const sources = blocks(text.split("\n"));
  const kept = container.sources ?? [];
  let same = 0;
  while (same < kept.length && same < sources.length && kept[same] === sources[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const source of sources.slice(same)) container.append(block(source.split("\n"), 0));
  container.sources = sources;
}

// Cut lines into the sources of top-level blocks.
export function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) { at += 1; continue; }
    const end = blockEnd(lines, at);
    found.push(lines.slice(at, end).join("\n"));
    at = end;
  }
  return found;
}

function blockEnd(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (fence) {
    const close = lines.findIndex((line, i) => i > at && isClosing(line, fence[1]));
    return close < 0 ? lines.length : close + 1;
  }
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return at + 1;
  if (ITEM.test(lines[at])) return listEnd(lines, at);
  const goesOn = QUOTE.test(lines[at]) ? (line) => QUOTE.test(line) : (line) => !startsBlock(line);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && goesOn(lines[end])) end += 1;
  return end;
}

function listEnd(lines, at) {
  const isOrdered = /\d/.test(ITEM.exec(lines[at])[2]);
  let end = at + 1;
  let wasBlank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) { wasBlank = true; continue; }
    const item = ITEM.exec(line);
    const isIndented = /^\s{2,}/.test(line);
    if (!isIndented && item && /\d/.test(item[2]) !== isOrdered) break;
    if (!isIndented && !item && (wasBlank || startsBlock(line))) break;
    wasBlank = false;
  }
  while (!lines[end - 1].trim()) end -= 1;
  return end;
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || QUOTE.test(line);
const isClosing = (line, fence) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";

function block(lines, depth) {
  const first = lines[0];
  const fence = FENCE.exec(first);
  if (fence) return code(lines, fence);
  const heading = HEADING.exec(first);
  if (heading) return element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
  if (RULE.test(first)) return element("hr");
  if (depth < DEEPEST && ITEM.test(first)) return list(lines, depth);
  if (depth < DEEPEST && QUOTE.test(first)) return quote(lines, depth);
  if (lines.length > 1 && first.includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  return element("p", {}, ...inline(lines.join("\n")));
}

function code(lines, fence) {
  const isClosed = lines.length > 1 && isClosing(lines.at(-1), fence[1]);
  const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const language = fence[2].trim().split(/\s/)[0].slice(0, 24);
  const label = element("span", {}, "Copy");
  const copy = element("button", { type: "button", className: "copy", on: { click: () => copyText(text, label) } }, icon(COPY), label);
  const head = element("div", { className: "code-head" }, element("span", {}, language || "code"), copy);
  const body = element("pre", { tabIndex: 0 }, element("code", {}, text));
  return element("figure", { className: "code" }, head, body);
}

export async function copyText(text, label) {
  const before = label.textContent;
  try {
    await navigator.clipboard.writeText(text);
    label.textContent = "Copied";
  } catch {
    label.textContent = copyBySelection(text) ? "Copied" : "Not allowed";
  }
  setTimeout(() => { label.textContent = before; }, 1500);
}

// Over plain HTTP from another machine a browser offers no clipboard but this one.
function copyBySelection(text) {
  const area = element("textarea", { value: text, className: "hidden" });
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}

function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(marker);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items.at(-1).push(line);
  }
  const nodes = items.map(([text, ...rest]) => element("li", {}, ...inside([text, ...dedented(rest)], depth)));
  return element(isOrdered ? "ol" : "ul", isOrdered ? { start: parseInt(marker, 10) } : {}, ...nodes);
}

function dedented(lines) {
  const indents = lines.filter((line) => line.trim()).map((line) => /^\s*/.exec(line)[0].length);
  const least = indents.length ? Math.min(...indents) : 0;
  return lines.map((line) => line.slice(least));
}

function inside(lines, depth) {
  const nodes = blocks(lines).map((source) => block(source.split("\n"), depth + 1));
  return nodes.length && nodes[0].tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

function quote(lines, depth) {
  const inner = blocks(lines.map((line) => line.replace(QUOTE, "")));
  return element("blockquote", {}, ...inner.map((source) => block(source.split("\n"), depth + 1)));
}

function table(lines) {
  const row = (line, kind) => element("tr", {}, ...cells(line).map((cell) => element(kind, {}, ...inline(cell))));
  const head = element("thead", {}, row(lines[0], "th"));
  const body = element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")));
  return element("div", { className: "table", tabIndex: 0 }, element("table", {}, head, body));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

// One alternative a kind of span; every one is linear in the text.
const SPANS = new RegExp([
  "(?<escaped>\\\\[\\\\`*_{}\\[\\]()#+\\-.!|~>])",
  "(?<ticks>`+)(?<code>[^`](?:[^`]|(?!\\k<ticks>)`)*?)\\k<ticks>(?!`)",
  "\\*\\*(?<strong>[^\\s*](?:[^*]|\\*(?!\\*)){0,2000}?)\\*\\*",
  "(?<![\\w_])__(?<strong2>[^\\s_][^\\n]{0,2000}?)__(?![\\w_])",
  "\\*(?<em>[^\\s*][^*\\n]{0,1000}?)\\*",
  "(?<![\\w_])_(?<em2>[^\\s_][^_\\n]{0,1000}?)_(?![\\w_])",
  "~~(?<del>[^~\\n]{1,1000}?)~~",
  "\\[(?<label>[^\\[\\]\\n]{1,500})\\]\\((?<href>[^()\\s]{1,2000}(?:\\([^()\\s]{0,500}\\))?)(?:\\s+\"[^\"\\n]{0,200}\")?\\)",
  "(?<url>https?:\\/\\/[^\\s<>()\\[\\]\"'`*]{1,2000}[^\\s<>()\\[\\]\"'`*.,;:!?])",
  "(?<break> {2,}\\n|\\\\\\n)",
].join("|"), "g");

export function inline(text, depth = 0) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(SPANS)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    nodes.push(span(match, depth));
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function span(match, depth) {
  const found = match.groups;
  const within = (text) => (depth < DEEPEST ? inline(text, depth + 1) : [text]);
  if (found.escaped) return found.escaped[1];
  if (found.code !== undefined) return element("code", {}, found.code.trim() || found.code);
  if (found.strong ?? found.strong2) return element("strong", {}, ...within(found.strong ?? found.strong2));
  if (found.em ?? found.em2) return element("em", {}, ...within(found.em ?? found.em2));
  if (found.del) return element("del", {}, ...within(found.del));
  if (found.label) return link(found.href, within(found.label), match[0]);
  if (found.url) return link(found.url, [found.url], found.url);
  return element("br");
}

// Only addresses of the web and of mail become links: never javascript: or data:.
function link(href, children, source) {
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return source;
  return element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

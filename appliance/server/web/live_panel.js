// The figures of the dashboard, from the stream of snapshots. Runs while it is open and the page is seen.

import { byId, drawing, element } from "/web/element.js";
import { snapshots } from "/web/server.js";

const NUM_POINTS = 120; // one minute at two a second
const RETRY_MS = 2000;
const WIDTH = 240;
const HEIGHT = 44;

export class LivePanel {
  constructor(refused) {
    this.refused = refused;
    this.panel = byId("live");
    this.history = { speed: [], kv: [] };
    document.addEventListener("visibilitychange", () => this.sync());
  }

  get isOpen() { return !this.panel.hidden; }

  toggle(isOpen = !this.isOpen) {
    this.panel.hidden = !isOpen;
    byId("toggle-live").setAttribute("aria-expanded", isOpen);
    this.sync();
  }

  sync() {
    const isWanted = this.isOpen && !document.hidden;
    if (isWanted && !this.controller) this.watch();
    if (!isWanted) { this.controller?.abort(); this.controller = null; }
  }

  async watch() {
    const controller = new AbortController();
    this.controller = controller;
    while (this.controller === controller) {
      try {
        for await (const snapshot of snapshots(controller.signal)) this.show(snapshot);
      } catch (error) {
        if (controller.signal.aborted) return;
        if (!this.refused(error)) byId("figures").replaceChildren(element("p", { className: "muted" }, "The appliance does not answer; trying again."));
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  show(snapshot) {
    const { throughput, kv, latency, requests, memory, model } = snapshot;
    push(this.history.speed, throughput?.output_tokens_per_s ?? 0);
    push(this.history.kv, kv ? kv.used_blocks / kv.num_blocks : 0);
    const parts = [];
    if (throughput) parts.push(group("Speed",
      big(throughput.output_tokens_per_s.toFixed(1), "tokens/s"),
      plot(this.history.speed, Math.max(1, ...this.history.speed), "Output tokens per second over the last minute"),
      rows([["Prompts", `${throughput.prompt_tokens_per_s.toFixed(0)} tokens/s`], ["Answered", count(throughput.output_tokens)], ["Prompt tokens", count(throughput.prompt_tokens)]])));
    if (latency) parts.push(group("Latency, last minute", percentiles(latency)));
    if (requests) parts.push(group("Requests", rows([["Running", requests.running], ["Waiting", requests.waiting], ["Finished", count(requests.finished)], ["Failed", requests.failed], ["Refused", requests.rejected]])));
    if (kv) parts.push(group("KV pages",
      meter(kv.used_blocks, kv.cached_blocks, kv.num_blocks),
      rows([["In use", `${kv.used_blocks} of ${kv.num_blocks}`], ["Reusable", kv.cached_blocks], ["Prefix hits", kv.prefix_hit_rate === null ? "–" : `${(100 * kv.prefix_hit_rate).toFixed(0)}%`]])));
    if (memory) parts.push(group("Machine", rows([["Memory", `${bytes(memory.process_resident_bytes)} of ${bytes(memory.limit_bytes)}`], ["Free", bytes(memory.available_bytes)], ["CPU", snapshot.cpu_percent === null ? "–" : `${snapshot.cpu_percent.toFixed(0)}%`],
      ...snapshot.gpus.map((gpu) => [gpu.name, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`])])));
    if (model) parts.push(group("Model", rows([["Name", model.id], ["Precision", `${model.precision}, KV ${model.kv_dtype}`], ["Context", `${count(model.context_length)} tokens`], ["Runs on", `${model.backend}, ${model.device}`]])));
    byId("figures").replaceChildren(...parts);
  }
}

function push(points, value) {
  points.push(value);
  if (points.length > NUM_POINTS) points.shift();
}

const group = (title, ...children) => element("section", { className: "group" }, element("h3", {}, title), ...children);
const big = (value, unit) => element("p", { className: "big" }, value, element("span", {}, ` ${unit}`));

function rows(pairs) {
  return element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function percentiles(latency) {
  const head = element("tr", {}, element("td"), ...["P50", "P95", "P99"].map((name) => element("th", { scope: "col" }, name)));
  const names = [["First token", latency.ttft], ["Per token", latency.tpot], ["Gap", latency.itl], ["Queue", latency.queue]];
  const lines = names.map(([name, p]) => element("tr", {}, element("th", { scope: "row" }, name),
    ...[p.p50_s, p.p95_s, p.p99_s].map((value) => element("td", {}, duration(value)))));
  return element("table", { className: "figures" }, element("thead", {}, head), element("tbody", {}, ...lines));
}

function plot(points, top, label) {
  const step = WIDTH / (NUM_POINTS - 1);
  const left = WIDTH - step * (points.length - 1);
  const line = points.map((value, i) => `${(left + i * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`).join(" ");
  const area = `${left.toFixed(1)},${HEIGHT} ${line} ${WIDTH},${HEIGHT}`;
  return drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    drawing("polygon", { points: area, class: "area" }), drawing("polyline", { points: line, class: "line" }));
}

function meter(used, cached, total) {
  const part = (from, num, kind) => drawing("rect", { x: (100 * from) / total, width: (100 * num) / total, height: 6, class: kind });
  return drawing("svg", { viewBox: "0 0 100 6", class: "meter", role: "img", "aria-label": `${used} of ${total} KV pages in use, ${cached} reusable`, preserveAspectRatio: "none" },
    part(0, total, "free"), part(0, used, "used"), part(used, cached, "cached"));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 10) return `${seconds.toFixed(0)} s`;
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

export const count = (number) => number.toLocaleString("en");

export function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  let value = number;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value.toFixed(value < 10 && at ? 1 : 0)} ${units[at]}`;
}

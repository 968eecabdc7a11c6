// The models dialog: which are here, which is loaded, which fit; choose one, install another.

import { byId, element } from "/web/element.js";
import { bytes } from "/web/live_panel.js";
import { getJson, pull } from "/web/server.js";

const ROOM = 1.25; // a model wants its weights and some more for the KV pool

export class ModelList {
  constructor({ chosen, refused }) {
    this.chosen = chosen;
    this.refused = refused;
    byId("pull").addEventListener("submit", (event) => { event.preventDefault(); this.install(byId("pull-name").value.trim()); });
  }

  async open(current) {
    this.current = current;
    byId("models-dialog").showModal();
    await this.refresh();
  }

  async refresh() {
    try {
      const [{ data }, { models }, { memory }] = await Promise.all([getJson("/v1/models"), getJson("/api/tags"), getJson("/system/v1/snapshot")]);
      const loaded = new Set(data.map((model) => model.id));
      const onDisk = models.filter((model) => !loaded.has(model.name));
      byId("models-memory").textContent = memory ? `${bytes(memory.available_bytes)} of memory are free on this machine.` : "";
      const lines = [
        ...data.map((model) => this.line(model.id, "loaded", models.find((m) => m.name === model.id))),
        ...onDisk.map((model) => this.line(model.name, fit(model.size, memory?.available_bytes), model)),
      ];
      byId("models").replaceChildren(...lines);
    } catch (error) {
      if (!this.refused(error)) byId("models").replaceChildren(element("li", { className: "error" }, error.message));
    }
  }

  line(id, state, model) {
    const details = model?.details ?? {};
    const about = [details.parameter_size, details.quantization_level, model?.size ? bytes(model.size) : ""].filter(Boolean).join(" · ");
    const choose = () => { this.chosen(id); byId("models-dialog").close(); };
    return element("li", {}, element("button", { type: "button", className: "model-card", "aria-pressed": String(id === this.current), on: { click: choose } },
      element("span", { className: "ellipsis" }, id), element("span", { className: "small muted" }, about), element("span", { className: `badge ${state.replaceAll(" ", "-")}` }, state)));
  }

  async install(name) {
    if (!name) return;
    const status = byId("pull-status");
    const bar = byId("pull-progress");
    status.className = "small";
    bar.hidden = false;
    try {
      for await (const step of pull(name)) {
        status.textContent = step.total ? `${step.status}: ${bytes(step.completed ?? 0)} of ${bytes(step.total)}` : step.status;
        if (step.total) bar.value = (step.completed ?? 0) / step.total;
        else bar.removeAttribute("value");
      }
      status.textContent = `${name} is here.`;
      await this.refresh();
    } catch (error) {
      status.className = "small error";
      if (!this.refused(error)) status.textContent = error.message;
    }
    bar.hidden = true;
  }
}

function fit(size, available) {
  if (!available) return "on disk";
  return size * ROOM <= available ? "fits" : "too large";
}

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
      const [{ models }, { memory }] = await Promise.all([getJson("/system/v1/models"), getJson("/system/v1/snapshot")]);
      byId("models-memory").textContent = memory ? `${bytes(memory.available_bytes)} of memory are free on this machine.` : "";
      const here = models.filter((model) => model.state !== "available");
      const others = models.filter((model) => model.state === "available");
      byId("models").replaceChildren(...here.map((model) => this.line(model, memory)));
      byId("names").replaceChildren(...others.map((model) => element("option", { value: model.id }, `${bytes(model.size_bytes)}, ${fit(model.size_bytes, memory)}`)));
    } catch (error) {
      if (!this.refused(error)) byId("models").replaceChildren(element("li", { className: "error" }, error.message));
    }
  }

  line({ id, state, size_bytes: size, detail }, memory) {
    const choose = () => { this.chosen(id); byId("models-dialog").close(); };
    const word = state === "installed" ? fit(size, memory) : state;
    return element("li", {}, element("button", { type: "button", className: "model-card", "aria-pressed": String(id === this.current), on: { click: choose } },
      element("span", { className: "ellipsis" }, id), element("span", { className: "small muted" }, detail || bytes(size)), element("span", { className: `badge ${word.replaceAll(" ", "-")}` }, word)));
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

function fit(size, memory) {
  if (!memory) return "on disk";
  return size * ROOM <= memory.available_bytes ? "fits" : "too large";
}

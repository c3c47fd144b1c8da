"use strict";
const find = (id) => document.getElementById(id);
let adapters = [];

// All text from the server is set as text, never as HTML.
function cell(row, text) {
  row.insertCell().textContent = text;
}

async function loadAdapters() {
  const response = await fetch("/adapters");
  adapters = (await response.json()).adapters;
  for (const adapter of adapters) {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    adapter.box = box;
    box.checked = adapters.length <= 8;
    label.append(box, " " + adapter.name);
    label.title = adapter.task + (adapter.labels.length ? ": " + adapter.labels.join(", ") : "");
    find("adapters").append(label);
  }
}

function rowFor(adapter, first, second) {
  if (adapter.task === "span") return { adapter: adapter.name, question: first, context: second };
  if (adapter.task === "multiple_choice") {
    // Heads that were trained with a question join it to the context, so the first box can hold both.
    const question = adapter.texts === 2 ? { question: "" } : {};
    return { adapter: adapter.name, context: first, ...question, choices: second.split("\n").filter((line) => line) };
  }
  if (second) return { adapter: adapter.name, text_a: first, text_b: second };
  return { adapter: adapter.name, text: first };
}

function labelOf(prediction) {
  if (prediction.entities) return prediction.entities.map((entity) => entity.type + ": " + entity.text).join("; ");
  return Array.isArray(prediction.label) ? prediction.label.join(", ") : String(prediction.label);
}

// A table of a fusion's attention: one row per layer, one column per adapter, darker for more attention.
function showAttention(name, attention) {
  for (const [slot, { layers, adapters, attention: shares }] of Object.entries(attention)) {
    const table = document.createElement("table");
    table.className = "attention";
    table.createCaption().textContent = "Attention of " + name + " over its adapters, " + slot;
    const head = table.createTHead().insertRow();
    const isSame = adapters.every((names) => names.join() === adapters[0].join());
    const titles = isSame ? adapters[0] : adapters[0].map((_, number) => "adapter " + number);
    for (const title of ["layer", ...titles]) {
      const header = document.createElement("th");
      header.textContent = title;
      head.append(header);
    }
    const body = table.createTBody();
    layers.forEach((layer, position) => {
      const row = body.insertRow();
      cell(row, layer);
      shares[position].forEach((share, number) => {
        const shareCell = row.insertCell();
        shareCell.textContent = (isSame ? "" : adapters[position][number] + " ") + share.toFixed(2);
        shareCell.style.backgroundColor = "rgba(30, 100, 200, " + (0.7 * share).toFixed(3) + ")";
      });
    });
    find("attention").append(table);
  }
}

async function predict(event) {
  event.preventDefault();
  find("message").textContent = "";
  const body = find("results").tBodies[0];
  body.replaceChildren();
  find("attention").replaceChildren();
  find("results").hidden = false;
  const chosen = adapters.filter((adapter) => adapter.box.checked);
  // Send one request per adapter, so that input that is invalid for one adapter does not affect the others.
  await Promise.all(chosen.map(async (adapter) => {
    const row = body.insertRow();
    cell(row, adapter.name);
    const response = await fetch("/predict", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        rows: [rowFor(adapter, find("first").value, find("second").value)],
        fusion_attention: adapter.fused.length > 0,
      }),
    });
    const answer = await response.json();
    if (!response.ok) {
      cell(row, answer.error);
      cell(row, "");
      return;
    }
    const prediction = answer.predictions[0];
    // Other kinds of tasks have no single probability to show.
    const hasOne = typeof prediction.label === "string" && !prediction.answers;
    cell(row, labelOf(prediction));
    cell(row, hasOne ? Math.max(...prediction.probabilities).toFixed(3) : "");
    if (prediction.fusion_attention) showAttention(adapter.name, prediction.fusion_attention);
  }));
}

find("form").addEventListener("submit", (event) => {
  predict(event).catch((error) => { find("message").textContent = String(error); });
});
loadAdapters().catch((error) => { find("message").textContent = String(error); });

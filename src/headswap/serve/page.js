"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, text, parent, kind) => {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = text;
    if (kind) made.className = kind;
    if (parent) parent.append(made);
    return made;
  };
  const draw = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const HELP = {
    classify: "A text; its classes with probabilities, and the words that mattered.",
    generate: "The beginning of a text. Each token shows its alternatives; choose one to go on from there.",
    fill: "A text with <mask> in it.",
    translate: "A sentence to translate.",
    attention: "A text; which pieces look at which.",
  };
  const NAMES = { classify: "Classify", generate: "Complete", fill: "Fill a mask", translate: "Translate", attention: "Attention" };
  let models = [], task = "classify", running = 0;

  const ask = async (name, what, body) => {
    const headers = { "Content-Type": "application/json" };
    if (by("token").value) headers.Authorization = `Bearer ${by("token").value}`;
    const path = name === null ? "v1/models" : `v1/models/${encodeURIComponent(name)}/${what}`;
    const answer = await fetch(path, name === null ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      const error = new Error(told.error ? [told.error.what, told.error.fix].filter(Boolean).join("; ") : `the server answered ${answer.status}`);
      error.status = answer.status;
      throw error;
    }
    return answer;
  };
  const told = async (name, what, body) => (await ask(name, what, body)).json();

  const chances = (parent, rows) => rows.forEach(([label, value]) => {
    const row = make("div", null, parent, "chance");
    make("span", label, row);
    const bar = make("span", "", make("span", null, row), "bar");
    bar.style.display = "block"; bar.style.width = `${100 * value}%`;
    make("span", value.toFixed(3), row);
  });

  const TASKS = {
    async classify(name, text, card) {
      const { predictions: [found] } = await told(name, "classify", { texts: [text], words: true });
      make("p", found.label, card, "said");
      chances(card, Object.entries(found.probabilities).sort((a, b) => b[1] - a[1]));
      make("p", `Words for (blue) and against (orange) ${found.label}:`, card, "soft");
      const line = make("p", null, card, "pieces"), most = Math.max(...found.words.map((w) => Math.abs(w.weight)), 1e-9);
      found.words.forEach((word) => {
        const piece = make("span", word.text, line, "piece");
        piece.style.backgroundColor = `rgba(var(${word.weight < 0 ? "--con" : "--pro"}), ${0.8 * Math.abs(word.weight) / most})`;
        piece.title = word.weight.toFixed(3);
      });
    },
    async generate(name, text, card) {
      const said = make("p", null, card, "said"), others = make("div", null, card);
      make("span", text, said);
      const answer = await ask(name, "generate", { prompt: text, length: 40, stream: true });
      const reader = answer.body.getReader(), decoder = new TextDecoder();
      let rest = "", so_far = text;
      const add = (token) => {
        if (token.error) { make("p", token.error.what, card, "problem"); return; }
        const before = so_far;
        so_far += token.text;
        const button = make("button", token.ended ? " ■" : token.text || "▯", said, "token");
        button.type = "button";
        button.setAttribute("aria-label", `${token.ended ? "end" : token.text}, probability ${token.probability.toFixed(2)}`);
        button.addEventListener("click", () => {
          said.querySelectorAll(".token").forEach((one) => one.setAttribute("aria-pressed", one === button));
          others.replaceChildren();
          make("p", "Instead:", others, "soft");
          token.alternatives.forEach(([other, chance]) => {
            const row = make("button", `${other.trim() || "␣"}  ${chance.toFixed(3)}`, others, "piece");
            row.type = "button";
            row.addEventListener("click", () => { by("text").value = before + other; go(); });
          });
        });
      };
      for (;;) {
        const { done, value } = await reader.read();
        rest += decoder.decode(value || new Uint8Array(), { stream: !done });
        const lines = rest.split("\n");
        rest = lines.pop();
        lines.filter(Boolean).forEach((one) => add(JSON.parse(one)));
        if (done) break;
      }
    },
    async fill(name, text, card) {
      const { masks } = await told(name, "fill", { text, most: 6 });
      masks.forEach((rows, i) => {
        if (masks.length > 1) make("p", `mask ${i + 1}`, card, "soft");
        chances(card, rows.map((row) => [row.token, row.probability]));
      });
    },
    async translate(name, text, card, model) {
      const { translations: [found] } = await told(name, "translate", { texts: [text] });
      make("p", found.text, card, "said");
      if (!model.can.includes("attention") || !found.text) return;
      const { attention } = await told(name, "attention", { text, target: found.text });
      const cross = attention.find((one) => one.name === "cross");
      const layer = cross.layers[Math.max(0, cross.layers.length - 2)];
      // The position that reads a token predicts the next: its weights belong to that one.
      const weights = cross.queries.map((_, t) => cross.keys.map((__, s) => layer.reduce((sum, head) => sum + head[Math.max(0, t - 1)][s], 0) / layer.length));
      const step = 26, high = step * Math.max(cross.keys.length, cross.queries.length - 1) + 8;
      make("p", "Where each piece came from:", card, "soft");
      const picture = draw("svg", { viewBox: `0 0 330 ${high}`, width: 330, role: "img", "aria-label": "Lines from source pieces to translated pieces" }, card);
      cross.queries.slice(1).forEach((piece, i) => cross.keys.forEach((_, s) => {
        const weight = weights[i + 1][s];
        if (weight > 0.12) draw("line", { x1: 120, y1: step * (s + 0.6), x2: 210, y2: step * (i + 0.6), class: "tie", "stroke-opacity": Math.min(1, 1.4 * weight) }, picture);
      }));
      cross.keys.forEach((piece, s) => draw("text", { x: 114, y: step * (s + 0.6) + 4, "text-anchor": "end", class: "word" }, picture, piece));
      cross.queries.slice(1).forEach((piece, i) => draw("text", { x: 216, y: step * (i + 0.6) + 4, class: "word" }, picture, piece));
    },
    async attention(name, text, card) {
      const { attention } = await told(name, "attention", { text });
      const kind = attention[attention.length - 1], choice = make("label", "layer ", card, "soft"), select = make("select", null, choice);
      kind.layers.forEach((_, i) => { const one = make("option", `${i + 1}`, select); one.value = i; });
      select.value = kind.layers.length - 1;
      const top = make("p", null, card, "pieces"), below = make("p", null, card, "pieces");
      let query = kind.queries.length - 1;
      const show = () => {
        const layer = kind.layers[select.value];
        top.replaceChildren(); below.replaceChildren();
        make("span", "looks: ", top, "soft"); make("span", "at: ", below, "soft");
        kind.queries.forEach((piece, i) => {
          const one = make("button", piece, top, "piece");
          one.type = "button"; one.setAttribute("aria-pressed", i === query);
          one.addEventListener("click", () => { query = i; show(); });
        });
        kind.keys.forEach((piece, s) => {
          const weight = layer.reduce((sum, head) => sum + head[query][s], 0) / layer.length;
          const one = make("span", piece, below, "piece");
          one.style.backgroundColor = `rgba(var(--pro), ${Math.min(0.9, 1.2 * weight)})`; one.title = weight.toFixed(3);
        });
      };
      select.addEventListener("change", show);
      show();
    },
  };

  const chosen = () => [by("first").value, by("second").value].filter(Boolean).map((name) => models.find((m) => m.name === name));
  const tabs = () => {
    const first = models.find((m) => m.name === by("first").value);
    const can = first ? first.can.filter((name) => name in TASKS) : [];
    if (!can.includes(task)) task = can[0];
    by("tabs").replaceChildren();
    can.forEach((name) => {
      const tab = make("button", NAMES[name], by("tabs"));
      tab.type = "button"; tab.setAttribute("role", "tab"); tab.setAttribute("aria-selected", name === task);
      tab.addEventListener("click", () => { task = name; tabs(); by("text").focus(); });
    });
    by("help").textContent = HELP[task] || "";
  };
  const go = async () => {
    const text = by("text").value, mine = ++running;
    by("answers").replaceChildren(); by("go").disabled = true; by("state").textContent = "working …";
    const began = performance.now();
    await Promise.all(chosen().map(async (model) => {
      const card = make("section", null, by("answers"), "answer-card");
      make("h2", model.name, card);
      if (!model.can.includes(task)) { make("p", `This model cannot do this; it can: ${model.can.join(", ")}.`, card, "problem"); return; }
      try { await TASKS[task](model.name, text, card, model); }
      catch (error) { make("p", error.message, card, "problem"); }
    }));
    if (mine !== running) return;
    by("go").disabled = false; by("state").textContent = `${((performance.now() - began) / 1000).toFixed(2)} s`;
  };
  const start = async () => {
    try { models = (await (await ask(null)).json()).models; by("state").textContent = ""; }
    catch (error) { by("locked").hidden = error.status !== 401; by("state").textContent = error.message; return; }
    ["first", "second"].forEach((id) => {
      const select = by(id);
      if (id === "first") select.replaceChildren();
      models.forEach((model) => { const one = make("option", model.name, select); one.value = model.name; });
    });
    tabs();
  };
  by("form").addEventListener("submit", (event) => { event.preventDefault(); go(); });
  by("text").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); go(); } });
  by("first").addEventListener("change", tabs);
  by("token").addEventListener("change", start);
  start();
})();

"use strict";
(() => {
  const found = JSON.parse(document.getElementById("data").textContent);
  const show = (name) => document.querySelector(`[data-show="${name}"]`);
  const choose = (name) => document.querySelector(`[data-choose="${name}"]`);
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim();
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (name, attributes, parent) => {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (parent) parent.append(made);
    return made;
  };
  const element = (name, text, parent) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };

  // A matrix on a canvas: its labels, a chosen cell, arrow keys and pointer.
  const LABELLED = 72;
  class Matrix {
    constructor(canvas, told) {
      this.canvas = canvas; this.told = told; this.cell = null;
      const at = (event) => {
        const box = canvas.getBoundingClientRect();
        const scale = this.across / box.width;
        const column = Math.floor(((event.clientX - box.left) * scale - this.left) / this.size);
        const row = Math.floor(((event.clientY - box.top) * scale - this.top) / this.size);
        if (row >= 0 && column >= 0 && row < this.rows.length && column < this.columns.length) this.choose(row, column);
      };
      canvas.addEventListener("pointermove", at);
      canvas.addEventListener("pointerdown", at);
      canvas.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (!step) return;
        event.preventDefault();
        const [row, column] = this.cell || [0, 0];
        this.choose(Math.max(0, Math.min(this.rows.length - 1, row + step[0])), Math.max(0, Math.min(this.columns.length - 1, column + step[1])));
      });
    }
    set(rows, columns, value) {
      this.rows = rows; this.columns = columns; this.value = value;
      const most = Math.max(rows.length, columns.length);
      this.size = most <= 24 ? 22 : most <= LABELLED ? 12 : most <= 160 ? 4 : 2;
      const named = most <= LABELLED;
      const pen = this.canvas.getContext("2d");
      pen.font = `${Math.min(13, this.size)}px system-ui, sans-serif`;
      const room = (names) => named ? 12 + Math.max(...names.map((n) => pen.measureText(n.slice(0, 14)).width)) : 4;
      this.left = room(rows); this.top = room(columns);
      if (this.cell && (this.cell[0] >= rows.length || this.cell[1] >= columns.length)) this.cell = null;
      this.draw();
    }
    choose(row, column) { this.cell = [row, column]; this.draw(); this.told(row, column); }
    draw() {
      const { canvas, size, left, top } = this;
      const scale = window.devicePixelRatio || 1;
      this.across = left + size * this.columns.length + 4;
      const down = top + size * this.rows.length + 4;
      canvas.width = this.across * scale; canvas.height = down * scale;
      canvas.style.width = this.across + "px"; canvas.style.height = down + "px";
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.font = `${Math.min(13, size)}px system-ui, sans-serif`;
      const ink = colour("--ink"), line = colour("--line"), full = colour("--c0"), mark = colour("--c1");
      if (this.top > 4) {
        pen.textBaseline = "middle";
        this.rows.forEach((name, i) => {
          pen.fillStyle = this.cell && this.cell[0] === i ? mark : ink;
          pen.textAlign = "right"; pen.fillText(name.slice(0, 14), left - 5, top + size * (i + 0.5));
        });
        this.columns.forEach((name, i) => {
          pen.fillStyle = this.cell && this.cell[1] === i ? mark : ink;
          pen.save(); pen.translate(left + size * (i + 0.5), top - 5); pen.rotate(-Math.PI / 2);
          pen.textAlign = "left"; pen.fillText(name.slice(0, 14), 0, 0); pen.restore();
        });
      }
      const gap = size > 6 ? 1 : 0;
      for (let i = 0; i < this.rows.length; i++) for (let j = 0; j < this.columns.length; j++) {
        const strength = this.value(i, j);
        pen.globalAlpha = 1; pen.fillStyle = line;
        if (gap) { pen.globalAlpha = 0.35; pen.fillRect(left + size * j, top + size * i, size - gap, size - gap); }
        if (strength > 0) {
          pen.globalAlpha = Math.min(1, strength); pen.fillStyle = full;
          pen.fillRect(left + size * j, top + size * i, size - gap, size - gap);
        }
      }
      pen.globalAlpha = 1;
      if (this.cell) {
        pen.strokeStyle = mark; pen.lineWidth = 2;
        pen.strokeRect(left + size * this.cell[1] - 1, top + size * this.cell[0] - 1, size + 1, size + 1);
      }
    }
  }

  const shaded = (parent, pieces, strength, chosen, onChoose) => {
    parent.replaceChildren();
    pieces.forEach((piece, i) => {
      const made = element(onChoose ? "button" : "span", piece.replace("·", " ").trim() || piece, parent);
      made.className = "piece"; made.title = piece;
      const value = strength(i);
      made.style.backgroundColor = `rgba(var(${value < 0 ? "--con" : "--pro"}), ${Math.min(0.85, Math.abs(value))})`;
      if (onChoose) {
        made.type = "button"; made.setAttribute("aria-pressed", i === chosen);
        made.addEventListener("click", () => onChoose(i));
      }
    });
  };

  const chart = (parent, values, names, told) => {
    parent.replaceChildren();
    const wide = Math.max(260, Math.min(720, 24 * values.length)), high = 170, left = 52, low = high - 26;
    const top = Math.max(...values, 1e-9), bottom = Math.min(0, ...values);
    const drawn = svg("svg", { viewBox: `0 0 ${wide + left + 10} ${high}`, width: wide + left + 10, role: "img", "aria-label": told }, parent);
    const y = (value) => low - (low - 12) * (value - bottom) / (top - bottom || 1);
    [bottom, top].forEach((value) => {
      const text = svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "tick" }, drawn);
      text.textContent = value.toPrecision(3);
    });
    svg("line", { x1: left, x2: left + wide, y1: y(0), y2: y(0), class: "axis" }, drawn);
    return { drawn, wide, left, low, high, y };
  };
  const bars = (parent, values, names, marks, told) => {
    const { drawn, wide, left, low, high, y } = chart(parent, values, names, told);
    const step = wide / values.length;
    values.forEach((value, i) => {
      const bar = svg("rect", { x: left + step * i + 1, width: Math.max(1, step - 2), y: Math.min(y(value), y(0)), height: Math.max(1, Math.abs(y(value) - y(0))), class: marks[i] ? "bar" : "bar faint" }, drawn);
      svg("title", {}, bar).textContent = `${names[i]}: ${value.toPrecision(3)}`;
      if (values.length <= 24) {
        const text = svg("text", { x: left + step * (i + 0.5), y: high - 8, "text-anchor": "middle", class: "tick" }, drawn);
        text.textContent = names[i].slice(0, Math.max(3, Math.floor(step / 7)));
      }
    });
  };
  const line = (parent, values, names, told) => {
    const { drawn, wide, left, high, y } = chart(parent, values, names, told);
    const x = (i) => left + wide * i / Math.max(1, values.length - 1);
    svg("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" "), class: "curve" }, drawn);
    values.forEach((value, i) => {
      if (values.length > 40 && i % Math.ceil(values.length / 20)) return;
      const dot = svg("circle", { cx: x(i), cy: y(value), r: 3.5, class: "dot" }, drawn);
      svg("title", {}, dot).textContent = `${names[i]}: ${value.toPrecision(3)}`;
      if (values.length <= 16 || i === 0) {
        const text = svg("text", { x: x(i), y: high - 8, "text-anchor": "middle", class: "tick" }, drawn);
        text.textContent = names[i];
      }
    });
  };

  // Attention
  const kinds = found.attention;
  let weights = null, query = 0;
  const readout = show("readout");
  const tell = (row, column) => {
    const kind = kinds[choose("kind").value];
    query = row;
    readout.textContent = `${kind.queries[row]} (${row}) looks at ${kind.keys[column]} (${column}): ${at(row, column).toFixed(3)}`;
  };
  const matrix = new Matrix(show("matrix"), tell);
  const at = (row, column) => (weights[row * kinds[choose("kind").value].keys.length + column] / 255) ** 2;
  const option = (select, value, text) => { const made = element("option", text, select); made.value = value; };
  const fillChoices = () => {
    const kind = kinds[choose("kind").value];
    choose("layer").replaceChildren(); choose("head").replaceChildren();
    kind.layers.forEach((layer, i) => option(choose("layer"), i, `${layer + 1} of ${kind.of[0]}`));
    if (kind.rollout) option(choose("layer"), "rollout", "all together (rollout)");
    option(choose("head"), "mean", "mean of all");
    for (let head = 0; head < kind.heads; head++) option(choose("head"), head, `${head + 1} of ${kind.of[1]}`);
    const all = kind.layers.length === kind.of[0] && kind.heads === kind.of[1];
    show("kept").textContent = all ? "" : `To keep this page small it holds layers ${kind.layers.map((l) => l + 1).join(", ")} of ${kind.of[0]} and ${kind.heads} of ${kind.of[1]} heads; the mean is over all heads.`;
    choose("layer").value = String(kind.layers.length - 1);
    drawAttention();
  };
  const drawLines = (kind) => {
    const parent = show("lines");
    parent.replaceChildren();
    if (kind.queries.length > 96) { element("p", "Too many pieces for lines: choose the matrix.", parent); return; }
    const step = 24, high = step * Math.max(kind.queries.length, kind.keys.length) + 10;
    const drawn = svg("svg", { viewBox: `0 0 520 ${high}`, width: 520, role: "img", "aria-label": "Lines from each piece that looks to those it looks at" }, parent);
    kind.queries.forEach((name, i) => kind.keys.forEach((_, j) => {
      const weight = at(i, j);
      if (weight < 0.03) return;
      svg("line", { x1: 170, y1: step * (i + 0.6), x2: 350, y2: step * (j + 0.6), class: i === query ? "tie chosen" : "tie", "stroke-opacity": Math.min(1, weight * 1.3) }, drawn);
    }));
    kind.queries.forEach((name, i) => {
      const text = svg("text", { x: 164, y: step * (i + 0.6) + 4, "text-anchor": "end", class: i === query ? "word chosen" : "word", tabindex: 0 }, drawn);
      text.textContent = name;
      const pick = () => { query = i; drawLines(kind); };
      text.addEventListener("click", pick);
      text.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
    });
    kind.keys.forEach((name, j) => { svg("text", { x: 356, y: step * (j + 0.6) + 4, class: "word" }, drawn).textContent = name; });
  };
  const drawWords = (kind) => {
    const parent = show("words");
    parent.replaceChildren();
    const top = element("p", undefined, parent), bottom = element("p", undefined, parent);
    top.className = bottom.className = "pieces";
    shaded(top, kind.queries, () => 0, query, (i) => { query = i; drawWords(kind); });
    shaded(bottom, kind.keys, (j) => at(query, j));
    readout.textContent = `${kind.queries[query]} (${query}) looks at the shaded pieces`;
  };
  const drawAttention = () => {
    const kind = kinds[choose("kind").value], layer = choose("layer").value, head = choose("head").value, view = choose("view").value;
    choose("head").disabled = layer === "rollout";
    weights = bytes(layer === "rollout" ? kind.rollout : head === "mean" ? kind.mean[layer] : kind.weights[layer][head]);
    query = Math.min(query, kind.queries.length - 1);
    ["matrix", "lines", "words"].forEach((name) => { show(name).hidden = name !== view; });
    if (view === "matrix") matrix.set(kind.queries, kind.keys, (i, j) => Math.sqrt(at(i, j)));
    if (view === "lines") drawLines(kind);
    if (view === "words") drawWords(kind);
  };
  choose("kind").addEventListener("change", fillChoices);
  ["layer", "head", "view"].forEach((name) => choose(name).addEventListener("change", drawAttention));
  fillChoices();

  // Masks
  let bits = null;
  const allowed = (i, j) => {
    const place = i * found.masks[choose("mask").value].keys.length + j;
    return (bits[place >> 3] >> (7 - (place & 7))) & 1;
  };
  const mask = new Matrix(show("mask"), (row, column) => {
    const rule = found.masks[choose("mask").value];
    show("allowed").textContent = `${rule.queries[row]} (${row}) may ${allowed(row, column) ? "" : "not "}look at ${rule.keys[column]} (${column})`;
  });
  const drawMask = () => {
    const rule = found.masks[choose("mask").value];
    bits = bytes(rule.allowed);
    mask.set(rule.queries, rule.keys, (i, j) => allowed(i, j) * 0.75);
  };
  choose("mask").addEventListener("change", drawMask);
  drawMask();
  bars(show("proof"), found.proof.moved, found.pieces, found.proof.allowed, "How far each position's vector moved");

  if (found.attribution) {
    const most = Math.max(...found.attribution.weights.map(Math.abs), 1e-9);
    shaded(show("attribution"), found.attribution.pieces, (i) => 0.85 * found.attribution.weights[i] / most);
    show("attribution").querySelectorAll(".piece").forEach((piece, i) => { piece.title = `${found.attribution.pieces[i]}: ${found.attribution.weights[i].toFixed(3)}`; });
  }
  if (found.candidates) {
    const pick = (chosen) => {
      const entry = found.candidates[chosen], table = element("table"), body = element("tbody", undefined, table);
      shaded(show("candidates"), found.candidates.map((c) => c.piece), (i) => 0.7 * (1 - found.candidates[i].chance) ** 3 * -1, chosen, pick);
      entry.likeliest.forEach(([token, chance]) => {
        const row = element("tr", undefined, body);
        element("td", token, row); element("td", chance.toFixed(3), row);
      });
      const plain = entry.piece.replace("·", "").trim();
      if (!entry.likeliest.some(([token]) => token === plain)) {
        const own = element("tr", undefined, body);
        element("td", `${entry.piece} (the text's own)`, own); element("td", entry.chance.toFixed(3), own);
      }
      show("likeliest").replaceChildren(table);
    };
    pick(found.candidates.length - 1);
  }
  if (found.meanings) line(show("meanings"), found.meanings.by_layer, found.meanings.by_layer.map((_, i) => `${i}`), "Mean distance by layer, the embedding first");
  if (found.heads) {
    const parent = show("heads"), most = Math.max(...found.heads.rows.map((row) => Math.abs(row.lost)), 1e-9);
    [...new Set(found.heads.rows.map((row) => row.kind))].forEach((kind) => {
      const rows = found.heads.rows.filter((row) => row.kind === kind), table = element("table", undefined, parent);
      element("caption", kind, table);
      const layers = Math.max(...rows.map((row) => row.layer)) + 1, first = element("tr", undefined, table);
      element("th", "", first);
      rows.filter((row) => row.layer === 0).forEach((row) => element("th", `head ${row.head + 1}`, first));
      for (let layer = 0; layer < layers; layer++) {
        const line = element("tr", undefined, table);
        element("th", `layer ${layer + 1}`, line);
        rows.filter((row) => row.layer === layer).forEach((row) => {
          const cell = element("td", row.lost.toFixed(4), line);
          cell.style.backgroundColor = `rgba(var(${row.lost < 0 ? "--con" : "--pro"}), ${0.7 * Math.abs(row.lost) / most})`;
        });
      }
    });
  }
  const drawPositions = () => {
    const canvas = show("positions"), { rows, columns, table } = found.positions;
    if (!canvas) return;
    const values = bytes(table), size = 4;
    canvas.width = columns * size; canvas.height = rows * size;
    canvas.style.width = columns * size + "px"; canvas.style.height = rows * size + "px";
    const pen = canvas.getContext("2d"), up = colour("--c0"), down = colour("--c1");
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
      const value = values[i * columns + j] / 127.5 - 1;
      pen.globalAlpha = Math.min(1, Math.abs(value)); pen.fillStyle = value > 0 ? up : down;
      pen.fillRect(j * size, i * size, size, size);
    }
  };
  drawPositions();
  if (found.positions.columns) line(show("alike"), found.positions.alike, found.positions.alike.map((_, i) => `${i} apart`), "Similarity by distance");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawAttention(); drawMask(); drawPositions(); });
})();

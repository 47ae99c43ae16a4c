"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  for (const text of data.texts) {
    text.values = bytes(text.values);
    text.high = new Uint16Array(bytes(text.high).buffer);
  }
  const fill = (id, labels) =>
    labels.forEach((label, value) => at(id).add(new Option(label, value)));
  fill("text", data.texts.map((text, i) => `${i + 1}: ${text.tokens.slice(0, 6).join(" ")} ...`));
  fill("layer", data.layers);
  fill("head", data.heads);
  at("layer").value = data.layers.length - 1;
  const blend = (share) => {
    const end = share > 0 ? [165, 15, 35] : [20, 65, 140];
    const part = Math.min(1, Math.abs(share));
    return `rgb(${end.map((one) => Math.round(255 + (one - 255) * part)).join(",")})`;
  };
  // the first pair of token i among all pairs i < j, row by row
  const start = (i, n) => i * (n - 1) - (i * (i - 1)) / 2;
  const place = (i, j, n) => start(i, n) + j - i - 1;
  let shown = null;

  function current() {
    const text = data.texts[at("text").value];
    const n = text.tokens.length;
    const pairs = (n * (n - 1)) / 2;
    const layer = Number(at("layer").value), head = Number(at("head").value);
    const map = layer * data.heads.length + head;
    return {
      text, n, layer, head,
      values: text.values.subarray(map * pairs, (map + 1) * pairs),
      high: text.high.subarray(map * text.highCount, (map + 1) * text.highCount),
      scale: text.scales[layer][head],
      full: text.full[layer][head] || 1,
    };
  }

  const similarity = (one, k) => {
    const root = (one.values[k] - 128) / 127;
    return root * Math.abs(root) * one.scale;
  };
  const number = (x) => Number(x.toPrecision(3)).toString();

  function ends(k, n) {
    let i = 0;
    while (start(i + 1, n) <= k) i += 1;
    return [i, k - start(i, n) + i + 1];
  }

  function draw() {
    const one = current();
    const { text, n } = one;
    const canvas = at("canvas"), pen = canvas.getContext("2d");
    const room = canvas.parentElement.clientWidth - 18;
    pen.font = "11px sans-serif";
    const widest = Math.max(...text.tokens.map((token) => pen.measureText(token).width));
    const margin = Math.ceil(Math.min(96, widest) + 8);
    const cell = Math.max(10, Math.min(22, Math.floor((room - margin - 2) / n)));
    const size = margin + n * cell + 2;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = size * ratio;
    canvas.height = size * ratio;
    canvas.style.width = canvas.style.height = `${size}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, size, size);
    for (let i = 0; i < n; i += 1)
      for (let j = i + 1; j < n; j += 1) {
        pen.fillStyle = blend(similarity(one, place(i, j, n)) / one.full);
        pen.fillRect(margin + j * cell, margin + i * cell, cell, cell);
        pen.fillRect(margin + i * cell, margin + j * cell, cell, cell);
      }
    pen.fillStyle = "#d9dede";
    for (let i = 0; i < n; i += 1) pen.fillRect(margin + i * cell, margin + i * cell, cell, cell);
    pen.strokeStyle = "#000";
    pen.lineWidth = 1;
    for (const k of one.high) {
      const [i, j] = ends(k, n);
      pen.strokeRect(margin + j * cell + 0.5, margin + i * cell + 0.5, cell - 1, cell - 1);
      pen.strokeRect(margin + i * cell + 0.5, margin + j * cell + 0.5, cell - 1, cell - 1);
    }
    pen.strokeStyle = "#111";
    pen.lineWidth = 2;
    for (let b = 0; b <= n; b += 1)
      if (b === 0 || b === n || text.sentences[b] !== text.sentences[b - 1]) {
        const edge = margin + b * cell;
        pen.beginPath();
        pen.moveTo(margin, edge);
        pen.lineTo(margin + n * cell, edge);
        pen.moveTo(edge, margin);
        pen.lineTo(edge, margin + n * cell);
        pen.stroke();
      }
    pen.fillStyle = "#111";
    pen.font = `${Math.min(11, cell)}px sans-serif`;
    pen.textBaseline = "middle";
    const cut = (token) => {
      let part = token;
      while (part.length > 1 && pen.measureText(part).width > margin - 8) part = part.slice(0, -1);
      return part;
    };
    text.tokens.forEach((token, i) => {
      const middle = margin + (i + 0.5) * cell;
      pen.textAlign = "right";
      pen.fillText(cut(token), margin - 4, middle);
      pen.save();
      pen.translate(middle, margin - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(cut(token), 0, 0);
      pen.restore();
    });
    shown = { ...one, margin, cell };
    at("pair").textContent = "";
    at("about").textContent =
      `Layer ${data.layers[one.layer]}, head ${data.heads[one.head]}: ${n} tokens` +
      `${text.shortened ? ", the beginning of the text" : ""}; full colour is ${number(one.full)}.`;
    lists(one);
  }

  function row(table, cells, heading) {
    const line = table.insertRow();
    cells.forEach((content, i) => {
      const box = heading ? line.appendChild(document.createElement("th")) : line.insertCell();
      box.textContent = content;
      if (i > 0 && !heading && /^[-\u2013\d.]/.test(content)) box.className = "number";
    });
  }

  function lists(one) {
    const { text, n } = one;
    const table = at("pairs");
    table.replaceChildren();
    row(table, ["tokens", "apart", "similarity", "sentence"], true);
    const best = [...one.high].sort((a, b) => one.values[b] - one.values[a]).slice(0, 8);
    for (const k of best) {
      const [i, j] = ends(k, n);
      const same = text.sentences[i] === text.sentences[j] ? "same" : "another";
      row(table, [`${text.tokens[i]} \u2013 ${text.tokens[j]}`, String(j - i), number(similarity(one, k)), same]);
    }
    at("all-texts").hidden = !data.numbers.length;
    const numbers = at("head-numbers");
    numbers.replaceChildren();
    if (!data.numbers.length) return;
    row(numbers, ["", "value", "interval", "chance", "same distances"], true);
    for (const each of data.numbers) {
      const [value, low, high, chance, matched] = each.values.map((field) => field[one.layer][one.head]);
      if (value === null) continue;
      const show = (x) => (x === null ? "\u2013" : each.share ? `${number(100 * x)}%` : number(x));
      const range = low === null ? "\u2013" : `${show(low)} to ${show(high)}`;
      row(numbers, [each.label, show(value), range, show(chance), show(matched)]);
    }
  }

  function point(event) {
    const box = at("canvas").getBoundingClientRect();
    const a = Math.floor((event.clientX - box.left - shown.margin) / shown.cell);
    const b = Math.floor((event.clientY - box.top - shown.margin) / shown.cell);
    const inside = a >= 0 && b >= 0 && a < shown.n && b < shown.n && a !== b;
    if (!inside) {
      at("pair").textContent = "";
      return;
    }
    const [i, j] = a < b ? [a, b] : [b, a];
    const k = place(i, j, shown.n);
    const { text } = shown;
    const same = text.sentences[i] === text.sentences[j] ? "one sentence" : "two sentences";
    const high = shown.high.includes(k) ? ", high" : "";
    at("pair").textContent =
      `${text.tokens[i]} \u2013 ${text.tokens[j]}: ${number(similarity(shown, k))}, ${j - i} apart, ${same}${high}`;
  }

  for (const id of ["text", "layer", "head"]) at(id).addEventListener("change", draw);
  at("canvas").addEventListener("pointermove", point);
  at("canvas").addEventListener("pointerdown", point);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) draw();
    width = window.innerWidth;
  });
  draw();
})();

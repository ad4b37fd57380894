// The graph of a page: pans, zooms, searches, and tells of the node that is chosen. By litegpu/report/explorer.py, whose
// module says what the data are. Only what is in view is drawn.
"use strict";
for (const section of document.querySelectorAll(".explorer")) {
  const data = JSON.parse(section.querySelector("script").textContent);
  const canvas = section.querySelector("canvas"), pen = canvas.getContext("2d");
  const field = section.querySelector("input"), colouring = section.querySelector("select");
  const told = section.querySelector("output"), facts = section.querySelector(".facts");
  const [width, height] = data.box, nodes = data.nodes;
  const place = new Map(nodes.map((node, i) => [node.index, i]));
  const readers = nodes.map(() => []);
  const edges = [];
  nodes.forEach((node, i) => {
    for (const source of node.inputs) {
      const from = place.get(source);
      if (from === undefined) continue;
      readers[from].push(i);
      edges.push([from, i]);
    }
  });
  const layers = new Map();
  nodes.forEach((node, i) => {
    if (!layers.has(node.y)) layers.set(node.y, []);
    layers.get(node.y).push(i);
  });
  for (const row of layers.values()) row.sort((a, b) => nodes[a].x - nodes[b].x);
  const right = Math.max(0, ...nodes.map((n) => n.x)) + width, bottom = Math.max(0, ...nodes.map((n) => n.y)) + height;
  const longest = Math.max(1e-12, ...nodes.map((n) => n.seconds));
  const view = { x: 0, y: 0, scale: 1, drawn: 0, visible: 0, chosen: -1, matches: [], matched: new Set() };
  canvas.view = view; // for tests
  let colours = {}, wide = 1, high = 1, waiting = false;

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const role of ["page", "card", "ink", "muted", "grid", "bad", "good", ...data.groups.map((g) => g.role)])
      colours[role] = style.getPropertyValue("--" + role).trim();
  }

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function draw() {
    const start = performance.now(), ratio = devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, wide, high);
    const scale = ratio * view.scale;
    pen.setTransform(scale, 0, 0, scale, -view.x * scale, -view.y * scale);
    const left = view.x, top = view.y, end = left + wide / view.scale, foot = top + high / view.scale;
    const inView = (node) => node.x < end && node.x + width > left && node.y < foot && node.y + height > top;
    pen.lineWidth = 1.2 / Math.min(1, Math.max(0.25, view.scale));
    pen.strokeStyle = colours.muted;
    pen.beginPath();
    for (const [from, to] of edges) {
      const a = nodes[from], b = nodes[to];
      if (b.y < top || a.y + height > foot || Math.min(a.x, b.x) - 60 > end || Math.max(a.x, b.x) + width < left) continue;
      line(a, b);
    }
    pen.stroke();
    let visible = 0;
    for (let i = 0; i < nodes.length; i++) {
      if (!inView(nodes[i])) continue;
      visible++;
      box(nodes[i], i);
    }
    view.visible = visible;
    view.drawn = performance.now() - start;
  }

  function line(a, b) {
    const x0 = a.x + width / 2, y0 = a.y + height, x1 = b.x + width / 2, y1 = b.y, half = (y1 - y0) / 2;
    pen.moveTo(x0, y0);
    if (b.y - a.y > data.step * 1.5) { // past other layers: aside of the boxes
      const aside = Math.min(a.x, b.x) - 14 - 10 * ((a.index * 7 + b.index) % 4);
      pen.bezierCurveTo(x0, y0 + 14, aside, y0 + 6, aside, y0 + 26);
      pen.lineTo(aside, y1 - 26);
      pen.bezierCurveTo(aside, y1 - 6, x1, y1 - 14, x1, y1);
    } else pen.bezierCurveTo(x0, y0 + half, x1, y1 - half, x1, y1);
  }

  function box(node, i) {
    const matched = view.matched.has(i);
    pen.globalAlpha = view.matches.length && !matched && i !== view.chosen ? 0.5 : 1;
    const share = node.seconds / longest, heat = colouring.value === "time";
    pen.fillStyle = heat ? colours.page : colours[data.groups[node.group].role];
    pen.beginPath();
    pen.roundRect(node.x, node.y, width, height, 5);
    pen.fill();
    if (heat) {
      pen.fillStyle = colours.bad;
      pen.globalAlpha *= 0.15 + 0.85 * share;
      pen.fill();
      pen.globalAlpha = 1;
    }
    if (node.marked || i === view.chosen || matched) {
      pen.lineWidth = (i === view.chosen ? 4 : 2.5) / Math.min(1, view.scale);
      pen.strokeStyle = i === view.chosen ? colours.ink : node.marked && !matched ? colours.bad : colours.good;
      pen.stroke();
    }
    if (view.scale > 0.3) {
      pen.save();
      pen.beginPath();
      pen.rect(node.x, node.y, width - 4, height);
      pen.clip();
      pen.fillStyle = heat ? colours.ink : colours.page;
      pen.font = "600 13px system-ui,sans-serif";
      pen.fillText(node.index + " " + node.op, node.x + 8, node.y + 17);
      pen.font = "11px system-ui,sans-serif";
      pen.fillText(node.note, node.x + 8, node.y + 33);
      pen.restore();
    }
    pen.globalAlpha = 1;
  }

  function zoom(factor, x = wide / 2, y = high / 2) {
    const scale = Math.min(4, Math.max(0.002, view.scale * factor));
    view.x += x / view.scale - x / scale;
    view.y += y / view.scale - y / scale;
    view.scale = scale;
    keep();
  }

  function keep() { // some of the graph stays in view
    view.x = Math.min(right, Math.max(-wide / view.scale, view.x));
    view.y = Math.min(bottom, Math.max(-high / view.scale, view.y));
    redraw();
  }

  function fit() {
    view.scale = Math.min(1, Math.max(0.002, Math.min(wide / (right + 80), high / (bottom + 40))));
    view.x = right / 2 - wide / 2 / view.scale;
    view.y = bottom / 2 - high / 2 / view.scale;
    redraw();
  }

  function begin() {
    view.scale = Math.min(1, wide / (width + 120));
    view.x = (nodes.length ? nodes[0].x + width / 2 : 0) - wide / 2 / view.scale;
    view.y = -20;
    redraw();
  }

  function choose(i, show = true) {
    if (i < 0 || i >= nodes.length) return;
    view.chosen = i;
    const node = nodes[i];
    if (show) {
      view.scale = Math.max(view.scale, 0.5);
      view.x = node.x + width / 2 - wide / 2 / view.scale;
      view.y = node.y + height / 2 - high / 2 / view.scale;
    }
    facts.replaceChildren();
    for (const [name, value] of [["node", node.index + " " + node.op], ...node.facts]) {
      const term = document.createElement("dt"), text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      facts.append(term, text);
    }
    redraw();
  }

  function search(step) {
    const wanted = field.value.trim().toLowerCase();
    const before = view.matches;
    view.matches = wanted ? nodes.flatMap((n, i) => (n.text.includes(wanted) ? [i] : [])) : [];
    view.matched = new Set(view.matches);
    const same = before.length === view.matches.length && before.every((m, i) => m === view.matches[i]);
    if (view.matches.length) {
      const at = view.matches.indexOf(view.chosen);
      const next = same && at >= 0 ? at + step : Math.max(0, view.matches.findIndex((m) => m >= view.chosen));
      const i = (next + view.matches.length) % view.matches.length;
      choose(view.matches[i]);
      told.textContent = i + 1 + " of " + view.matches.length;
    } else {
      told.textContent = wanted ? "nothing found" : "";
      redraw();
    }
  }

  function beside(step) {
    const row = layers.get(nodes[view.chosen].y), at = row.indexOf(view.chosen) + step;
    return at >= 0 && at < row.length ? row[at] : -1;
  }

  const keys = {
    ArrowDown: () => choose(view.chosen < 0 ? 0 : readers[view.chosen][0] ?? view.chosen),
    ArrowUp: () => choose(view.chosen < 0 ? 0 : place.get(nodes[view.chosen].inputs[0]) ?? view.chosen),
    ArrowLeft: () => choose(view.chosen < 0 ? 0 : beside(-1)),
    ArrowRight: () => choose(view.chosen < 0 ? 0 : beside(1)),
    PageDown: () => { view.y += high / view.scale * 0.8; keep(); },
    PageUp: () => { view.y -= high / view.scale * 0.8; keep(); },
    Home: () => choose(0),
    End: () => choose(nodes.length - 1),
    "+": () => zoom(1.25),
    "=": () => zoom(1.25),
    "-": () => zoom(0.8),
    0: fit,
    "/": () => field.focus(),
    n: () => search(1),
    N: () => search(-1),
    Escape: () => { field.value = ""; search(1); },
  };
  canvas.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  field.addEventListener("input", () => search(1));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); search(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { field.value = ""; search(1); canvas.focus(); }
  });
  colouring.addEventListener("change", redraw);
  for (const button of section.querySelectorAll("button"))
    button.addEventListener("click", () => ({ out: () => zoom(0.8), in: () => zoom(1.25), fit })[button.value]());

  const down = new Map();
  let moved = 0;
  const at = (event) => { const b = canvas.getBoundingClientRect(); return [event.clientX - b.left, event.clientY - b.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    if (down.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) return;
    const now = at(event), other = [...down.keys()].find((id) => id !== event.pointerId);
    if (other !== undefined) {
      const fixed = down.get(other), distance = (p) => Math.hypot(p[0] - fixed[0], p[1] - fixed[1]) || 1;
      zoom(distance(now) / distance(before), (now[0] + fixed[0]) / 2, (now[1] + fixed[1]) / 2);
    } else {
      view.x -= (now[0] - before[0]) / view.scale;
      view.y -= (now[1] - before[1]) / view.scale;
      keep();
    }
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    down.set(event.pointerId, now);
  });
  const release = (event) => {
    if (!down.delete(event.pointerId) || event.type === "pointercancel" || moved > 5) return;
    const [x, y] = at(event), gx = view.x + x / view.scale, gy = view.y + y / view.scale;
    choose(nodes.findIndex((n) => gx >= n.x && gx <= n.x + width && gy >= n.y && gy <= n.y + height), false);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 200), ...at(event));
    else { view.x += event.deltaX / view.scale; view.y += event.deltaY / view.scale; keep(); }
  }, { passive: false });

  function resize() {
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1, first = wide === 1;
    wide = Math.max(1, box.width);
    high = Math.max(1, box.height);
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    if (first) begin();
    redraw();
  }
  readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  new ResizeObserver(resize).observe(canvas);
  resize();
}

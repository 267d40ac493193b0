// Moving about in the picture, the tables, and the memory.

const at = { k: 1, x: 0, y: 0 };
function move() { view.setAttribute("transform", `translate(${at.x} ${at.y}) scale(${at.k})`); }
function zoom(factor, px = svg.clientWidth / 2, py = svg.clientHeight / 2) {
  const k = Math.min(4, Math.max(0.04, at.k * factor));
  at.x = px - (px - at.x) * k / at.k;
  at.y = py - (py - at.y) * k / at.k;
  at.k = k;
  move();
}
function fit(everything) {
  const across = svg.clientWidth / whole.w, down = svg.clientHeight / whole.h;
  at.k = everything ? Math.min(across, down, 1.2) : Math.min(across, 1);
  at.x = (svg.clientWidth - whole.w * at.k) / 2 - whole.left * at.k;
  at.y = everything ? (svg.clientHeight - whole.h * at.k) / 2 - whole.top * at.k : -whole.top * at.k + 6;
  move();
}
function center(item) {
  at.k = Math.max(at.k, 0.9);
  at.x = svg.clientWidth / 2 - (item.at.x + item.at.w / 2) * at.k;
  at.y = svg.clientHeight / 2 - (item.at.y + item.at.h / 2) * at.k;
  move();
}
function toggle(item) {  // what was clicked stays under the pointer
  const before = { ...item.at };
  item.open = !item.open;
  chosen = item;
  render();
  at.x += (before.x + before.w / 2 - item.at.x - item.at.w / 2) * at.k;
  at.y += (before.y - item.at.y) * at.k;
  move();
}
function reveal(node) {
  for (const item of paths[node].slice(0, -1)) item.open = true;
  chosen = paths[node][paths[node].length - 1];
  render();
  center(chosen);
  detail();
}

const fingers = new Map();
let dragged = 0;
svg.addEventListener("pointerdown", (e) => {
  fingers.set(e.pointerId, [e.clientX, e.clientY]);
  dragged = 0;
});
svg.addEventListener("pointermove", (e) => {
  if (!fingers.has(e.pointerId)) return;
  const before = fingers.get(e.pointerId), now = [e.clientX, e.clientY];
  const box = svg.getBoundingClientRect();
  if (fingers.size === 1) {
    at.x += now[0] - before[0];
    at.y += now[1] - before[1];
    move();
  } else {
    const [other] = [...fingers].filter(([id]) => id !== e.pointerId).map(([, p]) => p);
    const far = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
    zoom(far(now) / far(before), (now[0] + other[0]) / 2 - box.left, (now[1] + other[1]) / 2 - box.top);
  }
  dragged += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
  if (dragged > 4 && !svg.hasPointerCapture(e.pointerId)) svg.setPointerCapture(e.pointerId);
  fingers.set(e.pointerId, now);
});
for (const name of ["pointerup", "pointercancel", "pointerleave"]) {
  svg.addEventListener(name, (e) => fingers.delete(e.pointerId));
}
svg.addEventListener("click", (e) => {
  const item = e.target.item;
  if (dragged > 4 || !item) return;
  if (item.kids.length) toggle(item);
  else { chosen = chosen === item ? null : item; render(); }
  detail();
});
svg.addEventListener("wheel", (e) => {
  if (!e.ctrlKey && !e.metaKey && document.activeElement !== svg) return;
  e.preventDefault();
  const box = svg.getBoundingClientRect();
  zoom(Math.exp(-e.deltaY * 0.0015), e.clientX - box.left, e.clientY - box.top);
}, { passive: false });
svg.tabIndex = 0;
svg.addEventListener("keydown", (e) => {
  const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (steps[e.key]) { at.x += steps[e.key][0]; at.y += steps[e.key][1]; move(); }
  else if (e.key === "+" || e.key === "=") zoom(1.25);
  else if (e.key === "-") zoom(0.8);
  else return;
  e.preventDefault();
});
el("zoom-in").onclick = () => zoom(1.3);
el("zoom-out").onclick = () => zoom(1 / 1.3);
el("fit").onclick = () => fit(true);
el("open-all").onclick = () => { for (const item of roots.flat()) item.open = true; render(); fit(true); };
el("close-all").onclick = () => {
  for (const item of roots.flat()) { item.open = false; for (const kid of item.kids) kid.open = false; }
  render();
  fit(false);
};
let lastChange = -1;
el("next-change").disabled = !D.changes.length;
el("next-change").onclick = () => {
  lastChange = (lastChange + 1) % D.changes.length;
  reveal(D.changes[lastChange].node);
};
let hits = [], hit = 0;
function find() {
  const text = el("find").value.trim().toLowerCase();
  hits = text ? D.nodes.map((n, i) => i).filter((i) =>
    D.nodes[i][NAME].toLowerCase().includes(text) || D.nodes[i][LABEL].join(" ").toLowerCase().includes(text)
    || (convAt.get(i) || { short: "" }).short.includes(text)) : [];
  el("found").textContent = text ? `${hits.length} found${hits.length ? ": Enter for the next" : ""}` : "";
  hit = 0;
}
el("find").addEventListener("input", find);
el("find").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && hits.length) reveal(hits[hit++ % hits.length]);
});

// ---- the chosen box ------------------------------------------------------------------------------

function html(name, text, parent, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (parent) parent.append(node);
  return node;
}
function pairs(list, parent) {
  const dl = html("dl", undefined, parent);
  for (const [key, value] of list) if (value !== undefined && value !== "" && value !== null) {
    html("dt", key, dl);
    html("dd", String(value), dl);
  }
}
const percent = (x) => x === undefined ? "" : (100 * x).toFixed(0) + " %";
function convPairs(c) {
  return [["problem", c.problem], ["kind", c.kind], ["layout", c.layout], ["dtype", c.dtype],
    [c.seconds ? "kernel, timed" : "kernel", c.kernel],
    [BACKEND, c.backend === undefined ? "" : c.backend ? `${c.backend}.${c.row}` : "stays"],
    ["adapted", c.adapted], ["reason", c.reason], ["weight", c.source],
    ["work", flopText(c.flop).join(" ")], ["least traffic", bytesText(c.bytes)],
    ["time", c.seconds ? timeText(c.seconds) : ""],
    ["rate", c.seconds ? rateText(c.flop / c.seconds) : ""],
    ["floor", c.floor_seconds ? timeText(c.floor_seconds) : ""],
    ["share of floor", percent(c.share_of_floor)],
    ["rows that refused", (c.tried || []).map(([row, why]) => `${row}: ${why}`).join("; ")]];
}
function detail() {
  const panel = el("detail");
  panel.replaceChildren();
  if (!chosen) return void html("p", "Nothing chosen.", panel, { class: "hint" });
  if (chosen.node === undefined) {
    html("h3", `${chosen.name}, ${chosen.part ? "backward" : "forward"}`, panel);
    const inside = new Set(chosen.nodes);
    const convs = D.convolutions.filter((c) => inside.has(c.node));
    pairs([["ops", chosen.nodes.length], ["convolutions", convs.length],
      ["work", flopText(convs.reduce((s, c) => s + c.flop, 0)).join(" ")],
      ["results", bytesText(chosen.nodes.reduce((s, i) => s + D.nodes[i][BYTES], 0))],
      ["layout changes", D.changes.filter((c) => inside.has(c.node)).length || ""]], panel);
    return;
  }
  const n = D.nodes[chosen.node], conv = convAt.get(chosen.node), change = changeAt.get(chosen.node);
  html("h3", n[LABEL][0], panel);
  const list = [["variable", n[NAME]], ["kind", D.kinds[n[KIND]]], ["shape", n[LABEL][n[LABEL].length - 1]],
    ["size", n[BYTES] ? bytesText(n[BYTES]) : ""], ["part", n[BACKWARD] ? "backward" : "forward"],
    ["layer", (D.layers[n[LAYER]] || {}).name]];
  if (change) list.push(["why", change.reason], ["moves memory", change.moves ? "yes" : "no"]);
  pairs(conv ? [...list.slice(0, 1), ...convPairs(conv)] : list, panel);
}

// ---- tables ----------------------------------------------------------------------------------------

function table(target, columns, rows, show) {
  const head = html("tr", undefined, html("thead", undefined, target));
  const body = html("tbody", undefined, target);
  let order = [...rows], sorted = null;
  function fill() {
    body.replaceChildren();
    for (const row of order.filter(show)) {
      const tr = html("tr", undefined, body, row.node === undefined ? {} : { tabindex: 0 });
      for (const { value, text, number, wide, bar } of columns) {
        const td = html("td", undefined, tr, number ? { class: "number" } : wide ? { class: "wide" } : {});
        if (bar && value(row) !== undefined) {
          const part = Math.min(100, 100 * value(row)).toFixed(0) + "%";
          html("span", undefined, td, { class: "share", style: `--part:${part}` });
        }
        td.append(text ? text(row) : value(row) === undefined ? "" : value(row));
      }
      if (row.node === undefined) continue;  // it has no box
      const go = () => { reveal(row.node); el("graph-title").scrollIntoView({ behavior: "smooth" }); };
      tr.onclick = go;
      tr.onkeydown = (e) => { if (e.key === "Enter") go(); };
    }
  }
  columns.forEach(({ title, value, number }, i) => {
    const th = html("th", undefined, head, { scope: "col", ...(number ? { class: "number" } : {}) });
    const button = html("button", title, th);
    button.onclick = () => {
      const down = sorted === i + 1;
      sorted = down ? -(i + 1) : i + 1;
      for (const other of head.children) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => value(row) === undefined ? -Infinity : value(row);
      order = [...rows].sort((r, s) => (key(r) < key(s) ? -1 : key(r) > key(s) ? 1 : 0) * (down ? -1 : 1));
      fill();
    };
  });
  fill();
  return fill;
}
const some = (key) => D.convolutions.some((c) => c[key] !== undefined && c[key] !== "" && c[key] !== null);
const blockOf = (node) => paths[node][0].name;
const columns = [
  { title: "#", value: (c) => D.convolutions.indexOf(c) + 1, number: true },
  { title: "block", value: (c) => blockOf(c.node) },
  { title: "kind", value: (c) => c.kind },
  { title: "problem", value: (c) => c.short },
  { title: "layout", value: (c) => c.layout },
  { title: "dtype", value: (c) => c.dtype },
  some("kernel") ? { title: some("seconds") ? "kernel, timed" : "kernel", value: (c) => c.kernel } : null,
  some("seconds") ? { title: "time", value: (c) => c.seconds, number: true,
    text: (c) => c.seconds ? timeText(c.seconds) : "" } : null,
  some("backend") || some("reason")
    ? { title: BACKEND, value: (c) => c.backend ? `${c.backend}.${c.row}` : "stays" } : null,
  some("adapted") ? { title: "adapted", value: (c) => c.adapted } : null,
  some("reason") ? { title: "reason", value: (c) => c.reason, wide: true } : null,
  { title: "work", value: (c) => c.flop, text: (c) => flopText(c.flop).join(" "), number: true },
  some("seconds") ? { title: "rate", value: (c) => c.flop / c.seconds, number: true,
    text: (c) => c.seconds ? rateText(c.flop / c.seconds) : "" } : null,
  some("share_of_floor") ? { title: "floor / time", value: (c) => c.share_of_floor, number: true, bar: true,
    text: (c) => percent(c.share_of_floor) } : null,
  some("source") ? { title: "weight", value: (c) => c.source } : null,
].filter(Boolean);
const refill = table(el("convolutions"), columns, D.convolutions, (c) => {
  const text = el("filter").value.trim().toLowerCase();
  const all = `${c.short} ${c.kind} ${c.layout} ${c.backend} ${c.reason} ${c.source} ${blockOf(c.node)}`;
  return text.split(/\s+/).every((word) => all.toLowerCase().includes(word));
});
function filter() {
  refill();
  el("count").textContent = `${el("convolutions").tBodies[0].rows.length} of ${D.convolutions.length}`;
}
el("filter").addEventListener("input", filter);
table(el("changes"), [
  { title: "where", value: (c) => blockOf(c.node) },
  { title: "part", value: (c) => D.nodes[c.node][BACKWARD] ? "backward" : "forward" },
  { title: "tensor", value: (c) => c.name },
  { title: "shape", value: (c) => c.shape.join("×") },
  { title: "reason", value: (c) => c.reason },
  { title: "moves memory", value: (c) => c.moves ? "yes" : "no" },
  { title: "could be avoided", value: (c) => c.avoidable ? "yes" : "no" },
], D.changes, () => true);

if (D.kernels) {
  el("kernels-part").hidden = false;
  table(el("kernels"), [
    { title: "kernel", value: (k) => k.name },
    { title: "calls", value: (k) => k.calls, number: true },
    { title: "time", value: (k) => k.seconds, text: (k) => timeText(k.seconds), number: true },
    { title: "bytes", value: (k) => k.bytes, text: (k) => bytesText(k.bytes), number: true },
    { title: "bytes/s", value: (k) => k.seconds ? k.bytes / k.seconds : undefined, number: true,
      text: (k) => k.seconds ? bandwidthText(k.bytes / k.seconds) : "" },
  ], D.kernels, () => true);
}

if (D.compiled) {
  el("compiled-part").hidden = false;
  el("compiled-text").textContent = D.totals.compiling;
  table(el("compiled"), [
    { title: "kernel", value: (k) => k.name },
    { title: "time", value: (k) => k.seconds, text: (k) => k.kept ? "kept" : timeText(k.seconds),
      number: true },
  ], D.compiled, () => true);
}

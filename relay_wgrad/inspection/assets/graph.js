// The picture: blocks of layers of ops, each of which can be opened in its place.

const D = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const el = (id) => document.getElementById(id);
const [NAME, KIND, LABEL, BYTES, LAYER, BACKWARD] = [0, 1, 2, 3, 4, 5];
const [CONV, CHANGE] = [0, 1];
const LINE = 14, PAD = 8, GAP_X = 14, GAP_Y = 22, TITLE = 22, COLUMNS = 150, ROW = 30;

function make(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

const pen = document.createElement("canvas").getContext("2d");
function width(text, bold) {
  pen.font = (bold ? "600 " : "") + '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  return pen.measureText(text).width;
}
const bytesText = (n) => n === 0 ? "0" : n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB"
  : n >= 2 ** 20 ? (n / 2 ** 20).toFixed(1) + " MiB" : (n / 1024).toFixed(1) + " KiB";
// Three digits, and the unit that leaves some before the point.
function scaled(n, units) {
  const [unit, name] = units.find(([least]) => n >= least) || units[units.length - 1];
  const x = n / unit;
  return [x >= 100 || x === 0 ? x.toFixed(0) : x.toPrecision(3), name];
}
const flopText = (n) => scaled(n, [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"], [1, "FLOP"]]);
const rateText = (n) => flopText(n).join(" ") + "/s";
const bandwidthText = (n) => scaled(n, [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]).join(" ");
// Times that were measured on a CPU are none of the library that would take a convolution.
const BACKEND = D.facts.cpu ? "on a GPU" : "backend";
const timeText = (s) => scaled(s, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]).join(" ");

// ---- what there is: blocks in two columns, layers in them, ops in those ------------------------

const convAt = new Map(D.convolutions.map((c) => [c.node, c]));
const changeAt = new Map(D.changes.map((c) => [c.node, c]));
const paths = [];  // of each node: its block, its layer where that is shown, itself
const roots = [[], []];  // [part][block]

function group(id, name, part, level) {
  return { id, name, part, level, kids: [], links: new Map(), open: false, nodes: [] };
}

function build() {
  const sizes = D.blocks.map((_, b) => D.layers.filter((l) => l.block === b).length);
  const layers = [[], []];
  const layerOf = (i) => D.layers[D.nodes[i][LAYER]] || { block: 0, name: "" };
  for (let part = 0; part < 2; part++) {
    (D.blocks.length ? D.blocks : ["all ops"]).forEach((name, b) => {
      roots[part].push(group(`${part}.${b}`, name, part, 0));
    });
  }
  D.nodes.forEach((n, i) => {
    const part = n[BACKWARD], at = n[LAYER], { block, name } = layerOf(i);
    const root = roots[part][block], path = [root];
    if (sizes[block] > 1) {
      if (!layers[part][at]) {
        layers[part][at] = group(`${part}.${block}.${at}`, name, part, 1);
        root.kids.push(layers[part][at]);
      }
      path.push(layers[part][at]);
    }
    const item = { id: `n${i}`, node: i, part, kids: [] };
    path[path.length - 1].kids.push(item);
    path.push(item);
    for (const above of path.slice(0, -1)) above.nodes.push(i);
    paths.push(path);
  });
  for (const [a, b] of D.edges) {
    const p = paths[a], q = paths[b];
    let depth = 0;
    while (p[depth] === q[depth]) depth++;
    const within = depth ? p[depth - 1].links : links, key = p[depth].id + ">" + q[depth].id;
    const link = within.get(key) || { a: p[depth], b: q[depth], bytes: 0, count: 0 };
    link.bytes += D.nodes[a][BYTES];
    link.count++;
    within.set(key, link);
  }
}
const links = new Map();  // between blocks
const used = D.nodes.map(() => [[], []]);  // of each node: who feeds it, whom it feeds
for (const [a, b] of D.edges) { used[b][0].push(a); used[a][1].push(b); }

function describe(item) {  // the lines of a closed box: [text, class]
  if (item.node !== undefined) {
    const n = D.nodes[item.node], conv = convAt.get(item.node);
    if (!conv) return n[LABEL].map((text, i) => [text, i ? "small" : "name"]);
    const out = [[n[LABEL][0], "name"], [conv.short, "small"], [n[LABEL][1], "small"]];
    if (conv.seconds) out.push([[timeText(conv.seconds), conv.kernel].filter(Boolean).join(" · "), "small"]);
    return out;
  }
  const convs = item.nodes.map((i) => convAt.get(i)).filter(Boolean), counts = {};
  for (const c of convs) counts[c.kind] = (counts[c.kind] || 0) + 1;
  const ops = item.nodes.filter((i) => D.nodes[i][KIND] !== 3 && D.nodes[i][KIND] !== 4).length;
  const words = Object.entries(counts).map(([kind, n]) => `${n} ${kind}`);
  const out = [[item.name, "name"], [[...words, `${ops} ops`].join(" · "), "small"]];
  const seconds = convs.reduce((sum, c) => sum + (c.seconds || 0), 0);
  if (seconds) out.push([`convolutions ${timeText(seconds)}`, "small"]);
  const changes = item.nodes.filter((i) => changeAt.has(i) && changeAt.get(i).moves).length;
  const stay = convs.filter((c) => c.backend === "").length;
  const warn = [];
  if (changes) warn.push(`${changes} layout change${changes > 1 ? "s" : ""}`);
  if (stay) warn.push(`${stay} not offloaded`);
  if (warn.length) out.push([warn.join(" · "), "warn"]);
  return out;
}

// ---- where it goes -------------------------------------------------------------------------------

function measure(item) {
  if (item.kids.length && item.open) {
    for (const kid of item.kids) measure(kid);
    const inner = place(item.kids, [...item.links.values()]);
    item.routes = inner.routes;
    item.w = Math.max(inner.w, width(item.name, true) + 30) + 2 * PAD;
    item.h = inner.h + TITLE + 2 * PAD;
    const left = (item.w - inner.w) / 2;
    for (const kid of item.kids) {
      kid.x += left;
      kid.y = (item.part ? inner.h - kid.y - kid.h : kid.y) + TITLE + PAD;
    }
    for (const route of item.routes) {
      route.points = route.points.map(([x, y]) =>
        [x + left, (item.part ? inner.h - y : y) + TITLE + PAD]);
    }
  } else {
    item.lines = item.lines || describe(item);
    item.w = Math.max(...item.lines.map(([t, c]) => width(t, c !== "small"))) + 2 * PAD;
    item.h = item.lines.length * LINE + 2 * PAD - 4;
  }
}

// Layers by the longest path, each sorted by where its neighbours are; long links get a place in
// every layer that they pass.
function place(kids, given) {
  const order = new Map(kids.map((kid, i) => [kid, i]));
  const ahead = given.filter((l) => order.get(l.a) < order.get(l.b));
  const rank = new Map(kids.map((kid) => [kid, 0]));
  const into = new Map(kids.map((kid) => [kid, []])), outof = new Map(kids.map((kid) => [kid, []]));
  for (const l of ahead) { into.get(l.b).push(l.a); outof.get(l.a).push(l.b); }
  for (const kid of kids) {
    for (const before of into.get(kid)) rank.set(kid, Math.max(rank.get(kid), rank.get(before) + 1));
  }
  for (const kid of [...kids].reverse()) {  // what nothing feeds stands right above its user
    const after = outof.get(kid).map((user) => rank.get(user));
    if (!into.get(kid).length && after.length) rank.set(kid, Math.min(...after) - 1);
  }
  const rows = [], near = new Map();
  const put = (thing, at) => { (rows[at] = rows[at] || []).push(thing); near.set(thing, [[], []]); };
  for (const kid of kids) put(kid, rank.get(kid));
  const chains = ahead.map((l) => {
    const chain = [l.a];
    for (let at = rank.get(l.a) + 1; at < rank.get(l.b); at++) {
      const pass = { pass: true, w: 6, h: 0, x: 0 };
      put(pass, at);
      chain.push(pass);
    }
    chain.push(l.b);
    for (let i = 1; i < chain.length; i++) {
      near.get(chain[i - 1])[1].push(chain[i]);
      near.get(chain[i])[0].push(chain[i - 1]);
    }
    return chain;
  });
  const pack = (row) => { let x = 0; for (const t of row) { t.x = x; x += t.w + GAP_X; } };
  rows.forEach(pack);
  const middle = (t) => t.x + t.w / 2;
  const wish = (t, side) => {
    const around = near.get(t)[side];
    return around.length ? around.reduce((s, o) => s + middle(o), 0) / around.length : middle(t);
  };
  for (let round = 0; round < 6; round++) {
    const side = round % 2, sweep = side ? [...rows].reverse() : rows;
    for (const row of sweep) {
      const wishes = new Map(row.map((t) => [t, wish(t, side)]));
      row.sort((s, t) => wishes.get(s) - wishes.get(t));
      let edge = -Infinity, off = 0;
      for (const t of row) {
        t.x = Math.max(wishes.get(t) - t.w / 2, edge);
        edge = t.x + t.w + GAP_X;
        off += t.x + t.w / 2 - wishes.get(t);
      }
      for (const t of row) t.x -= off / row.length;
    }
  }
  const least = Math.min(...rows.flat().map((t) => t.x));
  let y = 0, w = 0;
  for (const row of rows) {
    const high = Math.max(...row.map((t) => t.h));
    for (const t of row) {
      t.x -= least;
      w = Math.max(w, t.x + t.w);
      t.y = t.pass ? y : y + (high - t.h) / 2;
      if (t.pass) t.h = high;
    }
    y += high + GAP_Y;
  }
  const routes = chains.map((chain) => ({
    a: chain[0], b: chain[chain.length - 1],
    points: chain.flatMap((t, i) => i === 0 ? [[middle(t), t.y + t.h]]
      : i === chain.length - 1 ? [[middle(t), t.y]] : [[middle(t), t.y], [middle(t), t.y + t.h]]),
  }));
  return { w, h: y - GAP_Y, routes };
}

function arrange() {
  roots.flat().forEach(measure);
  const wide = roots.map((column) => Math.max(...column.map((item) => item.w)));
  let y = 0;
  roots[0].forEach((item, b) => {
    const other = roots[1][b], high = Math.max(item.h, other.h);
    item.x = (wide[0] - item.w) / 2;
    other.x = wide[0] + COLUMNS + (wide[1] - other.w) / 2;
    item.y = y + (high - item.h) / 2;
    other.y = y + (high - other.h) / 2;
    y += high + ROW;
  });
  return { left: -70, top: -26, w: wide[0] + COLUMNS + wide[1] + 140, h: y + 26 };
}

// ---- drawing ---------------------------------------------------------------------------------------

const view = el("view"), svg = el("graph");
let chosen = null, whole = null;

function head(parent, [x, y], [dx, dy]) {
  const p = dy ? `${x},${y} ${x - 3},${y - 6 * dy} ${x + 3},${y - 6 * dy}`
    : `${x},${y} ${x - 6 * dx},${y - 3} ${x - 6 * dx},${y + 3}`;
  make("polygon", { points: p, class: "head" }, parent);
}

function draw(item, x, y, parent) {
  item.at = { x: x + item.x, y: y + item.y, w: item.w, h: item.h };
  const g = make("g", {}, parent), box = { x: item.at.x, y: item.at.y, width: item.w, height: item.h };
  const isOpen = item.kids.length && item.open;
  let kind = isOpen ? "open" : "group";
  if (item.node !== undefined) {
    kind = "k" + D.nodes[item.node][KIND];
    if (convAt.has(item.node) && convAt.get(item.node).backend) kind += " gone";
  } else if (!isOpen && item.lines.some(([, c]) => c === "warn")) kind += " warned";
  const rect = make("rect", { ...box, rx: 5, class: "box " + kind }, g);
  rect.item = item;
  if (chosen === item) rect.classList.add("chosen");
  if (!isOpen) {
    item.lines.forEach(([text, c], i) => make("text", {
      x: item.at.x + item.w / 2, y: item.at.y + PAD + 8 + i * LINE, "text-anchor": "middle", class: c,
    }, g, text));
    return;
  }
  make("text", { x: item.at.x + PAD, y: item.at.y + 15, class: "name" }, g, "▾ " + item.name);
  for (const kid of item.kids) draw(kid, item.at.x, item.at.y, g);
  const up = item.part ? -1 : 1;
  for (const route of item.routes) {
    const at = route.points.map(([px, py]) => [px + item.at.x, py + item.at.y]);
    let d = `M${at[0]}`;
    for (let i = 1; i < at.length; i++) {
      const bend = (at[i - 1][1] + at[i][1]) / 2;
      d += `C${at[i - 1][0]},${bend} ${at[i][0]},${bend} ${at[i]}`;
    }
    make("path", { d, class: "edge" }, g);
    head(g, at[at.length - 1], [0, up]);
  }
}

function drawLink({ a, b }, parent) {
  const p = a.at, q = b.at, rowOf = (item) => roots[item.part].indexOf(item);
  const mid = (r) => r.x + r.w / 2, level = (r) => r.y + r.h / 2;
  if (a.part !== b.part) {
    const from = [p.x + p.w, level(p)], to = [q.x, level(q)], bend = (from[0] + to[0]) / 2;
    const d = `M${from}C${bend},${from[1]} ${bend},${to[1]} ${to}`;
    make("path", { d, class: "edge across" }, parent);
    return head(parent, to, [1, 0]);
  }
  const step = rowOf(b) - rowOf(a), back = a.part ? -1 : 1;
  if (step === back) {
    const from = [mid(p), back > 0 ? p.y + p.h : p.y], to = [mid(q), back > 0 ? q.y : q.y + q.h];
    const bend = (from[1] + to[1]) / 2;
    make("path", { d: `M${from}C${from[0]},${bend} ${to[0]},${bend} ${to}`, class: "edge" }, parent);
    return head(parent, to, [0, back]);
  }
  const side = a.part ? 1 : -1, out = 24 + 6 * Math.min(Math.abs(step), 8);
  const from = [a.part ? p.x + p.w : p.x, level(p)], to = [b.part ? q.x + q.w : q.x, level(q)];
  const far = side > 0 ? Math.max(from[0], to[0]) + out : Math.min(from[0], to[0]) - out;
  make("path", { d: `M${from}C${far},${from[1]} ${far},${to[1]} ${to}`, class: "edge across" }, parent);
  return head(parent, to, [-side, 0]);
}

const shown = (i) => paths[i].find((item) => !item.open || !item.kids.length);

function render() {
  whole = arrange();
  const scale = Math.min(1, svg.clientWidth / whole.w);  // no higher than the picture is
  svg.parentElement.style.setProperty("--high", `${Math.max(240, whole.h * scale + 12)}px`);
  view.replaceChildren();
  const under = make("g", {}, view), over = make("g", {}, view), top = make("g", {}, view);
  roots.flat().forEach((item) => draw(item, 0, 0, over));
  for (const link of links.values()) drawLink(link, under);
  for (const [part, text] of [[0, "forward ↓"], [1, "backward ↑"]]) {
    const xs = roots[part].map((item) => item.at.x + item.at.w / 2);
    make("text", { x: xs[0], y: -12, "text-anchor": "middle", class: "name" }, over, text);
  }
  if (chosen && chosen.at) around(top);
}

// A curve from box to box: up or down where one is above the other, else sideways.
function between(p, q) {
  const apart = q.y >= p.y + p.h ? 1 : p.y >= q.y + q.h ? -1 : 0;
  if (apart) {
    const from = [p.x + p.w / 2, apart > 0 ? p.y + p.h : p.y];
    const to = [q.x + q.w / 2, apart > 0 ? q.y : q.y + q.h], bend = (from[1] + to[1]) / 2;
    return `M${from}C${from[0]},${bend} ${to[0]},${bend} ${to}`;
  }
  const right = q.x > p.x, from = [right ? p.x + p.w : p.x, p.y + p.h / 2];
  const to = [right ? q.x : q.x + q.w, q.y + q.h / 2], bend = (from[0] + to[0]) / 2;
  return `M${from}C${bend},${from[1]} ${bend},${to[1]} ${to}`;
}

function around(parent) {  // what feeds the chosen box and what it feeds
  const inside = chosen.node !== undefined ? [chosen.node] : chosen.nodes, seen = new Set();
  if (chosen.open && chosen.kids.length) return;
  for (const i of inside) {
    used[i].forEach((others, side) => {
      for (const j of others) {
        const other = shown(j);
        if (other === chosen || seen.has(other.id + side)) continue;
        seen.add(other.id + side);
        const [p, q] = side ? [chosen.at, other.at] : [other.at, chosen.at];
        make("path", { d: between(p, q), class: "edge bright", "pointer-events": "none" }, parent);
      }
    });
  }
}
build();

// Memory over time, the head of the page, and the start.

const PARTS = [["forward", "results of the forward part, kept for the backward part", "--kept"],
  ["backward", "results of the backward part", "--temporary"],
  ["returned", "gradients and other results of the step", "--returned"]];

function plot() {
  const box = el("memory"), m = D.memory, count = m.forward.length;
  if (!count) return;
  box.replaceChildren();
  const W = Math.max(300, box.clientWidth), H = 240, left = 64, right = 10, top = 14, bottom = 26;
  const peak = Math.max(1, ...m.forward.map((_, i) => m.forward[i] + m.backward[i] + m.returned[i]));
  const x = (i) => left + (W - left - right) * i / Math.max(1, count - 1);
  const y = (v) => H - bottom - (H - top - bottom) * v / peak;
  const chart = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img",
    "aria-label": "bytes alive at each step" }, box);
  let below = m.forward.map(() => 0);
  for (const [key, , colour] of PARTS) {
    const above = below.map((v, i) => v + m[key][i]);
    const there = above.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`);
    const back = below.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).reverse();
    make("polygon", { points: [...there, ...back].join(" "), style: `fill:var(${colour})` }, chart);
    below = above;
  }
  for (const part of [0, 0.5, 1]) {
    make("line", { x1: left, x2: W - right, y1: y(peak * part), y2: y(peak * part), class: "axis" }, chart);
    make("text", { x: left - 6, y: y(peak * part) + 4, "text-anchor": "end" }, chart, bytesText(peak * part));
  }
  if (m.boundary < count) {
    make("line", { x1: x(m.boundary), x2: x(m.boundary), y1: top, y2: H - bottom, class: "mark" }, chart);
    make("text", { x: x(m.boundary / 2), y: H - 8, "text-anchor": "middle" }, chart, "forward");
    make("text", { x: x((m.boundary + count) / 2), y: H - 8, "text-anchor": "middle" }, chart, "backward");
  }
  const mark = make("line", { y1: top, y2: H - bottom, class: "mark", visibility: "hidden" }, chart);
  const first = D.nodes.findIndex((n) => n[KIND] !== 3), say = el("memory-text");
  const text = say.dataset.text;
  chart.addEventListener("pointermove", (e) => {
    const r = chart.getBoundingClientRect();
    const px = (e.clientX - r.left) / r.width * W, i = Math.round((px - left) / (W - left - right) * (count - 1));
    if (i < 0 || i >= count) return;
    mark.setAttribute("x1", x(i));
    mark.setAttribute("x2", x(i));
    mark.setAttribute("visibility", "visible");
    const n = D.nodes[first + i];
    say.textContent = `Step ${i + 1} of ${count}, ${n[LABEL][0]} in ${blockOf(first + i)}: `
      + PARTS.map(([key]) => `${key} ${bytesText(m[key][i])}`).join(", ");
  });
  chart.addEventListener("pointerleave", () => {
    mark.setAttribute("visibility", "hidden");
    say.textContent = text;
  });
  chart.addEventListener("click", (e) => {
    const r = chart.getBoundingClientRect();
    const i = Math.round(((e.clientX - r.left) / r.width * W - left) / (W - left - right) * (count - 1));
    if (i >= 0 && i < count) reveal(first + i);
  });
}

function legend(target, rows) {
  for (const [style, text] of rows) {
    const li = html("li", undefined, el(target));
    html("i", undefined, li, { style });
    li.append(text);
  }
}

function start() {
  const t = D.totals, f = D.facts, sums = (o) => Object.entries(o).map(([k, n]) => `${n} ${k}`).join(", ");
  el("title").textContent = `${f.model}: a training step`;
  el("facts").textContent = Object.entries(f).filter(([k]) => k !== "model")
    .map(([k, v]) => `${k.replaceAll("_", " ")} ${v}`).join(" · ");
  const tiles = [[t.convolutions, `convolutions: ${sums(t.kinds)}`],
    [flopText(t.flop)[0], `${flopText(t.flop)[1]} in convolutions`],
    [bytesText(t.peak_bytes), "of results alive at once, at most"],
    [t.layout_changes, `layout changes; ${t.layout_changes_that_move} move memory`]];
  if (t.backends) {
    const gone = t.convolutions - (t.backends.none || 0);
    tiles.push([`${gone} of ${t.convolutions}`, (f.cpu ? "offloaded on a GPU: " : "offloaded: ") + sums(t.backends)]);
  }
  if (t.seconds) {
    tiles.push([timeText(t.seconds), "in convolutions, measured here"]);
    tiles.push([percent(t.floor_seconds / t.seconds), "their floor's share of that time"]);
  }
  for (const [big, small] of tiles) {
    const li = html("li", undefined, el("totals"));
    html("b", String(big), li);
    html("span", small, li);
  }
  el("memory-text").textContent = `Bytes of results alive while each of the ${D.memory.forward.length} ops `
    + `runs, in program order; parameters (${bytesText(t.parameter_bytes)}) are not in it. Each has `
    + "memory of its own here; a compiler fuses ops and shares memory.";
  if (t.planned_bytes) el("memory-text").textContent += ` Its plan: ${bytesText(t.planned_bytes)}.`;
  el("memory-text").dataset.text = el("memory-text").textContent;
  el("table-text").textContent = "A click shows one in the picture." + (t.seconds ? " Floor: the time at "
    + "this machine's own rate of multiply-adds, or of a copy through memory, whichever is longer. "
    + "Winograd's algorithm multiplies less, and small tensors stay in caches: then it is above 100 %." : "");
  el("changes-text").textContent = D.changes.length ? "By reason: " + sums(t.reasons_of_changes) + "."
    : "There are none.";
  const names = { 0: "convolution", 1: "layout change", 2: "reshape", 3: "parameter", 4: "result", 5: "other op" };
  const css = ["conv", "change", "reshape", "param", "result", "other"];
  const rows = css.map((c, k) => [`background:var(--${c});border-color:var(--${c}-line)`, names[k]]);
  if (t.backends) rows.splice(1, 0, ["background:var(--gone);border-color:var(--gone-line)", "offloaded convolution"]);
  legend("legend", [...rows, ["background:var(--group);border-color:var(--group-line)", "block or layer"],
    ["background:none;border-color:var(--edge);border-style:dashed", "kept for later"]]);
  legend("memory-legend", PARTS.map(([, text, c]) => [`background:var(${c});border-color:transparent`, text]));
  el("version").textContent = `relay-wgrad ${D.version}`;
  render();
  fit(false);
  filter();
  plot();
  window.addEventListener("resize", plot);
}
start();

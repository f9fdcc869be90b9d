// Seconds in which all of it is played; with less motion, seconds from one stage to the next; steps of
// the slider.
const PLAYED = 20, PAUSE = 1.2, STEPS = 1000;
const NAMES = 112, LANE = 24, TOP = 6, AXIS = 34, SLAB = 13, TILE = 90;
const STATES = { fetching: "being fetched", resident: "in registers or shared memory", multiplied: "multiplied", written: "written back" };

views.timeline = function timeline(view, place) {
  const all = view.timelines;
  const end = Math.max(...all.map((each) => each.end));
  const x = (time) => NAMES + (WIDTH - NAMES - 8) * time / end;
  const starts = [...new Set(all.flatMap((each) => each.lanes.flatMap((lane) => lane.stages.map((one) => one.start))))]
    .sort((one, other) => one - other);
  let now = all[0].start + (Math.min(all[0].shown, 2) - 0.4) * all[0].iteration, playing = null;

  const unit = element("select", { id: `unit-${place}` }, element("option", {}, "µs"), element("option", { value: "cycles" }, say("cycles")));
  const spoken = (time, clock) => unit.value === "µs" ? `${number(time)} µs` : say("{n} cycles", { n: number(Math.round(time * clock)) });
  const slider = element("input", { id: `time-${place}`, type: "range", min: 0, max: STEPS });
  const output = element("output", { for: slider.id });
  const play = element("button", { type: "button", onclick: () => playing ? pause() : start() }, say("Play"));

  const parts = all.map((each) => {
    const picture = drawing(), said = element("p", { "aria-live": "polite" });
    const walk = each.loops ? drawnWalk(each) : null;
    const head = element("h3", {}, say("{kernel} on {board}", { kernel: each.kernel, board: each.board }));
    const facts = element("p", {}, told(each));
    const key = element("p", { class: "quiet" }, ...Object.entries(STATES).map(([name, text]) => {
      const swatch = drawn("svg", { viewBox: "0 0 12 12", class: "swatch", "aria-hidden": "true" });
      swatch.append(drawn("rect", { x: 1, y: 1, width: 10, height: 10, class: `slab ${name}` }));
      return element("span", {}, swatch, say(text));
    }));
    const shown = element("div", { class: "walk" }, ...(walk ? [walk.figure] : []),
      element("div", {}, said, ...(walk ? [key] : [])));
    return { each, picture, said, walk, whole: element("div", {}, head, facts, picture, shown), cursor: null };
  });

  function told(each) {
    const waits = Object.entries(each.waiting).map(([cause, share]) => say("{share} for {cause}", { share: percent(share), cause: say(cause) }));
    const takes = say(each.loops ? "An iteration is {k} steps of k and takes {n} µs ({cycles} cycles)."
      : each.iterations > 1 ? "An iteration computes results of its own and takes {n} µs ({cycles} cycles)."
        : "There is no loop along k. The block takes {n} µs ({cycles} cycles).",
    { k: number(each.step), n: number(each.iteration), cycles: number(Math.round(each.iteration * each.clock)) });
    const waiting = waits.length ? waits.join(say(", ")) : say("for nothing that is long enough to be shown");
    return sentences(takes, say("Multiply-adds issue {share} of that time; the block waits {waits}.", { share: percent(each.multiplying), waits: waiting }));
  }

  function paintLanes(part) {
    const { each } = part;
    const height = TOP + LANE * each.lanes.length;
    const figure = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${height + AXIS}`, role: "img", class: "timeline",
      "aria-label": say("Stages of a block of {kernel} over time; the text below says what happens at the chosen time, the table has the shares", { kernel: each.kernel }),
    });
    for (let turn = 0; turn <= each.shown; turn += 1) {
      const at = x(each.start + turn * each.iteration);
      figure.append(drawn("line", { x1: at, x2: at, y1: 0, y2: height, class: "faint" }));
    }
    each.lanes.forEach((lane, row) => {
      const y = TOP + row * LANE;
      figure.append(drawn("text", { x: NAMES - 8, y: y + 15, "text-anchor": "end" }, say(lane.name)));
      for (const stage of lane.stages) {
        const [left, width] = [x(stage.start), Math.max(x(stage.end) - x(stage.start) - 0.6, 0.6)];
        const share = lane.kind === "multiply" ? stage.share : 1;
        const group = drawn("g", { class: `stage ${lane.kind.replace(" ", "-")}` });
        const name = share < 1 ? say("{stage}, multiply-adds issue {share} of the time", { stage: say(stage.text), share: percent(share) }) : say(stage.text);
        group.append(drawn("title", {}, say("{stage}: {start} to {end}", { stage: name, start: spoken(stage.start, each.clock), end: spoken(stage.end, each.clock) })),
          drawn("rect", { x: left, y, width, height: LANE - 5, class: "whole" }),
          drawn("rect", { x: left, y: y + (LANE - 5) * (1 - share), width, height: (LANE - 5) * share }));
        if (stage.tile !== null && width > 12) {
          group.append(drawn("text", { x: left + width / 2, y: y + 14, "text-anchor": "middle", class: "onstage" }, stage.tile));
        }
        figure.append(group);
      }
    });
    const scale = unit.value === "µs" ? 1 : each.clock;
    const rough = end * scale / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    for (let tick = 0; tick <= end * scale; tick += step) {
      const at = x(tick / scale);
      figure.append(drawn("line", { x1: at, x2: at, y1: height, y2: height + 4, class: "axis" }),
        drawn("text", { x: at, y: height + 16, "text-anchor": "middle" }, number(Number(tick.toPrecision(6)))));
    }
    figure.append(drawn("line", { x1: NAMES, x2: WIDTH - 8, y1: height, y2: height, class: "axis" }),
      drawn("text", { x: NAMES - 8, y: height + 16, "text-anchor": "end" }, say(unit.value)));
    if (each.left_out > 0) {
      const at = x(each.cut);
      figure.append(drawn("line", { x1: at, x2: at, y1: 0, y2: height + 20, class: "cut" }),
        drawn("text", { x: at, y: height + 31, "text-anchor": at > WIDTH / 2 ? "end" : "start" },
          say("{n} more iterations, {time}, are left out here", { n: number(each.left_out), time: spoken(each.left_out * each.iteration, each.clock) })));
    }
    part.cursor = drawn("line", { y1: 0, y2: height, class: "cursor" });
    figure.append(part.cursor);
    const follow = (event) => {
      const box = figure.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * WIDTH;
      pause();
      go((at - NAMES) / (WIDTH - NAMES - 8) * end);
    };
    figure.addEventListener("pointerdown", (event) => { event.preventDefault(); follow(event); });
    figure.addEventListener("pointermove", (event) => { if (event.buttons & 1) follow(event); });
    part.picture.replaceChildren(figure);
  }

  // What happens now: stages by kind, and the tiles that have arrived and are not done with.
  function state(each) {
    const here = each.lanes.flatMap((lane) => lane.stages.filter((one) => one.start <= now && now < one.end)
      .map((one) => ({ ...one, kind: lane.kind })));
    const of = (kind) => each.lanes.filter((lane) => lane.kind === kind).flatMap((lane) => lane.stages);
    const fetched = of("fetch").filter((one) => one.end <= now).map((one) => one.tile);
    const done = (tile) => {
      const own = of("multiply").filter((one) => one.tile === tile).map((one) => one.end);
      return own.length === 0 ? now >= each.cut : Math.max(...own) <= now;
    };
    const tiles = (kind) => here.filter((one) => one.kind === kind && one.tile !== null).map((one) => one.tile);
    return { here, fetching: tiles("fetch"), multiplied: tiles("multiply"), resident: fetched.filter((tile) => tile !== null && !done(tile)) };
  }

  function paint() {
    slider.value = Math.round(now / end * STEPS);
    output.textContent = spoken(now, all[0].clock);
    slider.setAttribute("aria-valuetext", output.textContent);
    for (const { each, said, walk, cursor } of parts) {
      const seen = state(each);
      cursor.setAttribute("x1", x(now));
      cursor.setAttribute("x2", x(now));
      walk?.paint(seen);
      said.textContent = sentence(each, seen);
    }
  }

  function sentence(each, { here, resident, multiplied }) {
    if (now >= each.end) return say("{time}: the block has ended.", { time: spoken(now, each.clock) });
    const texts = here.map((one) => one.kind === "multiply" && one.share
      ? say("{stage} (multiply-adds issue {share} of this time)", { stage: say(one.text), share: percent(one.share) }) : say(one.text));
    const ready = resident.filter((tile) => !multiplied.includes(tile));
    if (ready.length) texts.push(say("tile {numbers} ready", { numbers: ready.join(", ") }));
    const part = say(now < each.start ? "before the loop" : now >= each.cut ? "after the loop" : "iteration {n}",
      { n: Math.floor((now - each.start) / each.iteration) });
    const busy = here.some((one) => one.kind !== "fetch");
    if (!busy) texts.push(say("other instructions and memory accesses"));
    return say("{time}, {part}: {stages}.", { time: spoken(now, each.clock), part, stages: texts.join(say("; ")) });
  }

  function go(time) {
    now = Math.min(Math.max(time, 0), end);
    paint();
  }
  const later = () => starts.find((each) => each > now + end * 1e-6) ?? end;
  const earlier = () => starts.findLast((each) => each < now - end * 1e-6) ?? 0;

  function start() {
    if (now >= end) now = 0;
    live("off");
    play.textContent = say("Pause");
    playing = {};
    const mine = playing;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      const tick = () => {
        if (playing !== mine) return;
        go(later());
        if (now >= end) pause(); else setTimeout(tick, 1000 * PAUSE);
      };
      tick();
      return;
    }
    let last = null;
    const frame = (at) => {
      if (playing !== mine) return;
      go(now + (last === null ? 0 : (at - last) / 1000 / PLAYED * end));
      last = at;
      if (now >= end) pause(); else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
  function pause() {
    playing = null;
    play.textContent = say("Play");
    live("polite");
  }
  const live = (how) => parts.forEach((part) => part.said.setAttribute("aria-live", how));

  const step = (label, to) => element("button", { type: "button", onclick: () => { pause(); go(to()); } }, label);
  slider.addEventListener("input", () => { pause(); go(slider.value / STEPS * end); });
  unit.addEventListener("change", () => { parts.forEach(paintLanes); paint(); });
  parts.forEach(paintLanes);
  paint();
  const save = element("button", { type: "button", onclick: () => saved("gemmkit-timeline.json", view.trace) }, say("Save as Chrome trace (for Perfetto)"));
  return [
    element("p", { class: "quiet" }, say("Predicted, not measured: one block alone on an SM, with cold caches.")),
    element("div", { class: "controls" }, play, step(say("Previous stage"), earlier), step(say("Next stage"), later),
      element("label", { for: slider.id }, say("Time:"), " "), slider, output, element("span", {}, element("label", { for: unit.id }, say("Unit:"), " "), unit), save),
    element("div", parts.length > 1 ? { class: "timelines" } : {}, ...parts.map((part) => part.whole))];
};

const percent = (share) => share < 0.01 ? say("less than 1\u00a0%") : `${Math.round(100 * share)}\u00a0%`;

// A, B and C of the block, with the first slabs along k.
function drawnWalk(each) {
  const slabs = Math.min(each.shown + 2, Math.max(Math.round(each.iterations), 1));
  const more = Math.round(each.iterations) > slabs ? 22 : 0;
  const long = SLAB * slabs + more, scale = TILE / Math.max(each.rows, each.columns);
  const [wide, high] = [Math.max(each.columns * scale, 14), Math.max(each.rows * scale, 14)];
  const [left, top] = [4, 18];
  const [cx, cy] = [left + long + 8, top + long + 8];
  const [width, height] = [cx + Math.max(wide, 50) + 6, cy + high + 20];
  const figure = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", class: "tile-walk", style: `width: ${1.15 * width}px`,
    "aria-label": say("Tile walk of {kernel}: slabs of A and B along k, and the tile of C; the text beside it says the same", { kernel: each.kernel }),
  });
  const slab = Array.from({ length: slabs }, (_, tile) => [
    drawn("rect", { x: left + tile * SLAB, y: cy, width: SLAB - 1.5, height: high }),
    drawn("rect", { x: cx, y: top + tile * SLAB, width: wide, height: SLAB - 1.5 }),
  ]);
  const result = drawn("rect", { x: cx, y: cy, width: wide, height: high });
  figure.append(...slab.flat(), result,
    drawn("text", { x: left + long / 2, y: cy + high + 14, "text-anchor": "middle" }, "A"),
    drawn("text", { x: cx + wide / 2, y: 12, "text-anchor": "middle" }, "B"),
    drawn("text", { x: cx + wide / 2, y: cy + high + 14, "text-anchor": "middle" }, `C ${each.rows}×${each.columns}`));
  if (more) {
    figure.append(drawn("text", { x: left + SLAB * slabs + 5, y: cy + high / 2 + 4 }, "…"),
      drawn("text", { x: cx + wide / 2, y: top + SLAB * slabs + 14, "text-anchor": "middle" }, "⋮"));
  }
  function paint({ here, fetching, resident, multiplied }) {
    slab.forEach((pair, tile) => {
      const now = multiplied.includes(tile) ? "multiplied" : resident.includes(tile) ? "resident"
        : fetching.includes(tile) ? "fetching" : "idle";
      for (const one of pair) one.setAttribute("class", `slab ${now}`);
    });
    const writes = here.some((one) => one.kind === "write-back");
    result.setAttribute("class", `slab ${writes ? "written" : multiplied.length ? "multiplied" : "idle"}`);
  }
  return { figure, paint };
}

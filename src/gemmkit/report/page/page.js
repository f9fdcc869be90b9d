"use strict";
// Draws the views of a page from its data, and ties them together: a source line that is chosen
// shows its requests, a request that is chosen marks its line, a lane lights up wherever it is.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function drawn(name, attributes = {}, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The one line that is chosen on the page, as "file:line", and those who want to know.
  const watchers = [];
  function choose(place, by) {
    for (const each of watchers) if (each !== by) each(place);
  }

  const laneColor = (lane) => `hsl(${260 - lane * 6.5} 62% ${42 + lane * 0.9}%)`;
  const textColor = (lanes) => lanes.length > 1 ? "var(--paper)" : lanes[0] > 7 ? "#10151c" : "#fff";
  const several = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const number = (value) => value.toLocaleString("en",
    Number.isInteger(value) ? {} : { maximumSignificantDigits: 4 });

  // --- source lines ------------------------------------------------------------------------

  const COUNTERS = {
    instructions: "PTX instructions",
    fma: "multiply-adds",
    global_requests: "global requests",
    global_sectors: "global sectors",
    shared_wavefronts: "shared wavefronts",
    bank_conflicts: "bank conflicts",
  };

  function source(view, place) {
    const body = element("tbody");
    const heads = Object.values(COUNTERS).map((each) => element("th", { scope: "col", class: "right" }, each));
    const rows = new Map();
    for (const line of view.lines) {
      const where = `${line.file}:${line.line}`;
      const cells = Object.keys(COUNTERS).map((key) =>
        element("td", { class: "right" }, line[key] ? number(line[key]) : ""));
      const pick = element("button", { type: "button", onclick: () => mark(where, true) }, where);
      const row = element("tr", {}, element("td", {}, pick), element("td", {}, line.text), ...cells);
      rows.set(where, { row, line });
      body.append(row);
    }
    function mark(where, tell) {
      for (const { row } of rows.values()) row.classList.remove("chosen");
      rows.get(where)?.row.classList.add("chosen");
      if (tell) choose(where, fromElsewhere);
    }
    const fromElsewhere = (where) => mark(where, false);
    watchers.push(fromElsewhere);
    const heat = element("select", { id: `heat-${place}` },
      ...Object.entries(COUNTERS).map(([key, name]) => element("option", { value: key }, name)));
    function paint() {
      const most = Math.max(...view.lines.map((line) => line[heat.value]), 1);
      for (const { row, line } of rows.values()) {
        const share = line[heat.value] / most;
        // A square root, so that lines with a hundredth of the most still show.
        row.children[1].style.background = share ? `rgba(var(--heat), ${0.6 * Math.sqrt(share)})` : "";
      }
    }
    heat.addEventListener("change", paint);
    paint();
    return [
      element("div", { class: "controls" },
        element("label", { for: heat.id }, "Heat: "), heat,
        element("span", { class: "quiet" }, "A line's name shows its requests below.")),
      element("div", { class: "source scroll", tabindex: "0", role: "region", "aria-label": "Source" },
        element("table", {},
          element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "line"),
            element("th", { scope: "col" }, "source"), ...heads)), body)),
    ];
  }

  // --- requests of a warp --------------------------------------------------------------------

  const CELL = 20, LABEL = 110;

  function map(access) {
    const shared = access.space === "shared";
    const height = (access.rows.length + 2) * CELL;
    const figure = drawn("svg", {
      viewBox: `0 0 ${LABEL + 32 * CELL + 4} ${height}`, role: "img", "aria-label": `${access.name}. ${access.caption}`,
    });
    access.rows.forEach((row, y) => {
      figure.append(drawn("text", { x: 0, y: y * CELL + 14 }, row.label));
      if (!shared) {
        for (let sector = 0; sector < 4; ++sector) {
          if (row.cells.slice(sector * 8, sector * 8 + 8).some((lanes) => lanes.length)) {
            figure.append(drawn("rect", {
              x: LABEL + sector * 8 * CELL, y: y * CELL + 1, width: 8 * CELL, height: CELL - 2, class: "moved",
            }));
          }
        }
      }
      row.cells.forEach((lanes, x) => {
        if (!lanes.length) return;
        const cell = drawn("g", { "data-lanes": ` ${lanes.join(" ")} ` });
        cell.append(drawn("rect", {
          x: LABEL + x * CELL + 1, y: y * CELL + 2, width: CELL - 2, height: CELL - 4,
          fill: lanes.length === 1 ? laneColor(lanes[0]) : "var(--quiet)", class: row.conflict ? "conflict" : "",
        }));
        const label = drawn("text", {
          x: LABEL + x * CELL + CELL / 2, y: y * CELL + 14, "text-anchor": "middle",
          style: `fill: ${textColor(lanes)}; font-size: 9px; pointer-events: none`,
        }, lanes.length === 1 ? lanes[0] : `${lanes.length}×`);
        const named = lanes.length === 1 ? `lane ${lanes[0]}` : `lanes ${lanes.join(", ")}`;
        cell.append(label, drawn("title", {}, `${named}; ${shared ? "bank" : "word"} ${x}`));
        cell.addEventListener("pointerenter", () => light(figure, lanes));
        cell.addEventListener("pointerleave", () => light(figure, []));
        figure.append(cell);
      });
    });
    for (let x = 0; x <= 32; x += shared ? 4 : 8) {
      figure.append(drawn("line", {
        x1: LABEL + x * CELL, x2: LABEL + x * CELL, y1: 0, y2: access.rows.length * CELL, class: "faint",
      }), drawn("text", { x: LABEL + x * CELL + 2, y: access.rows.length * CELL + 14 }, x < 32 ? x : ""));
    }
    figure.append(drawn("text", { x: 0, y: access.rows.length * CELL + 14 }, shared ? "bank" : "word of a line"));
    return figure;
  }

  function light(figure, lanes) {
    for (const cell of figure.querySelectorAll("g[data-lanes]")) {
      const here = lanes.some((lane) => cell.dataset.lanes.includes(` ${lane} `));
      cell.classList.toggle("dim", lanes.length > 0 && !here);
    }
  }

  function accesses(view) {
    const shown = element("div", { "aria-live": "polite" });
    const list = element("div", { class: "picks" });
    const picks = view.accesses.map((access) => {
      const pick = element("button", {
        type: "button", class: access.worse ? "pick worse" : "pick", onclick: () => show(access, true),
      }, access.name);
      list.append(pick);
      return [access, pick];
    });
    function mark(access) {
      for (const [each, pick] of picks) {
        pick.classList.toggle("chosen", each === access);
        pick.setAttribute("aria-pressed", String(each === access));
      }
    }
    function show(access, tell) {
      mark(access);
      const more = access.more ? ` The first ${access.rows.length} lines are shown.` : "";
      shown.replaceChildren(element("p", {}, `${access.caption}.${more}`), map(access));
      if (tell) choose(`${access.file}:${access.line}`, fromElsewhere);
    }
    function fromElsewhere(place) {
      const own = picks.filter(([access]) => `${access.file}:${access.line}` === place);
      for (const [, pick] of picks) pick.hidden = own.length > 0 && !own.some((each) => each[1] === pick);
      all.hidden = !own.length;
      if (own.length) {
        show(own[0][0], false);
      } else {
        mark(null);
        shown.replaceChildren(element("p", {}, `${place} makes no requests to global or shared memory.`));
      }
    }
    const all = element("button", {
      type: "button", hidden: "", onclick: () => {
        for (const [, pick] of picks) pick.hidden = false;
        all.hidden = true;
      },
    }, "Show the requests of all lines");
    watchers.push(fromElsewhere);
    if (view.accesses.length) show(view.accesses.find((each) => each.worse) ?? view.accesses[0], false);
    return [element("h3", {}, view.kernel), element("div", { class: "controls" }, all,
      element("span", { class: "quiet" }, "● moves more than it must, or has bank conflicts")), list, shown];
  }

  // --- roofline ------------------------------------------------------------------------------

  const WIDTH = 760, HEIGHT = 420, LEFT = 60, BOTTOM = 40;
  const LEVELS = { DRAM: "#d97a1e", L2: "#3b82f6", "shared memory": "#3f9b5b" };

  function roofline(view, place) {
    const picture = element("div");
    const level = element("select", { id: `level-${place}` }, element("option", { value: "" }, "all levels"),
      ...view.ceilings.map((each) => element("option", {}, each.level)));
    level.addEventListener("change", paint);
    function paint() {
      const wanted = (each) => !level.value || each.level === level.value;
      const ridge = (each) => 1e3 * view.peak / each.gb_per_s;
      const across = [...view.points.map((each) => each.intensity), ...view.ceilings.map(ridge)];
      const [low, high] = [Math.min(...across) / 2, Math.max(...across) * 2];
      const speeds = view.points.map((each) => each.tflops);
      const [floor, top] = [Math.min(...speeds, view.peak / 8) / 2, Math.max(...speeds, view.peak) * 1.6];
      const x = (value) => LEFT + (WIDTH - LEFT - 10) * Math.log(value / low) / Math.log(high / low);
      const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * Math.log(value / floor) / Math.log(top / floor);
      const figure = drawn("svg", {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Roofline of ${view.board}; the table says the same`,
      });
      for (let power = Math.ceil(Math.log2(low)); 2 ** power <= high; power += 2) {
        figure.append(drawn("line", { x1: x(2 ** power), x2: x(2 ** power), y1: 10, y2: HEIGHT - BOTTOM, class: "faint" }),
          drawn("text", { x: x(2 ** power), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, 2 ** power));
      }
      for (let power = Math.ceil(Math.log2(floor)); 2 ** power <= top; power += 1) {
        figure.append(drawn("line", { x1: LEFT, x2: WIDTH - 10, y1: y(2 ** power), y2: y(2 ** power), class: "faint" }),
          drawn("text", { x: LEFT - 5, y: y(2 ** power) + 4, "text-anchor": "end" }, 2 ** power));
      }
      for (const each of view.ceilings.filter(wanted)) {
        const start = Math.max(low, floor * 1e3 / each.gb_per_s);
        const corners = [start, ridge(each), high].map((at) => `${x(at)},${y(Math.min(view.peak, at * each.gb_per_s / 1e3))}`);
        figure.append(drawn("polyline", { points: corners.join(" "), fill: "none", stroke: LEVELS[each.level], "stroke-width": 2 }),
          drawn("text", { x: x(start) + 8, y: y(Math.min(view.peak, start * each.gb_per_s / 1e3)) - 8, style: `fill: ${LEVELS[each.level]}` },
            `${each.level}, ${number(each.gb_per_s / 1e3)} TB/s`));
      }
      for (const each of view.points.filter(wanted)) {
        const dot = drawn("circle", { cx: x(each.intensity), cy: y(each.tflops), r: 5, fill: "none", stroke: LEVELS[each.level], "stroke-width": 2 });
        dot.append(drawn("title", {}, `${each.label} at ${each.level}: ${number(each.intensity)} FLOP per byte, ${number(each.tflops)} TFLOP/s`));
        const side = x(each.intensity) > WIDTH * 0.7 ? -1 : 1;
        figure.append(dot, drawn("text", {
          x: x(each.intensity) + 8 * side, y: y(each.tflops) + 4, "text-anchor": side < 0 ? "end" : "start",
        }, each.label));
      }
      figure.append(drawn("text", { x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "FLOP per byte moved at the level"),
        drawn("text", { x: 12, y: HEIGHT / 2, transform: `rotate(-90 12 ${HEIGHT / 2})`, "text-anchor": "middle" },
          `TFLOP/s (${view.pipe}), predicted`));
      picture.replaceChildren(figure);
    }
    paint();
    return [element("div", { class: "controls" }, element("label", { for: level.id }, "Level: "), level), picture];
  }

  // --- tiles ---------------------------------------------------------------------------------

  function tiles(view) {
    const said = element("p", { "aria-live": "polite" }, "Point at an element: who loads or stores it.");
    const parts = view.tiles.map((tile) => {
      const scale = Math.max(2, Math.min(12, Math.floor(700 / tile.columns)));
      const canvas = element("canvas", {
        width: tile.columns * scale, height: tile.rows.length * scale, role: "img", "aria-label": tile.caption,
      });
      const threads = tile.rows.map((runs) => {
        const line = [];
        for (let at = 0; at < runs.length; at += 2) line.push(...Array(runs[at + 1]).fill(runs[at]));
        return line;
      });
      const pen = canvas.getContext("2d");
      function paint(chosen) {
        pen.clearRect(0, 0, canvas.width, canvas.height);
        threads.forEach((line, row) => line.forEach((thread, column) => {
          if (thread < 0) return;
          const warp = Math.floor(thread / 32), lane = thread % 32;
          const fade = chosen === undefined || chosen === thread ? 1 : 0.25;
          pen.fillStyle = `hsl(${(360 * warp / view.warps + 210) % 360} 60% ${35 + lane}% / ${fade})`;
          pen.fillRect(column * scale, row * scale, scale - 0.5, scale - 0.5);
        }));
      }
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const row = Math.floor((event.clientY - box.top) / box.height * threads.length);
        const column = Math.floor((event.clientX - box.left) / box.width * tile.columns);
        const thread = threads[row]?.[column];
        if (thread === undefined || thread < 0) return;
        said.textContent = `${tile.array}[${tile.row + row}][${tile.column + column}]: thread ${thread}, ` +
          `lane ${thread % 32} of warp ${Math.floor(thread / 32)}.`;
        for (const each of parts) each.paint(thread);
      });
      canvas.addEventListener("pointerleave", () => parts.forEach((each) => each.paint()));
      paint();
      return { paint, figure: element("figure", { class: "tile" }, element("figcaption", {}, tile.caption), canvas) };
    });
    return [element("h3", {}, view.kernel), said, ...parts.map((each) => each.figure)];
  }

  // --- occupancy -----------------------------------------------------------------------------

  function occupancy(view, place) {
    // The least place of a sorted list that holds the value.
    const at = (values, value) => {
      const found = values.findIndex((each) => each >= value);
      return found < 0 ? values.length - 1 : found;
    };
    const sliders = [
      ["registers", "registers per thread", view.registers, view.here.registers],
      ["shared", "bytes of shared memory per block", view.shared, view.here.shared],
      ["warps", "threads per block", view.by_warps.map((_, each) => 32 * (each + 1)), view.here.threads],
    ].map(([name, label, values, here]) => {
      const start = at(values, here);
      const input = element("input", { id: `${name}-${place}`, type: "range", min: 0, max: values.length - 1, value: start });
      const output = element("output", { for: input.id });
      input.addEventListener("input", paint);
      return { name, label, values, here, start, input, output };
    });
    const result = element("p", { "aria-live": "polite" });
    const picture = element("div");
    function paint() {
      const place = Object.fromEntries(sliders.map(({ name, input }) => [name, Number(input.value)]));
      for (const { values, here, start, input, output } of sliders) {
        output.textContent = number(Number(input.value) === start ? here : values[input.value]);
      }
      // In the order in which the first of equal limits is named.
      const limits = {
        warps: view.by_warps[place.warps],
        blocks: view.blocks,
        registers: view.by_registers[place.warps][place.registers],
        "shared memory": view.by_shared[place.shared],
        barriers: view.barriers,
      };
      const resident = Math.min(...Object.values(limits));
      const limiter = Object.keys(limits).find((each) => limits[each] === resident);
      const share = 100 * resident * (place.warps + 1) / view.most_warps;
      result.textContent = `${number(share)} % occupancy: ${several(resident, "block")} of ` +
        `${several(place.warps + 1, "warp")} per SM, limited by ${limiter}.`;
      const figure = drawn("svg", { viewBox: `0 0 ${WIDTH} ${26 * 5}`, role: "img", "aria-label": result.textContent });
      Object.entries(limits).forEach(([name, limit], row) => {
        const length = (WIDTH - 260) * Math.min(limit, 2 * view.blocks) / (2 * view.blocks);
        figure.append(drawn("text", { x: 130, y: row * 26 + 17, "text-anchor": "end" }, name),
          drawn("rect", { x: 140, y: row * 26 + 4, width: length, height: 18, fill: name === limiter ? "var(--bad)" : "var(--accent)" }),
          drawn("text", { x: 146 + length, y: row * 26 + 17 }, limit));
      });
      picture.replaceChildren(figure);
    }
    const reset = element("button", {
      type: "button", onclick: () => {
        for (const { input, start } of sliders) input.value = start;
        paint();
      },
    }, "As the kernel is");
    paint();
    return [element("h3", {}, `${view.kernel} on ${view.board}`),
      ...sliders.map(({ label, input, output }) =>
        element("div", { class: "controls" }, input, output, element("label", { for: input.id }, label))),
      element("div", { class: "controls" }, reset), result, picture];
  }

  // --- figures of many records ---------------------------------------------------------------

  function bars(view, place) {
    const names = Object.keys(view.about);
    const pick = element("select", { id: `figure-${place}` }, ...names.map((each) => element("option", {}, each)));
    const log = element("input", { id: `log-${place}`, type: "checkbox" });
    const about = element("p", { class: "quiet" });
    const picture = element("div");
    const ROW = 24, START = 260;
    function paint() {
      about.textContent = view.about[pick.value];
      const values = view.rows.map((row) => row.figures[pick.value]);
      const positive = values.filter((each) => each > 0);
      const [least, most] = [Math.min(...positive), Math.max(...positive, 0)];
      const share = (value) => !(value > 0) ? 0
        : log.checked ? (1 + Math.log10(value / least)) / (1 + Math.log10(most / least)) : value / most;
      const figure = drawn("svg", {
        viewBox: `0 0 ${WIDTH} ${ROW * view.rows.length}`, role: "img", "aria-label": `${pick.value} of each kernel`,
      });
      view.rows.forEach((row, at) => {
        const length = (WIDTH - START - 110) * share(values[at]);
        const bar = drawn("rect", { x: START, y: at * ROW + 4, width: length, height: ROW - 8, fill: "var(--accent)" });
        bar.append(drawn("title", {}, row.idea));
        figure.append(drawn("text", { x: START - 8, y: at * ROW + 16, "text-anchor": "end" }, row.label), bar,
          drawn("text", { x: START + length + 6, y: at * ROW + 16 }, values[at] === undefined ? "–" : number(values[at])));
      });
      picture.replaceChildren(figure);
    }
    pick.addEventListener("change", paint);
    log.addEventListener("change", paint);
    paint();
    return [element("div", { class: "controls" }, element("label", { for: pick.id }, "Figure: "), pick,
      element("label", { for: log.id }, log, " logarithmic")), about, picture];
  }

  // --- the page ------------------------------------------------------------------------------

  const DRAW = { source, accesses, tiles, occupancy, roofline, bars };
  for (const place of document.querySelectorAll("[data-view]")) {
    const { kind, data: own } = data.views[place.dataset.view];
    const table = place.querySelector("figure.table");
    const parts = DRAW[kind](own, place.dataset.view);
    if (table) {
      const details = element("details", {}, element("summary", {}, "As a table"), table);
      place.replaceChildren(...parts, details);
    } else {
      place.replaceChildren(...parts);
    }
  }

  const theme = document.getElementById("theme");
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const named = () => {
    theme.textContent = dark() ? "Light" : "Dark";
  };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    named();
  });
  named();
  document.getElementById("save").addEventListener("click", () => {
    const file = new Blob([JSON.stringify(data.document, null, 1)], { type: "application/json" });
    const link = element("a", { href: URL.createObjectURL(file), download: "gemmkit.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  });
})();

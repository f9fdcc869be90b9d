const CELL = 20, LABEL = 110;

function map(access, said) {
  const shared = access.space === "shared";
  const height = (access.rows.length + 2) * CELL;
  const figure = drawn("svg", {
    viewBox: `0 0 ${LABEL + 32 * CELL + 4} ${height}`,
    "aria-label": `${say(access.name)} – ${say(access.caption)} – ${say("Arrow keys go from cell to cell.")}`,
  });
  const lines = access.rows.map(() => []);
  access.rows.forEach((row, y) => {
    figure.append(drawn("text", { x: 0, y: y * CELL + 14 }, say(row.label)));
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
      const named = say(lanes.length === 1 ? "lane {n}" : "lanes {n}", { n: lanes.join(", ") });
      const of = say(shared ? "bank {n}, {line}" : "word {n} of the line from {line}", { n: x, line: say(row.label) });
      cell.append(label, drawn("title", {}, `${named}${say("; ")}${of}`));
      lines[y].push(cell);
      figure.append(cell);
    });
  });
  for (let x = 0; x <= 32; x += shared ? 4 : 8) {
    figure.append(drawn("line", {
      x1: LABEL + x * CELL, x2: LABEL + x * CELL, y1: 0, y2: access.rows.length * CELL, class: "faint",
    }), drawn("text", { x: LABEL + x * CELL + 2, y: access.rows.length * CELL + 14 }, x < 32 ? x : ""));
  }
  figure.append(drawn("text", { x: 0, y: access.rows.length * CELL + 14 }, say(shared ? "bank" : "word of a line")));
  toured(figure, lines, said, (cell) => light(figure, cell ? cell.dataset.lanes.trim().split(" ") : []));
  return figure;
}

function light(figure, lanes) {
  for (const cell of figure.querySelectorAll("g[data-lanes]")) {
    const here = lanes.some((lane) => cell.dataset.lanes.includes(` ${lane} `));
    cell.classList.toggle("dim", lanes.length > 0 && !here);
  }
}

views.accesses = function accesses(view) {
  const shown = element("div", { "aria-live": "polite" });
  const list = element("div", { class: "picks" });
  const picks = view.accesses.map((access) => {
    const pick = element("button", {
      type: "button", class: access.worse ? "pick worse" : "pick", onclick: () => show(access, true),
    }, say(access.name));
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
    outline(view.kernel, access.touched ?? []);
    const more = access.more ? say("The first {n} lines are shown.", { n: access.rows.length }) : "";
    const said = element("p", { class: "quiet" }, say("Point at a cell, or go there with the arrow keys: the lanes that access it."));
    const about = sentences(say("{caption}.", { caption: say(access.caption) }), more);
    shown.replaceChildren(element("p", {}, about), drawing(map(access, said)), laneKey(laneColor), said);
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
      shown.replaceChildren(element("p", {}, say("{place} makes no requests to global or shared memory.", { place })));
    }
  }
  const all = element("button", {
    type: "button", hidden: "", onclick: () => {
      for (const [, pick] of picks) pick.hidden = false;
      all.hidden = true;
    },
  }, say("Show the requests of all lines"));
  watchers.push(fromElsewhere);
  if (view.accesses.length) show(view.accesses.find((each) => each.worse) ?? view.accesses[0], false);
  return [element("h3", {}, view.kernel), element("div", { class: "controls" }, all,
    element("span", { class: "quiet" }, "● " + say("moves more than it must, or has bank conflicts"))), list, shown];
};

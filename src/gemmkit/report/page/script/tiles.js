// Warps whose legend is shown; the hues of others follow in the same order.
const KEYS = 8;

views.tiles = function tiles(view) {
  const color = (warp, lane, fade) => `hsl(${(360 * warp / view.warps + 210) % 360} 60% ${35 + lane}% / ${fade})`;
  const keys = Array.from({ length: Math.min(view.warps, KEYS) }, (_, warp) =>
    laneKey((lane) => color(warp, lane, 1), element("span", {}, say("warp {n}", { n: warp }))));
  const said = element("p", { "aria-live": "polite" }, say("Point at an element, or go there with the arrow keys: who loads or stores it."));
  const parts = view.tiles.map((tile) => {
    const scale = Math.max(2, Math.min(12, Math.floor(700 / tile.columns)));
    const canvas = element("canvas", {
      width: tile.columns * scale, height: tile.rows.length * scale,
      "aria-label": `${say("{caption}.", { caption: say(tile.caption) })} ${say("Arrow keys go from element to element.")}`,
    });
    let [row, column] = [0, -1];
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
        pen.fillStyle = color(warp, lane, fade);
        pen.fillRect(column * scale, row * scale, scale - 0.5, scale - 0.5);
      }));
    }
    function tell(down, right) {
      const thread = threads[down]?.[right];
      if (thread === undefined) return;
      [row, column] = [down, right];
      if (thread < 0) return;
      said.textContent = say("{element}: thread {thread}, lane {lane} of warp {warp}.", {
        element: `${tile.array}[${tile.row + row}][${tile.column + column}]`, thread, lane: thread % 32, warp: Math.floor(thread / 32),
      });
      for (const each of parts) each.paint(thread);
      pen.strokeStyle = "#ffd60a";
      pen.lineWidth = 2;
      pen.strokeRect(column * scale - 1, row * scale - 1, scale + 1.5, scale + 1.5);
    }
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      tell(Math.floor((event.clientY - box.top) / box.height * threads.length),
        Math.floor((event.clientX - box.left) / box.width * tile.columns));
    });
    walked(canvas, (right, down) => tell(row + (column < 0 ? 0 : down), Math.max(column + (column < 0 ? 1 : right), 0)));
    for (const left of ["pointerleave", "blur"]) canvas.addEventListener(left, () => parts.forEach((each) => each.paint()));
    paint();
    return { paint, figure: element("figure", { class: "tile" }, element("figcaption", {}, say(tile.caption)), canvas) };
  });
  const more = view.warps > KEYS ? element("p", { class: "key quiet" }, say("and so on to warp {n}", { n: view.warps - 1 })) : "";
  return [element("h3", {}, view.kernel), element("div", { class: "keys" }, ...keys, more), said, ...parts.map((each) => each.figure)];
};

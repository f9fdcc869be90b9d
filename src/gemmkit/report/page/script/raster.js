const STRIP = 14, GAP = 6;

views.raster = function raster(view, place) {
  const tiles = view.rows * view.columns, blocks = tiles * view.parts;
  const order = view.tiles.length ? view.tiles : ruled(view.rows, view.columns, view.height, view.across);
  const canvas = element("canvas");
  let [row, column] = [0, -1];
  const said = element("p", { "aria-live": "polite" }), pointed = element("p", { class: "quiet", "aria-live": "polite" });
  const slider = element("input", { id: `wave-${place}`, type: "range", min: 1, max: view.waves.length, value: 1 });
  const shown = element("output", { for: slider.id });
  const cell = Math.max(1, Math.min(22, Math.floor(640 / Math.max(view.rows, view.columns))));
  const left = STRIP + GAP, top = STRIP + GAP;
  canvas.width = left + view.columns * cell;
  canvas.height = top + view.rows * cell;
  const pen = canvas.getContext("2d");
  const turn = new Int32Array(tiles);
  order.forEach((tile, number) => { turn[tile] = number; });

  // Groups of so many rows of tiles, each column by column; across, with rows and columns exchanged.
  function ruled(rows, columns, height, across) {
    if (across) return ruled(columns, rows, height, false).map((tile) => tile % rows * columns + Math.floor(tile / rows));
    return Array.from({ length: rows * columns }, (_, block) => {
      const first = Math.floor(block / (height * columns)) * height, high = Math.min(height, rows - first);
      const within = block - first * columns;
      return (first + within % high) * columns + Math.floor(within / high);
    });
  }
  const color = (number) => `hsl(${250 - 210 * number / tiles} 60% 52%)`;
  const size = (bytes) => {
    const [unit, name] = bytes < 2 ** 20 ? [2 ** 10, "KiB"] : [2 ** 20, "MiB"];
    return `${(bytes / unit).toLocaleString("en", { maximumFractionDigits: 1 })} ${name}`;
  };
  function paint() {
    const wave = Number(slider.value) - 1, first = wave * view.resident;
    const last = Math.min(first + view.resident, blocks);
    const taken = new Set();
    for (let block = first; block < last; ++block) taken.add(order[block % tiles]);
    const rows = new Set([...taken].map((tile) => Math.floor(tile / view.columns)));
    const columns = new Set([...taken].map((tile) => tile % view.columns));
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const edge = cell > 3 ? 1 : 0;
    for (let tile = 0; tile < tiles; ++tile) {
      const row = Math.floor(tile / view.columns), column = tile % view.columns;
      pen.globalAlpha = taken.has(tile) ? 1 : 0.22;
      pen.fillStyle = color(turn[tile]);
      pen.fillRect(left + column * cell, top + row * cell, cell - edge, cell - edge);
    }
    for (let row = 0; row < view.rows; ++row) {
      pen.globalAlpha = rows.has(row) ? 1 : 0.22;
      pen.fillStyle = "#d97a1e";
      pen.fillRect(0, top + row * cell, STRIP, cell - edge);
    }
    for (let column = 0; column < view.columns; ++column) {
      pen.globalAlpha = columns.has(column) ? 1 : 0.22;
      pen.fillStyle = "#3f9b5b";
      pen.fillRect(left + column * cell, 0, cell - edge, STRIP);
    }
    pen.globalAlpha = 1;
    const [a, b, by_rows, square] = view.waves[wave];
    shown.textContent = say("{n} of {all}", { n: wave + 1, all: view.waves.length });
    const fits = say(a + b <= view.l2 ? "All of it fits in the L2 ({size})." : "That is more than the L2 holds ({size}).", { size: size(view.l2) });
    const read = view.in_turn ? "For their tiles in turn {turn}, {n} blocks read {a} of A and {b} of B, {all} in all."
      : last - first > 1 ? "Blocks {first} to {last} read {a} of A and {b} of B, {all} in all." : "Block {first} reads {a} of A and {b} of B, {all} in all.";
    const bytes = { a: size(a), b: size(b), all: size(a + b), rows: size(by_rows), square: size(square) };
    const who = { turn: wave + 1, n: number(last - first), first: number(first), last: number(last - 1) };
    said.textContent = sentences(say(read, { ...who, ...bytes }), say("Row by row it would be {rows}, as square as possible {square}.", bytes), fits);
    canvas.setAttribute("aria-label", say("{rows} × {columns} tiles of C. {said} Arrow keys go from tile to tile.", { rows: view.rows, columns: view.columns, said: said.textContent }));
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    tell(Math.floor(((event.clientY - box.top) * canvas.height / box.height - top) / cell),
      Math.floor(((event.clientX - box.left) * canvas.width / box.width - left) / cell));
  });
  walked(canvas, (right, down) => {
    tell(row + (column < 0 ? 0 : down), column + (column < 0 ? 1 : right));
    paint();
    for (const [color, width] of [["#000000", 3], ["#ffd60a", 1.5]]) {
      pen.strokeStyle = color;
      pen.lineWidth = width;
      pen.strokeRect(left + column * cell, top + row * cell, cell, cell);
    }
  });
  canvas.addEventListener("blur", paint);
  function tell(down, right) {
    if (down < 0 || right < 0 || down >= view.rows || right >= view.columns) return;
    [row, column] = [down, right];
    const turned = turn[row * view.columns + column], block = view.in_turn ? turned % view.resident : turned;
    const layers = Array.from({ length: view.parts }, (_, layer) => number(block + layer * tiles));
    pointed.textContent = say("Tile in row {row}, column {column}, from {element}: {blocks}.", {
      row, column, element: `C[${row * view.tile[0]}][${column * view.tile[1]}]`,
      blocks: say(view.parts > 1 ? "blocks {numbers}" : "block {numbers}", { numbers: layers.join(", ") }),
    });
  }
  slider.addEventListener("input", paint);
  paint();
  pointed.textContent = say("Tiles of {tile}, from the first block's (blue) to the last one's (orange). Beside them: " +
    "the rows of A and, above, the columns of B that the wave reads.", { tile: view.tile.join("×") });
  return [element("h3", {}, view.kernel),
    element("p", {}, say(view.intro)),
    element("div", { class: "controls" }, element("label", { for: slider.id }, say("Wave")), slider, shown),
    said, canvas, pointed, element("p", { class: "quiet" }, say(view.note))];
};

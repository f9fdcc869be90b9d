const BANKS = 32, CELL_WIDTH = 20, CELL_HEIGHT = 14, MARGIN = 52, TOP = 18;

// A color for each row or column, 16 hues that come back lighter.
const hue = (index) => `hsl(${(index % 16) * 22.5 + 210} 62% ${42 + 12 * (Math.floor(index / 16) % 4)}%)`;

views.shared = function shared(view, place) {
  const canvas = element("canvas");
  const box = element("div", { class: "scroll map" }, canvas);
  const said = element("p", { "aria-live": "polite" });
  const caption = element("p", { class: "quiet" });
  const which = element("select", { id: `part-${place}` },
    ...view.parts.map((part, index) => element("option", { value: index }, say(part.name))));
  const by = element("select", { id: `color-${place}` },
    ...["row", "column", "k"].map((name) => element("option", { value: name }, say(name))));
  const pen = canvas.getContext("2d");
  let part, cells, at = 0, outlined = new Set();

  // Each place of a part: null where nothing is stored, false where what is stored is not known, or
  // the element's row and column.
  function unpacked(part) {
    return view.shapes[part.shape].flatMap(([length, row, column, down]) =>
      Array.from({ length }, (_, each) => row === undefined ? null : column === undefined ? false
        : [part.row + row + (down ? each : 0), part.column + column + (down ? 0 : each)]));
  }
  const along = () => by.value === "k" ? (part.matrix === "A" ? 1 : 0) : Number(by.value === "column");
  // Where a place is drawn: its word counts from the bank 0 that comes before the part.
  const skipped = () => part.first % BANKS;
  function spot(index) {
    const byte = index * part.item, word = skipped() + Math.floor(byte / 4);
    const wide = Math.min(part.item, 4) / 4 * CELL_WIDTH;
    return { x: MARGIN + word % BANKS * CELL_WIDTH + byte % 4 / 4 * CELL_WIDTH, y: TOP + Math.floor(word / BANKS) * CELL_HEIGHT,
      wide: part.item > 4 ? part.item / 4 * CELL_WIDTH : wide, word: part.first + Math.floor(byte / 4) };
  }
  function paint() {
    const rows = Math.ceil((skipped() + part.words) / BANKS);
    canvas.width = MARGIN + BANKS * CELL_WIDTH + 2;
    canvas.height = TOP + rows * CELL_HEIGHT + 2;
    pen.font = "10px ui-monospace, monospace";
    pen.fillStyle = "#7b8796";
    for (let bank = 0; bank < BANKS; bank += 4) pen.fillText(bank ? bank : say("bank {n}", { n: 0 }), MARGIN + bank * CELL_WIDTH, 11);
    for (let row = 0; row < rows; row += 2) {
      const word = Math.max(0, part.first - skipped() + row * BANKS - part.base);
      pen.fillText(word, 0, TOP + row * CELL_HEIGHT + 11);
    }
    const index = along();
    cells.forEach((held, number) => {
      const { x, y, wide } = spot(number);
      if (held) {
        pen.fillStyle = hue(held[index]);
        pen.fillRect(x + 0.5, y + 0.5, wide - 1, CELL_HEIGHT - 1);
        return;
      }
      pen.strokeStyle = pen.fillStyle = "#7b8796";
      pen.lineWidth = 1;
      if (held === null) {
        // Padding: an empty cell that is crossed out.
        pen.strokeRect(x + 1.5, y + 1.5, wide - 3, CELL_HEIGHT - 3);
        pen.beginPath();
        pen.moveTo(x + 2, y + CELL_HEIGHT - 2);
        pen.lineTo(x + wide - 2, y + 2);
        pen.stroke();
      } else {
        pen.fillRect(x + wide / 2 - 1, y + CELL_HEIGHT / 2 - 1, 2, 2);
      }
    });
    cells.forEach((held, number) => {
      const { x, y, word } = spot(number);
      if (outlined.has(word) && number * part.item % 4 === 0) ring(x, y, CELL_WIDTH, "#ffffff");
    });
    const { x, y, wide } = spot(at);
    ring(x, y, wide, "#ffd60a");
  }
  // A light line in a dark one stands out on every color.
  function ring(x, y, wide, light) {
    for (const [color, width] of [["#000000", 3.5], [light, 1.5]]) {
      pen.strokeStyle = color;
      pen.lineWidth = width;
      pen.strokeRect(x + 2, y + 2, wide - 4, CELL_HEIGHT - 4);
    }
  }
  function tell(index) {
    at = Math.max(0, Math.min(cells.length - 1, index));
    const held = cells[at], { word } = spot(at);
    const what = held ? `${part.matrix}[${held[0]}][${held[1]}]` : say(held === null ? "padding, never stored to" : "no element of this tile");
    said.textContent = say("Word {n} of {array}, bank {bank}: {what}", { n: word - part.base, array: part.array, bank: word % BANKS, what });
    paint();
  }
  function take(number) {
    which.value = number;
    part = view.parts[number];
    if (part.color) by.value = part.color;
    cells = unpacked(part);
    caption.textContent = say("{name}: {order}.", { name: say(part.name), order: say(part.order) });
    canvas.setAttribute("aria-label", sentences(caption.textContent, say("Arrow keys go from word to word.")));
    at = 0;
    paint();
    said.textContent = say("Point at a cell, or go there with the arrow keys: the element in it.");
  }
  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect();
    const x = (event.clientX - frame.left) * canvas.width / frame.width - MARGIN;
    const y = (event.clientY - frame.top) * canvas.height / frame.height - TOP;
    if (x < 0 || y < 0 || x >= BANKS * CELL_WIDTH) return;
    const byte = 4 * (Math.floor(y / CELL_HEIGHT) * BANKS - skipped()) + Math.floor(x / CELL_WIDTH * 4);
    const index = Math.floor(byte / part.item);
    if (index >= 0 && index < cells.length) tell(index);
  });
  walked(canvas, (right, down) => {
    const step = right + down * Math.max(1, BANKS * 4 / part.item);
    if (at + step >= 0 && at + step < cells.length) tell(at + step);
  });
  which.addEventListener("change", () => take(Number(which.value)));
  by.addEventListener("change", paint);
  listeners.push((kernel, words) => {
    if (kernel !== view.kernel) return;
    outlined = new Set(words);
    const inside = (each) => words.some((word) => word >= each.first && word < each.first + each.words);
    if (words.length && !inside(part) && view.parts.some(inside)) take(view.parts.findIndex(inside));
    paint();
  });
  const title = element("h3", {}, view.kernel);
  const unknown = view.unknown ? [element("p", {}, say(view.unknown))] : [];
  if (!view.parts.length) return [title, ...unknown];
  take(0);
  return [title, element("div", { class: "controls" },
    element("label", { for: which.id }, say("Array:"), " "), which, element("label", { for: by.id }, say("Color by:"), " "), by),
  caption, box, said,
  element("p", { class: "quiet" }, say("Each line has 32 words, one per bank. A crossed cell is padding. " +
    "A request chosen above has its words outlined.")), ...unknown];
};

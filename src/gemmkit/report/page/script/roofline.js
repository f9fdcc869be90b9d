const LEVELS = { DRAM: "#d97a1e", L2: "#3b82f6", "shared memory": "#3f9b5b" };
// Pixels of a letter, twice as many of a Chinese one; letters of a kernel's name that are shown.
const LETTER = 6.7, LONGEST = 26;
const extent = (text) => LETTER * [...text].reduce((sum, each) => sum + (each > "\u2e80" ? 1.7 : 1), 0);
const short = (text) => text.length > LONGEST ? `${text.slice(0, LONGEST - 9)}…${text.slice(-8)}` : text;

// Finds room for labels: `taken` are the boxes of what is there, as left, top, right, bottom.
function room(taken) {
  const free = ([left, top, right, bottom]) => left >= LEFT && right <= WIDTH && top >= 0 && bottom <= HEIGHT - BOTTOM &&
    !taken.some((each) => each[0] < right && left < each[2] && each[1] < bottom && top < each[3]);
  // The first of the places, each the start and the baseline of the text, that is free.
  return (text, places) => {
    const box = ([x, y]) => [x, y - 10, x + extent(text), y + 3];
    const found = places.find((each) => free(box(each))) ?? places[0];
    taken.push(box(found));
    return found;
  };
}

views.roofline = function roofline(view, place) {
  const picture = drawing();
  const level = element("select", { id: `level-${place}` }, element("option", { value: "" }, say("all levels")),
    ...view.ceilings.map((each) => element("option", { value: each.level }, say(each.level))));
  const pipe = element("select", { id: `pipe-${place}` },
    ...view.pipes.map((each, at) => element("option", { value: at }, say(at ? "{pipe} too" : "{pipe}, as the kernel", { pipe: say(each.pipe) }))),
    element("option", { value: "all" }, say("all precisions")));
  level.addEventListener("change", paint);
  pipe.addEventListener("change", paint);
  // The peaks to draw, those of equal height as one; the kernel's own comes first.
  function peaks() {
    const shown = view.pipes.filter((_, at) => at === 0 || pipe.value === "all" || Number(pipe.value) === at);
    const found = new Map();
    for (const each of shown) found.set(each.peak, [...(found.get(each.peak) ?? []), say(each.pipe)]);
    return [...found].map(([peak, names]) => ({ peak, names: names.join(say(", ")) }));
  }
  function paint() {
    const wanted = (each) => !level.value || each.level === level.value;
    const roofs = peaks(), highest = Math.max(...roofs.map((each) => each.peak));
    const ridge = (each, peak) => 1e3 * peak / each.gb_per_s;
    const across = [...view.points.map((each) => each.intensity), ...view.ceilings.map((each) => ridge(each, highest))];
    const [low, high] = [Math.min(...across) / 2, Math.max(...across) * 2];
    const speeds = view.points.map((each) => each.tflops);
    const [floor, top] = [Math.min(...speeds, view.peak / 8, ...roofs.map((each) => each.peak)) / 2, Math.max(...speeds, highest) * 1.6];
    const x = (value) => LEFT + (WIDTH - LEFT - 10) * Math.log(value / low) / Math.log(high / low);
    const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * Math.log(value / floor) / Math.log(top / floor);
    const figure = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": say("Roofline of {board}; the table says the same", { board: view.board }),
    });
    for (let power = Math.ceil(Math.log2(low)); 2 ** power <= high; power += 2) {
      figure.append(drawn("line", { x1: x(2 ** power), x2: x(2 ** power), y1: 10, y2: HEIGHT - BOTTOM, class: "faint" }),
        drawn("text", { x: x(2 ** power), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, 2 ** power));
    }
    for (let power = Math.ceil(Math.log2(floor)); 2 ** power <= top; power += 1) {
      figure.append(drawn("line", { x1: LEFT, x2: WIDTH - 10, y1: y(2 ** power), y2: y(2 ** power), class: "faint" }),
        drawn("text", { x: LEFT - 5, y: y(2 ** power) + 4, "text-anchor": "end" }, 2 ** power));
    }
    const taken = [], labels = [], find = room(taken), shown = view.ceilings.filter(wanted);
    const line = (from, to, stroke, dashed) => figure.append(drawn("line", {
      x1: x(from[0]), y1: y(from[1]), x2: x(to[0]), y2: y(to[1]), stroke, "stroke-width": 2, ...(dashed ? { "stroke-dasharray": "6 4" } : {}),
    }));
    const slope = (each, at) => [at, at * each.gb_per_s / 1e3];
    for (const each of shown) {
      const color = LEVELS[each.level], start = slope(each, Math.max(low, floor * 1e3 / each.gb_per_s));
      const own = slope(each, ridge(each, view.peak));
      figure.append(drawn("polyline", {
        points: [start, own, [high, view.peak]].map(([at, speed]) => `${x(at)},${y(speed)}`).join(" "), fill: "none", stroke: color, "stroke-width": 2,
      }));
      if (highest > view.peak) line(own, slope(each, ridge(each, highest)), color, true);
      // Along the line, above it.
      const [left, bottom] = [x(start[0]), y(start[1])], [wide, tall] = [x(own[0]) - left, bottom - y(own[1])];
      const text = say("{level}, {n} TB/s", { level: say(each.level), n: number(each.gb_per_s / 1e3) });
      const turn = Math.atan2(tall, wide), [cos, sin] = [Math.cos(turn), Math.sin(turn)];
      labels.push(drawn("text", {
        x: 0, y: 0, style: `fill: ${color}`, class: "onstage",
        transform: `translate(${left + 14 * cos - 6 * sin} ${bottom - 14 * sin - 6 * cos}) rotate(${-turn * 180 / Math.PI})`,
      }, text));
      for (let along = 14; along < 14 + extent(text); along += 8) {
        const [middle, over] = [left + along * cos - 10 * sin, bottom - along * sin - 10 * cos];
        taken.push([middle - 7, over - 7, middle + 7, over + 7]);
      }
    }
    // Where the lowest roof meets its peak, the peak is free for a label.
    const end = WIDTH - 14;
    roofs.forEach(({ peak, names }, at) => {
      const from = Math.max(low, Math.min(...shown.map((each) => ridge(each, peak))));
      if (at) line([from, peak], [high, peak], "var(--quiet)", true);
      const text = say("{pipe}, {n} TFLOP/s", { pipe: names, n: number(peak) }), start = end - extent(text);
      const [left, base] = find(text, [-6, 15].flatMap((over) => [0, 1, 2].map((turn) => [start - turn * (extent(text) + 12), y(peak) + over])));
      labels.push(drawn("text", { x: left, y: base, class: "onstage" }, text));
    });
    const dots = new Map();
    for (const each of view.points.filter(wanted)) {
      const [across, down] = [x(each.intensity), y(each.tflops)];
      const dot = drawn("circle", { cx: across, cy: down, r: 5, fill: "none", stroke: LEVELS[each.level], "stroke-width": 2 });
      dot.append(drawn("title", {}, say("{label} at {level}: {n} FLOP per byte, {n2} TFLOP/s",
        { label: each.label, level: say(each.level), n: number(each.intensity), n2: number(each.tflops) })));
      figure.append(dot);
      const key = `${Math.round(across / 4)} ${Math.round(down / 4)} ${each.level}`;
      if (!dots.has(key)) taken.push([across - 6, down - 6, across + 6, down + 6]);
      dots.set(key, { across, down, level: each.level, names: [...(dots.get(key)?.names ?? []), short(each.label)] });
    }
    // Points at the same place have one label.
    for (const { across, down, level, names } of dots.values()) {
      const text = say("{kernel}, {level}", { kernel: names.join(", "), level: say(level) }), wide = extent(text);
      const sides = (over) => [[across + 9, down + over], [across - 9 - wide, down + over], [across - wide / 2, down + over]];
      const nearest = [4, -10, 18, -24, 32, -38, 46, -52, 60, -66, 74].flatMap(sides).filter(([at, base]) =>
        Math.abs(base - down) > 9 || at > across || at + wide < across);
      const [left, base] = find(text, nearest);
      if (Math.abs(base - down) > 20) {
        figure.append(drawn("line", { x1: across, y1: down + (base > down ? 5 : -5), x2: Math.min(Math.max(across, left), left + wide), y2: base > down ? base - 10 : base + 3, class: "axis" }));
      }
      labels.push(drawn("text", { x: left, y: base, class: "onstage", style: `fill: ${LEVELS[level]}` }, text));
    }
    figure.append(...labels, drawn("text", { x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, say("FLOP per byte moved at the level")),
      drawn("text", { x: 12, y: HEIGHT / 2, transform: `rotate(-90 12 ${HEIGHT / 2})`, "text-anchor": "middle" },
        say("TFLOP/s ({pipe}), predicted", { pipe: say(view.pipe) })));
    picture.replaceChildren(figure);
  }
  paint();
  return [element("div", { class: "controls" }, element("label", { for: level.id }, say("Level:"), " "), level,
    element("label", { for: pipe.id }, say("Precision:"), " "), pipe), picture];
};

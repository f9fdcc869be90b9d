// What clock and power have to do with.
const MEASURED = new Set(["TFLOP/s", "median µs"]);
const COLORS = ["#3b82c4", "#c9691a", "#3f9b5b", "#a06cc8", "#d1495b", "#17919f", "#a5733a", "#c95fa8", "#808a1f"];
const DASHES = ["", "7 3", "2 2.5", "8 3 2 3"];

views.bars = function bars(view, place) {
  const names = Object.keys(view.about);
  const pick = element("select", { id: `figure-${place}` }, ...names.map((each) => element("option", { value: each }, say(each))));
  pick.value = view.first;
  const log = element("input", { id: `log-${place}`, type: "checkbox" });
  const about = element("p", { class: "quiet" });
  const picture = drawing(), said = element("p", { class: "quiet", "aria-live": "polite" });
  const ROW = 24, START = 260;
  // A line has two sizes at least.
  const series = Map.groupBy(view.rows.filter((row) => row.size > 0), (row) => row.kernel);
  const sized = [...series.values()].some((rows) => new Set(rows.map((row) => row.size)).size > 1);
  const form = element("select", { id: `form-${place}` },
    element("option", { value: "curves" }, say("curves over size")), element("option", { value: "bars" }, say("bars")));
  const conditionsOf = (row) => MEASURED.has(pick.value) && row.conditions && row.figures[pick.value] !== undefined ? row.conditions : "";
  const textsOf = (row) => {
    const value = row.figures[pick.value];
    return { kernel: say(row.label), value: value === undefined ? "–" : number(value), conditions: conditionsOf(row), idea: say(row.idea) };
  };
  const title = (row) => drawn("title", {},
    say(conditionsOf(row) ? "{kernel}: {value}, measured at {conditions}. {idea}" : "{kernel}: {value}. {idea}", textsOf(row)));

  function paintBars() {
    const values = view.rows.map((row) => row.figures[pick.value]);
    const positive = values.filter((each) => each > 0);
    const [least, most] = [Math.min(...positive), Math.max(...positive, 0)];
    const share = (value) => !(value > 0) ? 0
      : log.checked ? (1 + Math.log10(value / least)) / (1 + Math.log10(most / least)) : value / most;
    const figure = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${ROW * view.rows.length}`,
      "aria-label": say("{figure} of each kernel. Arrow keys go from bar to bar.", { figure: say(pick.value) }),
    });
    said.textContent = say("Point at a bar, or go there with the arrow keys: what its kernel does.");
    const lines = view.rows.map((row, at) => {
      const length = (WIDTH - START - (view.rows.some((row) => row.conditions) ? 200 : 110)) * share(values[at]);
      const bar = drawn("rect", { x: START, y: at * ROW + 4, width: length, height: ROW - 8, fill: "var(--accent)" });
      const texts = textsOf(row);
      const name = texts.kernel.length > 38 ? `${texts.kernel.slice(0, 18)}…${texts.kernel.slice(-19)}` : texts.kernel;
      const whole = drawn("g");
      whole.append(title(row), bar,
        drawn("text", { x: START - 8, y: at * ROW + 16, "text-anchor": "end" }, name),
        drawn("text", { x: START + length + 6, y: at * ROW + 16 }, texts.conditions ? say("{value} at {conditions}", texts) : texts.value));
      figure.append(whole);
      return [whole];
    });
    toured(figure, lines, said);
    picture.replaceChildren(figure);
  }

  // A line per kernel over the size, whose names stand at the right ends.
  function paintCurves() {
    const known = (row) => row.figures[pick.value] !== undefined && (!log.checked || row.figures[pick.value] > 0);
    const curves = [...series].map(([kernel, rows]) => ({ kernel, rows: rows.filter(known).sort((a, b) => a.size - b.size) }));
    const rows = curves.flatMap((each) => each.rows), values = rows.map((row) => row.figures[pick.value]);
    const sizes = [...new Set(rows.map((row) => row.size))].sort((a, b) => a - b);
    const figure = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      "aria-label": say("{figure} of each kernel over size. Arrow keys go from point to point.", { figure: say(pick.value) }),
    });
    said.textContent = say("Point at a point, or go there with the arrow keys: its value, and what its kernel does.");
    const right = WIDTH - 190, floor = HEIGHT - BOTTOM, start = LEFT + 16;
    const [least, most] = [log.checked ? Math.min(...values) : 0, Math.max(...values)];
    const x = (size) => sizes.length > 1 ? start + (right - start) * Math.log(size / sizes[0]) / Math.log(sizes.at(-1) / sizes[0]) : start;
    const y = (value) => {
      const share = most === least ? Number(most > 0) / 2 : log.checked ? Math.log(value / least) / Math.log(most / least) : value / most;
      return floor - (floor - 20) * share;
    };
    for (let tick = 0; tick <= 4; tick += 1) {
      const value = log.checked ? least * (most / least) ** (tick / 4) : most * tick / 4;
      figure.append(drawn("line", { x1: start, x2: right, y1: y(value), y2: y(value), class: "faint" }),
        drawn("text", { x: start - 6, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(3)).toLocaleString("en", { notation: "compact" })));
    }
    let last = -Infinity;
    for (const size of sizes) {
      figure.append(drawn("line", { x1: x(size), x2: x(size), y1: 20, y2: floor, class: "faint" }));
      if (x(size) - last < 40) continue;
      last = x(size);
      figure.append(drawn("text", { x: x(size), y: floor + 14, "text-anchor": "middle" }, Number(size.toPrecision(4))));
    }
    const lines = curves.map(({ kernel, rows }, at) => {
      const color = COLORS[at % COLORS.length];
      figure.append(drawn("polyline", {
        points: rows.map((row) => `${x(row.size)},${y(row.figures[pick.value])}`).join(" "),
        fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": DASHES[at % DASHES.length],
      }));
      return rows.map((row) => {
        const point = drawn("g");
        point.append(title(row), drawn("rect", { x: x(row.size) - 4, y: y(row.figures[pick.value]) - 4, width: 8, height: 8, rx: 4, fill: color }));
        figure.append(point);
        return point;
      });
    });
    // Names in the order of the ends, one below the other where these are close.
    const ends = curves.map((each, at) => ({ ...each, at })).filter((each) => each.rows.length)
      .map((each) => ({ ...each, last: each.rows.at(-1) }))
      .map((each) => ({ ...each, end: y(each.last.figures[pick.value]) })).sort((a, b) => a.end - b.end || a.at - b.at);
    let next = 14;
    ends.forEach(({ kernel, at, end, last }, turn) => {
      next = Math.max(Math.min(end + 4, floor - 14 * (ends.length - 1 - turn)), next);
      const name = kernel.length > 22 ? `${kernel.slice(0, 12)}…${kernel.slice(-9)}` : kernel;
      figure.append(drawn("line", { x1: x(last.size) + 6, x2: right + 16, y1: end, y2: next - 4, class: "faint" }),
        drawn("text", { x: right + 20, y: next, style: `fill: ${COLORS[at % COLORS.length]}` }, name));
      next += 14;
    });
    figure.append(drawn("text", { x: (start + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" },
      say(view.cubes ? "size (M = N = K)" : "size: cube root of results × K")));
    toured(figure, lines, said);
    picture.replaceChildren(figure);
  }
  function paint() {
    about.textContent = say(view.about[pick.value]);
    if (sized && form.value === "curves") paintCurves();
    else paintBars();
  }
  for (const each of [pick, log, form]) each.addEventListener("change", paint);
  paint();
  const drawnAs = sized ? [element("label", { for: form.id }, say("Draw:"), " "), form] : [];
  return [element("div", { class: "controls" }, element("label", { for: pick.id }, say("Figure:"), " "), pick, ...drawnAs,
    element("label", { for: log.id }, log, " ", say("logarithmic"))), about, picture, said];
};

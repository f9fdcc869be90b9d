// What clock and power have to do with.
const MEASURED = new Set(["TFLOP/s", "median µs"]);

views.bars = function bars(view, place) {
  const names = Object.keys(view.about);
  const pick = element("select", { id: `figure-${place}` }, ...names.map((each) => element("option", { value: each }, say(each))));
  const log = element("input", { id: `log-${place}`, type: "checkbox" });
  const about = element("p", { class: "quiet" });
  const picture = element("div");
  const ROW = 24, START = 260;
  function paint() {
    about.textContent = say(view.about[pick.value]);
    const values = view.rows.map((row) => row.figures[pick.value]);
    const positive = values.filter((each) => each > 0);
    const [least, most] = [Math.min(...positive), Math.max(...positive, 0)];
    const share = (value) => !(value > 0) ? 0
      : log.checked ? (1 + Math.log10(value / least)) / (1 + Math.log10(most / least)) : value / most;
    const figure = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${ROW * view.rows.length}`, role: "img", "aria-label": say("{figure} of each kernel", { figure: say(pick.value) }),
    });
    view.rows.forEach((row, at) => {
      const length = (WIDTH - START - (view.rows.some((row) => row.conditions) ? 200 : 110)) * share(values[at]);
      const bar = drawn("rect", { x: START, y: at * ROW + 4, width: length, height: ROW - 8, fill: "var(--accent)" });
      const told = MEASURED.has(pick.value) && row.conditions && values[at] !== undefined ? row.conditions : "";
      bar.append(drawn("title", {}, told ? say("{idea} Measured at {conditions}.", { idea: say(row.idea), conditions: told }) : say(row.idea)));
      figure.append(drawn("text", { x: START - 8, y: at * ROW + 16, "text-anchor": "end" }, say(row.label)), bar,
        drawn("text", { x: START + length + 6, y: at * ROW + 16 }, values[at] === undefined ? "–" : told ? say("{value} at {conditions}", { value: number(values[at]), conditions: told }) : number(values[at])));
    });
    picture.replaceChildren(figure);
  }
  pick.addEventListener("change", paint);
  log.addEventListener("change", paint);
  paint();
  return [element("div", { class: "controls" }, element("label", { for: pick.id }, say("Figure:"), " "), pick,
    element("label", { for: log.id }, log, " ", say("logarithmic"))), about, picture];
};

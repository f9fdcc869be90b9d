// What clock and power have to do with.
const MEASURED = new Set(["TFLOP/s", "median µs"]);

views.bars = function bars(view, place) {
  const names = Object.keys(view.about);
  const pick = element("select", { id: `figure-${place}` }, ...names.map((each) => element("option", { value: each }, say(each))));
  const log = element("input", { id: `log-${place}`, type: "checkbox" });
  const about = element("p", { class: "quiet" });
  const picture = drawing(), said = element("p", { class: "quiet", "aria-live": "polite" });
  const ROW = 24, START = 260;
  function paint() {
    about.textContent = say(view.about[pick.value]);
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
      const told = MEASURED.has(pick.value) && row.conditions && values[at] !== undefined ? row.conditions : "";
      const value = values[at] === undefined ? "–" : number(values[at]);
      const texts = { kernel: say(row.label), value, conditions: told, idea: say(row.idea) };
      const whole = drawn("g");
      whole.append(drawn("title", {}, say(told ? "{kernel}: {value}, measured at {conditions}. {idea}" : "{kernel}: {value}. {idea}", texts)), bar,
        drawn("text", { x: START - 8, y: at * ROW + 16, "text-anchor": "end" }, texts.kernel),
        drawn("text", { x: START + length + 6, y: at * ROW + 16 }, told ? say("{value} at {conditions}", texts) : value));
      figure.append(whole);
      return [whole];
    });
    toured(figure, lines, said);
    picture.replaceChildren(figure);
  }
  pick.addEventListener("change", paint);
  log.addEventListener("change", paint);
  paint();
  return [element("div", { class: "controls" }, element("label", { for: pick.id }, say("Figure:"), " "), pick,
    element("label", { for: log.id }, log, " ", say("logarithmic"))), about, picture, said];
};

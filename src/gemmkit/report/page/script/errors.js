// A strip per kernel: the share of elements in each power of two of error / bound.
const LABELS = 210, STRIP = 46, AXIS = 48, EXACT = 48;
// The smallest errors, together at most this share of any kernel's elements, go into the first bar.
const TAIL = 1e-3;
const raised = (value) => `2${[...String(value)].map((each) => each === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[each]).join("")}`;

// The same as an axis shows it: digits of their size, raised.
function power(x, y, exponent) {
  const label = drawn("text", { x, y, "text-anchor": "middle" }, "2");
  label.append(drawn("tspan", { dy: -5 }, String(exponent).replace("-", "−")));
  return label;
}

// Elements by exponent, over all rows of a label.
function summed(label, rows) {
  const total = { label, exact: 0, beyond: 0, elements: 0, results: 0, bins: new Map() };
  for (const row of rows) {
    for (const key of ["exact", "beyond", "elements", "results"]) total[key] += row[key];
    row.counts.forEach((count, at) => total.bins.set(row.first + at, (total.bins.get(row.first + at) ?? 0) + count));
  }
  return total;
}

function lowest(total) {
  let seen = 0;
  for (const each of [...total.bins.keys()].sort((a, b) => a - b)) {
    seen += total.bins.get(each);
    if (seen > TAIL * total.elements) return each;
  }
  return 0;
}

views.errors = function errors(view, place) {
  const problems = [...new Set(view.rows.map((row) => row.problem))];
  const problem = element("select", { id: `problem-${place}` }, element("option", { value: "" }, say("all, together")),
    ...problems.map((each) => element("option", { value: each }, each)));
  const log = element("input", { id: `errors-log-${place}`, type: "checkbox" });
  const picture = drawing(), said = element("p", { class: "quiet", "aria-live": "polite" });
  function paint() {
    const rows = view.rows.filter((row) => !problem.value || row.problem === problem.value);
    const strips = [...new Set(rows.map((row) => row.label))].map((label) => summed(label, rows.filter((row) => row.label === label)));
    const filled = strips.flatMap((each) => [...each.bins.keys()]);
    const low = Math.min(...strips.map(lowest), -4);
    const high = Math.max(...filled.map((each) => each + 1), 2);
    const beyond = strips.some((each) => each.beyond);
    const start = LABELS + EXACT, end = WIDTH - (beyond ? 46 : 12);
    const x = (exponent) => start + (end - start) * (exponent - low) / (high - low);
    const height = strips.length * STRIP + AXIS;
    const figure = drawn("svg", {
      viewBox: `0 0 ${WIDTH} ${height}`,
      "aria-label": say("Elements by error relative to the bound; the table has median, 99th percentile and maximum. Arrow keys go from bar to bar."),
    });
    said.textContent = say("Point at a bar, or go there with the arrow keys: how many elements it counts.");
    const lines = strips.map(() => []);
    const floor = height - AXIS;
    for (let each = Math.ceil(low / 4) * 4; each <= high; each += 4) {
      if (each) {
        figure.append(drawn("line", { x1: x(each), x2: x(each), y1: 0, y2: floor, class: "faint" }),
          power(x(each), floor + 16, each));
      }
    }
    strips.forEach((strip, at) => {
      const base = (at + 1) * STRIP;
      const shown = new Map();
      for (const [each, count] of strip.bins) shown.set(Math.max(each, low), (shown.get(Math.max(each, low)) ?? 0) + count);
      const most = Math.max(...shown.values(), strip.exact, strip.beyond, 1);
      const tall = (count) => (STRIP - 12) * (log.checked ? Math.log1p(count) / Math.log1p(most) : count / most);
      const bar = (left, width, count, what, fill) => {
        if (!count) return;
        const size = Math.max(tall(count), 1);
        const made = drawn("rect", { x: left, width, y: base - size, height: size, fill });
        made.append(drawn("title", {}, say("{label}, {what}: {count} of {n} elements, {share} %", {
          label: strip.label, what, count: number(count), n: number(strip.elements), share: number(100 * count / strip.elements),
        })));
        lines[at].push(made);
        figure.append(made);
      };
      bar(LABELS + 8, 18, strip.exact, say("no error"), "var(--good)");
      for (const [each, count] of [...shown].sort(([one], [other]) => one - other)) {
        const what = say(each === low ? "error / bound up to {high}" : "error / bound {low} to {high}", { low: raised(each), high: raised(each + 1) });
        bar(x(each) + 0.5, x(each + 1) - x(each) - 1, count, what,
          each < 0 ? "var(--accent)" : "var(--bad)");
      }
      bar(end + 12, 22, strip.beyond, say("beyond, or not finite"), "var(--bad)");
      figure.append(drawn("text", { x: LABELS - 4, y: base - 18, "text-anchor": "end" }, strip.label),
        drawn("text", { x: LABELS - 4, y: base - 4, "text-anchor": "end", class: "small" }, say(strip.results > strip.elements ? "{n} of {all} elements" : "{n} elements", { n: number(strip.elements), all: number(strip.results) })),
        drawn("line", { x1: LABELS, x2: WIDTH, y1: base, y2: base, class: "faint" }));
    });
    figure.append(drawn("line", { x1: x(0), x2: x(0), y1: 0, y2: floor + 4, class: "bound" }),
      drawn("text", { x: x(0), y: floor + 16, "text-anchor": "middle", class: "bound" }, "1"),
      drawn("text", { x: LABELS + 17, y: floor + 16, "text-anchor": "middle" }, "0"),
      ...(beyond ? [drawn("text", { x: end + 23, y: floor + 16, "text-anchor": "middle" }, "∞")] : []),
      drawn("text", { x: (start + end) / 2, y: height - 8, "text-anchor": "middle" }, say("|C − float64 reference| / bound; wrong above 1")));
    toured(figure, lines, said);
    picture.replaceChildren(figure);
  }
  problem.addEventListener("change", paint);
  log.addEventListener("change", paint);
  paint();
  const asked = problems.length > 1 ? [element("label", { for: problem.id }, say("Problem:"), " "), problem] : [];
  return [element("div", { class: "controls" }, ...asked, element("label", { for: log.id }, log, " ", say("logarithmic counts"))), picture, said];
};

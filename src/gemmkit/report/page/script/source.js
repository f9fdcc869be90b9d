const COUNTERS = {
  instructions: "PTX instructions",
  fma: "multiply-adds",
  global_requests: "global requests",
  global_sectors: "global sectors",
  shared_wavefronts: "shared wavefronts",
  bank_conflicts: "bank conflicts",
};

views.source = function source(view, place) {
  const body = element("tbody");
  const counters = Object.fromEntries(Object.entries(COUNTERS).filter(([key]) => view.lines.some((line) => line[key])));
  const heads = Object.values(counters).map((each) => element("th", { scope: "col", class: "right" }, say(each)));
  const rows = new Map();
  for (const line of view.lines) {
    const where = `${line.file}:${line.line}`;
    const cells = Object.keys(counters).map((key) =>
      element("td", { class: "right" }, line[key] ? number(line[key]) : ""));
    const pick = element("button", { type: "button", onclick: () => mark(where, true) }, where);
    // What the compiler added is on no line, so there is nothing to choose.
    const row = element("tr", {}, element("td", {}, line.line ? pick : say("compiler-generated")), element("td", { title: line.text }, line.text), ...cells);
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
    ...Object.entries(counters).map(([key, name]) => element("option", { value: key }, say(name))));
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
    ...(view.kernel ? [element("h3", {}, view.kernel)] : []),
    element("div", { class: "controls" },
      element("label", { for: heat.id }, say("Heat:"), " "), heat,
      element("span", { class: "quiet" }, say("A line's name shows its requests below."))),
    element("div", { class: "source scroll", tabindex: "0", role: "region", "aria-label": view.kernel ? say("Source of {kernel}", { kernel: view.kernel }) : say("Source") },
      element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, say("line")),
          element("th", { scope: "col" }, say("source")), ...heads)), body)),
  ];
};

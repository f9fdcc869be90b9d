views.occupancy = function occupancy(view, place) {
  // The least place of a sorted list that holds the value.
  const at = (values, value) => {
    const found = values.findIndex((each) => each >= value);
    return found < 0 ? values.length - 1 : found;
  };
  const sliders = [
    ["registers", "registers per thread", view.registers, view.here.registers],
    ["shared", "bytes of shared memory per block", view.shared, view.here.shared],
    ["warps", "threads per block", view.by_warps.map((_, each) => 32 * (each + 1)), view.here.threads],
  ].map(([name, label, values, here]) => {
    const start = at(values, here);
    const input = element("input", { id: `${name}-${place}`, type: "range", min: 0, max: values.length - 1, value: start });
    const output = element("output", { for: input.id });
    input.addEventListener("input", paint);
    return { name, label, values, here, start, input, output };
  });
  const result = element("p", { "aria-live": "polite" });
  const picture = drawing();
  function paint() {
    const place = Object.fromEntries(sliders.map(({ name, input }) => [name, Number(input.value)]));
    for (const { values, here, start, input, output } of sliders) {
      output.textContent = number(Number(input.value) === start ? here : values[input.value]);
    }
    // In the order in which the first of equal limits is named.
    const limits = {
      warps: view.by_warps[place.warps],
      blocks: view.blocks,
      registers: view.by_registers[place.warps][place.registers],
      "shared memory": view.by_shared[place.shared],
      barriers: view.barriers,
    };
    const resident = Math.min(...Object.values(limits));
    const limiter = Object.keys(limits).find((each) => limits[each] === resident);
    const share = 100 * resident * (place.warps + 1) / view.most_warps;
    result.textContent = say("{share} % occupancy: {blocks} of {warps} per SM, limited by {limiter}.", {
      share: number(share), blocks: several(resident, "block"), warps: several(place.warps + 1, "warp"), limiter: say(limiter),
    });
    const figure = drawn("svg", { viewBox: `0 0 ${WIDTH} ${26 * 5}`, role: "img", "aria-label": result.textContent });
    Object.entries(limits).forEach(([name, limit], row) => {
      const length = (WIDTH - 260) * Math.min(limit, 2 * view.blocks) / (2 * view.blocks);
      figure.append(drawn("text", { x: 130, y: row * 26 + 17, "text-anchor": "end" }, say(name)),
        drawn("rect", { x: 140, y: row * 26 + 4, width: length, height: 18, fill: name === limiter ? "var(--bad)" : "var(--accent)" }),
        drawn("text", { x: 146 + length, y: row * 26 + 17 }, limit));
    });
    picture.replaceChildren(figure);
  }
  const reset = element("button", {
    type: "button", onclick: () => {
      for (const { input, start } of sliders) input.value = start;
      paint();
    },
  }, say("As the kernel is"));
  paint();
  return [element("h3", {}, say("{kernel} on {board}", { kernel: view.kernel, board: view.board })),
    ...sliders.map(({ label, input, output }) =>
      element("div", { class: "slider" }, element("label", { for: input.id }, say(label)), element("span", {}, input, output))),
    element("div", { class: "controls" }, reset), result, picture];
};

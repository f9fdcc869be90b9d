const LEVELS = { DRAM: "#d97a1e", L2: "#3b82f6", "shared memory": "#3f9b5b" };

views.roofline = function roofline(view, place) {
  const picture = drawing();
  const level = element("select", { id: `level-${place}` }, element("option", { value: "" }, say("all levels")),
    ...view.ceilings.map((each) => element("option", { value: each.level }, say(each.level))));
  level.addEventListener("change", paint);
  function paint() {
    const wanted = (each) => !level.value || each.level === level.value;
    const ridge = (each) => 1e3 * view.peak / each.gb_per_s;
    const across = [...view.points.map((each) => each.intensity), ...view.ceilings.map(ridge)];
    const [low, high] = [Math.min(...across) / 2, Math.max(...across) * 2];
    const speeds = view.points.map((each) => each.tflops);
    const [floor, top] = [Math.min(...speeds, view.peak / 8) / 2, Math.max(...speeds, view.peak) * 1.6];
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
    for (const each of view.ceilings.filter(wanted)) {
      const start = Math.max(low, floor * 1e3 / each.gb_per_s);
      const corners = [start, ridge(each), high].map((at) => `${x(at)},${y(Math.min(view.peak, at * each.gb_per_s / 1e3))}`);
      figure.append(drawn("polyline", { points: corners.join(" "), fill: "none", stroke: LEVELS[each.level], "stroke-width": 2 }),
        drawn("text", { x: x(start) + 8, y: y(Math.min(view.peak, start * each.gb_per_s / 1e3)) - 8, style: `fill: ${LEVELS[each.level]}` },
          say("{level}, {n} TB/s", { level: say(each.level), n: number(each.gb_per_s / 1e3) })));
    }
    for (const each of view.points.filter(wanted)) {
      const dot = drawn("circle", { cx: x(each.intensity), cy: y(each.tflops), r: 5, fill: "none", stroke: LEVELS[each.level], "stroke-width": 2 });
      dot.append(drawn("title", {}, say("{label} at {level}: {n} FLOP per byte, {n2} TFLOP/s",
        { label: each.label, level: say(each.level), n: number(each.intensity), n2: number(each.tflops) })));
      const side = x(each.intensity) > WIDTH * 0.7 ? -1 : 1;
      figure.append(dot, drawn("text", {
        x: x(each.intensity) + 8 * side, y: y(each.tflops) + 4, "text-anchor": side < 0 ? "end" : "start",
      }, each.label));
    }
    figure.append(drawn("text", { x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, say("FLOP per byte moved at the level")),
      drawn("text", { x: 12, y: HEIGHT / 2, transform: `rotate(-90 12 ${HEIGHT / 2})`, "text-anchor": "middle" },
        say("TFLOP/s ({pipe}), predicted", { pipe: say(view.pipe) })));
    picture.replaceChildren(figure);
  }
  paint();
  return [element("div", { class: "controls" }, element("label", { for: level.id }, say("Level:"), " "), level), picture];
};

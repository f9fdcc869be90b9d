// What the views of a page share. Each view is a function of `views`, by the name of its kind: it
// gets the data and a number of its own, and gives the elements to show.
// They are tied together: a source line that is chosen shows its requests, a request that is chosen
// marks its line, a lane lights up wherever it is.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// A text in the language that the page shows; values take the places of the names in braces. Texts of
// the data have translations too, so `say` is for all that is shown.
const root = document.documentElement;
function say(text, values = {}) {
  const found = root.lang !== "en" && Object.hasOwn(data.phrases, text) ? data.phrases[text] : text;
  const said = found.replace(/\{(\w+)\}/g, (whole, name) => Object.hasOwn(values, name) ? values[name] : whole);
  // A space stands between Chinese and Latin letters or digits.
  return found === text ? said : said.replace(/[\u4e00-\u9fff](?=[A-Za-z0-9])|[A-Za-z0-9](?=[\u4e00-\u9fff])/g, "$& ");
}

// Sentences one after the other; between Chinese ones there is no space.
const sentences = (...texts) => texts.filter(Boolean).join(root.lang === "en" ? " " : "");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Those who want to know which line is chosen, as "file:line". Where two kernels stand side by side,
// `sides` has the kernel of each, and a choice concerns its own: both may have the same files.
const watchers = [];
const sides = new Map();
function choose(place, by) {
  const linked = (side, other) => side === other || side === null || other === null;
  for (const each of watchers) {
    if (each !== by && linked(sides.get(each), sides.get(by))) each(place);
  }
}

// The words of shared memory that a chosen request of a kernel touches, and those who want to know.
const listeners = [];
function outline(kernel, words) {
  for (const each of listeners) each(kernel, words);
}

const laneColor = (lane) => `hsl(${260 - lane * 6.5} 62% ${42 + lane * 0.9}%)`;
// A legend of colors by lane: `color` gives that of each.
function laneKey(color, ...before) {
  const strip = drawn("svg", { viewBox: "0 0 192 12", class: "lanes", "aria-hidden": "true" });
  for (let lane = 0; lane < 32; ++lane) strip.append(drawn("rect", { x: 6 * lane, width: 6.2, height: 12, fill: color(lane) }));
  return element("p", { class: "key quiet" }, ...before, say("lane {n}", { n: 0 }), strip, say("lane {n}", { n: 31 }));
}
const textColor = (lanes) => lanes.length > 1 ? "var(--paper)" : lanes[0] > 7 ? "#10151c" : "#fff";
const several = (count, noun) => say(count === 1 ? `{n} ${noun}` : `{n} ${noun}s`, { n: count });
const number = (value) => value.toLocaleString("en",
  Number.isInteger(value) ? {} : { maximumSignificantDigits: 4 });

function saved(name, value) {
  const file = new Blob([JSON.stringify(value, null, 1)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(file), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

// The box of a picture. Where the screen is narrower than the picture, it scrolls, also by keys.
const watched = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth + 1) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});
function drawing(...children) {
  const box = element("div", { class: "drawing", role: "region", "aria-label": say("picture") }, ...children);
  watched.observe(box);
  return box;
}

const views = {};

// Lets the arrow keys do what the pointer does on a picture: `move` gets the steps to the right and down.
// As an application, it gets these keys from screen readers too.
function walked(picture, move) {
  for (const [key, value] of Object.entries({ tabindex: "0", role: "application", "aria-roledescription": say("picture") })) {
    picture.setAttribute(key, value);
  }
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(...step);
  });
}

// The same for a drawing of parts that have titles, line by line: the title of the part goes to `said`.
function toured(figure, lines, said, light = () => {}) {
  const rows = lines.filter((line) => line.length);
  let row = 0, at = -1;
  const middle = (part) => {
    const box = part.getBoundingClientRect();
    return box.left + box.width / 2;
  };
  function show(part) {
    for (const each of figure.querySelectorAll(".here")) each.classList.remove("here");
    part?.classList.add("here");
    if (part) said.textContent = part.querySelector("title").textContent;
    light(part);
  }
  walked(figure, (right, down) => {
    if (!rows.length) return;
    if (at < 0) {
      at = 0;
    } else if (right) {
      at = Math.max(0, Math.min(rows[row].length - 1, at + right));
    } else if (rows[row + down]) {
      const from = middle(rows[row][at]);
      row += down;
      const away = rows[row].map((part) => Math.abs(middle(part) - from));
      at = away.indexOf(Math.min(...away));
    }
    show(rows[row][at]);
    rows[row][at].scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  figure.addEventListener("blur", () => show(null));
  for (const part of rows.flat()) {
    part.addEventListener("pointerenter", () => show(part));
    part.addEventListener("pointerleave", () => show(null));
  }
}

// The size of a chart, and the room of its axes.
const WIDTH = 760, HEIGHT = 420, LEFT = 60, BOTTOM = 40;

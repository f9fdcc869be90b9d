// Draws all views, whose tables remain below them, and serves the buttons.
const places = [...document.querySelectorAll("[data-view]")].map((place) => ({ place, table: place.querySelector("figure.table") }));

function draw() {
  watchers.length = listeners.length = 0;
  sides.clear();
  for (const { place, table } of places) {
    const { kind, data: own, side } = data.views[place.dataset.view];
    const before = watchers.length;
    const parts = views[kind](own, place.dataset.view);
    for (const each of watchers.slice(before)) sides.set(each, side);
    const details = table ? [element("details", {}, element("summary", {}, say("As a table")), table)] : [];
    place.replaceChildren(...parts, ...details);
    // In a browser's profile: the end of the view with this number.
    performance.mark(`view ${place.dataset.view}`);
  }
}

// A line that a remark names: chosen, and brought into sight, in the source of its kernel.
function visit(event) {
  const link = event.currentTarget, side = Number(link.dataset.side);
  const shown = places.find(({ place }) => {
    const { kind, side: own } = data.views[place.dataset.view];
    return kind === "source" && (own === null || own === side);
  });
  if (!shown) return;
  event.preventDefault();
  sides.set(link, side);
  choose(link.dataset.place, link);
  const row = shown.place.querySelector("tr.chosen");
  (row ?? shown.place).scrollIntoView({ block: "center" });
  row?.querySelector("button").focus({ preventScroll: true });
}
for (const each of document.querySelectorAll("a[data-place]")) each.addEventListener("click", visit);

const language = document.getElementById("language");
const CHINESE = language.lang;
// The texts of the page are there in both languages; those of attributes, and of views, are exchanged.
function speak(wanted) {
  root.lang = wanted;
  document.title = document.querySelector("h1").innerText;
  for (const each of document.querySelectorAll("[data-chinese]")) {
    each.dataset.english ??= each.getAttribute("aria-label");
    each.setAttribute("aria-label", wanted === "en" ? each.dataset.english : each.dataset.chinese);
  }
  const other = wanted === "en" ? CHINESE : "en";
  language.lang = other;
  language.textContent = other === "en" ? "English" : "中文";
  draw();
  named();
}

const theme = document.getElementById("theme");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const named = () => {
  theme.textContent = say(dark() ? "Light" : "Dark");
};
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  named();
});
document.getElementById("save").addEventListener("click", () => saved("gemmkit.json", data.document));
language.addEventListener("click", () => speak(language.lang));
language.hidden = false;
speak(navigator.language.startsWith("zh") ? CHINESE : "en");

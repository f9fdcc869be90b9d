// Draws all views, whose tables remain below them, and serves the buttons.
for (const place of document.querySelectorAll("[data-view]")) {
  const { kind, data: own, side } = data.views[place.dataset.view];
  const table = place.querySelector("figure.table");
  const before = watchers.length;
  const parts = views[kind](own, place.dataset.view);
  for (const each of watchers.slice(before)) sides.set(each, side);
  if (table) {
    const details = element("details", {}, element("summary", {}, "As a table"), table);
    place.replaceChildren(...parts, details);
  } else {
    place.replaceChildren(...parts);
  }
  // In a browser's profile: the end of the view with this number.
  performance.mark(`view ${place.dataset.view}`);
}

const theme = document.getElementById("theme");
const dark = () => document.documentElement.dataset.theme
  ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const named = () => {
  theme.textContent = dark() ? "Light" : "Dark";
};
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  named();
});
named();
document.getElementById("save").addEventListener("click", () => saved("gemmkit.json", data.document));

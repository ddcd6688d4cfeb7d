// ---- Elements ----

// el("td", {class: "num", "data-bytes": 3}, "text", node): attributes, then children.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Text with `code` between backticks.
function withCode(text) {
  return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
}

// A clause of the profile as a sentence; what looks like code keeps its spelling.
function sentence(text) {
  const start = /^[a-z]+[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(start) || !start ? start : `${start}.`;
}

// Text that may wrap after a dot, a slash or an underscore.
function breakable(text) {
  return text.split(/(?<=[._/])/).flatMap((part) => [part, el("wbr")]);
}

const kindVariable = (name) => `var(--kind-${name}, var(--kind-untracked))`;
const swatch = (name) => el("i", { class: "swatch", style: `background:${kindVariable(name)}` });
const kindLabel = (name) => el("span", { class: "kind" }, swatch(name), TITLES.get(name) ?? name);

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
const kindColour = (name) => cssColour(`--kind-${name}`) || cssColour("--kind-untracked");

// Black or white, whichever reads better on the colour.
function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = parseInt(hex.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.19 ? "#15171b" : "#ffffff";
}

// Figures side by side: [name, title, value, note, further attributes].
function drawFigureBoxes(figures) {
  for (const [name, title, value, note, attributes] of figures) {
    byId("figures").append(
      el("div", { "data-figure": name, ...attributes },
        el("dt", {}, title),
        el("dd", {}, el("div", { class: "value" }, value), el("div", { class: "note" }, note))),
    );
  }
}

function drawFacts(facts) {
  for (const [title, value] of facts) byId("facts").append(el("dt", {}, title), el("dd", { "data-fact": title }, value));
}

function nameWindow(command, what) {
  document.title = command ? `${command} – legroom ${what}` : `legroom ${what}`;
  byId("bar-command").textContent = command;
  byId("bar-command").title = command;
}

function scrollTo(node) {
  node.scrollIntoView({ block: "start" });
}

// Inside a notebook's frame a plain #link would leave the page.
function listenToLinks() {
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      scrollTo(byId(link.getAttribute("href").slice(1)));
    });
  }
}

// The page is drawn: listen, and say so.
function finish(resizeCharts) {
  listenToLinks();
  window.addEventListener("resize", resizeCharts);
  document.documentElement.dataset.ready = "true";
}

// ---- Draw everything, once ----

function redrawCharts() {
  if (timeline.chart) timeline.draw();
  treemap.draw();
}

function resizeCharts() {
  labelBar();
  timeline.chart?.resize();
  treemap.chart?.resize();
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

theme.start();
drawVerdict();
drawBooks();
labelBar();
timeline.start();
drawFindings();
source.start();
treemap.start();
tensors.start();
operations.start();
drawLimits();
listenToLinks();
window.addEventListener("resize", resizeCharts);
document.documentElement.dataset.ready = "true";

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
finish(resizeCharts);

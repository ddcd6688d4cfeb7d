// ---- Draw everything, once ----

function redrawCharts() {
  pareto.draw();
}

function resizeCharts() {
  for (const [chart] of pareto.charts) chart.resize();
}

theme.start();
drawVerdict();
drawTally();
pareto.start();
finish(resizeCharts);

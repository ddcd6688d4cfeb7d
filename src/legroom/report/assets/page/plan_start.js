// ---- Draw everything, once ----

const drawings = [frontier, timeline, sweep];

function redrawCharts() {
  for (const drawing of drawings) if (drawing.chart) drawing.draw();
}

function resizeCharts() {
  if (chosen) decisions.labelBar();
  for (const drawing of drawings) drawing.chart?.resize();
}

theme.start();
drawVerdict();
frontier.start();
timeline.start();
decisions.start();
sweep.start();
drawLimits();
finish(resizeCharts);

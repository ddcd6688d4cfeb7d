// ---- The contest: verdicts, and a chart for each case ----

const COLOURS = ["#5470c6", "#91cc75", "#fac858", "#73c0de", "#3ba272", "#fc8452", "#9a60b4", "#ea7ccc", "#8d98b3", "#b5651d", "#5ab1ef", "#b6a2de", "#2ec7c9", "#d87a80"];
const OUTCOMES = { win: "faster", tie: "as fast", loss: "slower or above" };
const isOurs = (line) => line.startsWith("legroom");
const lineNames = [...new Set(data.cases.flatMap((item) => item.points.map((point) => point.line)))];
const others = lineNames.filter((line) => !isOurs(line));
const ours = lineNames.filter(isOurs);
const OUR_STYLES = ["solid", "dashed", "dotted"];

const lineColour = (line) => (isOurs(line) ? cssColour("--peak") : COLOURS[others.indexOf(line) % COLOURS.length]);

function drawVerdict() {
  const verdicts = data.cases.flatMap((item) => item.verdicts);
  const count = (outcome) => verdicts.filter((item) => item.outcome === outcome).length;
  byId("verdict-text").append(
    el("p", {}, `At the same peak legroom is faster than ${plural(count("win"), "row")} of peers, as fast as ${count("tie")}, slower or above the peak in ${count("loss")}.`),
  );
  const about = data.about;
  drawFacts([["Measured", `${about.date}, commit ${about.commit}`], ["With", `torch ${about.torch}, Python ${about.python}`], ["On", about.machine], ["Command", about.command]]);
  nameWindow("", "contest");
}

function drawTally() {
  const rows = data.cases.flatMap((item) => item.verdicts.map((verdict) => ({ ...verdict, case: item.name })));
  const ratio = (value) => (value === null ? "–" : value.toFixed(3));
  new DataTable(byId("tally-table"), {
    pageSize: FIRST_ROWS, label: "Verdicts", sort: { key: "ratio", falling: true },
    rowAttributes: (row) => ({ "data-outcome": row.outcome }),
    columns: [
      { key: "case", title: "Case", value: (row) => row.case, cell: (row) => row.case },
      { key: "label", title: "Against", value: (row) => row.label, cell: (row) => el("b", {}, row.label) },
      { key: "peak", title: "Its peak", numeric: true, value: (row) => row.peak_bytes, cell: (row) => formatBytes(row.peak_bytes) },
      { key: "outcome", title: "Legroom is", value: (row) => row.outcome, cell: (row) => OUTCOMES[row.outcome] },
      { key: "ratio", title: "Time, legroom / its", numeric: true, value: (row) => row.ratio ?? Infinity, cell: (row) => ratio(row.ratio) },
      { key: "low", title: "From", numeric: true, value: (row) => row.low ?? 0, cell: (row) => ratio(row.low) },
      { key: "high", title: "To", numeric: true, value: (row) => row.high ?? 0, cell: (row) => ratio(row.high) },
      { key: "why", title: "Remark", value: (row) => row.why, cell: (row) => el("span", { class: "muted" }, row.why) },
    ],
  }).setRows(rows);
}

const pareto = {
  charts: [],

  start() {
    for (const item of data.cases) {
      const host = el("div", { class: "chart", style: "height:440px", role: "img", "aria-label": `${item.name}: time against peak, ${item.points.length} points; the same is in the result's tables` });
      byId("case-charts").append(el("h3", {}, item.name));
      if (item.error) byId("case-charts").append(el("p", { class: "empty" }, item.error));
      if (!item.points.length) continue;
      byId("case-charts").append(host);
      if (item.absent.length) {
        byId("case-charts").append(el("p", { class: "muted" }, `Not in the chart: ${item.absent.map((each) => `${each.label} (${each.why})`).join("; ")}.`));
      }
      this.charts.push([echarts.init(host), item]);
    }
    this.draw();
  },

  draw() {
    for (const [chart, item] of this.charts) chart.setOption(this.options(item), { replaceMerge: ["series"] });
  },

  options(item) {
    const unit = byteUnit(Math.max(...item.points.map((point) => point.peak_bytes)));
    const muted = cssColour("--muted");
    const present = lineNames.filter((line) => item.points.some((point) => point.line === line));
    const series = present.map((line) => ({
      name: line, type: "line", symbol: isOurs(line) ? "circle" : "diamond", symbolSize: 9, z: isOurs(line) ? 5 : 3,
      itemStyle: { color: lineColour(line) },
      lineStyle: { color: lineColour(line), width: isOurs(line) ? 3 : 1.5, type: isOurs(line) ? OUR_STYLES[ours.indexOf(line) % 3] : "solid" },
      data: item.points.filter((point) => point.line === line).sort((a, b) => a.peak_bytes - b.peak_bytes).map((point) => ({ value: [point.peak_bytes / unit.factor, point.ratio], point })),
    }));
    const largest = Math.max(...item.points.map((point) => point.peak_bytes));
    return {
      animation: false,
      textStyle: { fontFamily: chartFont() },
      grid: { left: 64, right: 28, top: 84, bottom: 48 },
      legend: { type: "scroll", top: 0, textStyle: { color: cssColour("--text") } },
      xAxis: { ...byteAxis(largest, unit), name: "measured peak", nameLocation: "middle", nameGap: 30, nameTextStyle: { color: muted } },
      yAxis: { type: "value", scale: true, name: "time / plain", nameTextStyle: { color: muted }, axisLabel: { color: muted, formatter: (value) => value.toFixed(2) }, splitLine: { lineStyle: { color: cssColour("--line") } } },
      tooltip: { ...tooltipStyle(), trigger: "item", formatter: (info) => this.tip(info.data.point) },
      series,
    };
  },

  tip(point) {
    return el("div", { class: "tip" }, el("b", {}, point.label),
      tipRow("peak", formatBytes(point.peak_bytes)), tipRow("time / plain", point.ratio.toFixed(3)), tipRow("step", formatMs(point.step_ms)),
      tipRow("preparation", `${point.preparation_s.toFixed(0)} s`), tipRow("gradients", point.is_same ? "same bits" : `off by ${point.gradient_off.toExponential(0)}`));
  },
};

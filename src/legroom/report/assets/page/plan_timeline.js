// ---- 3. Memory over the planned step ----

const timeline = {
  chart: null,

  start() {
    if (!chosen) {
      hideSection("timeline");
      return;
    }
    const peak = chosen.peak_phase ? ` The peak is in ${chosen.peak_phase}.` : "";
    byId("timeline-lead").textContent = `What is alive after each operation, those that run again included, against the budget of ${formatBytes(chosen.budget_bytes)}.${peak}`;
    this.drawAlive();
    const host = byId("timeline-chart");
    if (!chosen.timeline.length) {
      host.replaceChildren(el("p", { class: "empty" }, "The plan has no timeline."));
      host.style.height = "auto";
      return;
    }
    host.setAttribute("aria-label", `Memory over the planned step; at most ${formatBytes(chosen.predicted_peak_bytes)} of ${formatBytes(chosen.budget_bytes)}`);
    this.chart = echarts.init(host);
    this.draw();
  },

  // Each phase reaches to where the next begins.
  bands() {
    const end = chosen.timeline[chosen.timeline.length - 1][0];
    return chosen.phases.map(([name, from], i) => [
      { xAxis: from, name, itemStyle: { color: i % 2 ? cssColour("--band") : "transparent" } },
      { xAxis: i + 1 < chosen.phases.length ? chosen.phases[i + 1][1] : end },
    ]);
  },

  draw() {
    const highest = Math.max(chosen.budget_bytes, ...chosen.timeline.map(([, bytes]) => bytes));
    const unit = byteUnit(highest);
    const [muted, accent, peak] = [cssColour("--muted"), cssColour("--kind-stash"), cssColour("--peak")];
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: chartFont() },
      grid: { left: 72, right: 28, top: 34, bottom: 44 },
      xAxis: {
        type: "value", min: 0, max: "dataMax", name: "operation", nameLocation: "middle", nameGap: 28, nameTextStyle: { color: muted },
        axisLine: { lineStyle: { color: cssColour("--line-strong") } }, splitLine: { show: false }, axisLabel: { color: muted, hideOverlap: true, formatter: formatCount },
      },
      yAxis: byteAxis(highest, unit),
      tooltip: {
        ...tooltipStyle(), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: muted, type: "dotted" }, label: { show: false } },
        formatter: ([info]) => el("div", { class: "tip" }, el("b", {}, `operation ${formatCount(info.value[0])}`), tipRow("alive", formatBytes(info.value[1] * unit.factor))),
      },
      series: [{
        id: "alive", type: "line", step: "end", symbol: "none", sampling: "max", lineStyle: { color: accent, width: 1.5 }, areaStyle: { color: accent, opacity: 0.35 },
        data: chosen.timeline.map(([position, bytes]) => [position, bytes / unit.factor]),
        markLine: {
          symbol: "none", silent: true, animation: false, data: [{ yAxis: chosen.budget_bytes / unit.factor }], lineStyle: { color: peak, type: "dashed", width: 1.4 },
          label: { formatter: `budget ${formatBytes(chosen.budget_bytes)}`, color: peak, position: "insideStartTop", fontSize: 12 },
        },
        markArea: { silent: true, animation: false, label: { color: muted, position: "top", fontSize: 12 }, data: this.bands() },
      }],
    }, { replaceMerge: ["series"] });
  },

  drawAlive() {
    const rows = chosen.alive_at_peak;
    byId("alive-title").hidden = rows.length === 0;
    if (!rows.length) return;
    new DataTable(byId("alive"), {
      pageSize: FIRST_ALIVE, className: "tensor-table", label: "Alive at the plan's peak", sort: { key: "bytes", falling: true },
      rowAttributes: (t) => ({ "data-bytes": t.num_bytes, "data-kind": t.kind, "data-name": t.name }),
      columns: [
        { key: "bytes", title: "Bytes", numeric: true, value: (t) => t.num_bytes, cell: (t) => formatBytes(t.num_bytes) },
        { key: "kind", title: "Kind", class: "kind-cell", value: (t) => t.kind, cell: (t) => kindLabel(t.kind) },
        { key: "name", title: "Tensor", class: "name", value: (t) => t.name, cell: (t) => breakable(t.name) },
        ...whereColumns(),
      ],
    }).setRows(rows);
  },
};

const whereColumns = () => [
  { key: "line", title: "Line", value: (t) => t.line.replace(/\d+$/, (digits) => digits.padStart(7, "0")), cell: (t) => el("span", { class: "place", title: t.line }, t.line ? t.line.split("/").slice(-1)[0] : "–") },
  { key: "module", title: "Module", value: (t) => t.module, cell: (t) => el("span", { class: "mono" }, ...breakable(t.module || "–")) },
];

function hideSection(name) {
  byId(name).hidden = true;
  for (const link of document.querySelectorAll(`#nav a[href="#${name}"]`)) link.hidden = true;
}

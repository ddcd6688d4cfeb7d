// ---- 2. The frontier ----

const frontier = {
  chart: null,

  start() {
    const host = byId("frontier-chart");
    if (data.frontier.length || data.presets.length || chosen) {
      this.chart = echarts.init(host);
      host.setAttribute("aria-label", `Added time against peak, ${data.frontier.length} plans and ${data.presets.length} recipes; the same is in the tables below`);
      this.draw();
    } else {
      host.replaceChildren(el("p", { class: "empty" }, "No frontier was asked for."));
      host.style.height = "auto";
    }
    this.drawTable();
    this.drawPresets();
  },

  legend() {
    const mark = (name, colour, title) => el("span", {}, el("i", { class: name, style: name === "dot" ? `background:${colour}` : `color:${colour}` }), title);
    return [
      mark("dash", cssColour("--accent"), "best of all that was simulated"), mark("dash is-dashed", cssColour("--faint"), "bound"),
      mark("dot", cssColour("--heat-bytes"), "recipe"), ...(chosen ? [mark("dot", cssColour("--peak"), "chosen plan")] : []),
    ];
  },

  // The lower envelope of everything that was simulated: no plan and no recipe lies below the line.
  envelope() {
    const everything = [...data.frontier, ...(chosen ? [chosen] : []), ...data.presets]
      .sort((a, b) => a.predicted_peak_bytes - b.predicted_peak_bytes || a.added_ms - b.added_ms);
    let best = Infinity;
    return everything.filter((point) => {
      const isBetter = point.added_ms < best;
      best = Math.min(best, point.added_ms);
      return isBetter;
    });
  },

  draw() {
    byId("frontier-legend").replaceChildren(...this.legend());
    const unit = byteUnit(data.plain_peak_bytes);
    const [muted, text] = [cssColour("--muted"), cssColour("--text")];
    const place = (point, key = "added_ms") => ({ value: [point.predicted_peak_bytes / unit.factor, point[key]], point });
    const line = (id, key, points, style) => ({ id, type: "line", symbol: "circle", ...style, data: points.map((point) => place(point, key)) });
    const byPeak = [...data.frontier].sort((a, b) => a.predicted_peak_bytes - b.predicted_peak_bytes);
    const envelope = this.envelope();
    const rest = data.frontier.filter((point) => !envelope.some((each) => each.predicted_peak_bytes === point.predicted_peak_bytes && each.added_ms === point.added_ms));
    // A plan holds for every budget from its peak on, until the next one does with less; a bound for
    // every budget up to the one that it was found for.
    const largest = Math.max(data.plain_peak_bytes, ...data.presets.map((p) => p.predicted_peak_bytes));
    const xAxis = byteAxis(largest, unit);
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: chartFont() },
      grid: { left: 72, right: 28, top: 18, bottom: 44 },
      xAxis: { ...xAxis, axisLine: { show: true, lineStyle: { color: cssColour("--line-strong") } }, splitLine: { show: false }, name: "peak", nameLocation: "middle", nameGap: 28, nameTextStyle: { color: muted } },
      yAxis: {
        type: "value", min: 0, axisLine: { show: false }, axisTick: { show: false }, splitNumber: 4, name: "", splitLine: { lineStyle: { color: cssColour("--line") } },
        axisLabel: { color: muted, formatter: (ms) => (ms ? `+${formatMs(ms)}` : "0") },
      },
      tooltip: { ...tooltipStyle(), trigger: "item", formatter: (info) => this.tip(info.data.point) },
      series: [
        line("bound", "bound_ms", byPeak, { symbol: "none", z: 2, step: "start", lineStyle: { color: cssColour("--faint"), type: "dashed", width: 1.5 }, silent: true }),
        line("plans", "added_ms", envelope, { z: 3, step: "end", symbolSize: 8, showAllSymbol: true, itemStyle: { color: cssColour("--accent"), borderColor: cssColour("--surface"), borderWidth: 1 }, lineStyle: { color: cssColour("--accent"), width: 2 } }),
        { id: "beaten", type: "scatter", z: 3, symbolSize: 6, itemStyle: { color: cssColour("--faint") }, data: rest.map((point) => place(point)) },
        {
          id: "presets", type: "scatter", z: 4, symbolSize: 9, itemStyle: { color: cssColour("--heat-bytes") },
          label: { show: true, position: "right", offset: [0, -9], color: text, fontSize: 12, formatter: (info) => info.data.point.name }, labelLayout: { hideOverlap: true, moveOverlap: "shiftY" },
          data: data.presets.map((point) => place(point)),
        },
        {
          id: "chosen", type: "scatter", z: 5, symbolSize: 13, itemStyle: { color: cssColour("--peak"), borderColor: cssColour("--surface"), borderWidth: 2 },
          data: chosen ? [place({ ...chosen, name: "chosen plan" })] : [],
          markLine: chosen ? {
            symbol: "none", silent: true, animation: false, data: [{ xAxis: chosen.budget_bytes / unit.factor }], lineStyle: { color: cssColour("--peak"), type: "dotted" },
            label: { formatter: `budget ${formatBytes(chosen.budget_bytes)}`, color: cssColour("--peak"), position: "insideEndTop", fontSize: 12 },
          } : undefined,
        },
      ],
    }, { replaceMerge: ["series"] });
  },

  tip(point) {
    const box = el("div", { class: "tip" }, el("b", {}, point.name ?? `plan: ${point.preset}`));
    if (point.budget_bytes) box.append(tipRow("budget", formatBytes(point.budget_bytes)));
    box.append(tipRow("peak", formatBytes(point.predicted_peak_bytes)), tipRow("added", `${formatAdded(point.added_ms)}, ${ofStep(point.added_ms)}`));
    if (point.gap !== undefined) box.append(tipRow("gap", formatShare(point.gap, 1)));
    return box;
  },

  drawTable() {
    new DataTable(byId("frontier-table"), {
      pageSize: FIRST_ROWS, label: "Frontier", sort: { key: "budget", falling: true },
      rowAttributes: (p) => ({ "data-bytes": p.budget_bytes, "data-ms": p.added_ms, "data-preset": p.preset, class: chosen && p.budget_bytes === chosen.budget_bytes ? "is-chosen" : undefined }),
      columns: [
        { key: "budget", title: "Budget", numeric: true, value: (p) => p.budget_bytes, cell: (p) => formatBytes(p.budget_bytes) },
        { key: "share", title: "Of plain", numeric: true, value: (p) => p.budget_bytes, cell: (p) => formatShare(p.budget_bytes, data.plain_peak_bytes) },
        ...this.pointColumns(),
        { key: "gap", title: "Gap", hint: "how much slower than the best possible plan a step can be", numeric: true, value: (p) => p.gap, cell: (p) => formatShare(p.gap, 1) },
        { key: "preset", title: "Candidate", hint: "what found the plan", value: (p) => p.preset, cell: (p) => p.preset },
      ],
    }).setRows(data.frontier);
  },

  drawPresets() {
    new DataTable(byId("presets-table"), {
      pageSize: FIRST_ROWS, label: "Recipes of the literature", sort: { key: "peak", falling: true },
      rowAttributes: (p) => ({ "data-preset": p.name, "data-bytes": p.predicted_peak_bytes, "data-ms": p.added_ms }),
      columns: [
        { key: "name", title: "Recipe", value: (p) => p.name, cell: (p) => el("b", {}, p.name) },
        { key: "summary", title: "What it does", value: (p) => p.summary, cell: (p) => el("span", { class: "muted" }, p.summary) },
        ...this.pointColumns(),
      ],
    }).setRows(data.presets);
  },

  pointColumns: () => [
    { key: "peak", title: "Predicted peak", numeric: true, value: (p) => p.predicted_peak_bytes, cell: (p) => formatBytes(p.predicted_peak_bytes) },
    { key: "added", title: "Added time", numeric: true, value: (p) => p.added_ms, cell: (p) => formatAdded(p.added_ms) },
    { key: "ofStep", title: "Of the step", numeric: true, value: (p) => p.added_ms, cell: (p) => formatShare(p.added_ms, data.step_ms) },
  ],
};

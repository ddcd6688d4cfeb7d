// ---- 5. Values of an argument that were tried ----

const sweep = {
  chart: null,

  start() {
    if (!data.sweep.length) {
      hideSection("sweep");
      return;
    }
    const best = data.sweep.filter((point) => point.fits).sort((a, b) => b.value - a.value)[0];
    const isEnd = best && data.sweep.every((point) => point.value <= best.value);
    const largest = best && el("b", { id: "largest", "data-value": best.value }, String(best.value));
    const argument = el("code", {}, data.swept_argument);
    byId("sweep-lead").replaceChildren(
      ...(!best ? ["None of them fits."] : isEnd ? [argument, " ", largest, " fits and is the end of the range; larger may fit too."] : ["The largest ", argument, " that fits is ", largest, "."]),
      " Each was captured and planned by itself.",
    );
    this.chart = echarts.init(byId("sweep-chart"));
    byId("sweep-chart").setAttribute("aria-label", `Peak against ${data.swept_argument}; the same is in the table below`);
    this.draw();
    const amount = (key, title) => ({ key, title, numeric: true, value: (p) => p[key], cell: (p) => formatBytes(p[key]) });
    new DataTable(byId("sweep-table"), {
      pageSize: FIRST_ROWS, label: "Values tried", sort: { key: "value", falling: false },
      rowAttributes: (p) => ({ "data-value": p.value, "data-fits": String(p.fits), class: best && p.value === best.value ? "is-chosen" : undefined }),
      columns: [
        { key: "value", title: data.swept_argument || "Value", numeric: true, value: (p) => p.value, cell: (p) => formatCount(p.value) },
        amount("plain_peak_bytes", "Plain peak"), amount("floor_peak_bytes", "Lowest peak of a plan"),
        { key: "fits", title: "Fits", value: (p) => Number(p.fits), cell: (p) => (p.fits ? "yes" : "no") },
        { key: "added", title: "Added time", numeric: true, value: (p) => p.added_ms ?? -1, cell: (p) => (p.added_ms === null ? "–" : formatAdded(p.added_ms)) },
      ],
    }).setRows(data.sweep);
  },

  draw() {
    const unit = byteUnit(Math.max(...data.sweep.map((p) => p.plain_peak_bytes)));
    const muted = cssColour("--muted");
    const phases = [...new Set(data.sweep.flatMap((p) => Object.keys(p.phases)))];
    const line = (name, value, style) => ({ name, type: "line", symbolSize: 6, data: data.sweep.map((p) => [p.value, value(p) === undefined ? null : value(p) / unit.factor]), ...style });
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: chartFont() },
      grid: { left: 72, right: 28, top: 34, bottom: 44 },
      legend: { top: 0, textStyle: { color: muted } },
      xAxis: { type: "value", min: "dataMin", max: "dataMax", name: data.swept_argument, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: muted }, splitLine: { show: false }, axisLabel: { color: muted } },
      yAxis: byteAxis(Math.max(...data.sweep.map((p) => p.plain_peak_bytes), data.budget_bytes ?? 0), unit),
      tooltip: { ...tooltipStyle(), trigger: "axis", formatter: (infos) => this.tip(infos, unit) },
      series: [
        ...phases.map((name, i) => line(`plain, ${name}`, (p) => p.phases[name], { itemStyle: { color: cssColour(`--way-${2 + (i % 6)}`) }, lineStyle: { width: 1.2 } })),
        line("lowest of a plan", (p) => p.floor_peak_bytes, {
          itemStyle: { color: cssColour("--heat-bytes") }, lineStyle: { width: 2.4 },
          markLine: data.budget_bytes ? {
            symbol: "none", silent: true, animation: false, data: [{ yAxis: data.budget_bytes / unit.factor }], lineStyle: { color: cssColour("--peak"), type: "dashed" },
            label: { formatter: `budget ${formatBytes(data.budget_bytes)}`, color: cssColour("--peak"), position: "insideStartTop" },
          } : undefined,
        }),
      ],
    }, { replaceMerge: ["series"] });
  },

  tip(infos, unit) {
    const box = el("div", { class: "tip" }, el("b", {}, `${data.swept_argument} ${infos[0].value[0]}`));
    for (const info of infos) if (info.value[1] !== null) box.append(tipRow(info.seriesName, formatBytes(info.value[1] * unit.factor)));
    return box;
  },
};

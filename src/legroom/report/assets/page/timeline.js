// ---- 3. The timeline ----

const moments = data.timeline;
const peakIndex = moments.reduce((best, m, i) => (m.total_bytes > moments[best].total_bytes ? i : best), 0);

// The last moment at or before a time.
function momentAt(ms) {
  let [low, high] = [0, moments.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (moments[middle].ms <= ms) low = middle;
    else high = middle - 1;
  }
  return low;
}

function phaseAt(ms) {
  const span = data.phases.find((phase) => phase.start_ms <= ms && ms < phase.end_ms);
  return span ? span.phase : "";
}

// Changes closer together than the clock's 0.1 µs share a time; the peak has its own list.
function aliveAt(index) {
  if (index === peakIndex && data.tensors.some((t) => t.at_peak)) return data.tensors.filter((t) => t.at_peak);
  const { ms } = moments[index];
  return data.tensors.filter((t) => t.born_ms <= ms && (t.died_ms === null || ms < t.died_ms));
}

const timeline = {
  chart: null,
  selected: peakIndex,
  window: [0, endMs],
  presentKinds: KINDS.filter((kind) => moments.some((m) => (m.kinds[kind.name] ?? 0) !== 0)),

  start() {
    const host = byId("timeline-chart");
    if (!moments.length) {
      host.replaceChildren(el("p", { class: "empty" }, "The profile has no timeline."));
      host.style.height = "auto";
      for (const button of document.querySelectorAll("#timeline .tools button")) button.disabled = true;
      byId("moment-slider").disabled = true;
      return;
    }
    byId("timeline-legend").replaceChildren(...this.presentKinds.map((kind) => el("span", {}, swatch(kind.name), kind.title)));
    host.setAttribute("aria-label", `Memory by kind over ${formatMs(endMs)}; peak of ${formatBytes(data.peak_bytes)} at ${formatMs(data.peak_ms)}`);
    this.table = new DataTable(byId("alive"), {
      columns: tensorColumns(), pageSize: FIRST_ALIVE, className: "tensor-table", label: "Tensors alive at the chosen moment",
      rowAttributes: tensorAttributes, sort: { key: "bytes", falling: true }, foot: (shown) => this.footRows(shown),
    });
    this.chart = echarts.init(host);
    this.draw();
    this.listenToPointer(this.chart.getZr());
    this.chart.on("datazoom", () => this.zoomed());
    this.listen();
    this.select(peakIndex);
  },

  listen() {
    const slider = byId("moment-slider");
    slider.addEventListener("input", () => this.select(momentAt(Number(slider.value)), { fromSlider: true }));
    slider.addEventListener("change", () => this.placeThumb());
    const jumps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20, Home: -Infinity, End: Infinity };
    slider.addEventListener("keydown", (event) => {
      if (!(event.key in jumps)) return;
      event.preventDefault();
      this.step(jumps[event.key]);
    });
    byId("moment-previous").addEventListener("click", () => this.step(-1));
    byId("moment-next").addEventListener("click", () => this.step(1));
    byId("moment-peak").addEventListener("click", () => this.select(peakIndex));
    byId("zoom-reset").addEventListener("click", () => this.zoom(0, endMs));
  },

  step(count) {
    this.select(Math.min(moments.length - 1, Math.max(0, this.selected + count)));
  },

  formatTick(ms) {
    if (ms === 0) return "0";
    const span = this.window[1] - this.window[0];
    if (endMs >= 2000) return `${Number((ms / 1000).toFixed(span < 100 ? 4 : 2))} s`;
    if (endMs < 2) return `${Number((ms * 1000).toFixed(2))} µs`;
    return `${Number(ms.toFixed(3))} ms`;
  },

  draw() {
    const unit = byteUnit(data.peak_bytes);
    const muted = cssColour("--muted");
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: chartFont() },
      grid: { left: 66, right: 18, top: 34, bottom: 28 },
      xAxis: {
        type: "value", min: 0, max: endMs, axisLine: { lineStyle: { color: cssColour("--line-strong") } },
        axisTick: { lineStyle: { color: cssColour("--line-strong") } }, splitLine: { show: false },
        axisLabel: { color: muted, hideOverlap: true, showMaxLabel: false, formatter: (ms) => this.formatTick(ms) },
      },
      yAxis: byteAxis(Math.max(...moments.map((m) => m.total_bytes)), unit),
      tooltip: {
        ...tooltipStyle(), trigger: "axis",
        axisPointer: { type: "line", snap: false, lineStyle: { color: muted, type: "dotted" }, label: { show: false } },
        formatter: (params) => this.tip(params[0].axisValue),
      },
      dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, moveOnMouseWheel: "shift", preventDefaultMouseMove: false }],
      series: [
        this.bands(muted), this.areas(unit),
        { id: "totals", type: "line", silent: true, symbol: "none", lineStyle: { width: 0 }, data: moments.map((m) => [m.ms, m.total_bytes / unit.factor]) },
        { id: "marks", type: "line", data: [], z: 8, silent: true, markLine: this.marks() },
      ],
    }, { replaceMerge: ["series"] });
  },

  bands(muted) {
    const [band, line] = [cssColour("--band"), cssColour("--line")];
    return {
      id: "bands", type: "custom", silent: true, z: 0, clip: false, tooltip: { show: false },
      encode: { x: [0, 1] }, data: data.phases.map((phase) => [phase.start_ms, phase.end_ms]),
      renderItem: (params, api) => {
        const box = params.coordSys;
        const left = Math.max(box.x, api.coord([api.value(0), 0])[0]);
        const right = Math.min(box.x + box.width, api.coord([api.value(1), 0])[0]);
        if (right - left <= 0.5) return null;
        const isOdd = params.dataIndex % 2 === 1;
        const children = [
          { type: "rect", shape: { x: left, y: box.y - 24, width: right - left, height: box.height + 24 }, style: { fill: isOdd ? band : "transparent" } },
          { type: "line", shape: { x1: left, y1: box.y - 24, x2: left, y2: box.y + box.height }, style: { stroke: line } },
        ];
        const phase = data.phases[params.dataIndex];
        const name = [`${phase.phase}, at most ${formatBytes(phase.peak_bytes)}`, phase.phase].find((text) => right - left > 7.5 * text.length + 10);
        if (name) {
          children.push({ type: "text", style: { text: name, x: left + 7, y: box.y - 12, fill: muted, font: `12px ${getComputedStyle(document.body).fontFamily}`, verticalAlign: "middle" } });
        }
        return { type: "group", children };
      },
    };
  },

  // What each pixel column shows: memory is constant between changes, and where several changes
  // fall into one column the highest is drawn, so that no short peak is lost.
  columns(toX, left, right) {
    const steps = [];
    let i = momentAt(Math.max(0, this.window[0]));
    steps.push([left, moments[i]]);
    for (i += 1; i < moments.length; i += 1) {
      const column = Math.floor(toX(moments[i].ms));
      if (column >= right) break;
      let highest = moments[i];
      while (i + 1 < moments.length && Math.floor(toX(moments[i + 1].ms)) === column) {
        i += 1;
        if (moments[i].total_bytes > highest.total_bytes) highest = moments[i];
      }
      steps.push([Math.max(left, column), highest]);
      if (highest !== moments[i]) steps.push([Math.max(left, column + 1), moments[i]]);
    }
    return steps;
  },

  // Each kind is drawn from zero up to the sum of itself and those below, the highest first.
  areas(unit) {
    const kinds = this.presentKinds;
    return {
      id: "areas", type: "custom", silent: true, z: 3, clip: true, tooltip: { show: false }, encode: { x: 0 }, data: [[0]],
      renderItem: (params, api) => {
        const box = params.coordSys;
        const [left, right] = [box.x, box.x + box.width];
        const steps = this.columns((ms) => api.coord([ms, 0])[0], left, right);
        const sums = steps.map(() => 0);
        const children = kinds.map((kind) => {
          const points = [[left, box.y + box.height]];
          steps.forEach(([x, moment], i) => {
            sums[i] += (moment.kinds[kind.name] ?? 0) / unit.factor;
            const y = api.coord([0, sums[i]])[1];
            points.push([x, y], [i + 1 < steps.length ? steps[i + 1][0] : right, y]);
          });
          points.push([right, box.y + box.height]);
          return { type: "polygon", shape: { points }, style: { fill: kindColour(kind.name) } };
        });
        return { type: "group", children: children.reverse() };
      },
    };
  },

  marks() {
    const [peak, accent] = [cssColour("--peak"), cssColour("--text")];
    const isLate = data.peak_ms > this.window[0] + 0.75 * (this.window[1] - this.window[0]);
    return {
      symbol: "none", silent: true, animation: false,
      data: [
        {
          xAxis: data.peak_ms, lineStyle: { color: peak, width: 1.2, type: "solid" },
          label: {
            show: true, position: "end", distance: [0, -14], align: isLate ? "right" : "left", padding: [2, 5], borderRadius: 3,
            formatter: `peak ${formatBytes(data.peak_bytes)}`, color: peak, fontSize: 12,
          },
        },
        { xAxis: moments[this.selected].ms, lineStyle: { color: accent, width: 1.4, type: [4, 3] }, label: { show: false } },
      ],
    };
  },

  tip(ms) {
    const moment = moments[momentAt(ms)];
    const box = el("div", { class: "tip" }, el("b", {}, `${formatMs(moment.ms)}`), ` ${phaseAt(moment.ms)}`);
    for (const kind of [...this.presentKinds].reverse()) {
      const bytes = moment.kinds[kind.name] ?? 0;
      if (bytes) box.append(el("div", { class: "row" }, swatch(kind.name), kind.title, el("span", { class: "amount" }, formatBytes(bytes))));
    }
    box.append(el("div", { class: "row total" }, "together", el("span", { class: "amount" }, formatBytes(moment.total_bytes))));
    return box;
  },

  // A short press picks a moment, a drag chooses a stretch to zoom into.
  listenToPointer(canvas) {
    let from = null;
    const draw = (x) => {
      const box = byId("timeline-drag");
      box.hidden = x === null || Math.abs(x - from) < 6;
      if (!box.hidden) box.style.cssText = `left:${Math.min(from, x)}px;width:${Math.abs(x - from)}px`;
    };
    byId("timeline-chart").append(el("div", { id: "timeline-drag", class: "drag", hidden: true }));
    canvas.on("mousedown", (event) => {
      from = this.chart.containPixel({ gridIndex: 0 }, [event.offsetX, event.offsetY]) ? event.offsetX : null;
    });
    canvas.on("mousemove", (event) => from !== null && draw(event.offsetX));
    canvas.on("globalout", () => {
      draw(null);
      from = null;
    });
    canvas.on("mouseup", (event) => {
      const ends = [from, event.offsetX].sort((a, b) => a - b);
      const isDrag = from !== null && ends[1] - ends[0] >= 6;
      draw(null);
      from = null;
      if (isDrag) this.zoom(...ends.map((x) => Math.min(endMs, Math.max(0, this.chart.convertFromPixel({ gridIndex: 0 }, [x, 0])[0]))));
      else this.picked([event.offsetX, event.offsetY]);
    });
  },

  picked(point) {
    const ms = this.chart.convertFromPixel({ gridIndex: 0 }, point)[0];
    const peakX = this.chart.convertToPixel({ gridIndex: 0 }, [data.peak_ms, 0])[0];
    if (this.chart.containPixel({ gridIndex: 0 }, point)) {
      this.select(Math.abs(point[0] - peakX) <= 5 ? peakIndex : momentAt(ms));
    } else if (point[1] < 34 && ms >= 0 && ms <= endMs) {
      const span = data.phases.find((phase) => phase.start_ms <= ms && ms < phase.end_ms);
      if (span) this.zoom(span.start_ms, span.end_ms);
    }
  },

  zoom(fromMs, toMs) {
    this.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, startValue: fromMs, endValue: toMs });
  },

  zoomed() {
    const zoom = this.chart.getOption().dataZoom[0];
    this.window = [zoom.startValue, zoom.endValue];
    byId("zoom-reset").disabled = zoom.start <= 0.001 && zoom.end >= 99.999;
    this.chart.setOption({ series: [{ id: "marks", markLine: this.marks() }] });
    this.placeThumb();
  },

  placeThumb() {
    const slider = byId("moment-slider");
    [slider.min, slider.max] = this.window;
    slider.value = moments[this.selected].ms;
  },

  select(index, { fromSlider = false } = {}) {
    this.selected = index;
    const moment = moments[index];
    if (!fromSlider) this.placeThumb();
    byId("moment-slider").setAttribute("aria-valuetext", `${formatMs(moment.ms)}, ${phaseAt(moment.ms)}, ${formatBytes(moment.total_bytes)}`);
    byId("moment-previous").disabled = index === 0;
    byId("moment-next").disabled = index === moments.length - 1;
    this.chart.setOption({ series: [{ id: "marks", markLine: this.marks() }] });
    const alive = aliveAt(index);
    const box = byId("moment");
    box.dataset.ms = moment.ms;
    box.dataset.bytes = moment.total_bytes;
    box.dataset.index = index;
    box.replaceChildren(
      el("span", { class: "when" }, `${formatBytes(moment.total_bytes)} alive at ${formatMs(moment.ms)}`),
      el("span", { class: "muted" }, `${phaseAt(moment.ms)}, ${plural(alive.length, "listed tensor")}`),
      ...(index === peakIndex ? [el("span", { class: "tag peak" }, "the peak")] : []),
    );
    this.table.setRows(alive);
  },

  footRows(shown) {
    const total = moments[this.selected].total_bytes;
    const rest = total - sum(shown, (t) => t.bytes);
    const row = (name, bytes, title) => el("tr", { class: name, "data-bytes": bytes }, el("td", { class: "num" }, formatBytes(bytes)), el("td", { colspan: 6 }, title));
    return [
      row("remainder", rest, rest < 0 ? "counted twice: changes closer together than the clock tells" : "smaller or not listed"),
      row("total", total, "alive at this moment"),
    ];
  },
};

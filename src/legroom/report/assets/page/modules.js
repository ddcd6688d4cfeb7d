// ---- 6. Modules ----

const METRICS = {
  peak: { title: "Bytes at the peak", value: (m) => m.peak_bytes, format: formatBytes, lead: "Size: alive at the peak. Colour: the largest kind in the module." },
  stash: { title: "Stash", value: (m) => m.stash_bytes, format: formatBytes, lead: "Size: what the module leaves for backward, when the stash is largest." },
  ms: { title: "Time", value: (m) => m.forward_ms + m.backward_ms, format: formatMs, lead: "Size: time in forward and backward together." },
};
const AMOUNTS = ["state_bytes", "stash_bytes", "peak_bytes", "forward_ms", "backward_ms"];

const treemap = {
  chart: null,
  metric: "peak",
  inside: "", // path of the module that fills the map

  start() {
    segmented(byId("treemap-metric"), "metric", Object.entries(METRICS).map(([key, metric]) => [key, metric.title]), (metric) => {
      this.metric = metric;
      this.draw();
    });
    this.kindOf = this.largestKinds();
    this.drawTable();
    if (data.modules.some((m) => m.path)) {
      this.chart = echarts.init(byId("treemap-chart"));
      this.chart.on("click", ({ data: tile }) => tile?.totals && this.clicked(tile));
    } else {
      byId("treemap-chart").style.height = "auto";
      byId("treemap-chart").replaceChildren(el("p", { class: "empty", id: "no-modules" }, "Nothing could be charged to a module."));
      byId("treemap-metric").hidden = true;
      if (!data.modules.length) byId("modules-details").hidden = true;
    }
    this.draw();
  },

  clicked(tile) {
    if (tile.children) this.enter(tile.path);
    else tensors.showModule(tile.path);
  },

  enter(path) {
    this.inside = path;
    this.draw();
  },

  drawTrail(tiles) {
    const steps = [];
    const walk = (items, above) => items.forEach((item) => {
      if (!item.children) return;
      if (item.path === this.inside) steps.push(...above, item);
      walk(item.children, [...above, item]);
    });
    walk(tiles, []);
    byId("treemap-trail").replaceChildren(...(steps.length
      ? [el("button", { type: "button", class: "quiet", onclick: () => this.enter("") }, "Whole model"),
        ...steps.flatMap((step, i) => ["/", i === steps.length - 1 ? el("span", { class: "here" }, step.name) : el("button", { type: "button", class: "quiet", onclick: () => this.enter(step.path) }, step.name)])]
      : []));
    return steps.length ? steps[steps.length - 1].children : tiles;
  },

  largestKinds() {
    const amounts = new Map();
    for (const tensor of data.tensors) {
      if (!tensor.at_peak) continue;
      if (!amounts.has(tensor.module)) amounts.set(tensor.module, new Map());
      const kinds = amounts.get(tensor.module);
      kinds.set(tensor.kind, (kinds.get(tensor.kind) ?? 0) + tensor.bytes);
    }
    return new Map([...amounts].map(([module, kinds]) => [module, [...kinds].sort((a, b) => b[1] - a[1])[0][0]]));
  },

  // Modules nested by the dots of their paths; what a module holds itself is a tile in it.
  tree() {
    const root = { name: "", path: "", children: new Map(), use: null };
    for (const use of data.modules) {
      let node = root;
      const parts = use.path ? use.path.split(".") : ["outside modules"];
      parts.forEach((name, i) => {
        if (!node.children.has(name)) node.children.set(name, { name, path: parts.slice(0, i + 1).join("."), children: new Map(), use: null });
        node = node.children.get(name);
      });
      node.use = use;
    }
    return root;
  },

  // A chain of modules that do little but wrap one another is one tile: "stages.3.layers".
  tile(node) {
    const children = [...node.children.values()].map((child) => this.tile(child)).filter(Boolean);
    const own = node.use ? this.leaf(node.name, node.path, node.use) : null;
    if (!children.length) return own;
    if (!own && children.length === 1) return { ...children[0], name: `${node.name}.${children[0].name}` };
    const [wrapped] = children;
    if (own && children.length === 1 && wrapped.children && own.value < 0.02 * wrapped.value) {
      return {
        ...wrapped, name: `${node.name}.${wrapped.name}`, value: wrapped.value + own.value, children: [...wrapped.children, { ...own, name: `${node.name} itself` }],
        totals: Object.fromEntries(AMOUNTS.map((key) => [key, wrapped.totals[key] + own.totals[key]])),
      };
    }
    for (const child of children) if (/^\d/.test(child.name)) child.name = `${node.name}.${child.name}`;
    if (own) children.push({ ...own, name: "itself" });
    const totals = Object.fromEntries(AMOUNTS.map((key) => [key, sum(children, (child) => child.totals[key])]));
    const { itemStyle, label } = children.reduce((best, child) => (child.value > best.value ? child : best));
    return { name: node.name, path: node.path, className: node.use?.class_name ?? "", value: sum(children, (child) => child.value), totals, children, itemStyle, label };
  },

  // A number alone says little: "0 Conv2d".
  label(tile) {
    return /^[\d.]+$/.test(tile.name ?? "") && tile.className ? `${tile.name} ${tile.className}` : (tile.name ?? "");
  },

  leaf(name, path, use) {
    const value = METRICS[this.metric].value(use);
    if (!(value > 0)) return null;
    const colour = this.metric === "peak" ? kindColour(this.kindOf.get(use.path) ?? "untracked") : this.metric === "stash" ? kindColour("stash") : cssColour("--heat-time");
    return {
      name, path, className: use.class_name, value, totals: Object.fromEntries(AMOUNTS.map((key) => [key, use[key]])),
      itemStyle: { color: colour }, label: { color: inkOn(colour) },
    };
  },

  draw() {
    const metric = METRICS[this.metric];
    const total = sum(data.modules, metric.value);
    byId("modules-lead").textContent = `${metric.lead} Click a heading to go in, a tile to list its tensors.`;
    const host = byId("treemap-chart");
    host.dataset.metric = this.metric;
    host.dataset.total = total;
    if (!this.chart) return;
    host.setAttribute("aria-label", `${metric.title} by module, ${metric.format(total)} in all; the same is in the table below`);
    const shown = new Set(this.metric === "peak" ? this.kindOf.values() : this.metric === "stash" ? ["stash"] : []);
    byId("treemap-legend").replaceChildren(...KINDS.filter((kind) => shown.has(kind.name)).map((kind) => el("span", {}, swatch(kind.name), kind.title)));
    const [surface, text, muted] = [cssColour("--surface"), cssColour("--text"), cssColour("--muted")];
    const shades = [cssColour("--surface-2"), cssColour("--line")];
    const tiles = this.drawTrail([...this.tree().children.values()].map((node) => this.tile(node)).filter(Boolean));
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: chartFont() },
      tooltip: {
        ...tooltipStyle(),
        formatter: (info) => this.tip(info.data, total),
      },
      series: [{
        type: "treemap", name: "model", data: tiles, left: 0, right: 0, top: 0, bottom: 0, roam: false, nodeClick: false,
        animation: false, visibleMin: 40, childrenVisibleMin: 2600, squareRatio: 0.62,
        breadcrumb: { show: false },
        labelLayout: ({ rect, labelRect }) => (rect.width < 44 || rect.height < labelRect.height ? { x: -1000 } : {}),
        label: { show: true, fontSize: 12, lineHeight: 15, padding: [1, 2], overflow: "truncate", formatter: (info) => `${this.label(info.data)}\n${metric.format(info.value)}` },
        upperLabel: { show: true, height: 20, color: muted, fontSize: 12, formatter: (info) => `${info.name}  ${metric.format(info.value)}` },
        itemStyle: { borderWidth: 0, gapWidth: 1, borderColor: surface },
        emphasis: { upperLabel: { show: true, color: text }, itemStyle: { borderColor: cssColour("--faint") } },
        levels: [
          { itemStyle: { borderWidth: 0, gapWidth: 3, borderColor: surface }, upperLabel: { show: false } },
          ...[0, 1, 0, 1, 0, 1, 0, 1].map((shade) => ({ itemStyle: { borderWidth: 2, gapWidth: 1, borderColor: shades[shade] } })),
        ],
      }],
    }, { notMerge: true });
  },

  tip(node, total) {
    if (!node || !node.totals) return "";
    const box = el("div", { class: "tip" }, el("b", {}, node.path || node.name), node.className ? ` ${node.className}` : "");
    const row = (title, value) => box.append(el("div", { class: "row" }, title, el("span", { class: "amount" }, value)));
    const t = node.totals;
    row("at the peak", formatBytes(t.peak_bytes));
    row("of that state", formatBytes(t.state_bytes));
    row("stash at its largest", formatBytes(t.stash_bytes));
    row("forward", formatMs(t.forward_ms));
    row("backward", formatMs(t.backward_ms));
    box.append(el("div", { class: "row total" }, "share of the map", el("span", { class: "amount" }, formatShare(node.value, total))));
    return box;
  },

  drawTable() {
    const amount = (key, title, format) => ({ key, title, numeric: true, value: (m) => m[key], cell: (m) => (m[key] ? format(m[key]) : "–") });
    new DataTable(byId("modules-table"), {
      pageSize: FIRST_ROWS, label: "Modules", sort: { key: "peak_bytes", falling: true },
      rowAttributes: (m) => ({ "data-path": m.path, "data-bytes": m.peak_bytes }),
      columns: [
        { key: "path", title: "Module", value: (m) => m.path, cell: (m) => (m.path ? el("span", { class: "mono" }, m.path) : "outside modules") },
        { key: "class_name", title: "Class", value: (m) => m.class_name, cell: (m) => m.class_name },
        amount("peak_bytes", "At peak", formatBytes), amount("state_bytes", "Of that state", formatBytes), amount("stash_bytes", "Stash", formatBytes),
        amount("forward_ms", "Forward", formatMs), amount("backward_ms", "Backward", formatMs),
      ],
    }).setRows(data.modules);
  },
};

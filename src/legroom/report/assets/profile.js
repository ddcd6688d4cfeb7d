// The program of the profile page: reads the JSON block once and draws every section from it.
// Whatever comes from the data goes in as text (textContent, canvas), never as markup.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("legroom-data").textContent);
  const KINDS = data.kind_list;
  const TITLES = new Map(KINDS.map((kind) => [kind.name, kind.title]));
  const FIRST_TENSORS = 100;
  const FIRST_ALIVE = 12;
  const FIRST_ROWS = 25;
  const CONTEXT_LINES = 3;
  const FEWEST_HIDDEN_LINES = 5;

  // ---- Units: the same rules as legroom/units.py ----

  function formatBytes(count) {
    const sign = count < 0 ? "-" : "";
    let value = Math.abs(count);
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 1023.95 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    if (unit === 0) return `${sign}${Math.trunc(value)} B`;
    return `${sign}${value.toFixed(value < 9.995 ? 2 : 1)} ${units[unit]}`;
  }

  function formatMs(ms) {
    if (ms >= 60000) return `${(ms / 60000).toFixed(1)} min`;
    if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
    if (ms >= 100) return `${ms.toFixed(0)} ms`;
    if (ms >= 1) return `${ms.toFixed(1)} ms`;
    return `${(ms * 1000).toFixed(0)} µs`;
  }

  function formatShare(part, whole) {
    if (!(whole > 0)) return "–";
    const share = (100 * part) / whole;
    return share >= 9.95 ? `${share.toFixed(0)} %` : `${share.toFixed(1)} %`;
  }

  const formatCount = (count) => count.toLocaleString("en-US");
  const formatShape = (shape) => (shape.length ? shape.join("×") : "scalar");
  const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
  const sum = (items, value) => items.reduce((total, item) => total + value(item), 0);
  const byId = (id) => document.getElementById(id);

  // ---- Elements ----

  // el("td", {class: "num", "data-bytes": 3}, "text", node): attributes, then children.
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") node.style.cssText = value;
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }

  // Text with `code` between backticks.
  function withCode(text) {
    return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
  }

  // A clause of the profile as a sentence; what looks like code keeps its spelling.
  function sentence(text) {
    const start = /^[a-z]+[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
    return /[.!?]$/.test(start) || !start ? start : `${start}.`;
  }

  // Text that may wrap after a dot, a slash or an underscore.
  function breakable(text) {
    return text.split(/(?<=[._/])/).flatMap((part) => [part, el("wbr")]);
  }

  const kindVariable = (name) => `var(--kind-${name}, var(--kind-untracked))`;
  const swatch = (name) => el("i", { class: "swatch", style: `background:${kindVariable(name)}` });
  const kindLabel = (name) => el("span", { class: "kind" }, swatch(name), TITLES.get(name) ?? name);

  function cssColour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }
  const kindColour = (name) => cssColour(`--kind-${name}`) || cssColour("--kind-untracked");

  // Black or white, whichever reads better on the colour.
  function inkOn(hex) {
    const [r, g, b] = [1, 3, 5].map((at) => {
      const part = parseInt(hex.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    return luminance > 0.19 ? "#15171b" : "#ffffff";
  }

  // ---- Places: a source line, shown short and leading to its file ----

  const linesByFile = new Map();
  for (const use of data.lines) {
    if (!linesByFile.has(use.file)) linesByFile.set(use.file, new Map());
    linesByFile.get(use.file).set(use.line, use);
  }
  const filesByBase = new Map();
  const baseName = (file) => file.slice(file.lastIndexOf("/") + 1);
  for (const { file } of [...data.lines, ...data.tensors]) {
    const base = baseName(file);
    filesByBase.set(base, (filesByBase.get(base) ?? new Set()).add(file));
  }

  function shortFile(file) {
    const isShared = (filesByBase.get(baseName(file))?.size ?? 0) > 1;
    return isShared ? file.split("/").slice(-2).join("/") : baseName(file);
  }

  function place(file, line, { full = false } = {}) {
    if (!file) return el("span", { class: "place" }, "–");
    const text = `${full ? file : shortFile(file)}:${line}`;
    const attributes = { class: "place", title: `${file}:${line}` };
    if (!linesByFile.has(file)) return el("span", attributes, text);
    return el("button", { ...attributes, type: "button", onclick: () => source.open(file, line) }, text);
  }

  function scrollTo(node) {
    node.scrollIntoView({ block: "start" });
  }

  // ---- The table used by every long list: sortable heads, a first page, more on demand ----

  class DataTable {
    // columns: {key, title, hint, numeric, class, value(row), cell(row) -> nodes, fallsFirst}
    constructor(host, { columns, pageSize, className = "", label, rowAttributes, foot, sort }) {
      Object.assign(this, { host, columns, pageSize, rowAttributes, foot });
      this.sort = sort;
      this.shown = pageSize;
      this.rows = [];
      this.headCells = new Map();
      const head = el("tr");
      for (const column of columns) {
        const cell = el(
          "th",
          { scope: "col", class: column.numeric ? `num ${column.class ?? ""}`.trim() : column.class, title: column.hint },
          el("button", { type: "button", "data-sort": column.key, onclick: () => this.sortBy(column) }, column.title),
        );
        this.headCells.set(column.key, cell);
        head.append(cell);
      }
      this.body = el("tbody");
      this.footPart = el("tfoot");
      this.more = el("button", { type: "button", class: "more", onclick: () => this.showMore() });
      this.empty = el("p", { class: "empty" }, "Nothing matches.");
      this.table = el("table", { class: className, "aria-label": label }, el("thead", {}, head), this.body, this.footPart);
      host.replaceChildren(this.table, this.empty, this.more);
    }

    setRows(rows) {
      this.rows = rows;
      this.shown = this.pageSize;
      this.draw();
    }

    sortBy(column) {
      const isSame = this.sort.key === column.key;
      this.sort = { key: column.key, falling: isSame ? !this.sort.falling : Boolean(column.numeric) };
      this.draw();
    }

    showMore() {
      this.shown += Math.max(this.pageSize, 100);
      this.draw();
    }

    draw() {
      const column = this.columns.find((item) => item.key === this.sort.key);
      const sign = this.sort.falling ? -1 : 1;
      const rows = [...this.rows].sort((a, b) => {
        const [left, right] = [column.value(a), column.value(b)];
        return sign * (typeof left === "string" ? left.localeCompare(right) : left - right);
      });
      for (const [key, cell] of this.headCells) {
        if (key === this.sort.key) cell.setAttribute("aria-sort", this.sort.falling ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      }
      const visible = rows.slice(0, this.shown);
      this.body.replaceChildren(...visible.map((row) => this.drawRow(row)));
      this.footPart.replaceChildren(...(this.foot ? this.foot(visible) : []));
      this.table.hidden = rows.length === 0 && !this.foot;
      this.empty.hidden = rows.length > 0 || Boolean(this.foot);
      const left = rows.length - visible.length;
      this.more.hidden = left <= 0;
      this.more.textContent = `Show ${formatCount(Math.min(left, Math.max(this.pageSize, 100)))} more of ${formatCount(left)}`;
    }

    drawRow(row) {
      const cells = this.columns.map((column) => {
        const classes = [column.numeric ? "num" : "", column.class ?? ""].join(" ").trim();
        return el("td", { class: classes || undefined }, ...[column.cell(row)].flat());
      });
      return el("tr", this.rowAttributes(row), ...cells);
    }
  }

  // A group of radio buttons that looks like one control.
  function segmented(fieldset, name, choices, onChange) {
    for (const [i, [value, title]] of choices.entries()) {
      const input = el("input", { type: "radio", name, value, checked: i === 0, onchange: () => onChange(value) });
      fieldset.append(el("label", {}, input, el("span", {}, title)));
    }
  }

  // ---- 1. The verdict ----

  const endMs = Math.max(
    data.phases.length ? data.phases[data.phases.length - 1].end_ms : 0,
    data.timeline.length ? data.timeline[data.timeline.length - 1].ms : 0,
    data.profiled_ms,
    1e-3,
  );

  function drawVerdict() {
    document.title = data.command ? `${data.command} – legroom profile` : "legroom profile";
    byId("bar-command").textContent = data.command;
    byId("bar-command").title = data.command;
    if (!data.is_complete) {
      byId("badges").append(
        el("span", { class: "badge", id: "incomplete" }, "Cut short: the script failed or was interrupted within this step. The figures cover what ran until then."),
      );
    }
    const peak = el("p", {}, "The step peaks at ", el("strong", { id: "peak", "data-bytes": data.peak_bytes, "data-ms": data.peak_ms }, formatBytes(data.peak_bytes)), ` in ${data.peak_phase}, ${formatMs(data.peak_ms)} into ${formatMs(endMs)}`);
    if (data.peak_operation) peak.append(", while ", el("code", {}, data.peak_operation), " was at work");
    if (data.peak_file) peak.append(data.peak_operation ? " at " : ", at ", place(data.peak_file, data.peak_line));
    if (data.peak_module) peak.append(" in module ", el("code", {}, data.peak_module));
    peak.append(".");

    const holders = el("p");
    const largest = [...KINDS].sort((a, b) => (data.kinds[b.name] ?? 0) - (data.kinds[a.name] ?? 0))[0];
    const largestBytes = largest ? (data.kinds[largest.name] ?? 0) : 0;
    if (largestBytes > 0) {
      holders.append(
        el("strong", { id: "largest-kind", "data-kind": largest.name, "data-bytes": largestBytes }, `${formatShare(largestBytes, data.peak_bytes)} of it is ${largest.title}`),
        ", ", ...withCode(largest.meaning), ".",
      );
    }
    const line = [...data.lines].sort((a, b) => b.peak_bytes - a.peak_bytes)[0];
    if (line && line.peak_bytes > 0) {
      holders.append(
        " The line that holds most is ", place(line.file, line.line), " with ",
        el("strong", { id: "largest-line", "data-bytes": line.peak_bytes }, formatBytes(line.peak_bytes)),
        ` (${formatShare(line.peak_bytes, data.peak_bytes)}).`,
      );
    }
    byId("verdict-text").append(peak, holders);
    drawFigures();
  }

  function drawFigures() {
    const state = ["weights", "gradients", "optimizer_state"];
    const stateBytes = sum(state, (name) => data.kinds[name] ?? 0);
    const recorded = `${formatMs(data.profiled_ms)} while being recorded`;
    const before = data.resident_before_bytes;
    const figures = [
      ["peak", "Peak", formatBytes(data.peak_bytes), data.steps.length > 1 ? `highest of ${data.steps.length} recorded steps` : `in ${data.peak_phase}`, data.peak_bytes],
      ["stash", "Stash at its largest", formatBytes(data.largest_stash_bytes), "kept by forward for backward", data.largest_stash_bytes],
      ["state", "State at the peak", formatBytes(stateBytes), "weights, gradients, optimizer", stateBytes],
      ["opening", "Alive when the step began", formatBytes(data.opening_bytes), `${formatShare(data.opening_bytes, data.peak_bytes)} of the peak`, data.opening_bytes],
      ["step", "Step time", data.step_ms === null ? "–" : formatMs(data.step_ms), data.step_ms === null ? `not measured; ${recorded}` : recorded, null],
      ["resident", "Growth of the process", data.resident_peak_bytes === null ? "–" : formatBytes(data.resident_peak_bytes), data.resident_peak_bytes === null ? "not told by the system" : before === null ? "resident memory" : `over ${formatBytes(before)} before the first step`, data.resident_peak_bytes],
    ];
    for (const [name, title, value, note, bytes] of figures) {
      byId("figures").append(
        el("div", { "data-figure": name, "data-bytes": bytes, "data-ms": name === "step" ? data.step_ms : undefined },
          el("dt", {}, title),
          el("dd", {}, el("div", { class: "value" }, value), el("div", { class: "note" }, note))),
      );
    }
  }

  // ---- 2. The books at the peak ----

  function drawBooks() {
    const bar = byId("kinds-bar");
    const body = byId("kinds-table").tBodies[0];
    const total = sum(KINDS, (kind) => data.kinds[kind.name] ?? 0);
    const described = [];
    for (const kind of KINDS) {
      const bytes = data.kinds[kind.name] ?? 0;
      const focus = (isOn) => () => {
        bar.classList.toggle("has-focus", isOn && bytes > 0);
        for (const part of bar.children) part.classList.toggle("is-focus", isOn && part.dataset.kind === kind.name);
      };
      if (bytes > 0 && total > 0) {
        described.push(`${kind.title} ${formatShare(bytes, total)}`);
        bar.append(
          el("div", {
            "data-kind": kind.name, "data-bytes": bytes,
            style: `flex:${bytes} 0 0;background:${kindVariable(kind.name)};color:${inkOn(kindColour(kind.name))}`,
            title: `${kind.title}: ${formatBytes(bytes)}, ${formatShare(bytes, total)}`,
            onmouseenter: focus(true), onmouseleave: focus(false),
          }),
        );
      }
      body.append(
        el("tr", { "data-kind": kind.name, "data-bytes": bytes, class: bytes ? undefined : "is-zero", onmouseenter: focus(true), onmouseleave: focus(false) },
          el("td", {}, kindLabel(kind.name)),
          el("td", { class: bytes ? "muted" : undefined }, ...withCode(kind.meaning)),
          el("td", { class: "num" }, bytes ? formatBytes(bytes) : "0"),
          el("td", { class: "num" }, bytes ? formatShare(bytes, total) : "–")),
      );
    }
    bar.setAttribute("aria-label", `Memory at the peak: ${described.join(", ")}`);
    const difference = data.peak_bytes - total;
    byId("kinds-table").tFoot.append(
      el("tr", { class: "total", id: "kinds-total", "data-bytes": total },
        el("td", {}, "Sum of the kinds"),
        el("td", { class: "muted" }, difference === 0
          ? `equals the measured peak: ${formatCount(data.peak_bytes)} bytes`
          : `differs from the measured peak by ${formatBytes(difference)}`),
        el("td", { class: "num" }, formatBytes(total)),
        el("td", { class: "num" }, formatShare(total, data.peak_bytes))),
    );
  }

  // The fullest label that fits into each part of the bar.
  function labelBar() {
    const whole = sum([...byId("kinds-bar").children], (part) => Number(part.dataset.bytes));
    for (const part of byId("kinds-bar").children) {
      const bytes = Number(part.dataset.bytes);
      const share = formatShare(bytes, whole);
      const title = TITLES.get(part.dataset.kind);
      for (const text of [`${title}, ${formatBytes(bytes)}, ${share}`, `${title}, ${share}`, share, ""]) {
        const label = el("span", {}, text);
        part.replaceChildren(label);
        if (label.offsetWidth <= part.clientWidth - 12) break;
      }
    }
  }

  // ---- Tensors: the columns that the two lists share ----

  function whyKept(tensor) {
    const seen = new Set();
    const reasons = tensor.kept_by.filter((keep) => {
      const key = `${keep.why}|${keep.file}|${keep.line}`;
      return seen.has(key) ? false : seen.add(key);
    });
    if (!reasons.length) return [el("span", { class: "muted" }, "–")];
    const item = (keep) => el("div", {}, keep.why, " ", keep.file ? place(keep.file, keep.line) : null);
    const first = reasons.slice(0, 1).map(item);
    if (reasons.length === 1) return first;
    return [...first, el("details", {}, el("summary", {}, `and ${plural(reasons.length - 1, "more reason")}`), ...reasons.slice(1).map(item))];
  }

  // Without the module's path, which has its own column.
  function tensorName(tensor) {
    const prefix = `${tensor.module}.`;
    if (tensor.name) return tensor.module && tensor.name.startsWith(prefix) ? tensor.name.slice(prefix.length) : tensor.name;
    if (tensor.operation) return tensor.operation;
    return tensor.kernel || "–";
  }

  function lifeOf(tensor) {
    const from = (100 * tensor.born_ms) / endMs;
    const until = (100 * (tensor.died_ms ?? endMs)) / endMs;
    return el("div", { class: "life" },
      el("i", { style: `left:${from}%;width:${Math.max(0, until - from)}%;background:${kindVariable(tensor.kind)}` }),
      el("b", { style: `left:${(100 * data.peak_ms) / endMs}%` }));
  }

  const tensorColumns = () => [
    { key: "bytes", title: "Bytes", numeric: true, value: (t) => t.bytes, cell: (t) => formatBytes(t.bytes) },
    { key: "kind", title: "Kind", class: "kind-cell", value: (t) => KINDS.findIndex((kind) => kind.name === t.kind), cell: (t) => kindLabel(t.kind) },
    {
      key: "shape", title: "Shape, dtype", class: "shape", value: (t) => `${t.dtype} ${formatShape(t.shape)}`,
      cell: (t) => [el("div", {}, t.dtype || t.shape.length ? formatShape(t.shape) : "–"), el("div", { class: "second" }, t.dtype)],
    },
    {
      key: "name", title: "Tensor", hint: "its name, or the operation that made it", class: "name", value: tensorName,
      cell: (t) => {
        const second = t.name ? t.operation : t.kernel !== t.operation ? t.kernel : "";
        return [el("div", { title: t.name || undefined }, ...breakable(tensorName(t))), second ? el("div", { class: "second" }, t.name ? "from " : "in ", ...breakable(second)) : null];
      },
    },
    {
      key: "place", title: "Line, module", class: "where", value: (t) => `${t.file}:${String(t.line).padStart(7, "0")} ${t.module}`,
      cell: (t) => [el("div", {}, place(t.file, t.line)), el("div", { class: "second" }, ...breakable(t.module))],
    },
    {
      key: "lived", title: "Lived", numeric: true, class: "lived", hint: "from when to when; sorts by how long", value: (t) => (t.died_ms ?? endMs) - t.born_ms,
      cell: (t) => [
        el("div", {}, `${t.born_ms > 0 ? formatMs(t.born_ms) : "start"} – ${t.died_ms === null ? "end" : formatMs(t.died_ms)}`),
        lifeOf(t),
      ],
    },
    { key: "why", title: "Kept because", class: "why", value: (t) => t.kept_by[0]?.why ?? "", cell: whyKept },
  ];

  const tensorAttributes = (t) => ({ "data-id": t.id, "data-bytes": t.bytes, "data-kind": t.kind, "data-place": t.file ? `${t.file}:${t.line}` : "" });

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

    unit() {
      const exponent = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, data.peak_bytes)) / 10)));
      return { factor: 1024 ** exponent, name: ["B", "KiB", "MiB", "GiB", "TiB"][exponent] };
    },

    formatTick(ms) {
      if (ms === 0) return "0";
      const span = this.window[1] - this.window[0];
      if (endMs >= 2000) return `${Number((ms / 1000).toFixed(span < 100 ? 4 : 2))} s`;
      if (endMs < 2) return `${Number((ms * 1000).toFixed(2))} µs`;
      return `${Number(ms.toFixed(3))} ms`;
    },

    draw() {
      const unit = this.unit();
      const [muted, line] = [cssColour("--muted"), cssColour("--line")];
      const surface = cssColour("--surface");
      this.chart.setOption({
        animation: false,
        textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
        grid: { left: 66, right: 18, top: 34, bottom: 28 },
        xAxis: {
          type: "value", min: 0, max: endMs, axisLine: { lineStyle: { color: cssColour("--line-strong") } },
          axisTick: { lineStyle: { color: cssColour("--line-strong") } }, splitLine: { show: false },
          axisLabel: { color: muted, hideOverlap: true, showMaxLabel: false, formatter: (ms) => this.formatTick(ms) },
        },
        yAxis: {
          type: "value", min: 0, max: (Math.max(...moments.map((m) => m.total_bytes), 1) / unit.factor) * 1.12, splitNumber: 4, axisLine: { show: false }, axisTick: { show: false },
          axisLabel: { color: muted, showMaxLabel: false, formatter: (value) => (value ? `${Number(value.toFixed(2))} ${unit.name}` : "0") }, splitLine: { lineStyle: { color: line } },
        },
        tooltip: {
          trigger: "axis", confine: true, transitionDuration: 0, backgroundColor: surface, borderColor: cssColour("--line-strong"), padding: [8, 12],
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

  // ---- 4. Findings ----

  function drawFindings() {
    const host = byId("findings-list");
    if (!data.findings.length) {
      host.append(el("p", { class: "empty", id: "no-findings" }, "None: no known hidden consumer is in this step."));
      return;
    }
    for (const finding of data.findings) {
      const where = el("span", { class: "muted" });
      if (finding.file) where.append(place(finding.file, finding.line, { full: true }));
      if (finding.module) where.append(finding.file ? " in " : "in ", el("code", {}, finding.module));
      const known = finding.tensors.filter((id) => data.tensors.some((t) => t.id === id));
      host.append(
        el("article", { class: "finding", "data-finding": finding.name, "data-bytes": finding.bytes },
          el("header", {},
            el("h3", {}, sentence(finding.title).replace(/\.$/, "")),
            el("span", { class: "amount" }, formatBytes(finding.bytes), el("span", {}, `  ${formatShare(finding.bytes, data.peak_bytes)} of the peak`))),
          el("p", { class: "detail" }, sentence(finding.detail)),
          el("p", { class: "remedy" }, el("span", { class: "label" }, "What would remove it"), sentence(finding.remedy)),
          el("footer", {}, where,
            known.length ? el("button", { type: "button", class: "quiet", onclick: () => tensors.showIds(known, finding.title) }, known.length === 1 ? "Show its tensor" : `Show its ${known.length} tensors`) : null)),
      );
    }
  }

  // ---- 5. Annotated source ----

  const KEYWORDS = "False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield self";
  const TOKENS = new RegExp(
    [
      "(?<c>#[^\\n]*)",
      "(?<s>[rbfuRBFU]{0,2}(?:\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?))",
      `\\b(?<k>${KEYWORDS.split(" ").join("|")})\\b`,
      "(?<n>\\b\\d[\\w.]*)",
    ].join("|"),
    "g",
  );

  // Each line as a list of [class or "", text].
  function tokenize(text) {
    const lines = [[]];
    const add = (name, part) => {
      part.split("\n").forEach((piece, i) => {
        if (i) lines.push([]);
        if (piece) lines[lines.length - 1].push([name, piece]);
      });
    };
    let at = 0;
    for (const match of text.matchAll(TOKENS)) {
      add("", text.slice(at, match.index));
      add(Object.keys(match.groups).find((name) => match.groups[name] !== undefined), match[0]);
      at = match.index + match[0].length;
    }
    add("", text.slice(at));
    return lines;
  }

  const source = {
    files: [],
    current: null,
    tokens: new Map(),
    largest: {},

    start() {
      for (const key of ["stash_bytes", "peak_bytes", "forward_ms", "backward_ms", "optimizer_ms"]) {
        this.largest[key] = Math.max(...data.lines.map((use) => use[key]), 0);
      }
      this.files = [...linesByFile].map(([file, uses]) => {
        const all = [...uses.values()];
        return { file, uses, peak: sum(all, (u) => u.peak_bytes), time: sum(all, (u) => u.forward_ms + u.backward_ms + u.optimizer_ms), isUser: all.some((u) => u.is_user) };
      }).sort((a, b) => b.peak - a.peak || b.time - a.time);
      if (!this.files.length) {
        document.querySelector("#source .source").replaceWith(
          el("p", { class: "empty", id: "no-lines" }, "No source line could be charged: compiled code does not say which line it came from. The modules and the tensors below may still tell."),
        );
        return;
      }
      const list = byId("source-files");
      for (const entry of this.files) {
        const slash = entry.file.lastIndexOf("/");
        entry.button = el("button", { type: "button", class: "file", role: "option", title: entry.file, "data-file": entry.file, "data-bytes": entry.peak, onclick: () => this.show(entry.file) },
          el("span", { class: "top" }, el("span", { class: "base" }, entry.file.slice(slash + 1)), el("span", { class: "amount" }, entry.peak ? formatBytes(entry.peak) : "–")),
          el("span", { class: "dir" }, entry.isUser ? el("span", { class: "tag" }, "yours") : null, el("span", { class: "path" }, slash > 0 ? entry.file.slice(0, slash) : ""), el("span", { class: "time" }, formatMs(entry.time))));
        list.append(entry.button);
      }
      list.addEventListener("keydown", (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        const at = this.files.findIndex((entry) => entry.button === document.activeElement);
        if (!step || at < 0) return;
        event.preventDefault();
        this.files[Math.min(this.files.length - 1, Math.max(0, at + step))].button.focus();
      });
      this.show(this.files[0].file);
    },

    open(file, line) {
      this.show(file, line);
      scrollTo(byId("source"));
    },

    show(file, target = null) {
      const entry = this.files.find((item) => item.file === file);
      this.current = entry;
      for (const item of this.files) item.button.setAttribute("aria-selected", String(item === entry));
      const columns = [
        ["stash_bytes", "Stash", "made by this line and kept for backward, when the stash is largest", "bytes"],
        ["peak_bytes", "At peak", "alive because of this line at the peak, all kinds", "bytes"],
        ["forward_ms", "Forward", "time in forward and loss", "time"],
        ["backward_ms", "Backward", "time in the backward of what this line did", "time"],
      ];
      if ([...entry.uses.values()].some((use) => use.optimizer_ms > 0)) columns.push(["optimizer_ms", "Optimizer", "time in the optimizer's step", "time"]);
      const body = el("tbody");
      const head = el("tr", {}, ...columns.map(([, title, hint]) => el("th", { scope: "col", class: "num", title: hint }, title)),
        el("th", { scope: "col", class: "gutter" }, "Line"), el("th", { scope: "col", title: file }, file));
      this.fill(body, entry, columns, target);
      byId("source-code").dataset.file = file;
      byId("source-code").replaceChildren(el("table", { "aria-label": `Lines of ${file}` }, el("thead", {}, head), body));
      byId("source-code").scrollTop = 0;
      const wanted = target === null ? null : body.querySelector(`tr[data-line="${target}"]`);
      if (wanted) {
        wanted.classList.add("is-target");
        byId("source-code").scrollTop = Math.max(0, wanted.offsetTop - 160);
      }
    },

    fill(body, entry, columns, target) {
      const text = data.sources[entry.file];
      if (text === undefined) {
        for (const line of [...entry.uses.keys()].sort((a, b) => a - b)) body.append(this.row(entry, columns, line, null));
        return;
      }
      if (!this.tokens.has(entry.file)) this.tokens.set(entry.file, tokenize(text.replace(/\n$/, "")));
      const tokens = this.tokens.get(entry.file);
      const count = Math.max(tokens.length, ...entry.uses.keys());
      const near = new Set();
      for (const line of [...entry.uses.keys(), ...(target === null ? [] : [target])]) {
        for (let i = line - CONTEXT_LINES; i <= line + CONTEXT_LINES; i += 1) near.add(i);
      }
      for (let line = 1; line <= count; line += 1) {
        let end = line;
        while (end <= count && !near.has(end)) end += 1;
        if (end - line >= FEWEST_HIDDEN_LINES) {
          body.append(this.gap(entry, columns, line, end - 1, tokens));
          line = end - 1;
        } else {
          body.append(this.row(entry, columns, line, tokens[line - 1] ?? []));
        }
      }
    },

    gap(entry, columns, first, last, tokens) {
      const row = el("tr", { class: "gap" });
      const expand = () => {
        const rows = [];
        for (let line = first; line <= last; line += 1) rows.push(this.row(entry, columns, line, tokens[line - 1] ?? []));
        row.replaceWith(...rows);
      };
      row.append(el("td", { colspan: columns.length + 2 }, el("button", { type: "button", onclick: expand }, `Show lines ${first} to ${last}`)));
      return row;
    },

    row(entry, columns, line, tokens) {
      const use = entry.uses.get(line);
      const attributes = { "data-line": line, class: use ? undefined : "is-quiet" };
      const cells = columns.map(([key, , , heat]) => {
        const value = use ? use[key] : 0;
        if (use) attributes[`data-${key.replace("_", "-")}`] = value;
        if (!value) return el("td", { class: "heat" });
        const percent = Math.round(5 + 60 * Math.sqrt(value / this.largest[key]));
        return el("td", { class: "heat num", style: `background:color-mix(in srgb, var(--heat-${heat}) ${percent}%, transparent)` }, heat === "bytes" ? formatBytes(value) : formatMs(value));
      });
      const number = use
        ? el("button", { type: "button", title: "list the tensors of this line", "aria-label": `Line ${line}: list its tensors`, onclick: () => tensors.showPlace(entry.file, line) }, String(line))
        : String(line);
      const code = tokens === null
        ? [el("span", { class: "muted" }, use.function ? `in ${use.function}` : "")]
        : tokens.map(([name, part]) => (name ? el("span", { class: `t-${name}` }, part) : part));
      return el("tr", attributes, ...cells, el("td", { class: "gutter" }, number), el("td", { class: "text" }, ...code));
    },
  };

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
        textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
        tooltip: {
          confine: true, transitionDuration: 0, backgroundColor: surface, borderColor: cssColour("--line-strong"), padding: [8, 12],
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

  // ---- 7. Tensors ----

  const tensors = {
    only: null, // {test(tensor), title}: the tensors of one line or finding

    start() {
      const atPeak = data.tensors.filter((t) => t.at_peak);
      byId("tensors-lead").textContent = `${plural(data.tensors.length, "tensor")} of this step, each storage once. ${formatCount(atPeak.length)} of them are alive at the peak and hold ${formatShare(sum(atPeak, (t) => t.bytes), data.peak_bytes)} of it. The red tick in a lifetime is the peak.`;
      const select = byId("tensors-kind");
      select.append(el("option", { value: "" }, "all kinds"));
      for (const kind of KINDS) {
        const count = data.tensors.filter((t) => t.kind === kind.name).length;
        if (count) select.append(el("option", { value: kind.name }, `${kind.title} (${formatCount(count)})`));
      }
      this.texts = new Map(data.tensors.map((t) => [t, [t.name, t.operation, t.kernel, `${t.file}:${t.line}`, t.module, t.dtype, formatShape(t.shape), ...t.kept_by.map((keep) => keep.why)].join(" ").toLowerCase()]));
      this.table = new DataTable(byId("tensors-table"), {
        columns: tensorColumns(), pageSize: FIRST_TENSORS, className: "tensor-table", label: "Largest tensors", rowAttributes: tensorAttributes, sort: { key: "bytes", falling: true },
      });
      byId("tensors-text").addEventListener("input", () => this.filter());
      select.addEventListener("change", () => this.filter());
      byId("tensors-at-peak").addEventListener("change", () => this.filter());
      this.filter();
    },

    showPlace(file, line) {
      this.show({ title: `${shortFile(file)}:${line}`, test: (t) => t.file === file && t.line === line });
    },

    showModule(path) {
      this.show({ title: path || "outside modules", test: (t) => t.module === path });
    },

    showIds(ids, title) {
      const wanted = new Set(ids);
      this.show({ title, test: (t) => wanted.has(t.id) });
    },

    show(only) {
      this.only = only;
      byId("tensors-text").value = "";
      byId("tensors-kind").value = "";
      byId("tensors-at-peak").checked = false;
      this.filter();
      scrollTo(byId("tensors"));
    },

    filter() {
      const words = byId("tensors-text").value.toLowerCase().replaceAll(" x ", "×").split(/\s+/).filter(Boolean);
      const kind = byId("tensors-kind").value;
      const onlyPeak = byId("tensors-at-peak").checked;
      const rows = data.tensors.filter((t) =>
        (!kind || t.kind === kind) && (!onlyPeak || t.at_peak) && (!this.only || this.only.test(t)) && words.every((word) => this.texts.get(t).includes(word)));
      const remove = () => {
        this.only = null;
        this.filter();
      };
      byId("tensors-chips").replaceChildren(...(this.only ? [el("button", { type: "button", class: "chip", id: "tensors-only", title: "remove this filter", onclick: remove }, `${this.only.title}  ×`)] : []));
      const count = byId("tensors-count");
      count.dataset.count = rows.length;
      const together = sum(rows, (t) => t.bytes);
      const peak = sum(rows, (t) => (t.at_peak ? t.bytes : 0));
      count.dataset.bytes = together;
      count.textContent = `${plural(rows.length, "tensor")}, ${formatBytes(peak)} of them at the peak`;
      this.table.setRows(rows);
    },
  };

  // ---- 8. Operations ----

  const operations = {
    start() {
      segmented(byId("operations-grouping"), "grouping", [["site", "By line and module"], ["name", "By operation"]], (grouping) => this.draw(grouping));
      this.draw("site");
    },

    rows(grouping) {
      if (grouping === "site") return data.operations;
      const groups = new Map();
      for (const use of data.operations) {
        const group = groups.get(use.name) ?? { name: use.name, places: 0, count: 0, forward_ms: 0, backward_ms: 0, optimizer_ms: 0, stash_bytes: 0, workspace_bytes: 0 };
        group.places += 1;
        for (const key of ["count", "forward_ms", "backward_ms", "optimizer_ms", "stash_bytes"]) group[key] += use[key];
        group.workspace_bytes = Math.max(group.workspace_bytes, use.workspace_bytes);
        groups.set(use.name, group);
      }
      return [...groups.values()];
    },

    draw(grouping) {
      const rows = this.rows(grouping);
      const time = (use) => use.forward_ms + use.backward_ms + use.optimizer_ms;
      const longest = Math.max(...rows.map(time), 1e-9);
      const whole = sum(rows, time);
      const amount = (key, title, format, hint) => ({ key, title, hint, numeric: true, value: (use) => use[key], cell: (use) => (use[key] ? format(use[key]) : "–") });
      const where = grouping === "site"
        ? [
          { key: "place", title: "Line", value: (use) => `${use.file}:${String(use.line).padStart(7, "0")}`, cell: (use) => place(use.file, use.line) },
          { key: "module", title: "Module", value: (use) => use.module, cell: (use) => el("span", { class: "mono" }, ...breakable(use.module || "–")) },
        ]
        : [amount("places", "Lines and modules", formatCount)];
      const host = byId("operations-table");
      host.dataset.grouping = grouping;
      new DataTable(host, {
        pageSize: FIRST_ROWS, label: "Operations", sort: { key: "time", falling: true },
        rowAttributes: (use) => ({ "data-operation": use.name, "data-ms": time(use), "data-bytes": use.stash_bytes }),
        columns: [
          { key: "name", title: "Operation", value: (use) => use.name, cell: (use) => el("span", { class: "mono" }, ...breakable(use.name)) },
          ...where,
          amount("count", "Calls", formatCount),
          amount("forward_ms", "Forward", formatMs, "forward and loss"),
          amount("backward_ms", "Backward", formatMs),
          amount("optimizer_ms", "Update", formatMs, "in the optimizer step"),
          { key: "time", title: "Together", numeric: true, value: time, cell: (use) => formatMs(time(use)) },
          {
            key: "share", title: "Share", value: time, class: "meter-cell",
            cell: (use) => [el("span", { class: "meter-text" }, formatShare(time(use), whole)), el("span", { class: "meter", style: `width:${(44 * time(use)) / longest}px` })],
          },
          amount("stash_bytes", "Stash", formatBytes, "kept for backward, when the stash is largest"),
          amount("workspace_bytes", "Workspace", formatBytes, "largest scratch memory inside one call"),
        ],
      }).setRows(rows);
    },
  };

  // ---- 9. Limits ----

  function drawLimits() {
    for (const limit of data.limits) {
      byId("limits-list").append(
        el("li", { "data-limit": limit.name, "data-bytes": limit.bytes },
          el("b", {}, limit.name), el("p", {}, sentence(limit.text), limit.bytes ? ` (${formatBytes(limit.bytes)})` : "")),
      );
    }
    if (!data.limits.length) byId("limits-list").append(el("li", { class: "muted" }, "Nothing is known to be missing."));
    const percent = (share) => formatShare(share, 1);
    const cost = data.step_ms ? `${formatMs(data.profiled_ms)} recorded, ${formatMs(data.step_ms)} not recorded (${(data.profiled_ms / data.step_ms).toFixed(2)} times)` : `${formatMs(data.profiled_ms)} recorded; no step ran without recording`;
    const facts = [
      ["Charged to a line or module", `${percent(data.coverage.peak_share)} of the peak, ${percent(data.coverage.stash_share)} of the stash, ${percent(data.coverage.time_share)} of the time`],
      ["Step time", cost],
      ["Recorded steps", data.steps.map((step) => `${formatBytes(step.peak_bytes)} in ${formatMs(step.profiled_ms)}`).join("; ") || "–"],
      ["Command", data.command || "–"],
      ["Device", data.device],
      ["Recorded on", data.created.replace("T", " ").replace("+00:00", " UTC")],
      ["Versions", `legroom ${data.legroom_version}, torch ${data.torch_version}, Python ${data.python_version}`],
      ["Format", data.schema],
    ];
    for (const [title, value] of facts) byId("facts").append(el("dt", {}, title), el("dd", { "data-fact": title }, value));
  }

  // ---- Light and dark ----

  const theme = {
    key: "legroom-theme",
    system: window.matchMedia("(prefers-color-scheme: dark)"),

    // A page in a notebook or a locked-down browser may have no storage.
    stored() {
      try {
        return localStorage.getItem(this.key);
      } catch {
        return null;
      }
    },

    set(name, { keep = false } = {}) {
      document.documentElement.dataset.theme = name;
      const other = name === "dark" ? "light" : "dark";
      byId("theme-toggle").textContent = other === "dark" ? "Dark theme" : "Light theme";
      byId("theme-toggle").setAttribute("aria-label", `Switch to the ${other} theme`);
      if (keep) {
        try {
          localStorage.setItem(this.key, name);
        } catch {
          // Then the choice lasts as long as the page.
        }
      }
    },

    start() {
      this.set(this.stored() ?? (this.system.matches ? "dark" : "light"));
      byId("theme-toggle").addEventListener("click", () => {
        this.set(document.documentElement.dataset.theme === "dark" ? "light" : "dark", { keep: true });
        redrawCharts();
      });
      this.system.addEventListener("change", (event) => {
        if (this.stored()) return;
        this.set(event.matches ? "dark" : "light");
        redrawCharts();
      });
    },
  };

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
})();

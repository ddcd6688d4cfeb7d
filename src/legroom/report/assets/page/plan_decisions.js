// ---- 4. What the plan does ----

const decisions = {
  grouping: "line",

  start() {
    if (!chosen) {
      hideSection("decisions");
      return;
    }
    this.all = chosen.decisions.map((d) => ({ ...d, form: formOf(d), count: 1, released: Math.max(d.way === "hold" ? 0 : -Infinity, d.num_bytes - d.held_bytes) }));
    this.texts = new Map(this.all.map((d) => [d, [d.module, d.line, d.operation, d.tensor, d.reason, d.form].join(" ").toLowerCase()]));
    const released = sum(this.all, (d) => d.released);
    byId("decisions-lead").textContent = `Of ${plural(this.all.length, "tensor")} that backward needs, ${formatCount(this.all.filter((d) => d.way !== "hold").length)} are not held: ${formatBytes(released)} released. Modules that differ in their numbers only share a row.`;
    this.drawWays();
    segmented(byId("decisions-grouping"), "grouping", [["line", "By module and line"], ["tensor", "Each tensor"]], (grouping) => {
      this.grouping = grouping;
      this.filter();
    });
    this.fillSelect("form", "all ways");
    this.fillSelect("module", "all modules");
    this.fillSelect("line", "all lines");
    byId("decisions-text").addEventListener("input", () => this.filter());
    for (const name of ["form", "module", "line"]) byId(`decisions-${name}`).addEventListener("change", () => this.filter());
    this.filter();
    this.drawVariants();
  },

  fillSelect(name, all) {
    const amounts = new Map();
    for (const d of this.all) amounts.set(this.bucket(name, d), (amounts.get(this.bucket(name, d)) ?? 0) + 1);
    const options = [...amounts].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
    byId(`decisions-${name}`).append(el("option", { value: "" }, all), ...options.map(([value, count]) => el("option", { value }, `${value || "none"} (${formatCount(count)})`)));
  },

  // Layers of one model are chosen together.
  bucket: (name, d) => (name === "module" ? d.module.replace(/(^|\.)\d+(?=\.|$)/g, "$1*") : d[name]),

  filter() {
    const words = byId("decisions-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = ["form", "module", "line"].map((name) => [name, byId(`decisions-${name}`).value]).filter(([, value]) => value);
    const rows = this.all.filter((d) => wanted.every(([name, value]) => this.bucket(name, d) === value) && words.every((word) => this.texts.get(d).includes(word)));
    const count = byId("decisions-count");
    count.dataset.count = rows.length;
    count.dataset.bytes = sum(rows, (d) => d.released);
    count.textContent = `${plural(rows.length, "tensor")}, ${formatBytes(sum(rows, (d) => d.released))} released, ${formatAdded(sum(rows, (d) => d.added_ms))}`;
    this.drawTable(this.grouping === "line" ? this.group(rows) : rows);
  },

  group(rows) {
    const groups = new Map();
    for (const d of rows) {
      const key = [this.bucket("module", d), d.line, d.form].join("\u0000");
      const found = groups.get(key);
      if (!found) {
        groups.set(key, { ...d, modules: new Set([d.module]) });
        continue;
      }
      found.modules.add(d.module);
      for (const amount of ["count", "num_bytes", "released", "added_ms"]) found[amount] += d[amount];
    }
    return [...groups.values()].map((d) => ({ ...d, module: d.modules.size > 1 ? this.bucket("module", d) : d.module }));
  },

  drawTable(rows) {
    const isGrouped = this.grouping === "line";
    const host = byId("decisions-table");
    host.dataset.grouping = this.grouping;
    const amount = (key, title, format, hint) => ({ key, title, hint, numeric: true, value: (d) => d[key], cell: (d) => format(d[key]) });
    new DataTable(host, {
      pageSize: FIRST_ROWS, className: "tensor-table", label: "Decisions", sort: { key: "released", falling: true },
      rowAttributes: (d) => ({ "data-form": d.form, "data-line": d.line, "data-module": d.module, "data-bytes": d.released, "data-ms": d.added_ms, "data-count": d.count }),
      columns: [
        amount("released", "Released", (bytes) => (bytes ? formatBytes(bytes) : "–"), "what is not held that the plain step holds"),
        amount("num_bytes", "Of", formatBytes, "what the plain step holds"),
        amount("added_ms", "Added", formatAdded, "time that this adds to the step"),
        ...(isGrouped ? [amount("count", "Tensors", formatCount)] : []),
        { key: "form", title: "Way", class: "kind-cell", value: (d) => d.form, cell: (d) => wayLabel(d.way, d.form) },
        ...whereColumns(),
        {
          key: "operation", title: isGrouped ? "Operation" : "Tensor", class: "name", value: (d) => (isGrouped ? d.operation : d.tensor),
          cell: (d) => (isGrouped ? breakable(d.operation) : [el("div", {}, ...breakable(d.tensor)), el("div", { class: "second" }, ...breakable(d.operation))]),
        },
        { key: "reason", title: "Because", class: "why", value: (d) => d.reason, cell: (d) => d.reason },
      ],
    }).setRows(rows);
  },

  // Bytes that the plain step holds, by what the plan does with them.
  drawWays() {
    const rank = new Map(wayNames.map((name, index) => [name, index]));
    const forms = new Map([...this.all].sort((a, b) => rank.get(a.way) - rank.get(b.way) || a.form.localeCompare(b.form)).map((d) => [d.form, d.way]));
    const rows = [...forms].map(([form, way]) => {
      const own = this.all.filter((d) => d.form === form);
      return { form, way, count: own.length, num_bytes: sum(own, (d) => d.num_bytes), released: sum(own, (d) => d.released), added_ms: sum(own, (d) => d.added_ms) };
    });
    const total = sum(rows, (row) => row.num_bytes);
    byId("ways-bar").hidden = total === 0;
    byId("ways-bar").setAttribute("aria-label", `Bytes that backward needs, by way: ${rows.map((row) => `${row.form} ${formatShare(row.num_bytes, total)}`).join(", ")}`);
    for (const row of rows) {
      byId("ways-bar").append(el("div", {
        "data-form": row.form, "data-bytes": row.num_bytes, title: `${row.form}: ${formatBytes(row.num_bytes)}, ${formatShare(row.num_bytes, total)}`,
        style: `flex:${row.num_bytes} 0 0;background:var(${wayVariable(row.way)});color:${inkOn(wayColour(row.way))}`,
      }));
    }
    const amount = (key, title, format) => ({ key, title, numeric: true, value: (row) => row[key], cell: (row) => format(row[key]) });
    new DataTable(byId("ways-table"), {
      pageSize: FIRST_ROWS, label: "What the plan uses", sort: { key: "num_bytes", falling: true },
      rowAttributes: (row) => ({ "data-form": row.form, "data-bytes": row.num_bytes }),
      columns: [
        { key: "form", title: "Way", value: (row) => row.form, cell: (row) => wayLabel(row.way, row.form) },
        amount("count", "Tensors", formatCount), amount("num_bytes", "Bytes in the plain step", formatBytes), amount("released", "Released", (bytes) => (bytes ? formatBytes(bytes) : "–")), amount("added_ms", "Added time", formatAdded),
      ],
    }).setRows(rows);
    this.labelBar();
  },

  labelBar() {
    for (const part of byId("ways-bar").children) {
      for (const text of [`${part.dataset.form}, ${formatBytes(Number(part.dataset.bytes))}`, part.dataset.form, ""]) {
        const label = el("span", {}, text);
        part.replaceChildren(label);
        if (label.offsetWidth <= part.clientWidth - 12) break;
      }
    }
  },

  drawVariants() {
    if (!chosen.variants.length) return;
    const byVariant = new Map();
    for (const [node, variant] of chosen.variants) byVariant.set(variant, [...(byVariant.get(variant) ?? []), node]);
    byId("variants").append(
      el("h3", { class: "second-head" }, "Other formulas in backward"),
      ...[...byVariant].map(([variant, nodes]) => el("details", { "data-variant": variant, "data-count": nodes.length },
        el("summary", {}, `${variant}: ${plural(nodes.length, "operation")}`), el("p", { class: "mono" }, ...breakable(nodes.join(", "))))),
    );
  },
};

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

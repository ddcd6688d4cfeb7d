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

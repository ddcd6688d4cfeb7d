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

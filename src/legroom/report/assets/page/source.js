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
    for (const key of ["stash_bytes", "peak_bytes", "forward_ms", "backward_ms", "optimizer_ms", "called_peak_bytes", "called_ms"]) {
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
    if ([...entry.uses.values()].some((use) => use.called_peak_bytes > 0 || use.called_ms > 0)) {
      columns.push(
        ["called_peak_bytes", "Calls, peak", "alive at the peak because of lines of libraries that this line calls", "bytes"],
        ["called_ms", "Calls, time", "time in lines of libraries that this line calls, backward included", "time"],
      );
    }
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
      if (use) attributes[`data-${key.replaceAll("_", "-")}`] = value;
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

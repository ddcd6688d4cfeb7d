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

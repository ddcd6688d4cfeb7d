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

// The program of a page: reads the JSON block once and draws every section from it.
// Whatever comes from the data goes in as text (textContent, canvas), never as markup.
// The files of this folder are put together, in the order of report/_html.py, inside one function.

const data = JSON.parse(document.getElementById("legroom-data").textContent);
const KINDS = data.kind_list;
const TITLES = new Map(KINDS.map((kind) => [kind.name, kind.title]));
const FIRST_TENSORS = 100;
const FIRST_ALIVE = 12;
const FIRST_ROWS = 25;
const CONTEXT_LINES = 3;
const FEWEST_HIDDEN_LINES = 5;

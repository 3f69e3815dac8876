// Where the pieces of a text look, in one head: lines from the pieces on the left to those on the right.
import { make, note, percent } from "./answers.js";

const STRONGEST = 8; // lines of each piece at most, where all pieces are shown
const LEVELS = 10; // of opacity: lines that are alike are one path, as a long text has many

// The picture's elements; shares: [heads][pieces][pieces], each row adds up to 1. It is drawn again for another head.
export function picture(pieces, shares, headPicker) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 1 ${pieces.length}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true"); // the numbers beside it say the same
  svg.style.blockSize = `calc(${pieces.length} * var(--row))`;
  const numbers = pieces.map(() => make("span", "number"));
  const from = make("fieldset", "from", make("legend", "", "From"), choice("all", -1), ...pieces.map(choice));
  const rows = pieces.map((piece, n) => make("li", "", named(piece), " ", numbers[n]));
  const to = make("div", "", make("p", "", "To"), make("ol", "to", ...rows));

  function draw() {
    const head = shares[headPicker.value - 1];
    const chosen = Number(from.querySelector(":checked").value);
    svg.replaceChildren(...paths(head.map((row, n) => (chosen < 0 ? strongest(row) : n === chosen ? row : []))));
    numbers.forEach((number, n) => (number.textContent = chosen < 0 ? "" : percent(head[chosen][n])));
  }

  from.addEventListener("change", draw);
  headPicker.onchange = draw;
  draw();
  const told = `Each piece on the left looks at those on the right: the stronger a line, the more. Up to ${STRONGEST} lines
    of a piece are drawn; choose a piece for all of its own and their numbers.`;
  return [note(told), make("div", "attention", from, make("div", "lines", svg), to)];
}

function choice(name, number) {
  const radio = make("input", "");
  Object.assign(radio, { type: "radio", name: "from", value: number, checked: number < 0 });
  return make("label", "", radio, named(name));
}

function named(piece) {
  const name = make("span", "piece", piece);
  name.title = piece; // a long one is cut
  return name;
}

// A row with 0 for all but its largest shares, none of them below an even one.
function strongest(row) {
  const least = Math.max([...row].sort((a, b) => b - a)[STRONGEST - 1] ?? 0, 0.99 / row.length);
  return row.map((share) => (share >= least ? share : 0));
}

// Rows of shares as paths, the faint ones first.
function paths(rows) {
  const lines = Array.from({ length: LEVELS }, () => []);
  rows.forEach((row, from) => row.forEach((share, to) => {
    if (share === 0) return;
    const [begin, end] = [from + 0.5, to + 0.5];
    lines[Math.min(Math.ceil(share * LEVELS), LEVELS) - 1].push(`M0 ${begin}C.4 ${begin} .6 ${end} 1 ${end}`);
  }));
  return lines.flatMap((some, level) => {
    if (some.length === 0) return [];
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", some.join(""));
    path.setAttribute("stroke-opacity", (level + 1) / LEVELS);
    return [path];
  });
}

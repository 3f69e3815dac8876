// Elements that show answers. Text becomes a text node, never markup.

// A new element with text or elements in it.
export function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

export function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

export function note(text) {
  return make("p", "note", text);
}

// A list of [name, share], a bar each.
export function bars(rows, title) {
  const items = rows.map(([name, share]) => {
    const bar = make("span", "bar");
    bar.style.inlineSize = `${100 * share}%`;
    const parts = [["name", name], ["track", bar], ["number", percent(share)]];
    return make("li", "", ...parts.flatMap(([className, content]) => [make("span", className, content), " "]));
  });
  const list = make("ol", "bars", ...items);
  return title ? make("div", "", make("h2", "", title), list) : list;
}

// The likeliest pieces of each [MASK] of a text: pieces and probabilities [masks][k], none for those that were not read.
export function blanks(text, pieces, probabilities) {
  const count = text.split("[MASK]").length - 1;
  if (count === 0) return [note("The text has no [MASK].")];
  const read = pieces.map((row, n) => bars(row.map((piece, k) => [piece, probabilities[n][k]]), `[MASK] ${n + 1}`));
  const unread = count - read.length;
  if (unread === 0) return read;
  return [...read, note(`The text is longer than what the model reads: the last ${unread} [MASK] are not answered.`)];
}

// The classes' probabilities, the likeliest first; classes without names have their number for one.
export function scores(labels, probabilities) {
  const areNamed = labels.length === probabilities.length;
  const named = probabilities.map((share, n) => [areNamed ? labels[n] : String(n), share]);
  const total = probabilities.reduce((sum, share) => sum + share, 0);
  const list = bars(named.sort((a, b) => b[1] - a[1]));
  if (Math.abs(total - 1) < 0.001) return [list];
  return [list, note("Each label is there or not on its own: they do not add up to 100%.")];
}

// Names and values.
export function facts(rows) {
  return make("dl", "", ...rows.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
}

// A text with places marked: start and end in code points, as the models count, where JavaScript counts UTF-16 units.
export function marked(text, places, decorate = () => {}) {
  const characters = Array.from(text);
  const paragraph = make("p", "marked");
  let end = 0;
  for (const place of [...places].sort((a, b) => a.start - b.start)) {
    const mark = make("mark", "", characters.slice(place.start, place.end).join(""));
    decorate(mark, place);
    paragraph.append(characters.slice(end, place.start).join(""), mark);
    end = place.end;
  }
  paragraph.append(characters.slice(end).join(""));
  return paragraph;
}

// A text with its entities, each with its type written in it, and the types' legend.
export function entities(text, found) {
  const types = [...new Set(found.map(({ type }) => type))].sort();
  const colour = (type) => `entity colour-${types.indexOf(type) % 8}`;
  const paragraph = marked(text, found, (mark, { type }) => {
    mark.className = colour(type);
    mark.append(" ", make("span", "type", type));
  });
  if (found.length === 0) return [paragraph, note("No entity was found.")];
  const legend = types.map((type) => {
    const count = found.filter((one) => one.type === type).length;
    return make("li", colour(type), make("span", "type", type), ` ${count}`);
  });
  return [make("ul", "legend", ...legend), paragraph];
}

// The cosine of two texts' vectors; of pieces' vectors, [2][pieces][width], that of the means over the pieces.
export function cosine(vectors, pieces) {
  const [a, b] = vectors.map((vector, n) => {
    if (!pieces) return vector.flat(Infinity);
    const rows = vector.filter((_, place) => pieces[n][place] !== "").map((row) => [row].flat(Infinity));
    return rows[0].map((_, column) => rows.reduce((sum, row) => sum + row[column], 0) / rows.length);
  });
  const dot = (x, y) => x.reduce((sum, value, n) => sum + value * y[n], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

// The model, what it can be asked, the question; how answers look is in answers.js and attention.js.
import { bars, blanks, cosine, entities, facts, marked, note, percent, scores } from "./answers.js";
import { picture } from "./attention.js";

const byId = (id) => document.getElementById(id);
const [modelPicker, uses, problem, status, answer] = ["model", "uses", "problem", "status", "answer"].map(byId);
const forms = [...document.forms];

let model = null; // { name, signatures, labels, config } of the one that is chosen
let request = null; // the AbortController of what was asked last: the answer to anything before it is not shown

// What can be asked: `fits` a model's signatures, and the answer's elements from the form's fields.
const USES = {
  fill: {
    fits: ({ serving_default }) => answers(serving_default, ["text"], ["pieces", "probabilities", "ids"]),
    async ask({ text }) {
      const { pieces, probabilities } = await predictText(text);
      return blanks(text, pieces[0], probabilities[0]);
    },
  },
  classify: {
    fits: ({ serving_default }) => isClassifier(serving_default, ["text"]),
    async ask({ text, second }) {
      const pair = second.trim() !== "" && canPair(model.signatures);
      return classified(await (pair ? predictPair("pairs", text, second) : predictText(text)));
    },
  },
  passage: {
    fits: ({ serving_default }) => answers(serving_default, ["passage", "question"], ["answer", "start", "end"]),
    async ask({ question, passage }) {
      const outputs = await predict("serving_default", { question: [question], passage: [passage] });
      const [start, end] = [outputs.start[0], outputs.end[0]];
      const found = start >= 0 ? [{ start, end }] : [];
      const told = [
        ["Answer", start >= 0 ? outputs.answer[0] : "none"],
        ["Score", outputs.score[0].toFixed(2)],
        ["No answer", percent(outputs.no_answer_probability[0])],
      ];
      return [marked(passage, found), facts(told)];
    },
  },
  tag: {
    fits: ({ serving_default }) => answers(serving_default, ["text"], ["words", "tags", "entity_types"]),
    async ask({ text }) {
      const outputs = await predictText(text);
      const found = outputs.entity_types[0].map((type, n) => {
        return { type, start: outputs.entity_starts[0][n], end: outputs.entity_ends[0][n] };
      });
      return entities(text, found);
    },
  },
  compare: {
    fits: (signatures) => signatures.next_sentence || canPair(signatures) || hasVectors(signatures),
    async ask({ first, second }) {
      if (model.signatures.next_sentence) {
        const [follows, random] = (await predictPair("next_sentence", first, second)).probabilities[0];
        return [bars([["yes", follows], ["no", random]], "Does the second text follow the first?")];
      }
      if (hasVectors(model.signatures)) {
        const { vectors, pieces } = await predictText(first, second);
        const similarity = facts([["Cosine similarity", cosine(vectors, pieces).toFixed(4)]]);
        return pieces ? [similarity, note("Of the means of the vectors of each text's pieces.")] : [similarity];
      }
      return classified(await predictPair("pairs", first, second));
    },
  },
  ending: {
    fits: ({ serving_default }) => answers(serving_default, ["context", "endings"], ["probabilities", "choice"]),
    async ask({ context, endings }) {
      const lines = endings.split("\n").filter((line) => line.trim() !== "");
      const { probabilities } = await predict("serving_default", { context: [context], endings: [lines] });
      return [bars(lines.map((line, n) => [line, probabilities[0][n]]))];
    },
  },
  attention: {
    fits: ({ attention }) => answers(attention, ["layer", "text"], ["pieces", "attention"]),
    async ask({ text, layer }) {
      const { pieces, attention } = await predict("attention", { text: [text], layer: [Number(layer)] });
      return picture(pieces[0], attention[0], byId("head"));
    },
  },
};

// Whether a signature has these inputs, sorted, and no more, and these outputs at least.
function answers(signature, inputs, outputs) {
  if (!signature) return false;
  const isAsked = String(Object.keys(signature.inputs).sort()) === String(inputs);
  return isAsked && outputs.every((name) => name in signature.outputs);
}

function isClassifier(signature, inputs) {
  return answers(signature, inputs, ["probabilities", "label"]) || answers(signature, inputs, ["value"]);
}

function canPair({ pairs }) {
  return isClassifier(pairs, ["text_a", "text_b"]);
}

function hasVectors({ serving_default }) {
  return answers(serving_default, ["text"], ["vectors"]);
}

function classified({ probabilities, value }) {
  if (value) return [facts([["Value", value[0].toFixed(4)]])];
  return scores(model.labels, probabilities[0]);
}

// The JSON of an address of this server; throws an Error that says what the server says.
async function json(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it running?");
  }
  const text = await response.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error(`The server answers ${response.status} ${response.statusText}, without JSON.`);
  }
  if (!response.ok) throw new Error(content.error ?? `The server answers ${response.status}.`);
  return content;
}

// Outputs by name, a column each; the time from request to answer goes to the status line.
async function predict(signature, inputs) {
  const begin = performance.now();
  const { outputs } = await json(`v1/models/${encodeURIComponent(model.name)}:predict`, {
    method: "POST",
    body: JSON.stringify({ signature_name: signature, inputs }),
    signal: request.signal,
  });
  const milliseconds = performance.now() - begin;
  status.textContent = `Answered in ${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  const names = Object.keys(model.signatures[signature].outputs);
  return names.length === 1 ? { [names[0]]: outputs } : outputs; // one output comes without its name
}

function predictText(...texts) {
  return predict("serving_default", { text: texts });
}

function predictPair(signature, first, second) {
  return predict(signature, { text_a: [first], text_b: [second] });
}

function clear() {
  request?.abort();
  request = null;
  answer.ariaBusy = "false";
  problem.textContent = status.textContent = "";
  answer.replaceChildren();
}

// Shows what a promise of elements gives, or why it gives none, unless something else was asked meanwhile.
async function show(work) {
  request?.abort();
  const mine = (request = new AbortController());
  problem.textContent = status.textContent = "";
  answer.ariaBusy = "true";
  try {
    const elements = await work();
    if (mine !== request) return;
    answer.replaceChildren(...elements);
    answer.ariaBusy = "false";
  } catch (error) {
    if (mine !== request) return;
    clear();
    problem.textContent = error.message;
  }
}

function ask(form) {
  // A picture is not read out.
  answer.ariaLive = form.id === "attention" ? "off" : "polite";
  show(() => USES[form.id].ask(Object.fromEntries(new FormData(form))));
}

function open(use) {
  for (const form of forms) form.hidden = form.id !== use;
}

function fillPicker(picker, values) {
  const chosen = picker.value;
  picker.replaceChildren(...values.map((value) => new Option(value, value)));
  if (values.includes(chosen)) picker.value = chosen;
}

const upTo = (count) => Array.from({ length: count ?? 0 }, (_, n) => String(n + 1));

// Learns what a model can be asked and offers that.
async function load(name) {
  const { signal } = request;
  open(null);
  uses.hidden = true;
  byId("version").textContent = "";
  const path = `v1/models/${encodeURIComponent(name)}`;
  const paths = [`${path}/metadata`, `${path}/about`];
  const [{ model_spec, metadata }, about] = await Promise.all(paths.map((one) => json(one, { signal })));
  const signatures = metadata.signature_def.signature_def;
  delete signatures.__saved_model_init_op; // TensorFlow's own, nobody's to ask
  model = { name, signatures, ...about };
  byId("version").textContent = `version ${model_spec.version}`;
  byId("classify-pair").hidden = !canPair(model.signatures);
  fillPicker(byId("layer"), upTo(model.config.num_hidden_layers));
  fillPicker(byId("head"), upTo(model.config.num_attention_heads));
  return offer();
}

// Offers the uses that the model fits and opens the one chosen before, if it is among them.
function offer() {
  const radios = [...uses.querySelectorAll("input")];
  for (const radio of radios) radio.parentElement.hidden = !USES[radio.value].fits(model.signatures);
  const offered = radios.filter((radio) => !radio.parentElement.hidden);
  const radio = offered.find((one) => one.checked) ?? offered[0];
  if (!radio) return [note(`This page knows no question to ${Object.keys(model.signatures).join(", ")}.`)];
  uses.hidden = false;
  radio.checked = true;
  open(radio.value);
  return [];
}

for (const form of forms) {
  form.querySelector("button").title = "Ctrl+Enter";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
uses.addEventListener("change", (event) => {
  clear();
  open(event.target.value);
});
modelPicker.addEventListener("change", () => {
  clear();
  show(() => load(modelPicker.value));
});
byId("layer").addEventListener("change", (event) => event.target.form.requestSubmit());
byId("insert-mask").addEventListener("click", () => {
  const text = byId("fill-text");
  text.setRangeText("[MASK]", text.selectionStart, text.selectionEnd, "end");
  text.focus();
});

show(async () => {
  const { models } = await json("v1/models");
  fillPicker(modelPicker, models);
  const none = "No model is served yet. recipes/export.py writes one; then load this page again.";
  return models.length > 0 ? load(models[0]) : [note(none)];
});

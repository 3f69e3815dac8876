"""The page, driven in a real browser, shows what the server answers."""

import re
import shutil
import threading
import time

import httpx
import keras
import numpy as np
import pytest
import tensorflow as tf
import uvicorn

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertClassifier, BertSpanPredictor, BertTagger
from kbert.model.pretraining import BertPretrainer
from kbert.serving import warm_up
from kbert.serving.batching import Batcher
from kbert.serving.export import export
from kbert.serving.models import Models
from kbert.serving.server import Metrics, new_application
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,<>/"]
BODY_BYTES = 20_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def named(model, *labels: str):
    model.labels = list(labels)
    return model


def make_models() -> dict:
    """Models of kbert's by name, with random weights."""
    keras.utils.set_random_seed(5)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "initializer_range": 0.6}
    config = BertConfig(**sizes)
    return {
        "blanks": BertPretrainer(BertConfig(**{**sizes, "num_hidden_layers": 2})),
        "colours": named(BertClassifier(Bert(config), num_labels=3), "red", "green", "<b>blue</b>"),
        "names": named(BertTagger(Bert(config), num_labels=5), "O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        "passages": BertSpanPredictor(Bert(config)),
    }


def functions_of_others() -> dict:
    """What others answer by model and signature, as it takes less time to make than a BERT of each kind."""
    text, rows = tf.TensorSpec([None], tf.string), tf.TensorSpec([None, None], tf.string)

    def of(signature, function, **inputs):
        specs = [tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()]
        return {signature: tf.function(function, input_signature=specs)}

    def length(text):
        return tf.cast(tf.strings.length(text), tf.float32)

    def mood(text):
        shares = tf.stack([tf.sigmoid(length(text) - 2.5), tf.sigmoid(length(text) - 1.5)], axis=1)
        return {"probabilities": shares, "label": tf.as_string(tf.argmax(shares, axis=1))}

    def choice(context, endings):
        shares = tf.nn.softmax(length(endings) - length(context)[:, None])
        return {"probabilities": shares, "choice": tf.argmax(shares, axis=1)}

    def vectors(text):
        return {"vectors": tf.stack([length(text), 2 - length(text), tf.ones_like(length(text))], axis=1)}

    def piece_vectors(text):
        pieces = tf.strings.split(text).to_tensor("")
        return {"pieces": pieces, "vectors": tf.stack([length(pieces) - 3, tf.ones_like(length(pieces))], axis=2)}

    values = of("serving_default", lambda text: {"value": length(text) / 7}, text=text)
    values |= of("pairs", lambda a, b: {"value": (length(a) - length(b)) / 7}, text_a=text, text_b=text)
    return {
        "alike": values,
        "endings": of("serving_default", choice, context=text, endings=rows),
        "moods": of("serving_default", mood, text=text),
        "pieces": of("serving_default", piece_vectors, text=text),
        "sums": of("serving_default", lambda x: {"sum": length(x)}, x=text),
        "vectors": of("serving_default", vectors, text=text),
    }


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[test]'")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser, one of {', '.join(BROWSERS)} (Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory):
    """The address of a server of the models."""
    folder, tokenizer = tmp_path_factory.mktemp("served"), WordPiece(VOCABULARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_up, "is_possible", lambda: False)  # they cost more than the few requests here
        for name, model in make_models().items():
            export(model, tokenizer, folder / name)
    for name, functions in functions_of_others().items():
        tf.saved_model.save(tf.Module(), folder / name / "1", signatures=functions)
    models, metrics = Models(folder), Metrics()
    models.look()
    application = new_application(models, Batcher(observe=metrics.batch), metrics, BODY_BYTES)
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page(browser, address):
    """The page, opened; whatever else it loads than its own, or complains of, fails the test."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    context.set_default_timeout(60_000)
    page, page.complaints = context.new_page(), []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.complaints.append(request.url) if address not in request.url else None)
    page.goto(address)
    yield page
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "it fits a telephone"
    context.close()


def predict(address: str, model: str, signature: str = "serving_default", **inputs) -> dict:
    """What the server itself answers; of one output its values."""
    request = {"signature_name": signature, "inputs": inputs}
    return (
        httpx.post(f"{address}v1/models/{model}:predict", json=request, timeout=60).raise_for_status().json()["outputs"]
    )


def ask(page, model: str, use: str, **fields: str) -> list[str]:
    """Asks a model with the page's form; returns the lines of the answer."""
    page.get_by_label("Model", exact=True).select_option(model)
    page.get_by_label(use).check()
    for name, text in fields.items():
        page.locator(f"form:visible [name={name}]").fill(text)
    page.get_by_role("textbox").last.press("Control+Enter")
    return answer_of(page)


def answer_of(page) -> list[str]:
    page.get_by_role("status").filter(has_text=re.compile(r"^Answered in [\d.]+ ms$")).wait_for()
    return [line.strip() for line in page.locator("#answer").inner_text().split("\n") if line.strip()]


def cosine(a, b) -> float:
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def bars(names: list[str], shares: list[float]) -> list[str]:
    """Bars as the page writes them, the highest first."""
    rows = sorted(zip(names, shares, strict=True), key=lambda row: -row[1])
    return [cell for name, share in rows for cell in (name, percent(share))]


def test_each_blank_has_bars_of_the_models_pieces(page, address):
    text = "a [MASK] c <[MASK]>"
    answer = predict(address, "blanks", text=[text])
    expected = []
    for n in (0, 1):
        expected += [f"[MASK] {n + 1}", *bars(answer["pieces"][0][n], answer["probabilities"][0][n])]
    assert ask(page, "blanks", "Fill a blank", text=text) == expected
    widths = page.evaluate("Array.from(document.querySelectorAll('.bar'), bar => bar.style.inlineSize)")
    shares = [share for row in answer["probabilities"][0] for share in row]
    assert [float(width.rstrip("%")) for width in widths] == pytest.approx([100 * share for share in shares], rel=1e-3)
    page.get_by_role("textbox").fill("a ")
    page.get_by_role("button", name="Insert [MASK]").click()
    assert page.get_by_role("textbox").input_value() == "a [MASK]"
    assert ask(page, "blanks", "Fill a blank", text="a b") == ["The text has no [MASK]."]
    lines = ask(page, "blanks", "Fill a blank", text="[MASK] " + "a " * 70 + "[MASK]")
    assert lines[0] == "[MASK] 1" and len(lines) == 1 + 2 * 5 + 1
    assert lines[-1] == "The text is longer than what the model reads: the last 1 [MASK] are not answered."


def test_labels_have_bars_with_their_names_for_a_text_and_for_a_pair(page, address):
    names = ["red", "green", "<b>blue</b>"]
    for fields, signature, inputs in (
        ({"text": "a b"}, "serving_default", {"text": ["a b"]}),
        ({"text": "a b", "second": "c"}, "pairs", {"text_a": ["a b"], "text_b": ["c"]}),
    ):
        answer = predict(address, "colours", signature, **inputs)
        lines = ask(page, "colours", "Classify or rate", **fields)
        assert lines == bars(names, answer["probabilities"][0])
        assert lines[0] == answer["label"][0]
    answer = predict(address, "moods", text=["a b"])["probabilities"][0]
    told = "Each label is there or not on its own: they do not add up to 100%."
    assert ask(page, "moods", "Classify or rate", text="a b") == [*bars(["0", "1"], answer), told]
    value = predict(address, "alike", text=["a b"])[0]
    assert ask(page, "alike", "Classify or rate", text="a b", second="") == ["Value", f"{value:.4f}"]


def test_an_answer_is_marked_where_it_stands_though_emojis_come_before_it(page, address):
    asked = [("a b", f"\U0001f600\U0001f6a2 x {letter}\n\U0001f600 <i>b</i> c d. {letter} e" * 3) for letter in LETTERS]
    columns = zip(*asked, strict=True)
    answers = predict(address, "passages", **dict(zip(("question", "passage"), map(list, columns), strict=True)))
    n = next(n for n, start in enumerate(answers["start"]) if start > 10)
    answer, (question, passage) = {name: values[n] for name, values in answers.items()}, asked[n]
    ask(page, "passages", "Ask a passage", question=question, passage=passage)
    assert page.locator("mark").all_text_contents() == [answer["answer"]] == [passage[answer["start"] : answer["end"]]]
    before = page.evaluate("document.querySelector('mark').previousSibling.data")
    assert before == passage[: answer["start"]] and "\U0001f600" in before
    assert page.locator(".marked").text_content() == passage and page.locator("#answer i").count() == 0
    told = [answer["answer"], f"{answer['score']:.2f}", percent(answer["no_answer_probability"])]
    assert page.locator("dt").all_text_contents() == ["Answer", "Score", "No answer"]
    assert page.locator("dd").all_text_contents() == told
    assert ask(page, "passages", "Ask a passage", passage="")[:2] == ["Answer", "none"]
    assert page.locator("mark").count() == 0


def test_entities_are_marked_with_their_types_and_a_legend(page, address):
    texts = [" \U0001f600  " + f" {a}. ".join(b + c for b in "xyz" for c in (" ", "yz,")) for a in LETTERS]
    answers = predict(address, "names", text=texts)
    n = next(n for n, kinds in enumerate(answers["entity_types"]) if {"PER", "LOC"} <= set(kinds))
    text, answer = texts[n], {name: [one for one in values[n] if one != ""] for name, values in answers.items()}
    ask(page, "names", "Find entities", text=text)
    marks = [f"{one} {kind}" for one, kind in zip(answer["entity_texts"], answer["entity_types"], strict=True)]
    assert page.locator("mark").all_text_contents() == marks
    legend = [f"{kind} {answer['entity_types'].count(kind)}" for kind in ("LOC", "PER")]
    assert page.locator(".legend li").all_text_contents() == legend
    without_types = "Array.from(document.querySelector('.marked').childNodes, n => (n.firstChild ?? n).data).join('')"
    assert page.evaluate(without_types) == text
    colours = page.evaluate("Array.from(document.querySelectorAll('mark'), m => getComputedStyle(m).backgroundColor)")
    assert len(set(zip(answer["entity_types"], colours, strict=True))) == len(set(colours)) == 2


def test_two_texts_are_compared_by_what_the_model_can(page, address):
    pair, fields = {"text_a": ["a b"], "text_b": ["c d e"]}, {"first": "a b", "second": "c d e"}
    use = "Compare two texts"
    yes, no = predict(address, "blanks", "next_sentence", **pair)[0]
    expected = ["Does the second text follow the first?", "yes", percent(yes), "no", percent(no)]
    assert ask(page, "blanks", use, **fields) == expected
    lines = ["Cosine similarity", f"{cosine(*predict(address, 'vectors', text=['a b', 'c d e'])):.4f}"]
    assert ask(page, "vectors", use, **fields) == lines
    answer = predict(address, "pieces", text=["a b", "c d e"])
    assert answer["pieces"] == [["a", "b", ""], ["c", "d", "e"]], "the filling is not one of the pieces"
    means = np.mean(answer["vectors"][0][:2], axis=0), np.mean(answer["vectors"][1], axis=0)
    told = "Of the means of the vectors of each text's pieces."
    assert ask(page, "pieces", use, **fields) == ["Cosine similarity", f"{cosine(*means):.4f}", told]
    answer = predict(address, "colours", "pairs", **pair)["probabilities"][0]
    assert ask(page, "colours", use, **fields) == bars(["red", "green", "<b>blue</b>"], answer)
    assert ask(page, "alike", use, **fields) == ["Value", f"{predict(address, 'alike', 'pairs', **pair)[0]:.4f}"]


def test_endings_have_a_bar_each(page, address):
    answer = predict(address, "endings", context=["a"], endings=[["b c", "d", "e f"]])["probabilities"][0]
    lines = ask(page, "endings", "Choose an ending", context="a", endings="b c\nd\n\ne f\n")
    cells = zip(("b c", "d", "e f"), map(percent, answer), strict=True)
    assert lines == [cell for row in cells for cell in row]


def test_attention_of_a_head_of_a_layer_is_drawn(page, address):
    text = "a bc [MASK] d"
    answers = [predict(address, "blanks", "attention", text=[text], layer=[layer]) for layer in (1, 2)]
    pieces = ["[CLS]", "a", "b", "##c", "[MASK]", "d", "[SEP]"]
    assert answers[0]["pieces"] == [pieces] and np.abs(np.subtract(*(a["attention"] for a in answers))).max() > 0.1
    ask(page, "blanks", "See attention", text=text)
    assert page.locator(".to .piece").all_text_contents() == pieces
    assert page.locator("#layer option").all_text_contents() == page.locator("#head option").all_text_contents()

    def lines() -> str:
        drawn = page.locator(".lines path").evaluate_all("paths => paths.map(path => path.getAttribute('d'))")
        return "".join(drawn)

    strong = np.array(answers[0]["attention"])[0, 0] >= 0.99 / len(pieces)
    expected = {f"M0 {a + 0.5}C.4 {a + 0.5} .6 {b + 0.5} 1 {b + 0.5}" for a, b in np.argwhere(strong)}
    assert {f"M{line}" for line in lines().split("M")[1:]} == expected
    for layer, head in ((1, 1), (1, 2), (2, 2)):
        page.get_by_label("Layer").select_option(str(layer))
        answer_of(page)
        page.locator(".from").get_by_label("##c").check()
        page.get_by_label("Head").select_option(str(head))
        row = answers[layer - 1]["attention"][0][head - 1][3]
        assert page.locator(".to .number").all_text_contents() == [percent(share) for share in row]
        assert lines().count("M0 3.5C") == lines().count("M") == sum(share > 0 for share in row)


def test_what_the_server_refuses_is_shown_as_it_says_it(page, address):
    ask(page, "names", "Find entities", text="a b")
    page.get_by_role("textbox").fill("x" * BODY_BYTES)
    page.get_by_role("button", name="Find entities").click()
    alert = page.get_by_role("alert").filter(has_text=re.compile(".")).text_content()
    assert re.fullmatch(r"the body has 20\d+ bytes, expected at most 20000; send less at a time", alert)
    assert page.locator("#answer").inner_text() == "" and page.get_by_role("status").text_content() == ""
    assert [one for one in page.complaints if "413" not in one] == []
    ask(page, "names", "Find entities", text="a b")
    assert page.get_by_role("alert").text_content() == ""
    page.context.set_offline(True)
    page.get_by_role("button", name="Find entities").click()
    page.get_by_role("alert").filter(has_text="The server does not answer. Is it running?").wait_for()
    page.complaints.clear()


def test_an_answer_that_comes_late_is_not_shown_to_another_question(page, address):
    held = []
    page.get_by_label("Model", exact=True).select_option("blanks")
    page.route(re.compile(":predict$"), lambda route: held.append(route))
    for text in ("a [MASK]", "b [MASK]"):
        with page.expect_request(re.compile(":predict$")):
            page.locator("#fill-text").fill(text)
            page.get_by_role("button", name="Fill in").click()
    for route in reversed(held):
        route.continue_()
    answer = predict(address, "blanks", text=["b [MASK]"])
    expected = ["[MASK] 1", *bars(answer["pieces"][0][0], answer["probabilities"][0][0])]
    assert answer_of(page) == expected
    page.wait_for_timeout(200)
    assert answer_of(page) == expected


def test_a_model_is_offered_the_questions_that_it_can_answer(page):
    can = {
        "alike": ["Classify or rate", "Compare two texts"],
        "blanks": ["Fill a blank", "Compare two texts", "See attention"],
        "colours": ["Classify or rate", "Compare two texts", "See attention"],
        "endings": ["Choose an ending"],
        "moods": ["Classify or rate"],
        "names": ["Find entities", "See attention"],
        "passages": ["Ask a passage", "See attention"],
        "pieces": ["Compare two texts"],
        "sums": [],
        "vectors": ["Compare two texts"],
    }
    picker = page.get_by_label("Model", exact=True)
    assert picker.locator("option").all_text_contents() == list(can)
    for model, uses in can.items():
        picker.select_option(model)
        page.locator("#version:not(:empty)").wait_for()
        assert [label.strip() for label in page.locator("#uses label:visible").all_text_contents()] == uses
        assert page.locator("form:visible").count() == (1 if uses else 0)
        told = "This page knows no question to serving_default." if model == "sums" else ""
        assert page.locator("#answer").inner_text() == told
    fields = page.locator("input, select, textarea").evaluate_all("all => all.map(field => field.labels.length)")
    assert len(fields) > 10 and set(fields) == {1}


def test_it_is_dark_where_that_is_preferred(page):
    colours = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(23, 23, 27)"]

"""What a recipe tells stands on the screen as it is."""

from kbert import report


def test_names_with_brackets_are_printed_as_they_are(capsys):
    report.table("Scores", {"dev: [bold]": 0.5, "[/B-X]": ("[red]", 2)})
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("dev: [bold]", "[/B-X]", "[red]", "0.5"))

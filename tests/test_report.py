"""What a recipe tells stands on the screen as it is."""

from kbert import report


def test_names_with_brackets_are_printed_as_they_are(capsys):
    report.table("Scores", {"dev: [bold]": 0.5, "[/B-X]": ("[red]", 2)})
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("dev: [bold]", "[/B-X]", "[red]", "0.5"))


def test_a_large_number_has_no_exponent():
    numbers = (0.0012345, 0.12345, 1234.5, 9_999.4, 9_999.5, 10_412.3, 1_290_000.0)
    told = ["0.001234", "0.1235", "1,234", "9,999", "10,000", "10,412", "1,290,000"]
    assert [report.four_figures(number) for number in numbers] == told

"""What a limit is made of: matrix products, each alone, in every form that a library has for it."""

from collections.abc import Callable


def timed(products: list[dict], forms: dict, random: Callable, seconds: Callable) -> dict:
    """A round: the seconds of all products in their fastest forms, and of each form.

    forms: by name whether the left and the right factor lie across, and the function; random: a shape to a factor, or
    to several; seconds: what function takes of two such.
    """
    told = {}
    for product in products:
        batch = [product["batch"]] if product["batch"] > 1 else []
        m, n, k = product["m"], product["n"], product["k"]
        told[product["name"]] = {}
        for form, (left_across, right_across, function) in forms.items():
            left = random([*batch, *((k, m) if left_across else (m, k))])
            right = random([*batch, *((n, k) if right_across else (k, n))])
            told[product["name"]][form] = seconds(function, left, right)
    best = {name: min(found.values()) for name, found in told.items()}
    return {"seconds": sum(best[product["name"]] * product["times"] for product in products), "forms": told}

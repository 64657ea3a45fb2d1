"""Inputs made to break a grader; test_verify.py judges them, bench.py times them."""


def hostile() -> dict[str, str]:
    """Responses made to hang, crash or overflow a grader."""
    wrap, n = lambda answer: "\\boxed{" + answer + "}", 20_000
    return {
        "tower": wrap("9^{9^{9^{9^9}}}"), "long tower": wrap("9^" * 900 + "9"), "factorials": wrap("(9!)!!"), "bangs": wrap("3" + "!" * 1900),
        "binomial": wrap("\\binom{10^9}{5\\cdot10^8}"), "power": wrap("(1+1/10^6)^{10^6}"), "powers": wrap("99999^999*" * 300 + "1"),
        "parentheses": wrap("(" * 10_000 + "1" + ")" * 10_000), "fewer parentheses": wrap("(" * 1900 + "1" + ")" * 1900),
        "braces": wrap("{" * 10_000 + "1" + "}" * 10_000), "sets": wrap("\\{" * 900 + "1" + "\\}" * 900), "roots": wrap("\\sqrt" * 700 + "2"),
        "fractions": wrap("\\frac{1}{" * 10_000 + "2" + "}" * 10_000), "fewer fractions": wrap("\\frac" * 700), "minus": wrap("-" * 3900 + "1"),
        "boxes": "\\boxed{" * 10_000 + "5" + "}" * 10_000, "open boxes": "\\boxed{" * n, "digits": wrap("7" * 200_000), "3,900 digits": wrap("7" * 3900),
        "exponents": wrap("2.0e9999+" * 400 + "1"), "ones": "1 " * n, "brackets": "\\[" * n, "dollars": "$" * n, "equals": wrap("=1" * n),
        "fewer equals": wrap("1=" * 1900 + "1"), "null": wrap("\0" * 100), "surrogates": wrap("\ud800\udfff") * 100, "variables": wrap("x+" * 1900 + "x"),
        "sum": wrap("1/3+" * 900 + "1"), "list": wrap("1," * 1900 + "1"), "polynomials": wrap(",".join(f"(x+{i})^5" for i in range(60))),
        "signs": wrap("\\pm 1," * 500 + "1"), "bars": wrap("|" * 3900), "sines": wrap("\\sin " * 700 + "x"), "chain": wrap("x<" * 900 + "x"),
        "matrix": wrap("\\begin{pmatrix}" + "1&" * 900 + "\\\\" * 300 + "\\end{pmatrix}"), "units": wrap("5 " + "square " * 500 + "m"),
        "union": wrap("(0,1)\\cup" * 300 + "(1,2)"), "texts": wrap("\\text{" * 600 + "}" * 600), "mixed": wrap("1 1/2 " * 600),
        "1 MB of letters": "a" * 10**6, "1 MB of digits": "1" * 10**6, "1 MB after a box": wrap("5") + "x" * 10**6, "1 MB of backslashes": "\\" * 10**6,
        "1 MB of boxes": "\\boxed{" * 150_000, "1 MB after the answer": "the answer is: $" + "x" * 10**6}

"""Inputs designed to break a grader, for test_hostile.py and benchmarks/graders.py."""

from functools import cache


@cache
def hostile() -> dict[str, str]:
    """Responses designed to hang, crash or overflow a grader, by name."""
    return {
        **long_computations(),
        **deep_nestings(),
        **long_answers(),
        **long_responses(),
        **repeated_fragments(),
        **megabytes(),
    }


def box(answer: str) -> str:
    return "\\boxed{" + answer + "}"


def long_computations() -> dict[str, str]:
    """Short expressions for numbers too large to write out, and long sums and products."""
    polynomials = ",".join(f"(x+{i})^5" for i in range(60))
    return {
        "tower": box("9^{9^{9^{9^9}}}"),
        "long tower": box("9^" * 900 + "9"),
        "factorials": box("(9!)!!"),
        "bangs": box("3" + "!" * 1900),
        "binomial": box("\\binom{10^9}{5\\cdot10^8}"),
        "power": box("(1+1/10^6)^{10^6}"),
        "powers": box("99999^999*" * 300 + "1"),
        "exponents": box("2.0e9999+" * 400 + "1"),
        "variables": box("x+" * 1900 + "x"),
        "sum": box("1/3+" * 900 + "1"),
        "polynomials": box(polynomials),
    }


def deep_nestings() -> dict[str, str]:
    """Recursion: nested brackets, arguments and operators."""
    return {
        "parentheses": box("(" * 10_000 + "1" + ")" * 10_000),
        "fewer parentheses": box("(" * 1900 + "1" + ")" * 1900),
        "braces": box("{" * 10_000 + "1" + "}" * 10_000),
        "sets": box("\\{" * 900 + "1" + "\\}" * 900),
        "roots": box("\\sqrt" * 700 + "2"),
        "fractions": box("\\frac{1}{" * 10_000 + "2" + "}" * 10_000),
        "fewer fractions": box("\\frac" * 700),
        "minus": box("-" * 3900 + "1"),
        "boxes": "\\boxed{" * 10_000 + "5" + "}" * 10_000,
        "open boxes": "\\boxed{" * 20_000,
        "bars": box("|" * 3900),
        "sines": box("\\sin " * 700 + "x"),
        "texts": box("\\text{" * 600 + "}" * 600),
    }


def long_answers() -> dict[str, str]:
    """Many members, signs or digits: work that grows faster than the text."""
    matrix = "\\begin{pmatrix}" + "1&" * 900 + "\\\\" * 300 + "\\end{pmatrix}"
    return {
        "digits": box("7" * 200_000),
        "3,900 digits": box("7" * 3900),
        "equals": box("=1" * 20_000),
        "fewer equals": box("1=" * 1900 + "1"),
        "null": box("\0" * 100),
        "surrogates": box("\ud800\udfff") * 100,
        "list": box("1," * 1900 + "1"),
        "signs": box("\\pm 1," * 500 + "1"),
        "chain": box("x<" * 900 + "x"),
        "matrix": box(matrix),
        "units": box("5 " + "square " * 500 + "m"),
        "union": box("(0,1)\\cup" * 300 + "(1,2)"),
        "mixed": box("1 1/2 " * 600),
    }


def long_responses() -> dict[str, str]:
    """Text without an obvious answer, on which a regular expression may backtrack."""
    return {
        "ones": "1 " * 20_000,
        "brackets": "\\[" * 20_000,
        "dollars": "$" * 20_000,
        "1 MB of letters": "a" * 10**6,
        "1 MB of digits": "1" * 10**6,
        "1 MB after a box": box("5") + "x" * 10**6,
        "1 MB of backslashes": "\\" * 10**6,
        "1 MB of boxes": "\\boxed{" * 150_000,
        "1 MB after the answer": "the answer is: $" + "x" * 10**6,
    }


# Fragments whose repetition may make a pattern backtrack.
FRAGMENTS = (
    *("{", "}", "{}", "(", "[", "|", "^", "^{", "2^", "_", "\\", "\\\\", "&", "%", "$", "#", "~"),
    *("1", "1,", "1,234,", "1 ", "1 234 ", "1.", ".", ",", ";", ":", "-", "+", "=", "<", "x", "xy"),
    *(
        "\\frac",
        "\\frac{1}",
        "\\sqrt",
        "\\sqrt[",
        "\\text{",
        "\\text{ and }",
        "\\text{not}",
        "\\left(",
    ),
    *(
        "\\quad",
        "\\,",
        "\\ ",
        "\\pm",
        "\\cup",
        "\\in",
        "\\approx",
        "\\circ",
        "\\overline{",
        "\\lfloor",
    ),
    *(
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "f(",
        "f(x)",
        "x=",
        "x<",
        "1/",
        "1!",
        "e^",
        "|x",
        "n^n",
    ),
    *(
        " and ",
        " or ",
        " cm",
        " square",
        "square meters per ",
        "\\%",
        "0.\\overline{3}",
        "1\\frac{1}{2}",
    ),
    *(
        "²",
        "−",
        "√",
        "π",
        "∞",
        "½",
        "٣",
        "１",
        "𝟏",
        "é",
        "e\u0301",
        "\u200b",
        "\u202e",
        "\u00a0",
        "😀",
    ),
)


def repeated_fragments() -> dict[str, str]:
    """Answers of maximum length, each of which repeats one fragment."""
    answers = {}
    for fragment in FRAGMENTS:
        answers[f"{fragment!r} over and over"] = box(fragment * (3900 // len(fragment)))
    return answers


def megabytes() -> dict[str, str]:
    """One-megabyte responses: a repeated fragment, with and without a box."""
    longer = (
        *(
            "{",
            "^",
            ",",
            "1,",
            "2^{",
            "\\",
            "1 ",
            " ",
            "\n",
            ".",
            "²",
            "😀",
            "e\u0301",
            "\\quad",
            "\\text{",
        ),
        *(
            "\\boxed{1} and ",
            "\\boxed{1}\\quad",
            "\\boxed",
            "\\fbox{\\boxed{",
            "**Final Answer:** ",
            "answer is ",
        ),
        *("\\(", "\\(x\\)", "\\[x", "$x$ and ", "$$", "1,234", "-1/", "1.5%", "answer: $"),
    )
    responses = {}
    for fragment in longer:
        megabyte = fragment * (10**6 // len(fragment))
        responses[f"1 MB of {fragment!r}"] = megabyte
        responses[f"1 MB of {fragment!r} in a box"] = box(megabyte)
    responses["1 MB of nested braces in a box"] = box("{" * 500_000 + "5" + "}" * 500_000)
    responses["1 MB of nested brackets"] = "(" * 500_000 + "5" + ")" * 500_000
    return responses

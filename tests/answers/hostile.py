"""Responses designed to hang, crash or overflow a grader, for test_hostile.py."""

from tables import boxed

from answers.extraction import MAX_RESPONSE

# Fragments whose repetition may make a pattern backtrack.
FRAGMENTS = r"""
    { } {} ( [ | ^ ^{ 2^ 2^{ _ \ \\ & % $ $$ # ~ . , ; : - + = < 1 1, 1,234, 1. x xy 1/ 1! -1/
    \frac \frac{1} \sqrt \sqrt[ \text{ \text{not} \left( \quad \, \pm \cup \in \approx \circ
    \lfloor \begin{pmatrix} \end{pmatrix} \( \[x \(x\) f( f(x) x= x< e^ |x n^n \% 0.\overline{3}
    1\frac{1}{2} ² − √ π ∞ ½ ٣ １ 𝟏 é 😀 \boxed \boxed{1}\quad \fbox{\boxed{ 1.5% $x$ \overline{
"""
WITH_SPACES = (  # separated by |
    "1 |1 234 | |\n|\\ | and | or | cm| square|square meters per |\\text{ and }|\\boxed{1} and |"
    "**Final Answer:** |answer is |$x$ and |but so |e\u0301|\u200b|\u202e|\u00a0|answer: $|"
    "<answer>|<think>|So = 5 "
)

BOXED = {
    # Short expressions for numbers too large to write out, and long sums and products.
    "tower": "9^{9^{9^{9^9}}}",
    "long tower": "9^" * 900 + "9",
    "factorials": "(9!)!!",
    "bangs": "3" + "!" * 1900,
    "binomial": "\\binom{10^9}{5\\cdot10^8}",
    "power": "(1+1/10^6)^{10^6}",
    "powers": "99999^999*" * 300 + "1",
    "exponents": "2.0e9999+" * 400 + "1",
    "variables": "x+" * 1900 + "x",
    "sum": "1/3+" * 900 + "1",
    "fractions of primes": "+".join(f"1/{n}^{{99}}" for n in range(1001, 1060, 2)),
    "polynomials": ",".join(f"(x+{i})^5" for i in range(60)),
    "roots of names": "+".join(f"\\sqrt{{x-{i}}}" for i in range(60)),
    "functions": "+".join(f"\\sin(x/{i})" for i in range(2, 50)) + "+\\ln(-x^2-1)",
    "few functions": "+".join(f"\\sin(x/{i})" for i in range(2, 11)) + "+\\ln(-x^2-1)",
    # Nested brackets, arguments and operators.
    "parentheses": "(" * 1900 + "1" + ")" * 1900,
    "more parentheses": "(" * 10_000 + "1" + ")" * 10_000,
    "braces": "{" * 10_000 + "1" + "}" * 10_000,
    "sets": "\\{" * 900 + "1" + "\\}" * 900,
    "roots": "\\sqrt" * 700 + "2",
    "fractions": "\\frac{1}{" * 300 + "2" + "}" * 300,
    "minus": "-" * 3900 + "1",
    "sines": "\\sin " * 700 + "x",
    "texts": "\\text{" * 600 + "}" * 600,
    # Many members, signs or digits: work that grows faster than the text.
    "digits": "7" * 3900,
    "more digits": "7" * 200_000,
    "equals": "1=" * 190 + "1",
    "null": "\0" * 100,
    "list": "1," * 60 + "1",
    "different members": ",".join(f"\\sqrt{{{n}}}" for n in range(60)),
    "signs": "\\pm 1," * 60 + "1",
    "chain": "x<" * 60 + "x",
    "short chain": "x<" * 25 + "x",
    "short list": "\\pm x," * 8 + "x",
    "matrix": "\\begin{pmatrix}" + "1&" * 60 + "\\\\" * 30 + "\\end{pmatrix}",
    "units": "5 " + "square " * 500 + "m",
    "union": "(0,1)\\cup" * 40 + "(1,2)",
    "mixed": "1 1/2 " * 600,
}


def hostile() -> dict[str, str]:
    """Responses by name."""
    responses = {name: boxed(answer) for name, answer in BOXED.items()}
    for fragment in (*FRAGMENTS.split(), *WITH_SPACES.split("|")):
        responses[f"4 kB of {fragment!r}"] = boxed(fragment * (3900 // len(fragment)))
        longest = fragment * ((MAX_RESPONSE - 10) // len(fragment))
        responses[f"200 kB of {fragment!r}"] = longest
        responses[f"200 kB of {fragment!r} behind a box"] = boxed("8") + longest
    responses["200 kB of letters"] = "a" * MAX_RESPONSE
    responses["1 MB behind an answer"] = boxed("57") + "x" * 10**6
    responses["nested brackets"] = "(" * 190_000 + "5" + ")" * 190_000
    for name, answer in BOXED.items():
        several = " and ".join(boxed(f"{answer}+{i}") for i in range(32))
        responses[f"32 boxes of {name}"] = several
        responses[f"{name} restated"] = boxed("57") + f". So it is ${answer[:99]}$." * 9
    responses["nested boxes"] = "\\boxed{" * 50_000 + "5" + "}" * 50_000
    return responses

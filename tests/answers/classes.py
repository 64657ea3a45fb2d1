r"""Classes of responses that graders often wrongly accept or reject: (response, gold, right).

The golds resemble the public sets MATH, OlympiadBench and AIME (data/outside.jsonl). Each
class is a generator function that uses many golds; `right` says whether the response is right.
"""

import json
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parent / "data" / "outside.jsonl"
OUTSIDE = [json.loads(line) for line in FILE.read_text().splitlines()]
INTEGERS = [entry["gold"] for entry in OUTSIDE if entry["form"] == "integer"]
POSITIVE = [gold for gold in INTEGERS if not gold.startswith("-")]

Case = tuple[str, str, bool]


def golds(*forms: str) -> list[str]:
    return [entry["gold"] for entry in OUTSIDE if entry["form"] in forms]


def boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def pairs(right: bool, *many: tuple[str, str]) -> Iterator[Case]:
    """Boxed answers with their golds, in both directions."""
    for answer, gold in many:
        yield boxed(answer), gold, right
        yield boxed(gold), answer, right


# ---- false credit: the position of the answer ----------------------------------------------------


def tail_of_an_expression() -> Iterator[Case]:
    """An unboxed number counts only if it is not part of an expression."""
    for n in POSITIVE[:20]:
        for text in (
            f"so it is 2√{n}",
            f"the area is {n}π",
            f"we get {n}π",
            f"this equals 3^{n}",
            f"we get 7·{n}",
            f"we get 7*{n}",
            f"we have x > {n}",
            f"we get x >= {n}",
            f"it is at least {n}",
            f"it is more than {n}",
            f"we get 3 or {n}",
            f"we get {n} or 3",
            f"we get {n} million",
            f"it is {n} billion",
            f"we get {n}x",
            f"so $x$ < {n}",
            f"so x ≠ {n}",
            f"we get {n}!",
            f"in base {n}",
            f"which is 1.{n}e",
            f"so the ratio is 3:{n}",
            f"it is not {n}",
            f"it is about {n}",
            f"we get -{n}",
            f"so $a$ is 5+{n}",
            f"so it is √{n}",
            f"we find 1/{n}",
            f"we find {n}/7",
        ):
            if not text.endswith("!"):  # ambiguous: an exclamation or a factorial
                yield text, n, False
        yield f"we get {n}", n, True
        yield f"so it is {n}.", n, True
        yield f"Therefore there are {n} ways", n, True
        yield f"thus $x={n}$", n, True
        yield f"so x = {n}", n, True
    for gold in golds("fraction", "radical", "constant"):
        yield f"so it is ${gold}$.", gold, True
        yield f"so it is $5+{gold}$.", gold, False
        yield f"it is not ${gold}$", gold, False


def thoughts_that_are_not_finished() -> Iterator[Case]:
    for n in INTEGERS[:20]:
        for text in (
            f"Let us consider case {n}",
            f"Let me try {n}",
            f"Now suppose that x = {n}",
            f"Next we look at step {n}",
            f"by equation {n}",
            f"If the radius is {n}",
            f"We need to check whether it is {n}",
            f"Assume $n = {n}$",
            f"Consider ${n}$",
            f"so we have \\boxed{{{n}",
            f"\\boxed{{\\frac{{1}}{{{n}}}",
            f"The answer is \\boxed{{{n}",
            f"The answer is {n}. So \\boxed{{\\text{{no",
            f"It might be {n}",
            f"Maybe it is {n}",
            f"When x is {n}",
        ):
            yield text, n, False


def before_the_end_of_thoughts() -> Iterator[Case]:
    for gold in golds("integer", "fraction", "radical", "expression")[:40]:
        box = boxed(gold)
        yield f"Is it {box}? </think> I do not know.", gold, False
        yield f"<think>It is {box}.</think>", gold, False
        yield f"<think>It is {box}.", gold, False
        yield f"The answer is ${gold}$.</think>\nThe answer is $987$.", gold, False
        yield f"{box}</think>\n\n{boxed('987')}", gold, False
        yield f"<think>{boxed('987')}</think>\n\nThe answer is {box}.", gold, True
        yield f"{boxed('987')}</think>{box}", gold, True


def boxes_taken_back() -> Iterator[Case]:
    for gold in golds("integer", "fraction", "radical")[:40]:
        box = f"${boxed(gold)}$"
        for text in (
            f"{box}. Wait, that is wrong.",
            f"{box}. But this is not right.",
            f"{box}\n\nHmm, this can't be correct.",
            f"{box} No, that is a mistake.",
            f"The answer is {box}. Actually, I made an error.",
            f"{box} is incorrect since it fails the second condition: that value is invalid.",
            f"{box}. However, the result contradicts the first condition.",
            f"{box} -- scratch that.",
            f"{box}. Ignore that; the answer is 987.",
            f"{box}. Actually the answer is 987.",
            f"{box}. Sorry, it should be 987.",
            f"{box}, but I doubt it.",
            f"{box} (which is impossible)",
            f"{box}. Let me recheck: 987 works too.",
            f"{box} or 987",
            f"{box} or $987$",
            f"{box} unless n = 3",
            f"{box} if n is even",
            f"{box} million",
        ):
            yield text, gold, False
        for text in (
            f"{box}. This completes the proof.",
            f"{box}.\n\nI hope this helps!",
            f"{box} is the only value that works.",
            f"{box}, as required.",
            f"Wait, that is wrong. It should be {box}.",
            f"The answer is not 987 but {box}.",
            f"{box} square units.",
            f"{box}\n\nThe final answer is {box}.",
            f"{box} ■",
        ):
            yield text, gold, True


def several_boxes() -> Iterator[Case]:
    for gold in golds("integer", "fraction", "radical")[:40]:
        box = f"${boxed(gold)}$"
        other = f"${boxed('987')}$"
        for a, b in ((box, other), (other, box)):
            for text in (
                f"{a} or {b}",
                f"{a} and {b}",
                f"either {a} or else {b}",
                f"{a} if n is even and {b} if n is odd",
                f"{a} when x > 0, otherwise {b}",
                f"minimum: {a}, maximum: {b}",
                f"(a) {a} (b) {b}",
                f"(a) {a}\n(b) {b}",
                f"**Part 1:** {a}\n\n**Part 2:** {b}",
                f"for even n: {a}; for odd n: {b}",
                f"The sum is {a}. The product is {b}.",
                f"{a} (case 1), {b} (case 2)",
                f"{a} / {b}",
            ):
                yield text, gold, False
        yield f"I thought {other}. That is wrong, so it is {box}.", gold, True
        yield f"First we get {other}; then, adding the rest, we find {box}.", gold, True
        yield f"So {box}. Therefore the answer is {box}.", gold, True


def decimals_without_a_zero() -> Iterator[Case]:
    for digits in ("5", "25", "125", "75", "05"):
        for text in (
            f"The answer is .{digits}",
            f"The answer is .{digits}.",
            f"**Answer:** .{digits}",
            f"Final answer: .{digits}",
            f"so x = .{digits}",
            f"it is .{digits}",
            boxed(f".{digits}"),
        ):
            yield text, digits.lstrip("0"), False
            yield text, f"0.{digits}", True
        yield f"The answer is -.{digits}", f"-0.{digits}", True
        yield f"The answer is -.{digits}", f"0.{digits}", False


# ---- false credit: the value of the answer -------------------------------------------------------


def letter_case_and_order() -> Iterator[Case]:
    products = (
        "mgh",
        "qvB",
        "Mgh",
        "qVB",
        "nRT",
        "PV",
        "kT",
        "abc",
        "mc",
        "IR",
        "Gm",
        "xyz",
        "bvl",
    )
    for letters in products:
        for other in {letters.swapcase(), letters.capitalize(), letters.upper(), letters.lower()}:
            if other != letters:
                yield from pairs(False, (letters, other))
        yield from pairs(True, (letters, letters[::-1]), (letters, " ".join(letters)))
    anagrams = ("odd dod", "even neve", "yes sey", "listen silent", "east seat", "No on")
    for pair in anagrams:
        a, b = pair.split()
        yield from pairs(False, (a, b), (a, f"\\text{{{b}}}"), (f"\\text{{{a}}}", f"\\text{{{b}}}"))
    for word in ("Yes", "Evelyn", "even", "ellipse", "Monday", "no solution", "east"):
        for other in (
            word.lower(),
            word.upper(),
            f"\\text{{{word}}}",
            f"\\textbf{{{word.lower()}}}",
        ):
            yield boxed(other), f"\\text{{{word}}}", True


def units_that_differ() -> Iterator[Case]:
    different = """
        MeV/meV MPa/mPa MW/mW Mm/mm MHz/mHz MJ/mJ MV/mV mg/Mg GeV/MeV kPa/MPa nm/mm cm/mm kg/g
        light_years/years nautical_miles/miles US_gallons/gallons fluid_ounces/ounces
        board_feet/feet m^2/m cm^3/cm^2 square_meters/meters m/s/s/m
        miles_per_gallon/gallons_per_mile
        apples_per_child/children_per_apple km/h/h/km N/m/N*m man_hours/hours metric_tons/tons
        degree_days/days kWh/kW half_days/days million_dollars/dollars cents/dollars
        dollars_per_hour/dollars newton_meters/newtons feet/inches hours/minutes ms/s
    """
    for pair in different.split():
        parts = pair.split("/")
        half = len(parts) // 2
        a, b = [" ".join("/".join(side).split("_")) for side in (parts[:half], parts[half:])]
        if len(parts) == 4:
            a, b = "/".join(parts[:2]), "/".join(parts[2:])
        for n in ("5", "12.5", r"\frac{3}{2}"):
            yield from pairs(False, (rf"{n}\text{{ {a}}}", rf"{n}\text{{ {b}}}"))
    same = """
        MeV/mega_electronvolts kPa/kilopascals cm/centimeters km/h/kilometers_per_hour
        m/s/meters_per_second
        hours/hrs cm^2/square_centimeters kg/kilograms miles/mi minutes/min m^3/cubic_meters
    """
    named = {"mega electronvolts": "megaelectronvolts"}
    for pair in same.split():
        a, _, b = pair.rpartition("/")
        b = " ".join(b.split("_"))
        yield from pairs(True, (rf"5\text{{ {a}}}", rf"5\text{{ {named.get(b, b)}}}"))
        yield boxed(rf"5\text{{ {a}}}"), "5", True
        yield boxed(f"5 {named.get(b, b)}"), "5", True


def words_beside_a_number() -> Iterator[Case]:
    saying_more = """
        complement|seems off|times itself|is wrong|I guess|not sure|or thereabouts|ish|give or take
        |off by one|too many|and change|modulo 7|reversed|conjugate|inverse|transposed|negated
        |in hex|without proof|hopefully|apparently|to some power|choose 2|factorial|th root
        |over pi|divided by two|less one|plus some|ad infinitum|and counting|recurring|repeating
        |does not work|is excluded|is a red herring|minus epsilon|light years|unlikely|said no one
        |just kidding|is too large|fails|prime|of these are wrong|bits off|mistaken|degrees off
        |tenths|dozen|score and seven|hundredths|percent|squared|cubed|halved|doubled
    """
    for words in " ".join(saying_more.split()).split("|"):
        for gold in (*INTEGERS[:6], r"\frac{14}{3}", r"3\sqrt{13}"):
            yield boxed(rf"{gold}\text{{ {words.strip()}}}"), gold, False
            yield boxed(rf"{gold}~\mathrm{{({words.strip()})}}"), gold, False
    counted = """
        apples|ways|different ways|students|red marbles|ordered pairs|square units|cm|miles per hour
        |positive integers|distinct real roots|people|solutions|dollars|points of intersection|sides
        |integers|ways to arrange the books|triangles|pages each day|years old|different committees
        |paths|subsets|km/h|square feet|cubic inches|hours|cents|books per shelf|units|games|cards
    """
    for words in " ".join(counted.split()).split("|"):
        for gold in (*POSITIVE[:4], r"\frac{14}{3}"):
            yield boxed(rf"{gold}\text{{ {words.strip()}}}"), gold, True
            yield boxed(rf"{gold} \text{{ {words.strip()}.}}"), gold, True


def thousands_and_lists() -> Iterator[Case]:
    yield from pairs(
        False,
        ("35,000", "35,00"),
        ("1,000", "1,0"),
        ("1,000", "1,00"),
        ("12,000,000", "12,000"),
        ("12,000,000", "12,0,0"),
        ("5,050", "5,50"),
        ("2,004", "2,4"),
        ("10,000", "10,0"),
        ("(1,000)", "(1,0)"),
        ("123,456", "123456.0001"),
        ("1,2,3", "1,23"),
        ("4,096", "4,96"),
        ("7,007", "7,7"),
    )
    for number in ("35,000", "1,234", "12,345,678", "2,004", "10,080"):
        yield from pairs(True, (number, number.replace(",", "")))
        yield from pairs(True, (number, number.replace(",", "{,}")))
        yield from pairs(True, (number, number.replace(",", "\\,")))


def powers_of_degrees() -> Iterator[Case]:
    yield from pairs(
        False,
        (r"(3^\circ)^2", "9"),
        (r"5^\circ!", "120"),
        (r"(5^\circ)!", "120"),
        (r"30^\circ \cdot 3^\circ", "90"),
        (r"\sqrt{8100^\circ}", "90"),
        (r"\frac{90^\circ}{1^\circ}", "90"),
        (r"2^{3^\circ}", "8"),
        (r"\binom{5^\circ}{2}", "10"),
        (r"\log_2 8^\circ", "3"),
        (r"(30^\circ)(3^\circ)", "90"),
        (r"(90^\circ)^1(1^\circ)", "90"),
        (r"10^{2^\circ}", "100"),
    )
    for n in ("90", "45", "30", "120"):
        yield from pairs(True, (rf"{n}^\circ", n), (rf"{n}^\circ", rf"{n}\text{{ degrees}}"))
        yield from pairs(True, (rf"180^\circ-{180 - int(n)}^\circ", rf"{n}^\circ"))
        yield from pairs(True, (rf"\frac{{{2 * int(n)}^\circ}}{{2}}", rf"{n}^\circ"))
        yield boxed(rf"\sin^2 {n}^\circ+\cos^2 {n}^\circ"), "1", True


def labels_that_deny() -> Iterator[Case]:
    for gold in (*INTEGERS[:8], r"\frac{14}{3}", r"3\sqrt{13}"):
        for words in (
            *("not", "wrong", "approximately", "wrong answer", "at most", "at least", "less than"),
            *("never", "almost", "bound", "guess", "almost", "is not", "false", "anything but"),
            *("log of answer", "twice the", "half the answer", "minus", "nope", "rejected"),
        ):
            yield boxed(rf"\text{{{words}}}={gold}"), gold, False
            yield boxed(rf"\text{{{words} }} = {gold}"), gold, False
        for words in ("Area", "Answer", "Total cost", "Perimeter", "number of ways", "area of ABC"):
            yield boxed(rf"\text{{{words}}}={gold}"), gold, True
        for index in ("wrong", "not", "extraneous", "rejected"):
            yield boxed(rf"x_{{\text{{{index}}}}}={gold}"), gold, False
        for index in ("max", "total", "min", "cone"):
            yield boxed(rf"V_{{\text{{{index}}}}}={gold}"), gold, True


def dots_inside_text() -> Iterator[Case]:
    yield from pairs(
        False,
        (r"5\text{ m.s}", r"5\text{ ms}"),
        (r"5\text{ k.m}", r"5\text{ km}"),
        (r"\text{3.5}", r"\text{35}"),
        (r"\text{A.B}", r"\text{AB}"),
        (r"\text{no.w}", r"\text{now}"),
        (r"5\text{...}", "5"),
        (r"5\text{ apples...}", "5"),
        (r"5\text{ . . .}", "5"),
        (r"5\text{.5}", "55"),
        (r"5\text{.5}", "5"),
        (r"1\text{.}2", "12"),
    )
    yield from pairs(
        True, (r"8\text{ ft.}", "8"), (r"\text{Yes.}", "yes"), (r"8\text{ sq. ft.}", "8")
    )
    yield boxed(r"10:15\text{ a.m.}"), "10:15", True
    yield from pairs(False, (r"10:15\text{ a.m.}", r"10:15\text{ p.m.}"))


def rounded_decimals() -> Iterator[Case]:
    values = {
        r"\pi": 3.141592653589793,
        r"\sqrt{2}": 1.4142135623730951,
        r"e": 2.718281828459045,
        r"\sqrt{51}": 7.14142842854285,
        r"\ln 2": 0.6931471805599453,
        r"\frac{\pi^2}{6}": 1.6449340668482264,
        r"\frac{3\sqrt{3}}{4}": 1.299038105676658,
    }
    for gold, value in values.items():
        for digits in (6, 7, 8, 9):
            rounded = round(value, digits)
            unit = 10**-digits
            yield boxed(f"{rounded:.{digits}f}"), gold, True
            yield boxed(gold), f"{rounded:.{digits}f}", True
            yield boxed(f"{rounded + unit:.{digits}f}"), gold, False
            yield boxed(f"{rounded - unit:.{digits}f}"), gold, False
        yield boxed(f"{value:.3f}"), gold, False
    for gold, decimal in ((r"\frac{14}{3}", "4.666667"), (r"\frac17", "0.142857142857")):
        yield boxed(decimal), gold, False


# ---- missed credit -------------------------------------------------------------------------------


def same_text() -> Iterator[Case]:
    """Every gold equals itself, even a chain."""
    chains = ("a=b+c=d", "x=2y=6z", "a<b<c", r"\frac{x}{2}=\frac{y}{3}=z", "AB=BC=CA", "p=q+1=r^2")
    for gold in [entry["gold"] for entry in OUTSIDE] + list(chains):
        yield boxed(gold), gold, True
        yield f"The answer is ${gold}$.", gold, True


def stated_values_of_questions() -> Iterator[Case]:
    for gold in golds("integer", "fraction", "radical", "constant")[:45]:
        for question in (
            r"\int_0^1 f(x)\,dx",
            r"\lim_{x\to 0}\frac{\sin x}{x}",
            r"\sum_{k=1}^{n} k",
            r"\max_{x} f(x)",
            r"\prod_{i=1}^{3} i",
            r"\iint_D f\,dA",
            r"\lim_{n \to \infty} a_n",
        ):
            yield boxed(f"{question} = {gold}"), gold, True
            yield boxed(gold), f"{question} = {gold}", True
            yield boxed(f"{question} = 987"), gold, False
            yield boxed(question), gold, False
            yield boxed(f"{gold} = {question}"), gold, False


def sentences_in_the_box() -> Iterator[Case]:
    for n in POSITIVE[:20]:
        for text in (
            rf"\text{{There are {n} ways}}",
            rf"\text{{There are }} {n} \text{{ ways}}",
            f"There are {n} ways",
            rf"\text{{The answer is {n}}}",
            rf"\text{{The answer is }} {n}",
            f"The answer is {n}",
            rf"\text{{The final answer is }}{n}.",
            rf"\text{{Answer: }}{n}",
            rf"\text{{we get }}{n}",
            rf"\text{{Thus, the answer is {n}.}}",
            f"{n} arrangements",
        ):
            yield boxed(text), n, True
        for text in (
            rf"\text{{There are not {n} ways}}",
            rf"\text{{There are at most {n} ways}}",
            rf"\text{{The answer is not {n}}}",
            rf"\text{{There are {n} ways or more}}",
            rf"\text{{The answer is {n} or 987}}",
            rf"\text{{The answer is about }}{n}",
            rf"\text{{The answer is twice {n}}}",
        ):
            yield boxed(text), n, False


def choices_with_values() -> Iterator[Case]:
    for gold in (*POSITIVE[:12], r"\frac{14}{3}", r"\sqrt{51}", r"\frac{\pi}{6}"):
        for letter in "ABE":
            for label in (rf"({letter})\ ", rf"\textbf{{({letter})}}\ ", rf"\text{{({letter}) }}"):
                yield boxed(label + gold), gold, True
                yield boxed(label + "987"), gold, False
            yield boxed(f"({letter}) {gold}"), gold, True
            yield boxed(f"{letter}{gold}"), gold, False
            yield boxed(rf"{letter}\cdot {gold}"), gold, False


def unusual_characters() -> Iterator[Case]:
    full_width = str.maketrans("0123456789+-=", "０１２３４５６７８９＋－＝")
    for n in POSITIVE[:10]:
        yield boxed(n.translate(full_width)), n, True
        yield boxed("\u200b".join(n)), n, True
        yield boxed(f"\ufeff{n}\u200b"), n, True
        yield boxed(f"√{n}"), rf"\sqrt{{{n}}}", True
        yield boxed(f"√{n}"), f"{n}1", False
        yield boxed(f"2√{n}"), rf"2\sqrt{{{n}}}", True
        yield boxed(rf"{n}\thinspace\text{{cm}}"), n, True
        yield boxed(rf"\hspace{{1em}}{n}\enspace"), n, True
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    for exponent in ("10", "2", "15", "100"):
        yield from pairs(True, (f"x{exponent.translate(raised)}", f"x^{{{exponent}}}"))
        yield from pairs(True, (f"2{exponent.translate(raised)}", f"2^{{{exponent}}}"))
        yield from pairs(True, (f"x⁻{exponent.translate(raised)}", f"x^{{-{exponent}}}"))
        yield from pairs(False, (f"x{exponent.translate(raised)}", f"x^{{{exponent}1}}"))
    yield from pairs(True, ("x₁+x₂", "x_1+x_2"), ("𝑥+𝑦", "x+y"), ("５／３", r"\frac{5}{3}"))
    yield from pairs(True, (r"\hbar\omega", r"\omega\hbar"), (r"\frac{\hbar}{2}", r"\hbar/2"))
    yield from pairs(False, (r"\hbar\omega", r"h\omega"), ("x₁", "x₂"), ("x²", "x³"))


def scientific_notation() -> Iterator[Case]:
    for mantissa in ("2", "1", "3.2", "6.02", "-5"):
        for exponent in (-3, -12, 4, 23):
            gold = rf"{mantissa}\times 10^{{{exponent}}}"
            yield boxed(f"{mantissa}e{exponent}"), gold, True
            yield boxed(f"{mantissa}E{exponent}"), gold, True
            yield boxed(f"{mantissa}e{exponent - 1}"), gold, False
    yield from pairs(True, ("2e-3", "0.002"), ("2e-3", "-3+2e"), ("2e-3", "2e - 3"))


def binomials() -> Iterator[Case]:
    for n, k in (("n", "k"), ("5", "2"), ("n+1", "2"), ("2n", "n"), ("20", "10")):
        gold = rf"\binom{{{n}}}{{{k}}}"
        for text in (
            rf"{{{n}\choose {k}}}",
            rf"{{{n} \choose {k}}}",
            rf"{n}\choose {k}",
            rf"\dbinom{{{n}}}{{{k}}}",
            rf"{{{{{n}}}\choose{{{k}}}}}",
        ):
            yield from pairs(True, (text, gold))
        yield from pairs(False, (rf"{{{n}\choose {k}+2}}", gold))


def cyclic_groups() -> Iterator[Case]:
    for n in ("2", "3", "12", "n"):
        gold = rf"\mathbb{{Z}}_{{{n}}}"
        for text in (f"C_{{{n}}}", f"Z_{{{n}}}", rf"\mathbb{{Z}}/{n}\mathbb{{Z}}"):
            yield from pairs(True, (text, gold))
            yield from pairs(False, (rf"{text}\times {text}", gold))
    yield from pairs(True, (r"\mathbb{Z}_2\times\mathbb{Z}_3", r"\mathbb{Z}_3 \times \mathbb{Z}_2"))
    yield from pairs(True, (r"C_2\times C_4", r"\mathbb{Z}_2\times\mathbb{Z}_4"))
    yield from pairs(False, (r"\mathbb{Z}_2", r"\mathbb{Z}_3"), (r"\mathbb{Z}", r"\mathbb{Q}"))


FAMILIES = {
    r"\frac{\pi}{4}+n\pi": (
        [
            r"\frac{\pi}{4}-n\pi",
            r"\frac{5\pi}{4}+n\pi",
            r"\pi n+\frac{\pi}{4}",
            r"-\frac{3\pi}{4}+n\pi",
        ],
        [r"\frac{\pi}{4}+2n\pi", r"\frac{\pi}{3}+n\pi", r"\frac{\pi}{4}+\frac{n\pi}{2}", r"n\pi"],
    ),
    r"2n\pi": ([r"-2\pi n", r"2\pi(n+1)"], [r"n\pi", r"2n\pi+1", r"(2n+1)\pi"]),
    r"(2n+1)\frac{\pi}{2}": ([r"\frac{\pi}{2}+n\pi", r"(2n-1)\frac{\pi}{2}"], [r"n\frac{\pi}{2}"]),
    "3n+1": (["1+3n", "3n-2", "4-3n"], ["3n+2", "6n+1", "n+1"]),
}
CLAUSES = (
    r", {}\in\mathbb{{Z}}",
    r",\ {}\in \mathbb Z",
    r"\quad ({}\in\mathbb{{Z}})",
    r", \text{{ where }} {} \in \mathbb{{Z}}",
    r"\text{{ for any integer }} {}",
    r", \forall {} \in \mathbb{{Z}}",
)


def families_of_solutions() -> Iterator[Case]:
    for gold, (same, others) in FAMILIES.items():
        for clause in CLAUSES:
            for name in "nk":
                with_clause = gold + CLAUSES[0].format("n")
                for text in [gold, *same]:
                    named = text.replace("n", name).replace(rf"\fra{name}", r"\frac")
                    named = named.replace(rf"\i{name}", r"\in")
                    yield boxed(f"x={named}" + clause.format(name)), with_clause, True
                    yield boxed(named + clause.format(name)), with_clause, True
                for text in others:
                    named = text.replace("n", name).replace(rf"\fra{name}", r"\frac")
                    yield boxed(named + clause.format(name)), with_clause, False


def inequalities_with_bars() -> Iterator[Case]:
    for a in (1, 3, 7):
        for b in (2, 5):
            low, high = a - b, a + b
            yield from pairs(
                True,
                (rf"|x-{a}| \le {b}", f"[{low},{high}]"),
                (rf"|x-{a}| < {b}", f"({low},{high})"),
                (rf"\left|x-{a}\right| \leq {b}", rf"{low} \le x \le {high}"),
                (rf"\lvert {a}-x\rvert < {b}", f"({low},{high})"),
                (rf"{b} \ge |x-{a}|", f"[{low},{high}]"),
                (rf"|2x-{2 * a}| < {2 * b}", f"({low},{high})"),
                (rf"|x-{a}| > {b}", rf"(-\infty,{low})\cup({high},\infty)"),
                (rf"|x-{a}| \ge {b}", rf"x \le {low} \text{{ or }} x \ge {high}"),
            )
            yield from pairs(
                False,
                (rf"|x-{a}| < {b}", f"[{low},{high}]"),
                (rf"|x-{a}| \le {b}", f"[{low},{high + 1}]"),
                (rf"|x+{a}| \le {b}", f"[{low},{high}]"),
                (rf"|x-{a}| > {b}", f"({low},{high})"),
                (rf"|x-{a}| \le {b}", str(high)),
            )


def reals_without_a_set() -> Iterator[Case]:
    for c in ("0", "2", "-1", r"\frac{1}{2}", r"\sqrt{2}"):
        union = rf"(-\infty,{c})\cup({c},\infty)"
        for text in (
            rf"\mathbb{{R}}\setminus\{{{c}\}}",
            rf"\mathbb{{R}} \backslash \{{{c}\}}",
            rf"\mathbb R-\{{{c}\}}",
            rf"x\in\mathbb{{R}}\setminus\{{{c}\}}",
            rf"x \neq {c}",
        ):
            yield from pairs(True, (text, union))
            yield from pairs(False, (text, rf"(-\infty,{c}]\cup({c},\infty)"))
            yield from pairs(False, (text, r"(-\infty,77)\cup(77,\infty)"))
    two = r"(-\infty,0)\cup(0,1)\cup(1,\infty)"
    yield from pairs(
        True, (r"\mathbb{R}\setminus\{0,1\}", two), (r"\mathbb{R}\setminus\{1,0\}", two)
    )
    yield from pairs(
        False, (r"\mathbb{R}\setminus\{0,2\}", two), (r"\mathbb{R}\setminus\{0\}", two)
    )


def scaled_matrices() -> Iterator[Case]:
    for name in ("pmatrix", "bmatrix"):
        begin, end = rf"\begin{{{name}}}", rf"\end{{{name}}}"
        matrix = rf"{begin}1&2\\3&4{end}"
        yield from pairs(
            True,
            (f"2{matrix}", rf"{begin}2&4\\6&8{end}"),
            (rf"\frac{{1}}{{2}}{matrix}", rf"{begin}\frac12&1\\\frac32&2{end}"),
            (f"-{matrix}", rf"{begin}-1&-2\\-3&-4{end}"),
            (rf"3\cdot {matrix}", rf"{begin}3&6\\9&12{end}"),
            (rf"\sqrt{{2}}{begin}1\\2{end}", rf"{begin}\sqrt2\\2\sqrt2{end}"),
        )
        yield from pairs(
            False,
            (f"2{matrix}", rf"{begin}2&4\\6&7{end}"),
            (f"2{matrix}", matrix),
            (rf"2\det{matrix}", rf"{begin}2&4\\6&8{end}"),
            (f"-{matrix}", matrix),
        )


def added_constants() -> Iterator[Case]:
    for body in (r"x^2", r"\frac{x^3}{3}", r"\sin x", r"\ln|x|", r"e^{2x}"):
        for a, b in (("C", "c"), ("C", "K"), ("c", "C_1")):
            yield from pairs(
                True, (f"{body}+{a}", f"{body} + {b}"), (f"y={body}+{a}", f"y={b}+{body}")
            )
            yield from pairs(False, (f"{body}+2{a}", f"{body}+{b}"), (f"{body}{a}", f"{body}{b}"))
            yield from pairs(False, (f"{body}-x+{a}", f"{body}+{b}"), (f"{body}+{a}", body))


WRONG = (
    tail_of_an_expression,
    thoughts_that_are_not_finished,
    decimals_without_a_zero,
    letter_case_and_order,
    units_that_differ,
    words_beside_a_number,
    thousands_and_lists,
    powers_of_degrees,
    before_the_end_of_thoughts,
    boxes_taken_back,
    several_boxes,
    labels_that_deny,
    dots_inside_text,
    rounded_decimals,
)
MISSED = (
    same_text,
    stated_values_of_questions,
    sentences_in_the_box,
    choices_with_values,
    unusual_characters,
    scientific_notation,
    binomials,
    cyclic_groups,
    families_of_solutions,
    inequalities_with_bars,
    reals_without_a_set,
    scaled_matrices,
    added_constants,
)

r"""The reward of RLVR (App. I): find the final answer of a response, and decide if it is right.

The answer is *extracted*, *normalised* to one spelling, and *compared* with the gold answer:
structures (lists, intervals, equations ...) member by member, expressions by their values, which
are taken at random points where there are free variables. infra/latex.py holds the rewritings and
structures, infra/expressions.py the evaluation.

Departures from the paper:
1. It grades with math-verify (sympy). Here nothing is solved or simplified symbolically, so no
   answer can hang the grader; RESULTS.md has both on the same labelled answers.
2. Its run script adds a penalty for long responses to the reward: `train.overlong_penalty`.

Rules of the comparison:
1. Rational values agree exactly, others to a relative 1e-9. What cancels down to rounding noise
   is 0.
2. A decimal stands for an irrational (never a rational) number from six significant digits on,
   if it is right within one unit of the last: 3.14159 for \pi, but not 0.333333 for 1/3.
3. What cannot be read agrees with the same text only. What is undefined (0/0), or restates a
   question (\sum, \int, \lim, \max), agrees with nothing.
4. Nothing of a text is executed; length, tokens, depth, members, bits and operations are bounded.
"""

import itertools
import re
from collections.abc import Iterator

from infra import latex
from infra.arithmetic import Unreadable
from infra.expressions import Evaluator
from infra.latex import NAME, Structure


def grade(response: str, problem: dict) -> float:
    """1.0 if the response solves the problem, else 0.0. Multiple choice is graded by its letter.

    Programming problems, which have tests, are verify_code.grades' to grade.
    """
    if problem.get("choice"):
        return float(choice(response) == problem["answer"])
    return reward(response, problem["answer"])


def reward(response: str, gold: str) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I)."""
    answer = extract_answer(response)
    if answer is None:
        return 0.0
    return float(is_equivalent(answer, gold))


# ---- extract: the final answer of a response -----------------------------------------------------

MAX_CHARS = 4000  # of an answer
MAX_BOXES = 32  # that are looked at, from the last one back
TAIL = 2000  # characters at the end of a response, where an answer without a box is looked for

BOX = re.compile(r"\\boxed\s{0,3}\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # \{ is no brace

# What may stand between two boxes that are one list: "$\boxed{1}$ and $\boxed{2}$".
BETWEEN_BOXES = re.compile(
    r"[\s,;$&.]{0,8}"
    r"(?:(?:\\text\{)?\s?(?:and|or)\s?\}?|\\q?quad|\\[,;]|\\\)\s?,?\s?\\\()?"
    r"[\s,;$&]{0,8}"
)
STATED = re.compile(r"(?i:answer)[\s*]{0,4}(?i:is|:|=)[\s*:]{0,4}([^\n]{1,300})")
FORMULA = re.compile(
    r"\$\$([^$]{1,300})\$\$|\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]"
)
NUMBER = re.compile(
    r"(?<![\w.])[-−]?(?:\d{1,3}(?:,\d{3}){1,50}(?![\d,])|\d{1,300})(?:\.\d{1,300})?"
    r"(?:/\d{1,300})?%?"
)

LETTER_IN_BOX = re.compile(r"(?:\s|\$|\\(?:text|mathrm|mathbf|textbf)\b|[{(]){0,9}([A-J])(?![\w'])")
STATED_LETTERS = (
    # "The answer is (A)", "Option B"
    re.compile(r"(?i:answer|choice|option)[\s*]{0,4}(?i:is|:)?[\s*:($]{0,5}([A-J])(?![\w'])"),
    # "(A)"
    re.compile(r"\(([A-J])\)"),
    # a line of its own
    re.compile(r"(?m)^[\s*]{0,5}([A-J])[*.)]{0,3}\s{0,5}$"),
)


def extract_answer(response: str) -> str | None:
    r"""The final answer as the response spells it, or None. The first of these that there is:

    1. the last \boxed{} or \fbox{}: the inner one of two nested, and neighbours as one list, each
       value once, so that "$\boxed{1}$ and $\boxed{2}$" gives "1, 2";
    2. of the last line with "answer is" or "answer:", the first formula behind it, or else the
       first sentence;
    3. the last formula or number.
    """
    boxed = []
    for content, gap in boxes(response):
        if boxed and not BETWEEN_BOXES.fullmatch(gap):
            break
        if content not in boxed:
            boxed.insert(0, content)
    if boxed:
        return ", ".join(boxed)

    tail = response[-TAIL:]
    stated = STATED.findall(tail)
    if stated:
        return stated_answer(stated[-1])

    found = [*FORMULA.finditer(tail), *NUMBER.finditer(tail)]
    if found:
        return content_of(max(found, key=re.Match.end))
    return None


def boxes(response: str) -> Iterator[tuple[str, str]]:
    """(content, text between this box and the next) of every closed box, from the last one back.

    The last box has the rest of the response for this text. A box that holds the one yielded
    before has "nested", which joins no list.
    """
    text = response.replace("\\fbox", "\\boxed")
    start = len(text)
    following = len(text)  # where the box yielded before starts
    for _ in range(MAX_BOXES):
        start = text.rfind("\\boxed", 0, start)
        if start < 0:
            return

        opening = BOX.match(text, start)
        if not opening:
            continue
        closing = closing_brace(text, opening.end())
        if not closing:
            continue

        content = text[opening.end() : closing.start()].strip()
        if closing.end() <= following:
            yield content, text[closing.end() : following]
        else:
            yield content, "nested"
        following = start


def closing_brace(text: str, start: int) -> re.Match | None:
    """The brace that closes the group whose content begins at `start`."""
    depth = 1
    for brace in BRACE.finditer(text, start, start + MAX_CHARS):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if depth == 0:
            return brace
    return None


def stated_answer(statement: str) -> str:
    """The first formula of what follows "answer is", else its first sentence."""
    formula = FORMULA.search(statement)
    if formula:
        return content_of(formula)
    sentence = re.split(r"\.(?:\s|$)", statement)[0]
    return sentence.strip(" *.")


def content_of(found: re.Match) -> str:
    """What a formula's delimiters hold; a number is its own content."""
    return found[found.lastindex or 0].strip()


def choice(response: str) -> str | None:
    """The letter A-J of a multiple-choice response: the boxed, else a stated one.

    Of the ways to state one in STATED_LETTERS the first that occurs counts, where it occurs last.
    """
    last_box = next(boxes(response), None)
    if last_box:
        letter = LETTER_IN_BOX.match(last_box[0])
        return letter[1] if letter else None

    for pattern in STATED_LETTERS:
        stated = pattern.findall(response[-TAIL:])
        if stated:
            return stated[-1]
    return None


# ---- normalise: one spelling for what LaTeX spells in many ways ----------------------------------

# In this order: a group counts on what the groups before it have rewritten.
REWRITINGS = (
    latex.SIGNS,  # −3 × 2: -3 * 2
    latex.SYMBOLS,  # 2π: 2\pi
    latex.THOUSANDS,  # 1{,}234: 1234
    latex.SIZES,  # \left(\dfrac{1}{2}\right): (\frac{1}{2})
    latex.SPACES,  # $5$: 5
    latex.FONTS,  # \mathbf{v}: v
    latex.WORDS,  # 1 or 2: 1, 2
    latex.RELATIONS,  # x \leq 5: x ≤ 5
    latex.OPERATORS,  # \{1, 2\}: ‹1, 2›
    latex.COLLECTIONS,  # x \in [0, 1]: [0, 1]
    latex.UNITS,  # 5 \text{ cm}: 5
    latex.MIXED_NUMBERS,  # 1\frac{2}{3}: (1+2/3)
    latex.LEFT_OVER_SPACES,  # 1, 2: 1,2
)
COMMAS_OF_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3}){1,50}(?![\d,])")
DECIMAL_COMMA = re.compile(r"^(-?\d{1,99}),(\d{1,99})$")


def normalise(answer: str) -> str:
    """Plain symbols, one name for each command, structure in brackets; no units or delimiters."""
    answer = latex.REPEATING.sub(latex.repeating_decimal, answer)
    for group in REWRITINGS:
        for pattern, replacement in group:
            answer = pattern.sub(replacement, answer)
    return answer.lstrip(" \t\n=").rstrip(" \t\n.,;")


def readings(text: str) -> list[str]:
    """What a comma can mean: "1,234" is the number 1234, the list 1, 234, or the decimal 1.234.

    An answer is right if any of its readings is; most have one only.
    """
    thousands = COMMAS_OF_THOUSANDS.sub(without_commas, text)
    decimal = DECIMAL_COMMA.sub(r"\1.\2", text)
    return list(dict.fromkeys([thousands, text, decimal]))


def without_commas(number: re.Match) -> str:
    return number[0].replace(",", "")


# ---- compare: member by member, and by value -----------------------------------------------------

# A prediction with one of these restates a question, hides a part of itself, or is not a number.
NEVER_RIGHT = re.compile(
    r"\\(?:sum|prod|i*o?int|lim|limsup|liminf|min|max|sup|inf|phantom|[hv]phantom"
    r"|(?:text)?color(?:box)?|def)(?![a-zA-Z])|(?i:\bnan\b)"
)
DECIMAL = re.compile(r"\s*-?\s*(\d*)\.(\d+)\s*")

# Kinds whose members are compared in any order: 1, 2 is also the set {2, 1}.
UNORDERED = ({"list"}, {"set"}, {"∪"}, {"list", "set"}, {"list", "∪"})


def is_equivalent(prediction: str, gold: str) -> bool:
    """Whether two answers are the same, by the rules above. Never raises."""
    if max(len(prediction), len(gold)) > MAX_CHARS:
        return False
    if NEVER_RIGHT.search(prediction):
        return False

    p = normalise(prediction)
    g = normalise(gold)
    if not p or not g:
        return False

    judge = Judge(p + g)
    was_read = False
    for p_reading, g_reading in itertools.product(readings(p), readings(g)):
        try:
            if judge.same(p_reading, g_reading):
                return True
            was_read = True
        except (Unreadable, ArithmeticError):  # beyond what floats can hold
            continue
    return not was_read and p.split() == g.split()  # rule 3


class Judge:
    """Compares two answers, with one budget of work for both (rule 4).

    The points at which free variables are evaluated are drawn from `seed`, the texts of both, so
    that they are not known beforehand. They are few, and n, k and m take 12 values each: answers
    that agree there and nowhere else are credited.
    """

    def __init__(self, seed: str):
        self.evaluator = Evaluator(seed)
        self.structures = {}  # text -> its structure

    # self.evaluator.values(text) are the values at four points, None where undefined.

    def structure(self, text: str) -> Structure:
        self.evaluator.pay(1)
        if text not in self.structures:
            self.structures[text] = latex.structure(text)
        return self.structures[text]

    def same(self, a: str, b: str) -> bool:
        """Whether two texts are the same answer: structures by members, expressions by value.

        The kinds of structure are listed at `Structure` in infra/latex.py.
        """
        p = self.structure(a)
        g = self.structure(b)
        kinds = {p.kind, g.kind}

        # A list is no tuple, but for equations in the tuple's order: x = 3, y = 2 against (3, 2).
        if p.kind == "()" and g.kind == "list":
            return self.same(b, a)
        if p.kind == "list" and g.kind == "()" and are_equations(p.members):
            return self.same(right_sides(p.members), b)
        if "=" in kinds:
            return self.same_equation(sides_of(p, a), sides_of(g, b))

        if kinds in UNORDERED:
            return self.same_members(p.members, g.members)
        if p.kind != g.kind:
            return False

        if p.kind == "value":
            return self.same_value(p.members[0], g.members[0])
        if p.kind == "word":
            return p.members == g.members
        if p.kind in ("<", "≤"):
            return self.proportional(p.members[0], g.members[0], positive=True)
        if p.kind == "≠":
            return self.proportional(p.members[0], g.members[0])
        if p.kind == ":" and are_ratios(p.members, g.members):
            return self.same_ratio(p.members, g.members)

        if len(p.members) != len(g.members):
            return False
        return all(map(self.same, p.members, g.members))

    def same_members(self, ps: list[str], gs: list[str]) -> bool:
        """The same members in any order."""
        if len(ps) != len(gs):
            return False
        left = list(gs)
        for member in ps:
            partner = next((other for other in left if self.same(member, other)), None)
            if partner is None:
                return False
            left.remove(partner)
        return True

    def same_equation(self, ps: list[str], gs: list[str]) -> bool:
        """Two answers as the sides of equations; one of the two may be no equation, a single side.

        2y = 4x is y - 2x = 0, as one is a multiple of the other. In S = 5 and S = 2 + 3 the left
        side is a name: the right sides are compared, also if one has no name, as in x = 5 and 5.
        Of a chain such as 2 + 3 = 5 all sides have to be the same.
        """
        p_name = has_name(ps)
        g_name = has_name(gs)
        same_name = p_name and ps[0].split() == gs[0].split()

        # Two equations that do not name the same thing are moved to one side: 2y = 4x.
        if len(ps) == len(gs) == 2 and not same_name:
            return self.proportional(f"({ps[0]})-({ps[1]})", f"({gs[0]})-({gs[1]})")

        p_chain = ps[1:] if p_name else ps
        g_chain = gs[1:] if g_name else gs
        for chain in (p_chain, g_chain):
            if not all(self.same(side, chain[-1]) for side in chain[:-1]):
                return False
        return self.same(p_chain[-1], g_chain[-1])

    def same_ratio(self, ps: list[str], gs: list[str]) -> bool:
        """2:4 is 1:2."""
        p_values = self.evaluator.values(f"({ps[0]})/({ps[1]})")
        g_values = self.evaluator.values(f"({gs[0]})/({gs[1]})")
        return close(p_values, g_values)

    def same_value(self, p: str, g: str) -> bool:
        tolerance = max(decimal_tolerance(p), decimal_tolerance(g))
        return close(self.evaluator.values(p), self.evaluator.values(g), tolerance)

    def proportional(self, p: str, g: str, positive: bool = False) -> bool:
        """Whether p = c g at all points for one c != 0 (c > 0 if `positive`)."""
        ratios = []
        for a, b in zip(self.evaluator.values(p), self.evaluator.values(g), strict=True):
            if a is None or b is None:
                continue  # undefined at this point
            if (a == 0) != (b == 0):
                return False  # x + |x| = 0 is not x = 0, though 2x and x agree where x > 0
            if a != 0:
                ratios.append(a / b)
        if len(ratios) < 2 or not close(ratios, ratios[:1] * len(ratios)):
            return False
        return not (positive and ratios[0].real < 0)


def close(ps: list, gs: list, tolerance: float = 0.0) -> bool:
    r"""Equal at every point where both are defined, of which there have to be two.

    \sqrt{x}^2 and x are compared at two of the four points, as x < 0 at the others. If one point
    were enough, expressions could agree by chance; and what is undefined everywhere agrees with
    nothing (rule 3).
    """
    pairs = [(p, g) for p, g in zip(ps, gs, strict=True) if p is not None and g is not None]
    return len(pairs) > 1 and all(agree(p, g, tolerance) for p, g in pairs)


def agree(p, g, tolerance: float) -> bool:
    """Whether two values are the same (rules 1 and 2).

    A value is a Fraction (rational), a float (infinity) or, all others, complex.
    """
    if p == g:
        return True
    if isinstance(p, float) or isinstance(g, float):
        return False
    if not isinstance(p, complex) and not isinstance(g, complex):
        return False
    distance = abs(complex(p) - complex(g))
    return distance <= max(1e-9 * max(abs(p), abs(g)), tolerance)


def decimal_tolerance(text: str) -> float:
    """One unit of the last of six significant digits or more, else 0 (rule 2)."""
    decimal = DECIMAL.fullmatch(text)
    if not decimal:
        return 0.0
    digits = decimal[1] + decimal[2]
    if len(digits.lstrip("0")) < 6:
        return 0.0
    return 10.0 ** -len(decimal[2])


def are_equations(texts: list[str]) -> bool:
    return all(latex.structure(text).kind == "=" for text in texts)


def right_sides(equations: list[str]) -> str:
    """The tuple (3,2) of x=3 and y=2."""
    sides = [equation.split("=")[-1] for equation in equations]
    return f"({','.join(sides)})"


def sides_of(structure: Structure, text: str) -> list[str]:
    """The sides of an equation; of anything else the one side that it is."""
    return structure.members if structure.kind == "=" else [text]


def has_name(sides: list[str]) -> bool:
    """Whether the left side only names what the equation states, as in x = 5."""
    if len(sides) < 2:
        return False
    letters = sides[0].replace("+", "")  # a sum of names names the answer, too: a + b = 5
    return NAME.fullmatch(letters) is not None


def are_ratios(ps: list[str], gs: list[str]) -> bool:
    """Whether both are like 2:3, and not times of the day like 2:30."""
    if len(ps) != 2 or len(gs) != 2:
        return False
    two_digits = len(ps[1].strip()) == 2 and len(gs[1].strip()) == 2
    return not two_digits

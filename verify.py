r"""The reward of RLVR (App. I): find the final answer in a response, and decide whether it equals the gold answer.

Four stages: *extract* the answer; *normalise* its LaTeX; split it into a *structure* (lists, intervals, equations ...) whose
leaves are expressions; *evaluate* these, at random points where they have free variables, and compare member by member.
Rules. (1) Rational values agree exactly, others to a relative 1e-9; what cancels down to rounding noise is 0. (2) A decimal stands
for an irrational (never a rational) number from six significant digits on, if right within one unit of the last. (3) What
cannot be read agrees with the same text only; what is undefined (0/0), or a question restated (\sum, \int, \lim, \max), with
nothing. (4) Nothing of a text is executed; length, tokens, depth, members, bits and operations are all bounded.
Departures: the paper grades with math-verify (sympy); the released code's overlong shaping is a function of its own.
"""
import cmath, itertools, math, operator, random, re
from fractions import Fraction

# Bounds of an answer; operations of a comparison; characters at the end of a response where an answer without a box is looked for.
MAX_CHARS, MAX_DEPTH, MAX_MEMBERS, MAX_BITS, FUEL, TAIL = 4000, 40, 64, 1 << 16, 3000, 2000
BOX, BRACE = re.compile(r"\\boxed\s{0,3}\{"), re.compile(r"\\.|[{}]", re.S)
BETWEEN = re.compile(r"[\s,;$&.]{0,8}(?:(?:\\text\{)?\s?(?:and|or)\s?\}?|\\q?quad|\\[,;]|\\\)\s?,?\s?\\\()?[\s,;$&]{0,8}")
STATED = re.compile(r"(?i:answer)[\s*]{0,4}(?i:is|:|=)[\s*:]{0,4}([^\n]{1,300})")
MATH = re.compile(r"\$\$([^$]{1,300})\$\$|\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]")
NUMBER = re.compile(r"(?<![\w.])[-−]?(?:\d{1,3}(?:,\d{3}){1,50}(?![\d,])|\d{1,300})(?:\.\d{1,300})?(?:/\d{1,300})?%?")


def boxes(response: str):
    """(content, text between it and the next box) of the balanced boxes, from the last one back; 32 openings are looked at."""
    text = response.replace("\\fbox", "\\boxed")
    start = following = len(text)
    for _ in range(32):
        start, depth = text.rfind("\\boxed", 0, start), 1
        if start < 0: return
        for brace in BRACE.finditer(text, box.end(), box.end() + MAX_CHARS) if (box := BOX.match(text, start)) else ():
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                yield text[box.end():brace.start()].strip(), text[brace.end():following] if brace.end() <= following else "nested"
                following = start
                break


def extract_answer(response: str) -> str | None:
    """The last \\boxed{} or \\fbox{} (inner before outer, neighbours as one list), else what follows the last `answer is` or
    `answer:`, else the last formula or number of the text; None if there is none of these."""
    found, tail = [], response[-TAIL:]
    for content, gap in boxes(response):
        if found and not BETWEEN.fullmatch(gap): break
        found = [content] * (content not in found) + found
    if found: return ", ".join(found)
    stated = (STATED.findall(tail) or [""])[-1]
    if stated and not MATH.search(stated): return re.split(r"\.(?:\s|$)", stated)[0].strip(" *.")
    found = [*MATH.finditer(stated)][:1] or sorted([*MATH.finditer(tail), *NUMBER.finditer(tail)], key=lambda m: m.end())
    return found[-1][found[-1].lastindex or 0].strip() if found else None


def choice(response: str) -> str | None:
    """The letter A-J of a multiple-choice response: the boxed one, else the last stated one, else None."""
    for content, _ in boxes(response):
        return (letter := re.match(r"(?:\s|\$|\\(?:text|mathrm|mathbf|textbf)\b|[{(]){0,9}([A-J])(?![\w'])", content)) and letter[1]
    for pattern in (r"(?i:answer|choice|option)[\s*]{0,4}(?i:is|:)?[\s*:($]{0,5}([A-J])(?![\w'])", r"\(([A-J])\)",
                    r"(?m)^[\s*]{0,5}([A-J])[*.)]{0,3}\s{0,5}$"):
        if stated := re.findall(pattern, response[-TAIL:]): return stated[-1]


def reward(response: str, gold: str) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I)."""
    return float((answer := extract_answer(response)) is not None and is_equivalent(answer, gold))


def overlong_penalty(length: int, max_length: int, buffer: int = 4096) -> float:
    """DAPO's soft length penalty: 0 up to `buffer` tokens before `max_length`, then linearly down to -1 at it. Lengths in tokens. The
    paper's text has a binary reward; its run script adds this."""
    return min(0.0, -(length - (max_length - buffer)) / buffer) if buffer > 0 else 0.0


# ---- normalise: one spelling for what LaTeX spells in many ways ------------------------------------------------------

FUNCTION = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|lg|log|exp"
UNIT = r"""(?:(?:square|cubic|sq\.?|cu\.?)\s?)?(?:units?|[kcmdn]?m|[km]?g|[kmn]?s|[km]?[lLJWNVA]|k?Hz|Pa|mol|K|C|F|h|hr|in|ft|yd|mi|lb|oz|mph|
(?:kilo|centi|milli)?(?:met(?:er|re)s?|grams?)|inch(?:es)?|foot|feet|yards?|miles?|pounds?|ounces?|lit(?:er|re)s?|gallons?|degrees?|sec(?:ond)?s?|
min(?:ute)?s?|hours?|hrs|days?|weeks?|months?|years?|dollars?|cents?|euros?|USD|rad(?:ian)?s?|people|persons?|students?|ways?|points?|times|items?|
coins?|sides?)(?:\s?\^?\s?\{?-?[23]\}?)?""".replace("\n", "")
# `pattern => replacement`, in this order; # stands for the end of a command's name, ~ in a replacement for a space. Line by line: signs;
# symbols; thousands and decimal commas; brackets' sizes and fractions; spaces and delimiters; fonts (4 lines); relations; absolute value,
# ±, unions, braces; membership, vectors, matrices (2); units and percent (2); mixed numbers (2) and what spaces are left.
REWRITES = [(re.compile(old.replace("#", "(?![a-zA-Z])").replace("UNIT", UNIT).replace("CALL", FUNCTION)), new.replace("~", " "))
            for old, new in re.findall("(.+?) +=>(?: (.*?))??(?: ;; |\n)", r"""[−–] => - ;; [×·]|\\(?:cdot|times)# => * ;; ÷|\\div# => / ;; \*\* => ^
√ => \\sqrt~ ;; π => \\pi~ ;; ∞ => \\infty~ ;; ² => ^2 ;; ³ => ^3 ;; °|\^\s?\\circ#|\^\s?\{\s?\\circ\s?\} => \\degree~ ;; [€£¥₹‹›] => ;; [~\u00a0] => ~
(?<=\d)(?:(?<!\\)\\[,;:! ]|\{,\}|,\\!)(?=\d{3}(?!\d)) => ;; \{,\} => .
\\(?:left|right|[bB]igg?[lrm]?)#\s{0,3}\.? => ;; \\[dtc](frac|binom)# => \\\1
\\(?:displaystyle|textstyle|limits|q?quad)#|(?<!\\)\\[,!;: ()\[\]]|\\\$|\$ => ~
\\(?:mathrm|mathbf|mathit|boldsymbol|bm|rm|operatorname)\*?\s?\{\s?([a-zA-Z])\s?\} => ~\1~
\\(?:mathrm|operatorname)\*?\s?\{\s?(CALL)\s?\}|(?<![a-zA-Z\\])(CALL|sqrt|pi|infty)# => \\\1\2~
\\(?:mathrm|mathbf|mathit|operatorname|textbf|textit|textrm|mbox)\*?\s?\{ => \\text{
\\text\{\s{0,3}(?:or|and)\s{0,3}\}|(?<![a-zA-Z\\])(?:or|and)# => , ;; ^\s{0,3}(?:\\text\{\s?)?(?:USD|Rs\.?)\s?\}?\s?(?=\d) => ;; \\text\{\s?([-\d.,]{1,50})\s?(?:UNIT)?\s?\} => \1
<=|\\le(?:q|qslant)?# => ≤ ;; >=|\\ge(?:q|qslant)?# => ≥ ;; !=|\\neq?# => ≠ ;; \\lt# => < ;; \\gt# => >
\\[lr]?vert# => | ;; \\pm# => ± ;; \\mp# => ∓ ;; \\cup# => ∪ ;; ∅|\\(?:emptyset|varnothing)# => ‹› ;; \\(?:lbrace#|\{) => ‹ ;; \\(?:rbrace#|\}) => ›
^\s?[a-z]\s?(?:\\in#|∈) => ;; & => , ;; \\langle# => ( ;; \\rangle# => ) ;; \\mathbb\{R\} => (-\\infty,\\infty) ;; \\begin\{(?:[a-zA-Z]?matrix|array)\}(?:\{[clr|]{1,20}\})? => ((
(?:\\\\\s{0,3})?\\end\{(?:[a-zA-Z]?matrix|array)\} => )) ;; \\\\ => ),(
(?<=[\w)}%])\s{0,3}\\text\{\s{0,3}UNIT(?:\s?(?:/|per|\*)\s?UNIT)?\s?\.?\}(?:\^\{?[23]\}?)?\s{0,3}$ => ;; \\?%|\\text\{\s?percent\s?\}|(?<![a-zA-Z])percent# => /100
(?<=[\d)}])\s{0,3}(?=[a-zA-Z. ]{2})UNIT(?:\s?(?:/|per)\s?UNIT)?\s{0,3}$ => ;; \\text\{\s?\(?([a-zA-Z])\)?\s?\} => ~\1~
(?<![\w.}])(\d{1,99})\s{0,3}\\frac\s{0,3}(?:\{(\d{1,99})\}\{(\d{1,99})\}|(\d)(\d)) => (\1+\2\4/\3\5)
(?<![\w.}])(\d{1,99})\s{1,3}(\d{1,99})/(\d{1,99})(?!\d) => (\1+\2/\3) ;; (?<!\w)\s+|\s+(?!\w) =>
""")]


def normalise(answer: str) -> str:
    """Plain symbols, one name for each command, structure in brackets; units, currency and math delimiters dropped."""
    answer = re.sub(r"(\d{0,50}\.(\d{0,50}))\\overline\s?\{(\d{1,50})\}",  # 0.1\overline{6} = 0.1 + 6/90
                    lambda m: f"({m[1]}0+{m[3]}/({10 ** len(m[2])}*{10 ** len(m[3]) - 1}))", answer)
    for pattern, new in REWRITES:
        answer = pattern.sub(new, answer)
    return answer.lstrip(" \t\n=").rstrip(" \t\n.,;")


# ---- structure: lists, sets, tuples, intervals, unions, ratios, relations and words; the leaves are expressions ------

NAME = re.compile(r"\s*(?:(?:\\angle )?\\?[a-zA-Z]{1,9}(?:_\{?\w\}?)?|[fghpqFGHPQST](?:\^\{-1\})?\(\w{1,9}\)|\((?:[a-z],){1,9}[a-z]\)|\\text\{[^{}]{1,50}\})\s*")
DECIMAL, WORD = re.compile(r"\s*-?\s*(\d*)\.(\d+)\s*"), re.compile(r"\\text\{([^{}]{1,200})\}|([a-zA-Z]{2}[a-zA-Z' -]{1,200}|[nN]o)")


class Unreadable(Exception):
    """Not in the grammar, or beyond a bound."""


def refuse(*_):
    raise Unreadable


def split(text: str, separators: str) -> list[str]:
    """The pieces of `text` between separators outside all brackets; none if the brackets do not match."""
    depth, start, pieces = 0, 0, []
    for mark in re.finditer(rf"[\[\](){{}}‹›{separators}]", text):
        depth += (mark[0] in "([{‹") - (mark[0] in ")]}›")
        if not 0 <= depth <= MAX_DEPTH or len(pieces) > MAX_MEMBERS: return []
        if depth == 0 and mark[0] in separators:
            pieces, start = pieces + [text[start:mark.start()]], mark.end()
    return pieces + [text[start:]] if depth == 0 else []


def shape(text: str) -> tuple[str, list[str]]:
    """(kind, members), kind one of: word, list, set, ∪, =, ≠, <, ≤ (lhs - rhs), the two brackets of a tuple, :, value (a leaf)."""
    text = text.strip()
    if word := WORD.fullmatch(text): return "word", (word[1] or word[2]).casefold().replace(".", "").split()
    members = [x for item in split(text, ",;") for x in dict.fromkeys(item.translate(str.maketrans("±∓", pm)) for pm in ("+-", "-+"))]
    if len(members) != 1: return "list", members or refuse()
    for kind in "=∪:":
        if len(members := split(text, kind)) > 1: return kind, members
    if (sides := re.split("([<>≤≥≠])", text))[1:]: return inequality(sides[::2], sides[1::2])
    ends, inner = text[:1] + text[-1:], split(text[1:-1], ",;")
    if ends in ("()", "[]", "(]", "[)", "‹›", "{}") and inner:
        if ends == "‹›": return "set", inner if inner != [""] else []
        return (ends, inner) if len(inner) > 1 and ends != "{}" else shape(text[1:-1])
    return "value", [text]


def inequality(sides: list[str], signs: list[str]) -> tuple[str, list[str]]:
    """x < 5 or 0 < x ≤ 1 as an interval, where x is a name and the bounds hold none; others as lhs - rhs against 0."""
    if signs[0] in ">≥":
        sides, signs = sides[::-1], [{">": "<", "≥": "≤"}.get(sign, "") for sign in signs[::-1]]
    bound = [not re.search(r"(?<![\\a-zA-Z])(?![ei](?![a-zA-Z]))[a-zA-Z]", side) for side in sides]
    if len(sides) == 2 and signs != ["≠"] and (bound[0] and NAME.fullmatch(sides[1]) or bound[1] and NAME.fullmatch(sides[0])):
        sides, signs = (sides + [r"\infty"], signs + ["<"]) if bound[0] else ([r"-\infty"] + sides, ["<"] + signs)
    if len(sides) == 3 and NAME.fullmatch(sides[1]) and {*signs} <= {"<", "≤"}: return "[("[signs[0] == "<"] + "])"[signs[1] == "<"], sides[::2]
    return (signs[0], [f"({sides[0]})-({sides[1]})"]) if len(sides) == 2 else refuse()


# ---- evaluate: recursive descent over an expression, computing as it reads -------------------------------------------

TOKEN = re.compile(r"\s*(\d+\.\d+[eE][-+]?\d{1,4}|1[eE]-\d{1,4}|\d+[eE]\+?\d{1,4}|\d+\.?\d*|\.\d+|!!|\\[a-zA-Z]+|\S)")
LEVEL = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 5, "!": 5, "!!": 5}  # how tight an operator binds; 3: a product without a sign
RIGHT = {"+": 1, "-": 1, "*": 3, "/": 3, "^": 4}  # what its right side is read with
CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
CONSTANTS = {"e": complex(math.e), "i": 1j, r"\pi": complex(math.pi), r"\infty": math.inf}
GREEK = {"\\" + name for name in "alpha beta gamma delta epsilon varepsilon zeta eta theta lambda mu nu rho sigma tau phi varphi psi omega".split()}
LOGS = {r"\log": CONSTANTS["e"], r"\ln": CONSTANTS["e"], r"\lg": Fraction(10)}
CALLS = {"\\" + name: getattr(cmath, name.replace("arc", "a")) for name in FUNCTION.split("|") if name not in ("cot", "sec", "csc", "ln", "lg")}
CALLS |= {new: lambda z, f=CALLS[old]: 1 / f(z) for new, old in ((r"\cot", r"\tan"), (r"\sec", r"\cos"), (r"\csc", r"\sin"))}


def whole(x, most: int) -> int:
    """x as an int; undefined (for factorials and the like) unless a whole number >= 0, refused above `most`."""
    if not isinstance(x, Fraction) or x.denominator > 1 or x < 0: raise ZeroDivisionError
    return int(x) if x <= most else refuse()


class Judge:
    """Compares two answers, with one budget of work for both. A value is a Fraction where exact, else complex; infinity is a float. A
    free variable is a random small Fraction (a whole number for n, k, m), fixed by its name, `seed` and the number of the point."""

    def __init__(self, seed: str):
        self.seed, self.fuel, self.known, self.shapes = ascii(seed), FUEL, {}, {}

    def read(self, level: int = 0):
        """Operators that bind tighter than `level`; factors side by side are a product. Tokens are a stack, "" its bottom."""
        self.depth, token = self.depth + 1, (self.tokens.pop() or refuse()) if self.depth < MAX_DEPTH else refuse()
        value = self.read(3) if token in "+-" else self.atom(token)
        value, last = -value if token == "-" else value, ""
        while token := self.tokens[-1]:
            beside = token.isalpha() or token in "([{" or (token[0] == "\\" and token[1:2] != "r") or (token[0].isdecimal() and last == "!")
            if LEVEL.get(token, beside * (2 if token in CALLS or token in LOGS else 3)) <= level: break
            sign, last = self.tokens.pop() if token in LEVEL else "*", token
            if token[0] == "!":
                value = self.spend(Fraction(math.prod(range(whole(value, 3000), 0, -len(token)))))
            else:
                value = self.compute(sign, value, self.argument() if sign == "^" and self.tokens[-1] == "{" else self.read(RIGHT[sign]))
        self.depth -= 1
        return value

    def argument(self):
        """A LaTeX argument: a group, or the next digit or atom, as in \\frac12."""
        token = self.tokens.pop() or refuse()
        self.tokens += [token[1:], token[0]] if token.isdigit() and token[1:] else [token]
        return self.read(9)

    def option(self, mark: str, otherwise):
        """The argument after `mark`, as in \\log_2 or \\sin^2, if there is one."""
        return self.argument() if self.tokens[-1] == mark and (mark == "[" or self.tokens.pop()) else otherwise

    def operand(self, degree=Fraction(1)):
        """What a function applies to: a bracket, or the product that follows, as in sin 2x; `degree` is the worth of 1° in it."""
        self.degree = degree
        value, self.degree = self.argument() if self.tokens[-1] in CLOSING else self.read(2), Fraction(1)
        return value

    def atom(self, token: str):
        if token[0].isdecimal() or token[0] == ".":
            if self.tokens[-1] == "_": return Fraction(int(token, whole(self.option("_", 0), 36)))  # 204_5
            return self.spend(Fraction(token))
        if token in CLOSING:
            value = self.read()
            if self.tokens.pop() != CLOSING[token]: raise Unreadable
            if token in "([{": return value
            if token == "|": return complex(abs(value)) if isinstance(value, complex) else abs(value)
            return Fraction((math.floor if token == r"\lfloor" else math.ceil)(round(value.real, 9) if isinstance(value, complex) else value))
        if token == r"\frac": return self.compute("/", self.argument(), self.argument())
        if token == r"\binom":
            n, k = whole(self.argument(), 10**12), whole(self.argument(), 10**12)
            return self.spend(Fraction(math.comb(n, k))) if min(k, abs(n - k)) * n.bit_length() <= MAX_BITS else refuse()
        if token == r"\sqrt":
            degree = self.compute("/", Fraction(1), self.option("[", Fraction(2)))
            return self.compute("^", self.argument(), degree)
        if token in LOGS:
            base, x = self.option("_", LOGS[token]), self.operand()
            if x == 0 or (self.free and not x.real > 0): raise ZeroDivisionError  # with free variables, only where all is real
            return self.compute("/", *(complex(math.log(y.numerator) - math.log(y.denominator)) if isinstance(y, Fraction) and y > 0
                                       else cmath.log(y) for y in (x, base)))  # math.log takes whole numbers of any size
        if token in CALLS:
            power = self.option("^", Fraction(1))
            token, power = (r"\arc" + token[1:], Fraction(1)) if power == -1 else (token, power)
            value = CALLS.get(token, refuse)(self.operand(Fraction(math.pi) / 180))
            return self.compute("^", value if abs(value) > 1e-14 else Fraction(0), power)  # sin π is 0
        if token in CONSTANTS or token == r"\degree": return CONSTANTS.get(token, self.degree)
        name, self.free = (token if token.isalpha() or token in GREEK else refuse()) + str(self.option("_", "")), True
        if (key := (name, self.point)) not in self.known:
            draw = random.Random(f"{key}{self.seed}")
            value = Fraction((-1) ** (self.point > 1) * draw.randint(5, 60), draw.randint(7, 13))
            self.known[key] = Fraction(draw.randint(2, 13) + 20 * (name == "n")) if name in "nkm" else value
        return self.spend(self.known[key])

    def spend(self, value):
        """Charge for an operation with this result; numbers that are too long or not finite are refused."""
        bits = value.numerator.bit_length() + value.denominator.bit_length() if isinstance(value, Fraction) else 0
        self.fuel -= 1 + (bits // 1024) ** 2
        return value if bits <= MAX_BITS and self.fuel > 0 and (bits or cmath.isfinite(value)) else refuse()

    def compute(self, sign: str, a, b):
        if float in (type(a), type(b)) or (sign == "^" and a == 0 and not b.real > 0): raise ZeroDivisionError  # ∞ - ∞, 0^0 and the like
        if sign == "^" and isinstance(a, Fraction) and isinstance(b, Fraction):
            if abs(b) * (a.numerator.bit_length() + a.denominator.bit_length()) > 2 * MAX_BITS: raise Unreadable
            if a < 0 and b.denominator % 2 and b.denominator > 1:  # odd roots of negative numbers are the real ones
                return self.spend(-complex(-a) ** complex(b) * (-1) ** (b.numerator + 1))
            if a < 0 and b.denominator > 1 and self.free: raise ZeroDivisionError  # with free variables, only where all is real
        value = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "^": operator.pow}[sign](a, b)
        value = complex(value) if isinstance(value, float) else value
        if isinstance(value, complex) and sign in "+-" and abs(value) < 1e-12 * abs(a):
            value = Fraction(0) if abs(a) < 1e6 else refuse()  # cancelled down to rounding noise
        return self.spend(value) if value != 0 or a == 0 or isinstance(value, Fraction) else refuse()  # underflow

    def values(self, text: str) -> list:
        """The expression at each of four points, None where it is undefined; the same four times if it has no free variable."""
        results = self.known.setdefault(text, [])
        while len(results) < 4:
            self.tokens, self.depth, self.degree = ["", *TOKEN.findall(text)[::-1]], 0, Fraction(1)
            self.free, self.point = False, len(results)
            try:
                value = self.read()
            except (ZeroDivisionError, ValueError):
                value, self.tokens = None, [""]
            results += [value] * (1 if self.free else 4) if self.tokens == [""] else refuse()
        return results

    # ---- compare -----------------------------------------------------------------------------------------------------

    def same(self, p: str, g: str) -> bool:
        """Whether two texts are the same answer: structures member by member, leaves by value."""
        (p_kind, ps), (g_kind, gs) = [self.shapes.get(text) or self.shapes.setdefault(text, shape(text)) for text in (p, g) if self.spend(1)]
        if p_kind == "()" and g_kind == "list": return self.same(g, p)
        if p_kind == "list" and g_kind == "()" and all(shape(x)[0] == "=" for x in ps):  # x = 3, y = 2 against (3, 2)
            return self.same(f"({','.join(x.split('=')[-1] for x in ps)})", g)
        if "=" in (p_kind, g_kind): return self.same_equation(ps if p_kind == "=" else [p], gs if g_kind == "=" else [g])
        if p_kind == g_kind == ":" and len(ps) == len(gs) == 2 and not all(len(x.strip()) == 2 for x in (ps[1], gs[1])):  # no clock
            return self.close(*(self.values(f"({a})/({b})") for a, b in (ps, gs)))
        if {p_kind, g_kind} in ({"list", "set"}, {"list", "∪"}) or p_kind == g_kind in ("list", "set", "∪"):
            left = list(gs)
            return len(ps) == len(gs) and all(any(self.same(x, y) and not left.remove(y) for y in list(left)) for x in ps)
        if p_kind == g_kind in ("<", "≤", "≠"): return self.proportional(ps[0], gs[0], positive=p_kind != "≠")
        if p_kind == g_kind == "value":
            unit = max(10.0 ** -len(m[2]) if m and len((m[1] + m[2]).lstrip("0")) >= 6 else 0.0 for m in map(DECIMAL.fullmatch, ps + gs))
            return self.close(self.values(ps[0]), self.values(gs[0]), unit)
        return p_kind == g_kind and (ps == gs if p_kind == "word" else len(ps) == len(gs) and all(map(self.same, ps, gs)))

    def same_equation(self, ps: list[str], gs: list[str]) -> bool:
        """Two equations: the same name on the left and equal on the right, or one a multiple of the other. One: what it states."""
        names = [len(side) > 1 and NAME.fullmatch(side[0].replace("+", "")) is not None for side in (ps, gs)]
        if len(ps) == len(gs) == 2 and not (names[0] and ps[0].split() == gs[0].split()):
            return self.proportional(*(f"({a})-({b})" for a, b in (ps, gs)))
        rests = [side[1:] if name else side for side, name in zip((ps, gs), names)]
        return all(self.same(x, rest[-1]) for rest in rests for x in rest[:-1]) and self.same(rests[0][-1], rests[1][-1])

    def proportional(self, p: str, g: str, positive: bool = False) -> bool:
        """Whether p = c g at all points for one c != 0 (c > 0 if `positive`)."""
        ratios = [a / b for a, b in zip(self.values(p), self.values(g)) if a and b]
        return len(ratios) > 1 and self.close(ratios, ratios[:1] * len(ratios)) and not (positive and ratios[0].real < 0)

    def close(self, ps: list, gs: list, unit: float = 0.0) -> bool:
        """Equal at every point where both are defined, at two at least (rules 1 and 2)."""
        pairs = [(p, g) for p, g in zip(ps, gs) if p is not None and g is not None]
        return len(pairs) > 1 and all(p == g or complex in (type(p), type(g)) and float not in (type(p), type(g)) and
                                      abs(complex(p) - complex(g)) <= max(1e-9 * max(abs(p), abs(g)), unit) for p, g in pairs)


NEVER = re.compile(r"\\(?:sum|prod|i*o?int|lim|limsup|liminf|min|max|sup|inf|phantom|[hv]phantom|(?:text)?color(?:box)?|def)(?![a-zA-Z])|(?i:\bnan\b)")


def is_equivalent(prediction: str, gold: str) -> bool:
    """Whether two answers are the same, by the rules above. Never raises, and does a bounded amount of work."""
    if max(len(prediction), len(gold)) > MAX_CHARS or NEVER.search(prediction): return False
    p, g = normalise(prediction), normalise(gold)
    judge, unread = Judge(p + g), bool(p and g)
    for a, b in itertools.product(readings(p), readings(g)) if unread else ():
        try:
            if judge.same(a, b): return True
            unread = False
        except (Unreadable, OverflowError):
            continue
    return unread and p.split() == g.split()


def readings(text: str) -> dict:
    """What a comma can mean: it separates thousands, members, or decimals."""
    return dict.fromkeys([re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3}){1,50}(?![\d,])", lambda number: number[0].replace(",", ""), text), text,
                          re.sub(r"^(-?\d{1,99}),(\d{1,99})$", r"\1.\2", text)])

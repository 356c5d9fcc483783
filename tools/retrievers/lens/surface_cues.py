"""The lenses without a model: countable cues in a text for each attribute, written as words for an
index.

A deterministic stand-in for a model's annotations (tools/retrievers/lens/annotators.py), which finds
signs, not meanings. Stance and failure are put in people's words for them, because queries are
descriptions; proof and authorship in names of our own, because queries are documents that are
counted, too.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

from sextant.tools.text import TermStatistics, content_words, sentences

COUNTED = {  # lens -> what is counted, in words for people
    "recollection": "the rarest words of a text, and its names",
    "stance": "hedges, signs of irony, questions and words of feeling",
    "failure": "turns, requests that come again, complaints, apologies and refusals",
    "proof": "the words of a problem that go with a move of proof",
    "authorship": "function words, punctuation and the length of sentences",
}

HEAVIEST = 30  # words kept for a recollection

_STANCE = {  # what is written -> the signs for it. Matched without regard to case
    "asks rhetorical question": r"\?",
    "doubt sceptical suspicion unproven": r"\b(?:allegedly|supposedly|apparently|so-called|claim(?:s|ed)?|evidence|"
    r"proof|who knows|somehow|conveniently|coincidence|funny how|we are told|trust me)\b",
    "irony sarcasm mocking ridicule": r"\b(?:of course|obviously|surely|how "
    r"(?:convenient|kind|lovely|nice)|bravo|"
    r"genius|thank goodness|what a|great news|good news|congratulations|brave|heroic)\b"
    "|[\"'\u201c][\\w ]{2,30}[\"'\u201d]",
    "hedging cautious uncertain": r"\b(?:perhaps|maybe|might|possibly|i suppose|i guess|sort "
    r"of|kind of|not sure)\b",
    "blame accuses responsible fault": r"\b(?:blame|fault|responsib\w*|caused|guilty|shame|disgrac\w*|excuse)\b",
    "sympathy suffering victims innocent": r"\b(?:poor|child(?:ren)?|mothers?|famil\w+|lost|died|dead|grie\w+|hungry|"
    r"cold|homes?|innocent|bless)\b",
    "fear worry danger threat": r"\b(?:afraid|fear\w*|worr\w+|danger\w*|threat\w*|scar\w+|nervous|warn\w*)\b",
    "anger outrage": r"!|\b(?:enough|outrag\w+|disgust\w*|sick of|fed up|unbelievable)\b",
    "praise admiration support proud": r"\b(?:proud|admir\w+|thank\w*|salute|support\w*|well "
    r"done|respect)\b",
    "hardship prices cost economy": r"\b(?:price\w*|cost\w*|bill\w*|wage\w*|fuel|bread|pay\w*|tax\w*|money|cheap\w*)\b",
    "official euphemism bureaucratic wording": r"\b(?:operation|measures?|incident|situation|regrettabl\w+|necessary|"
    r"authorit\w+|minist\w+|officials?|spokes\w+|statement)\b",
    "exaggerates sweeping certainty": r"\b(?:always|never|everyone|everybody|nobody|every "
    r"single|nothing but)\b",
    "compares analogy": r"\b(?:like a|as if|as though|imagine|same as|reminds)\b",
    "personal experience everyday anecdote": r"\b(?:my|our|me|i)\b",
}
_TURN = re.compile(r"\[(User|Assistant)\]:(.*?)(?=\[(?:User|Assistant)\]:|\Z)", re.DOTALL)
_USER = {
    "user complains corrects assistant": r"\b(?:no,|wrong|incorrect|that's not|not what i|i "
    r"said|i asked|i told you|"
    r"again|you (?:forgot|missed|didn't))",
    "user asks to be brief short": r"\b(?:short|brief|one (?:word|line|sentence)|concise|at "
    r"most|no more than|only)\b",
    "user sets condition constraint rule must": r"\b(?:must|don't|do not|never|without|has "
    r"to|stay|keep|exactly)\b",
    "user thanks satisfied": r"\b(?:thanks|thank you|perfect|great)\b",
    "figures numbers units measurement": r"\d+ ?(?:km|kg|cm|mm|m|g|ml|l|miles?|lbs?|oz|inch\w*|ft|feet|%)\b",
    "role character persona pretend": r"\b(?:you are|act as|pretend|role|character|stay in)\b",
    "text pasted document quoted": r"[\"\u201c][^\"\u201d]{80,}",
    "code program": r"```|\bdef \w|\bfunction\b|;\s*$",
}
_ASSISTANT = {
    "assistant apologises": r"\b(?:sorry|apolog\w+)\b",
    "assistant refuses declines unable": r"\b(?:i can(?:no|')t|i am unable|i'm unable|as an ai|i "
    r"won't|not able to)\b",
    "assistant agrees gives in flatters": r"\b(?:you(?:'re| are) (?:\w+ )?right|great "
    r"question|good point)\b",
    "assistant asks question back": r"\?\s*$",
    "assistant warns disclaimer advises professional": r"\b(?:consult|professional|important to "
    r"note|please note)\b",
    "assistant answers list table": r"^\s*(?:[-*\u2022|]|\d+[.)])\s",
    "assistant figures numbers units conversion": r"\d+ ?(?:km|kg|cm|mm|m|g|ml|l|miles?|lbs?|oz|inch\w*|ft|feet|%)\b",
    "assistant promises claims done": r"\b(?:i have|i've|i will|i'll|done|updated|sent|saved|checked)\b",
    "assistant sure certainly confident": r"\b(?:certainly|sure|of course|definitely|absolutely)\b",
    "assistant quotes source citation": r"\b(?:according to|source|study|doi|http|et al)\b",
}
_PROOF = {
    "move_invariant": r"\b(?:at each (?:turn|step)|each "
    r"time|moves?|step|operation|replac\w+|starting (?:from|with)|"
    r"reach|after (?:some|several|finitely)|can (?:it|they|one|you) ever|at first|turn)\b",
    "move_parity": r"\b(?:even|odd|parity|chessboard|checkerboard|black and "
    r"white|colou?r\w*|dominoe?s?)\b",
    "move_modular": r"\bmod(?:ulo)?\b|\\pmod|\\equiv|\b(?:divisible|divides|remainder|congruen\w+|residue)\b|\\mid",
    "move_pigeonhole": r"\b(?:among|at least two|some two|there (?:are|exist) "
    r"two|distinct|pairwise|any \w+ of)\b",
    "move_extremal": r"\b(?:largest|smallest|maxim\w+|minim\w+|greatest|least|longest|shortest|extrem\w+)\b",
    "move_induction": r"\b(?:for (?:all|every|each) (?:positive "
    r")?(?:integers?|natural)|recursi\w+|sequence)\b|n\+1",
    "move_inequality": r"\\(?:le|ge|leq|geq)\b|\b(?:inequality|at most|at "
    r"least|bound\w*|estimate)\b|[<>]",
    "move_symmetry": r"\b(?:symmetr\w+|random\w*|probability|expected|permut\w+|uniform\w*|equally likely|rotat\w+)\b",
    "move_counting": r"\b(?:how many|number of "
    r"(?:ways|subsets|pairs|sequences)|count\w*|subsets?|binom\w*)\b|\\binom",
    "move_game": r"\b(?:player\w*|game|wins?|winning|strategy|opponent|alternat\w+|takes? turns)\b",
    "move_continuity": r"\b(?:continuous|interval|intermediate|fixed point|zero of|\[0, ?1\])\b",
    "move_derivative": r"\b(?:differentiable|derivative|integral|convex|concave)\b|\\int|f'",
    "move_telescoping": r"\\(?:sum|prod)|\b(?:sum|series|product|converge\w*|diverge\w*)\b",
    "move_polynomial": r"\b(?:polynomial|roots?|coefficients?|degree|factor\w*)\b",
    "move_linear_algebra": r"\b(?:matri(?:x|ces)|determinant|rank|eigenvalue\w*|vector\w*|linear|invertible|trace)\b",
    "move_group": r"\b(?:group|subgroup|ring|field|homomorphism|order of|abelian|ideal)\b",
    "move_graph": r"\b(?:graph|edges?|vert(?:ex|ices)|tree|path|cycle|connected|friends|acquaint\w+|handshake\w*)\b",
    "move_contradiction": r"\b(?:no such|impossible|cannot|does not exist|irrational|prove that "
    r"no|infinitely many)\b",
    "move_construction": r"\b(?:construct|exhibit|find (?:a|an|all)|give an example|does there "
    r"exist|exist\w*)\b",
    "move_geometry": r"\b(?:triangle|circle|plane|points?|line|angle|polygon|sphere|lattice|convex hull)\b",
}
_FUNCTION_WORDS = frozenset(
    """
    about above after again against all although am an another any because before being between both but could did do
    does each either else even ever every few had has have he her here him his how however i indeed instead it its just
    least less like many may me might mine more most much must my neither never no nor not now of off often once one
    only or our out over own perhaps quite rather same shall she should since so some still such than that then there
    therefore these they though thus too under until upon us very was we were what when where whether which while who
    whom whose why would yet you your maybe presumably apparently probably possibly certainly surely obviously
    """.split()  # noqa: SIM905
)
_MARKS = {
    "comma": ",",
    "semicolon": ";",
    "colon": ":",
    "dash": "\u2014|\u2013| - |--",
    "bracket": r"\(",
    "question": r"\?",
    "exclamation": "!",
    "quotation": '["\u201c]',
    "ellipsis": r"\.\.\.|\u2026",
    "digit": r"\d+",
    "contraction": r"\w['\u2019](?:t|s|re|ve|ll|d|m)\b",
    "capitals": r"\b[A-Z]{2,}\b",
}


def surface_cues(lens: str, text: str, statistics: Callable[[], TermStatistics]) -> str:
    """Return the words for the signs of the lens in `text`; "" if there are none."""
    if lens == "recollection":
        return _recollection(text, statistics())
    if lens in ("stance", "proof"):
        return " ".join(_signs(_STANCE if lens == "stance" else _PROOF, text))
    return " ".join({"failure": _failure, "authorship": _authorship}[lens](text))


def _recollection(text: str, statistics: TermStatistics) -> str:
    weight = {
        word: statistics.weight(word) * n**0.5 for word, n in Counter(content_words(text)).items()
    }
    heaviest = sorted(weight, key=lambda word: (-weight[word], word))[:HEAVIEST]
    names = re.findall(
        r"(?<![.!?] )(?<!^)\b[A-Z][a-z]+", text
    )  # capitals, but for the first word of a sentence
    return " ".join([*heaviest, *dict.fromkeys(names)])


def _has_repeats(texts: list[str]) -> bool:
    return any(_alike(first, second) for first, second in pairwise(texts))


def _failure(text: str) -> list[str]:
    turns = _TURN.findall(text)
    requests = [text for speaker, text in turns if speaker == "User"]
    answers = [text for speaker, text in turns if speaker == "Assistant"]
    cues = _signs(_USER, "\n".join(requests)) + _signs(_ASSISTANT, "\n".join(answers))
    several = "long conversation many turns" if len(requests) > 2 else "several turns"
    cues.append(several if len(requests) > 1 else "one turn")
    if _has_repeats(requests):
        cues.append("user repeats the same request again")
    if _has_repeats(answers):
        cues.append("assistant repeats the same answer again")
    if sum(map(len, answers)) > 6 * max(1, sum(map(len, requests))):
        cues.append("assistant answers at length, longer than asked")
    return cues


def _authorship(text: str) -> list[str]:
    """Return the function words of a text, and rates in three steps around the middle of
    English prose.
    """
    tokens = re.findall(r"[a-z']+", text.lower())
    total = max(1, len(tokens))
    cues = [f"has_{word}" for word in sorted(set(tokens) & _FUNCTION_WORDS)]
    for name, pattern in _MARKS.items():
        rate = 100 * len(re.findall(pattern, text)) / total
        cues.append(
            f"{name}_{'none' if rate == 0 else 'few' if rate < 1 else 'some' if rate < 4 else 'many'}"
        )
    lengths = [len(sentence.split()) for sentence in sentences(text)] or [0]
    mean = sum(lengths) / len(lengths)
    cues.append(f"sentences_{'short' if mean < 12 else 'middling' if mean < 20 else 'long'}")
    cues.append("sentences_varied" if max(lengths) > 3 * max(1, min(lengths)) else "sentences_even")
    long = sum(len(word) > 6 for word in tokens) / total
    return [*cues, f"words_{'plain' if long < 0.18 else 'middling' if long < 0.28 else 'learned'}"]


def _signs(signs: Mapping[str, str], text: str) -> list[str]:
    return [
        written
        for written, pattern in signs.items()
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE)
    ]


def _alike(first: str, second: str) -> bool:
    a = set(content_words(first))
    b = set(content_words(second))
    return len(a & b) > 0.6 * max(1, min(len(a), len(b)))

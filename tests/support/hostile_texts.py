"""Texts of the worst kind for a page that shows them: markup, controls, directions, and half a pair."""

HOSTILE = {
    "script": "<script>window.pwned = 1</script>",
    "handler": '<img src=x onerror="window.pwned = 1"><svg onload=window.pwned=1>',
    "end of block": "</script></style></title></textarea><script>window.pwned = 1</script>",
    "comment": "<!-- <script> ]]> --!> <![CDATA[ <script>",
    "quotes": '" onfocus="window.pwned=1" autofocus x="\' onmouseover=\'window.pwned=1',
    "link": "javascript:window.pwned=1 [me](javascript:alert(1)) data:text/html,<script>alert(1)</script>",
    "template": "{{7*7}} ${window.pwned=1} `${alert(1)}` __proto__ constructor",
    "direction": "safe \u202egnp.exe\u202c \u2066left\u2069 \u200b\u200f\ufeff end",
    "controls": "nul \x00 bell \x07 escape \x1b[2J\x1b[31mred\x1b]0;title\x07 \x9b31m carriage\rreturn",
    "entity": "&lt;script&gt; &#x3c;img src=x onerror=alert(1)&#x3e;",
    "separators": "line\u2028separator\u2029end",
}
LONE = "half a pair \ud800 and \udfff another"
